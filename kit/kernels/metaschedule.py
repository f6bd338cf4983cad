"""TVM's own tuner, MetaSchedule, measured as every other search is: what they are up against."""
import os
import sys
import tempfile
import time
import types
from typing import NamedTuple

import numpy as np

from kit.kernels.definitions import kernel_function
from kit.kernels.lab import KernelLab, TvmChild, this_cpu

OTHER_INTRINSICS = ("cuda", "metal", "rocm", "hexagon", "arm_cpu", "riscv_cpu")


class MetaTrials(NamedTuple):
    """What MetaSchedule measured, in its order; p trials."""
    seconds: np.ndarray      # (p,) of the kernel; np.inf where it failed
    elapsed: np.ndarray      # (p,) seconds since the start of the search
    modules: dict            # {trial: its scheduled module as JSON}, where it was the best so far


def meta_schedule(kernel, trials, seed=0, threads=1, strategy="evolutionary", droplet=0):
    """Tune a kernel with MetaSchedule.

    Its space, search and cost model are TVM's, with their defaults (64 trials a generation, boosted trees). Only the
    measurements are made by a `KernelLab`, as for every other search: compiled side by side and in memory, which is
    several times faster than TVM's own builder and runner, and timed alike. Starting TVM is not counted in `elapsed`.

    Parameters
    ----------
    kernel : Kernel
    trials : int
        Measurements.
    seed : int
    threads : int
        Of the kernel and of the tuner.
    strategy : str
        "evolutionary", or "replay-trace": random schedules of its space.
    droplet : int
        Measurements of its Droplet post-optimisation, which starts at the best; 0: none. It gives up far earlier when
        none of the neighbours that it tries is better.

    Returns
    -------
    MetaTrials

    Raises
    ------
    ImportError
        If TVM is not installed.
    RuntimeError
        If the process with TVM ended by itself.
    """
    child = TvmChild(tune_kernel, threads, kernel, trials, seed, threads, strategy, droplet)
    try:
        return MetaTrials(*child.hear())
    finally:
        child.close()


def tune_kernel(line, kernel, trials, seed, threads, strategy, droplet):
    """What the process does; sends the fields of MetaTrials."""
    import logging

    import tvm
    for name in OTHER_INTRINSICS:            # of other machines; building them takes 15 s of a process's start
        sys.modules[f"tvm.s_tir.tensor_intrin.{name}"] = types.ModuleType(name)
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.post_optimization import PostOpt
    modules, found, best = [], [], {}

    @derived_object
    class AsJson(ms.builder.PyBuilder):
        """Builds nothing: what is measured is compiled in the process that measures it."""

        def build(self, build_inputs):
            modules.extend(tvm.ir.save_json(each.mod) for each in build_inputs)
            first = len(modules) - len(build_inputs)             # the folder of a path is deleted by the tuner
            return [ms.builder.BuilderResult(os.path.join(tempfile.mkdtemp(dir=folder), str(first + i)), None)
                    for i in range(len(build_inputs))]

    @derived_object
    class Measured(ms.runner.PyRunnerFuture):
        """A measurement that is there already."""

        def __init__(self, seconds, fault):
            super().__init__()
            self.seconds, self.fault = seconds, fault

        def done(self):
            return True

        def result(self):
            return ms.runner.RunnerResult(None if self.fault else [self.seconds], self.fault or None)

    @derived_object
    class InLab(ms.runner.PyRunner):
        """Lets the lab measure."""

        def run(self, runner_inputs):
            answers = []
            for i in range(0, len(runner_inputs), 2 * threads):  # what the lab does at once, for the times
                places = [int(os.path.basename(each.artifact_path)) for each in runner_inputs[i:i + 2 * threads]]
                part, known = lab.measure([modules[place] for place in places]), time.perf_counter()
                for place, (seconds, _) in zip(places, part):
                    if seconds < min([took for took, _ in found], default=np.inf):
                        best[len(found)] = modules[place]
                    found.append((seconds, known - start))
                    modules[place] = None
                answers += [Measured(*answer) for answer in part]
            return answers

    logging.disable(logging.CRITICAL)
    target = this_cpu(threads)
    with KernelLab(kernel, threads) as lab, tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        ms.tune_tir(tvm.IRModule({"main": kernel_function(kernel)}), target, folder, trials, builder=AsJson(),
                    runner=InLab(), strategy=strategy, num_tuning_cores=threads, seed=seed + 1)     # from 1 on
        if droplet:
            ms.builder.LocalBuilder, ms.runner.LocalRunner = lambda **_: AsJson(), lambda **_: InLab()
            PostOpt(folder, target, droplet).run()
    line.send((*map(np.array, zip(*found)), best))
