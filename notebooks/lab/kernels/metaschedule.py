"""TVM's own tuner, MetaSchedule, measured like every other search: the reference to compare with."""
import os
import sys
import tempfile
import types

import numpy as np

from kit.training import default_workers
from lab.kernels.definitions import kernel_function
from lab.kernels.measure import GPU, TvmChild, kernel_target
from lab.kernels.traces import descend_traces

STARTS = 16                      # best traces that the descent starts from, one after the other
OTHER_INTRINSICS = (GPU, "metal", "rocm", "hexagon", "arm_cpu", "riscv_cpu")


class Tuner:
    """MetaSchedule in a process of its own, for one kernel after the other."""
    # Space, search and cost model are TVM's, with their defaults (64 trials per generation, boosted trees). Only the
    # measurements are made by a KernelLab, as for every other search: it compiles side by side and in memory, several
    # times faster than TVM's builder and runner. Between measurements, MetaSchedule uses all cores.

    def __init__(self, threads=1, target=None):
        self.child = TvmChild(_serve_tuning, threads, threads, target)
        self.ready = False

    def tune(self, lab, trials, seed=0, descent=0):
        """Measure `trials` schedules that MetaSchedule proposes, then up to `descent` of the kit's droplet -> Trials.

        The droplet changes the decisions of MetaSchedule's best traces. `elapsed` does not count the start of TVM.
        `lab`, of the kernel and of this tuner's threads and target, measures.
        """
        self.wait()
        start = lab.begin()
        # this process removes the folder, because an interrupt kills the other one
        with tempfile.TemporaryDirectory(prefix="kit-", ignore_cleanup_errors=True) as folder:
            jobs = self.child.ask(lab.kernel, trials, seed, descent, folder)
            while jobs is not None:
                jobs = self.child.ask(lab.try_jobs(jobs))
        return lab.tried_since(start)

    def wait(self):
        """Return when TVM has started."""
        if not self.ready:
            self.ready = self.child.hear()

    def close(self):
        """End the process."""
        self.child.close()


def without_other_intrinsics(target=None):
    """Keep TVM from building the intrinsics of machines that are not the `target`, which takes 15 s."""
    for name in set(OTHER_INTRINSICS) - {target}:
        sys.modules[f"tvm.s_tir.tensor_intrin.{name}"] = types.ModuleType(name)


def _serve_tuning(line, threads, target):
    """Work of the child: tune a kernel per request of `Tuner`, sending schedules and receiving what they took."""
    import logging

    import tvm
    without_other_intrinsics(target)
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.runner.local_runner import LocalRunnerFuture
    modules = {}                                                 # where it would be built: the scheduled module as JSON

    @derived_object
    class AsJson(ms.builder.PyBuilder):
        """Builds nothing: the process that measures a module also compiles it."""

        def build(self, build_inputs):
            folders = [tempfile.mkdtemp(dir=folder) for _ in build_inputs]       # the tuner deletes each
            paths = [os.path.join(one, "module") for one in folders]
            modules.update(zip(paths, (tvm.ir.save_json(each.mod) for each in build_inputs)))
            return [ms.builder.BuilderResult(path, None) for path in paths]

    @derived_object
    class InLab(ms.runner.PyRunner):
        """Lets the lab measure."""

        def run(self, runner_inputs):
            answers = measure([modules[each.artifact_path] for each in runner_inputs])
            return [LocalRunnerFuture(None if fault else [seconds], fault or None) for seconds, fault in answers]

    def measure(jobs):
        line.send(jobs)
        answers, = line.recv()
        return answers

    logging.disable(logging.CRITICAL)
    goal = kernel_target(threads, target)
    line.send(True)
    while True:
        try:
            kernel, trials, seed, descent, folder = line.recv()
        except EOFError:
            return
        modules.clear()
        module = tvm.IRModule({"main": kernel_function(kernel)})
        database = ms.tune_tir(module, goal, folder, trials, builder=AsJson(), runner=InLab(),
                               num_tuning_cores=default_workers("cpu"), seed=seed + 1)      # from 1 on
        if descent:
            context = ms.TuneContext(module, target=goal, space_generator="post-order-apply",
                                     search_strategy="replay-trace", num_threads=threads, task_name="main")
            context.generate_design_space()
            best = database.get_top_k(database.commit_workload(context.mod), STARTS)
            descend_traces([record.trace for record in best], context.mod, context, lambda jobs: [
                seconds for seconds, _ in measure(jobs)], descent, np.random.default_rng(seed), target == GPU)
        line.send(None)
