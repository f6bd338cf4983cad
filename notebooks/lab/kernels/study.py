"""Compare searches for fast kernels (explore-then-droplet, random, MetaSchedule); each winner is measured again."""
import json
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from kit.checks import expect
from kit.data import read_tile
from kit.files import replace_file
from kit.losses import list_mle_loss
from kit.models import TileModel
from kit.search import guided
from kit.train import TrainSettings, train
from lab.kernels.carried import definition, known_cost
from lab.kernels.measure import PYTORCH, KernelLab, NoScheduleRan, Trials, processor_name, this_machine, tvm_version
from lab.kernels.metaschedule import Tuner
from lab.kernels.schedules import schedule_space
from lab.kernels.searches import CARRIED, OURS, RANDOM, RIVAL, check_target, confirmations, kernel_search
from lab.kernels.tile_file import kernel_cost, write_kernel_tile
from lab.run.code import code_digest
from lab.run.store import digest_of


def study_kernels(kernels, folder, budget=100, trials=300, rounds=15, seed=0, threads=1, target=None,
                  minutes=None, report=print):
    """Search for the fastest schedule of each kernel in every way, then measure the winners again, in turns.

    A study of the same settings, CPU, TVM, PyTorch and code in `folder` is read; else it is written there. The random
    measurements are written as a `tile` file, too. These take `budget` measurements each: explore-then-droplet, which
    measures its best schedule up to three times, the same with a cost model of other layers (`known_cost`), random,
    and MetaSchedule with its own Droplet, which gets a third. MetaSchedule's evolutionary search takes `trials`. The
    winners are measured again `rounds` times, beside PyTorch's own kernel. A kernel is left out if every schedule of a
    search fails; this is noted in `folder`, too, and the next kernel begins. After so many `minutes` no other kernel
    is begun, but one at least; call again for the next ones. An ImportError if TVM is not installed, a RuntimeError if
    its process ended by itself, or if every schedule of all kernels failed. `target` as of KernelLab, but a ValueError
    if it is a GPU.

    Returns (studies, left). A study per measured kernel: "kernel"; "machine"; "found": {strategy: "measurements",
    "seconds" of the search, "best" (seconds of the winner during the search), "again" (its seconds in each round),
    "schedule" (its codes, None for schedules that are not of `schedule_space`)}; "curves": {strategy: [seconds since
    the start, best so far]}; "codes" and "runtimes" of the random measurements; "untuned" seconds. `left` names the
    kernels that were not begun.
    """
    check_target([RANDOM, OURS, CARRIED], target)
    settings = {"budget": budget, "trials": trials, "rounds": rounds, "seed": seed, "threads": threads,
                "target": target}
    about = [settings, processor_name(target), tvm_version(), torch.__version__, code_digest(__name__)]
    start, tools, begun, studies, faults, left = time.monotonic(), None, 0, [], [], []
    with ExitStack() as opened:
        for kernel in kernels:
            digest = digest_of([kernel, definition(kernel), *about])
            path = Path(folder, f"{kernel.name.replace(' ', '_')}-{digest[:8]}.json")
            study = _known_study(path, kernel, report)
            if study is None:
                if minutes is not None and begun and time.monotonic() - start > 60 * minutes:
                    left.append(kernel.name)
                    continue
                begun, tools = begun + 1, tools or _opened_tools(opened, kernel, threads, target)
                text = json.dumps(_new_study(kernel, settings, path.with_suffix(".npz").name, *tools, report))
                replace_file(path, text)
                study = json.loads(text)
            if "fault" in study:
                faults.append(f"{kernel.name} is left out: {study['fault']}; to try again, remove {path}")
                report(f"note  {faults[-1]}")
                continue
            # always: so the tile file agrees with the study, even after a kill between the two, or a change by hand
            write_kernel_tile(path.with_suffix(".npz"), kernel, study["codes"], study["runtimes"], study["untuned"])
            studies.append(study)
    if faults and not studies and not left:
        raise RuntimeError(faults[0])
    return studies, left


def _opened_tools(opened, kernel, threads, target):
    """(a Tuner, a KernelLab) for all kernels of a study, because TVM starts slowly; they start at the same time."""
    tuner = opened.enter_context(closing(Tuner(threads, target)))
    lab = opened.enter_context(closing(KernelLab(kernel, threads, target)))
    tuner.wait()                                             # its start would disturb the first measurements
    return tuner, lab


def _known_study(path, kernel, report):
    """The study, or the fault, that a file holds; None without a file, or if the file is neither of this kernel."""
    if not path.is_file():
        return None
    try:
        study = json.loads(path.read_text("utf-8"))
        whole = {"machine", "found", "curves", "codes", "runtimes", "untuned", "file"}
        if study["kernel"] == kernel.name and (study.keys() >= whole or study.keys() == {"kernel", "fault"}):
            return study
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    report(f"note  {path} is not a whole study; {kernel.name} is measured again")
    return None


