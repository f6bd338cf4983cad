"""Compare searches for fast kernels (explore-then-droplet, random, MetaSchedule); each winner is measured again."""
import json
import time
from contextlib import closing
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

from kit.data import read_tile
from kit.files import replace_file
from kit.kernels.carried import definition, known_cost
from kit.kernels.measure import KernelLab, Trials, processor_name
from kit.kernels.metaschedule import meta_schedule
from kit.kernels.schedules import schedule_space
from kit.kernels.searches import CARRIED, OURS, RANDOM, RIVAL, check_target, confirmations, kernel_search
from kit.kernels.tile_file import kernel_cost, write_kernel_tile
from kit.losses import list_mle_loss
from kit.models import TileModel
from kit.run import from_code
from kit.search import fingerprint, guided
from kit.train import TrainSettings, train


def study_kernel(kernel, folder, budget=100, trials=300, rounds=15, seed=0, threads=1, target=None, report=print):
    """Search for the fastest schedule of a kernel in every way, then measure the winners again, in turns.

    A study of the same settings, CPU and code in `folder` is read; else it is written there. The random measurements
    are written as a `tile` file, too. These take `budget` measurements each: explore-then-droplet, which measures its
    best schedule up to three times, the same with a cost model of other layers (`known_cost`), random, and
    MetaSchedule with its own Droplet, which gets a third. MetaSchedule's evolutionary search takes `trials`. The
    winners are measured again `rounds` times. An ImportError if TVM is not installed, a RuntimeError if its process
    ended by itself or every schedule of a search failed. `target` as of KernelLab, but a ValueError if it is a GPU.

    Returns "kernel"; "machine"; "found": {strategy: "measurements", "seconds" of the search, "best" (seconds of the
    winner during the search), "again" (its seconds in each round)}; "curves": {strategy: [seconds since the start, best
    so far]}; "codes" and "runtimes" of the random measurements; "untuned" seconds.
    """
    check_target([RANDOM, OURS, CARRIED], target)
    settings = {"budget": budget, "trials": trials, "rounds": rounds, "seed": seed, "threads": threads,
                "target": target}
    about = fingerprint([kernel, definition(kernel), settings, processor_name(target), from_code("kit.kernels.study")])
    path = Path(folder, f"{kernel.name.replace(' ', '_')}-{about[:8]}.json")
    study = _known_study(path, kernel, report)
    if study is None:
        study = json.dumps(_new_study(kernel, settings, path.with_suffix(".npz").name, report))
        replace_file(path, study)
        study = json.loads(study)
    # always: the tile file says what the study says, even if a kill came between the two, or somebody changed it
    write_kernel_tile(path.with_suffix(".npz"), kernel, study["codes"], study["runtimes"], study["untuned"])
    return study


def _known_study(path, kernel, report):
    """The study that a file holds; None without a file, or if the file is no study of this kernel."""
    if not path.is_file():
        return None
    try:
        study = json.loads(path.read_text("utf-8"))
        if study["kernel"] == kernel.name and study.keys() >= {"machine", "found", "curves", "codes", "runtimes",
                                                               "untuned", "file"}:
            return study
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    report(f"note  {path} is not a whole study; {kernel.name} is measured again")
    return None


def _new_study(kernel, settings, tile_name, report):
    """What `study_kernel` returns, measured now."""
    budget, trials, rounds, seed, threads, target = settings.values()
    with closing(KernelLab(kernel, threads, target)) as lab:
        tried = _searched(lab, kernel, budget, trials, seed, target, report)
        report(f"{kernel.name}: measuring the winners again")
        winners = [one.winner(confirmations(name)) for name, one in tried.items()]
        again = lab.measure_rounds([job for job, _ in winners], rounds)
    found = {name: {"measurements": len(one.seconds), "seconds": float(one.elapsed[-1]),
                    "best": best, "again": seconds.tolist()}
             for (name, one), (_, best), seconds in zip(tried.items(), winners, again.T)}
    curves = {name: [one.elapsed.tolist(), np.minimum.accumulate(one.seconds).tolist()]
              for name, one in tried.items() if name != "untuned" and ", as " not in name}
    machine = {"cpu": processor_name(target), "threads": threads, "tvm": version("apache-tvm"),
               "date": date.today().isoformat()}
    return {"kernel": kernel.name, **settings, "machine": machine, "found": found, "curves": curves,
            "codes": tried["random"].jobs, "runtimes": tried["random"].seconds.tolist(),
            "untuned": found["untuned"]["best"], "file": tile_name}


