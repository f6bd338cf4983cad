"""TVM's own tuner, MetaSchedule, measured like every other search: the reference to compare with."""
import os
import sys
import tempfile
import types

from kit.train_parts.pool import default_workers
from lab.kernels.bench import TvmChild, kernel_target
from lab.kernels.definitions import kernel_function

OTHER_INTRINSICS = ("cuda", "metal", "rocm", "hexagon", "arm_cpu", "riscv_cpu")


class Tuner:
    """MetaSchedule in a process of its own, for one kernel after the other."""
    # Space, search and cost model are TVM's, with their defaults (64 trials per generation, boosted trees). Only the
    # measurements are made by a KernelLab, as for every other search: it compiles side by side and in memory, several
    # times faster than TVM's builder and runner. Between measurements, MetaSchedule uses all cores.

    def __init__(self, threads=1):
        self.child = TvmChild(_serve_tuning, threads, threads)
        self.ready = False

    def tune(self, lab, trials, seed=0):
        """Measure `trials` schedules that MetaSchedule proposes -> Trials.

        `elapsed` does not count the start of TVM. `lab`, of the kernel and of this tuner's threads, measures.
        """
        if not self.ready:                                       # TVM has not started yet
            self.ready = self.child.hear()
        start = lab.begin()
        # this process removes the folder, because an interrupt kills the other one
        with tempfile.TemporaryDirectory(prefix="kit-", ignore_cleanup_errors=True) as folder:
            jobs = self.child.ask(lab.kernel, trials, seed, folder)
            while jobs is not None:
                jobs = self.child.ask(lab.try_jobs(jobs))
        return lab.tried_since(start)

    def close(self):
        """End the process."""
        self.child.close()


def without_other_intrinsics():
    """Keep TVM from building the intrinsics of other machines, which takes 15 s."""
    for name in OTHER_INTRINSICS:
        sys.modules[f"tvm.s_tir.tensor_intrin.{name}"] = types.ModuleType(name)


def _serve_tuning(line, threads):
    """Work of the child: tune a kernel per request of `Tuner`, sending schedules and receiving what they took."""
    import logging

    import tvm
    without_other_intrinsics()
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
    goal = kernel_target(threads)
    line.send(True)
    while True:
        try:
            kernel, trials, seed, folder = line.recv()
        except EOFError:
            return
        modules.clear()
        module = tvm.IRModule({"main": kernel_function(kernel)})
        ms.tune_tir(module, goal, folder, trials, builder=AsJson(), runner=InLab(),
                    num_tuning_cores=default_workers("cpu"), seed=seed + 1)      # from 1 on
        line.send(None)