def _new_study(kernel, settings, tile_name, tuner, lab, report):
    """A study of `study_kernels`, measured now; {"kernel", "fault"} if every schedule of a search failed."""
    lab.turn_to(kernel)
    try:
        tried = _searched(tuner, lab, settings, report)
    except NoScheduleRan as fault:
        return {"kernel": kernel.name, "fault": str(fault)}
    report(f"{kernel.name}: measuring the winners again")
    winners = [one.winner(confirmations(name)) for name, one in tried.items()]
    again = lab.measure_rounds([*(job for job, _ in winners), PYTORCH], settings["rounds"])
    found = {name: {"measurements": len(one.seconds), "seconds": float(one.elapsed[-1]), "best": best,
                    "again": seconds.tolist(), "schedule": job if isinstance(job, tuple) else None}
             for (name, one), (job, best), seconds in zip(tried.items(), winners, again.T)}
    found[PYTORCH] = {"measurements": 0, "seconds": 0.0, "best": float(again[:, -1].min()),
                      "again": again[:, -1].tolist(), "schedule": None}
    curves = {name: [one.elapsed.tolist(), np.minimum.accumulate(one.seconds).tolist()]
              for name, one in tried.items() if name != "untuned" and ", as " not in name}
    return {"kernel": kernel.name, **settings, "machine": this_machine(lab.threads, settings["target"]), "found": found,
            "curves": curves, "codes": tried["random"].jobs, "runtimes": tried["random"].seconds.tolist(),
            "untuned": found["untuned"]["best"], "file": tile_name}


def _searched(tuner, lab, settings, report):
    """{strategy: its Trials}, and of MetaSchedule also the first trials, as many and as long as ours."""
    kernel, budget, seed, tried = lab.kernel, settings["budget"], settings["seed"], {}

    def note(name, one):
        tried[name] = one
        report(f"{kernel.name}: {name}: {1e3 * one.seconds.min():.3f} ms, {len(one.seconds)} measurements, "
               f"{one.elapsed[-1]:.0f} s")
    note("untuned", Trials(np.array([lab.measure([None])[0][0]]), np.zeros(1), [None]))
    dims = [len(choice.values) for choice in schedule_space(kernel)]
    for name in (RANDOM, OURS, CARRIED):
        start = lab.begin()
        search, more = kernel_search(name, kernel, known_cost(kernel, threads=lab.threads) if name == CARRIED else None)
        search(lab, dims, budget, np.random.default_rng(seed), **more)
        note(name, lab.tried_since(start))
    meta = tuner.tune(lab, settings["trials"], seed)
    in_time = max(1, int((meta.elapsed <= tried[CARRIED].elapsed[-1]).sum()))
    for name, count in ((RIVAL, len(meta.seconds)), (f"{RIVAL}, as many", budget), (f"{RIVAL}, as long", in_time)):
        note(name, meta.first(count))
    drops = tuner.tune(lab, budget - budget // 3, seed, droplet=budget // 3 + 1)
    note(f"{RIVAL} and its Droplet", drops.first(budget))
    return tried


def learn_and_search(studies, kernels, folder, proposals=10, queries=2000, steps=300, seed=0, report=print):
    """Measure the proposals of tile models that learned from one's own measurements -> DataFrame, one row per kernel.

    A row is made of each study whose kernel is in `kernels`, {name: Kernel}. One model learns from the random
    measurements of all other studies, one from those of this kernel, in `steps`. Each is searched with `queries`, and
    its best `proposals` are measured. `studies` are of `study_kernels` with the same settings and `folder`. Columns, in
    milliseconds: the best measurement per model; "random", the mean over 1,000 draws of as many random schedules;
    "best", the best that the study knows. A DataError if a tile file is damaged, a ValueError without a study of
    `kernels`.
    """
    graphs = {study["kernel"]: read_tile(Path(folder, study["file"])) for study in studies}
    chosen, rows = [study for study in studies if study["kernel"] in kernels], []
    expect(chosen, "studies", list(graphs), f"some of {', '.join(kernels)}")
    with closing(KernelLab(kernels[chosen[0]["kernel"]], chosen[0]["threads"], chosen[0]["target"])) as lab:
        for study in chosen:
            lab.turn_to(kernels[study["kernel"]])
            name, runtimes = study["kernel"], np.array(study["runtimes"])
            teachers = {"model of other kernels": [graph for other, graph in graphs.items() if other != name],
                        "model of its own": [graphs[name]]}
            drawn = np.random.default_rng(seed).choice(runtimes, (1000, proposals))
            best = min(one["best"] for strategy, one in study["found"].items() if strategy != PYTORCH)
            row = {"kernel": name, "best": 1e3 * best, "random": 1e3 * drawn.min(axis=1).mean()}
            row |= {model: 1e3 * _taught_best(lab, taught, proposals, queries, steps, seed)
                    for model, taught in teachers.items() if taught}
            report(", ".join(f"{key} {value:.3f} ms" if key != "kernel" else value for key, value in row.items()))
            rows.append(row)
    return pd.DataFrame(rows)


def _taught_best(lab, taught, proposals, queries, steps, seed):
    """Seconds of the best proposal of a tile model that was trained on the graphs `taught`."""
    model, dims = TileModel(), [len(choice.values) for choice in schedule_space(lab.kernel)]
    train(model, taught, TrainSettings(steps, 64, min(4, len(taught)), seed=seed, validate_every=steps), list_mle_loss)
    return guided(lab, dims, proposals, np.random.default_rng(seed), queries=queries,
                  model=kernel_cost(model, lab.kernel)).best_cost