def _searched(lab, kernel, budget, trials, seed, target, report):
    """{strategy: its Trials}, and of MetaSchedule also the first trials, as many and as long as ours."""
    tried = {}

    def note(name, one):
        tried[name] = one
        report(f"{kernel.name}: {name}: {1e3 * one.seconds.min():.3f} ms, {len(one.seconds)} measurements, "
               f"{one.elapsed[-1]:.0f} s")
    note("untuned", Trials(np.array([lab.measure([None])[0][0]]), np.zeros(1), [None]))
    dims = [len(choice.values) for choice in schedule_space(kernel)]
    for name in (RANDOM, OURS, CARRIED):
        lab.trials, start = [], time.perf_counter()
        search, more = kernel_search(name, kernel, known_cost(kernel) if name == CARRIED else None)
        search(lab, dims, budget, np.random.default_rng(seed), **more)
        note(name, lab.tried_since(start))
    meta = meta_schedule(kernel, trials, seed, lab.threads, target=target)
    in_time = max(1, int((meta.elapsed <= tried[OURS].elapsed[-1]).sum()))
    for name, count in ((RIVAL, len(meta.seconds)), (f"{RIVAL}, as many", budget), (f"{RIVAL}, as long", in_time)):
        note(name, meta.first(count))
    drops = meta_schedule(kernel, budget - budget // 3, seed, lab.threads, droplet=budget // 3 + 1,
                          target=target)
    note(f"{RIVAL} and its Droplet", drops.first(budget))
    return tried


def learn_and_search(studies, kernels, folder, proposals=10, queries=2000, steps=300, seed=0, report=print):
    """Measure the proposals of tile models that learned from one's own measurements -> DataFrame, one row per kernel.

    A row is made of each study whose kernel is in `kernels`, {name: Kernel}. One model learns from the random
    measurements of all other studies, one from those of this kernel, in `steps`. Each is searched with `queries`, and
    its best `proposals` are measured. `studies` are of `study_kernel` with the same settings and `folder`. Columns, in
    milliseconds: the best measurement per model; "random", the mean over 1,000 draws of as many random schedules;
    "best", the best that the study knows. A DataError if a tile file is damaged.
    """
    graphs, rows = {study["kernel"]: read_tile(Path(folder, study["file"])) for study in studies}, []
    for study in (study for study in studies if study["kernel"] in kernels):
        kernel = kernels[study["kernel"]]
        teachers = {"model of other kernels": [g for name, g in graphs.items() if name != kernel.name],
                    "model of its own": [graphs[kernel.name]]}
        drawn = np.random.default_rng(seed).choice(np.array(study["runtimes"]), (1000, proposals))
        best = min(one["best"] for one in study["found"].values())
        row = {"kernel": kernel.name, "best": 1e3 * best, "random": 1e3 * drawn.min(axis=1).mean()}
        with closing(KernelLab(kernel, study["threads"], study["target"])) as lab:
            for name, taught in teachers.items():
                if taught:
                    row[name] = 1e3 * _taught_best(lab, kernel, taught, proposals, queries, steps, seed)
        report(", ".join(f"{name} {value:.3f} ms" if name != "kernel" else value for name, value in row.items()))
        rows.append(row)
    return pd.DataFrame(rows)


def _taught_best(lab, kernel, taught, proposals, queries, steps, seed):
    """Seconds of the best proposal of a tile model that was trained on the graphs `taught`."""
    model, dims = TileModel(), [len(choice.values) for choice in schedule_space(kernel)]
    train(model, taught, TrainSettings(steps, 64, min(4, len(taught)), seed=seed, validate_every=steps), list_mle_loss)
    return guided(lab, dims, proposals, np.random.default_rng(seed), queries=queries,
                  model=kernel_cost(model, kernel)).best_cost
