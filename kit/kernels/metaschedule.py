"""TVM's own tuner, MetaSchedule, measured like every other search: the reference to compare with."""
import os
import sys
import tempfile
import time
import types
from contextlib import closing

import numpy as np

from kit.kernels.definitions import kernel_function
from kit.kernels.measure import GPU, KernelLab, Trials, TvmChild, kernel_target
from kit.kernels.traces import descend_traces
from kit.training import default_workers

STARTS = 16                      # best traces that the descent starts from, one after the other
OTHER_INTRINSICS = (GPU, "metal", "rocm", "hexagon", "arm_cpu", "riscv_cpu")


def meta_schedule(kernel, trials, seed=0, threads=1, droplet=0, descent=0, target=None, evolve=True):
    """Measure `trials` schedules that MetaSchedule proposes, then about `droplet` of its own Droplet -> Trials.

    Or, with `descent`, up to so many of the kit's droplet, which changes the decisions of MetaSchedule's best traces.
    Without `evolve`, the schedules are drawn at random from MetaSchedule's space.
    """
    # Space, search and cost model are TVM's, with their defaults (64 trials per generation, boosted trees). Only the
    # measurements are made by a KernelLab, as for every other search: it compiles side by side and in memory, several
    # times faster than TVM's builder and runner. Between measurements, MetaSchedule uses all cores. `elapsed` does not
    # count the start of TVM. The Droplet optimisation starts at the best trial and ends early when none of the
    # neighbours that it tries is better.
    with closing(TvmChild(_tune_kernel, threads, kernel, trials, seed, threads, droplet, descent, target,
                          evolve)) as child:
        return Trials(*child.hear())


def without_other_intrinsics(target=None):
    """Keep TVM from building the intrinsics of machines that are not the `target`, which takes 15 s."""
    for name in set(OTHER_INTRINSICS) - {target}:
        sys.modules[f"tvm.s_tir.tensor_intrin.{name}"] = types.ModuleType(name)


def _tune_kernel(line, kernel, trials, seed, threads, droplet, descent, target, evolve):
    """Work of the child: tune, and send the fields of Trials."""
    import logging

    import tvm
    without_other_intrinsics(target)
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.post_optimization import PostOpt
    from tvm.s_tir.meta_schedule.runner.local_runner import LocalRunnerFuture
    modules = []

    @derived_object
    class AsJson(ms.builder.PyBuilder):
        """Builds nothing: the process that measures a module also compiles it."""

        def build(self, build_inputs):
            modules.extend(tvm.ir.save_json(each.mod) for each in build_inputs)
            first = len(modules) - len(build_inputs)             # the tuner deletes the folder of each path
            return [ms.builder.BuilderResult(os.path.join(tempfile.mkdtemp(dir=folder), str(first + i)), None)
                    for i in range(len(build_inputs))]

    @derived_object
    class InLab(ms.runner.PyRunner):
        """Lets the lab measure."""

        def run(self, runner_inputs):
            answers = lab.try_jobs([modules[int(os.path.basename(each.artifact_path))] for each in runner_inputs])
            return [LocalRunnerFuture(None if fault else [seconds], fault or None) for seconds, fault in answers]

    logging.disable(logging.CRITICAL)
    goal = kernel_target(threads, target)
    with closing(KernelLab(kernel, threads, target)) as lab, tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        module = tvm.IRModule({"main": kernel_function(kernel)})
        database = ms.tune_tir(module, goal, folder, trials, builder=AsJson(), runner=InLab(),
                               strategy="evolutionary" if evolve else "replay-trace",
                               cost_model="xgb" if evolve else "random",           # draws ask no cost model
                               num_tuning_cores=default_workers("cpu"), seed=seed + 1)          # from 1 on
        if descent:
            context = ms.TuneContext(module, target=goal, space_generator="post-order-apply",
                                     search_strategy="replay-trace", num_threads=threads, task_name="main")
            context.generate_design_space()
            best = database.get_top_k(database.commit_workload(context.mod), STARTS)
            descend_traces([record.trace for record in best], context.mod, context, lambda jobs: [
                seconds for seconds, _ in lab.try_jobs(jobs)], descent, np.random.default_rng(seed), target == GPU)
        if droplet:
            ms.builder.LocalBuilder, ms.runner.LocalRunner = lambda **_: AsJson(), lambda **_: InLab()
            PostOpt(folder, goal, droplet).run()
        line.send(tuple(lab.tried_since(start)))
