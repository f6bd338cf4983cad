"""Searches for fast kernels compared: explore-then-droplet, random and MetaSchedule, each winner measured again."""
import hashlib
import json
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from kit.data import read_tile
from kit.files import replace_file
from kit.kernels.definitions import schedule_space
from kit.kernels.lab import KernelLab
from kit.kernels.metaschedule import meta_schedule
from kit.kernels.tiles import kernel_cost, write_kernel_tile
from kit.losses import list_mle_loss
from kit.models import TileModel
from kit.plots import MARKS, PALETTE, QUIET, dress, new_axes
from kit.search import explore_then_droplet, guided, random_search
from kit.train import TrainSettings, train
from kit.training import device_name

OURS, RIVAL = "explore then droplet", "MetaSchedule"
TIE = 0.05                       # identical schedules differ by 10% and more between runs, by 1 to 3% in turns


def study_kernel(kernel, folder, budget=100, trials=300, rounds=15, seed=0, threads=1, report=print):
    """Search for the fastest schedule of a kernel in every way, and measure what they found again, in turns.

    Parameters
    ----------
    kernel : Kernel
    folder : str or Path
        A finished study of the same settings is read there instead, else written when it is finished. Random's
        measurements are also written there as a `tile` file.
    budget : int
        Measurements of explore-then-droplet, random, and MetaSchedule with its own Droplet: two thirds of them are
        MetaSchedule's, the rest Droplet's.
    trials : int
        Measurements of MetaSchedule's evolutionary search.
    rounds : int
        How often the winners are measured again.
    seed : int
    threads : int
    report : callable
        Called with one line of text at each step.

    Returns
    -------
    dict
        "kernel"; "machine"; "found": {strategy: "measurements", "seconds" that the search took, "best", its seconds
        when found, and "again", the seconds of each round}; "curves": {strategy: ["seconds since the start", "best so
        far"]}; "codes" and "runtimes" of random's measurements, "untuned" seconds.

    Raises
    ------
    ImportError
        If TVM is not installed.
    RuntimeError
        If the process with TVM ended by itself.
    """
    settings = {"budget": budget, "trials": trials, "rounds": rounds, "seed": seed, "threads": threads}
    slug, label = kernel.name.replace(" ", "_"), hashlib.sha256(repr((kernel, settings)).encode()).hexdigest()[:8]
    path = Path(folder, f"{slug}-{label}.json")
    if path.is_file():
        return json.loads(path.read_text())
    space = schedule_space(kernel)
    dims, ordered = [len(choice.values) for choice in space], [choice.ordered for choice in space]
    jobs, found, curves = {}, {}, {}

    def note(name, known, seconds, choose):
        best = int(np.argmin(seconds))
        jobs[name], found[name] = choose(best), {"measurements": len(seconds), "seconds": float(known[-1]),
                                                 "best": float(seconds[best])}
        report(f"{kernel.name}: {name}: {1e3 * seconds[best]:.3f} ms, {len(seconds)} measurements, {known[-1]:.0f} s")
    with KernelLab(kernel, threads) as lab:
        (untuned, _), = lab.measure([None])
        note("untuned", [0.0], [untuned], lambda _: None)
        for name, search, given in (("random", random_search, {}), (OURS, explore_then_droplet, {"ordered": ordered})):
            lab.trials, start = [], time.perf_counter()
            result = search(lab, dims, budget, np.random.default_rng(seed), **given)
            known, seconds, codes = zip(*((at - start, took, job) for at, took, job in lab.trials))
            curves[name] = [list(known), result.trace.tolist()]
            note(name, known, seconds, codes.__getitem__)
            if name == "random":
                drawn, runtimes = codes, seconds
        meta = meta_schedule(kernel, trials, seed, threads)
        curves[RIVAL] = [meta.elapsed.tolist(), np.minimum.accumulate(meta.seconds).tolist()]
        in_time = max(1, int((meta.elapsed <= found[OURS]["seconds"]).sum()))
        for name, p in ((RIVAL, len(meta.seconds)), (f"{RIVAL}, as many", min(budget, len(meta.seconds))),
                        (f"{RIVAL}, as long", in_time)):
            note(name, meta.elapsed[:p], meta.seconds[:p], meta.modules.__getitem__)
        drops = meta_schedule(kernel, budget - budget // 3, seed, threads, droplet=budget // 3 + 1)
        part = slice(budget)
        curves[f"{RIVAL} and its Droplet"] = [drops.elapsed[part].tolist(),
                                              np.minimum.accumulate(drops.seconds[part]).tolist()]
        note(f"{RIVAL} and its Droplet", drops.elapsed[part], drops.seconds[part], drops.modules.__getitem__)
        report(f"{kernel.name}: measuring the winners again")
        again = lab.measure_rounds(list(jobs.values()), rounds)
    for name, seconds in zip(jobs, again.T):
        found[name]["again"] = seconds.tolist()
    study = {"kernel": kernel.name, **settings, "machine": this_machine(threads), "found": found, "curves": curves,
             "codes": drawn, "runtimes": runtimes, "untuned": untuned, "file": str(path.with_suffix(".npz").name)}
    write_kernel_tile(path.with_suffix(".npz"), kernel, drawn, runtimes, untuned)
    replace_file(path, json.dumps(study))
    return json.loads(json.dumps(study))


def this_machine(threads):
    """What the measurements were made on.

    Parameters
    ----------
    threads : int

    Returns
    -------
    dict of str to str or int
    """
    return {"cpu": device_name(torch.device("cpu")), "threads": threads, "tvm": version("apache-tvm"),
            "date": date.today().isoformat()}


def learn_and_search(studies, kernels, folder, proposals=10, queries=2000, steps=300, seed=0, report=print):
    """What a tile model learned from one's own measurements is good for: its proposals, measured.

    For each kernel two models: one of the random measurements of all other kernels, one of this kernel's own. Each is
    searched, and its best proposals are measured, beside as many random schedules.

    Parameters
    ----------
    studies : list of dict
        Of `study_kernel`, of the same settings.
    kernels : dict of str to Kernel
    folder : str or Path
        Where `study_kernel` wrote.
    proposals : int
        Measured of each model.
    queries : int
        Of a model.
    steps : int
        Of a training.
    seed : int
    report : callable
        Called with one line of text for each kernel.

    Returns
    -------
    DataFrame
        One row a kernel: milliseconds of the best of `proposals` measurements, "random" in the mean of 1,000 draws
        from the study's, and of the best that the study knows, "best".

    Raises
    ------
    DataError
        If a tile file is damaged.
    ImportError
        If TVM is not installed.
    RuntimeError
        If the process with TVM ended by itself.
    """
    graphs, rows = {study["kernel"]: read_tile(Path(folder, study["file"])) for study in studies}, []
    for study in studies:
        kernel, runtimes = kernels[study["kernel"]], np.array(study["runtimes"])
        dims = [len(choice.values) for choice in schedule_space(kernel)]
        teachers = {"model of other kernels": [g for name, g in graphs.items() if name != kernel.name],
                    "model of its own": [graphs[kernel.name]]}
        drawn = np.random.default_rng(seed).choice(runtimes, (1000, proposals))
        best = min(one["best"] for name, one in study["found"].items())
        row = {"kernel": kernel.name, "best": 1e3 * best, "random": 1e3 * drawn.min(axis=1).mean()}
        with KernelLab(kernel, study["threads"]) as lab:
            for name, taught in teachers.items():
                if taught:
                    model = TileModel()
                    train(model, taught, TrainSettings(steps, 64, min(4, len(taught)), seed=seed,
                                                       validate_every=steps), list_mle_loss)
                    result = guided(lab, dims, proposals, np.random.default_rng(seed), queries=queries,
                                    model=kernel_cost(model, kernel))
                    row[name] = 1e3 * result.best_cost
        report(", ".join(f"{name} {value:.3f} ms" if name != "kernel" else value for name, value in row.items()))
        rows.append(row)
    return pd.DataFrame(rows)


def study_table(studies):
    """Studies as one table.

    Parameters
    ----------
    studies : list of dict
        Of `study_kernel`.

    Returns
    -------
    DataFrame
        One row a kernel and strategy: "ms" is the median of the rounds after the search, "low" and "high" their
        quartiles; "ratio" is the median of the rounds' quotients with MetaSchedule's winner, and "verdict" calls gaps
        below 5% a tie.
    """
    rows = []
    for study in studies:
        rival = np.array(study["found"][RIVAL]["again"])
        for name, one in study["found"].items():
            again = np.array(one["again"])
            ratio = float(np.median(again / rival))
            low, middle, high = 1e3 * np.quantile(again, (0.25, 0.5, 0.75))
            verdict = "tie" if abs(ratio - 1) <= TIE else "faster" if ratio < 1 else "slower"
            rows.append({"kernel": study["kernel"], "strategy": name, "measurements": one["measurements"],
                         "seconds": one["seconds"], "ms": middle, "low": low, "high": high, "ratio": ratio,
                         "verdict": "" if name == RIVAL else verdict, "rounds": len(again), **study["machine"]})
    return pd.DataFrame(rows)


def study_summary(table):
    """How often our search is no slower than MetaSchedule's, and how long the two took.

    Parameters
    ----------
    table : DataFrame
        Of `study_table`.

    Returns
    -------
    str
    """
    ours, rival = (table[table["strategy"] == name].set_index("kernel") for name in (OURS, RIVAL))
    good, quick = ours["verdict"] != "slower", ours["seconds"] < rival["seconds"]
    return (f"{OURS} with {ours['measurements'].max()} measurements against {RIVAL} with "
            f"{rival['measurements'].max()}: faster on {(ours['verdict'] == 'faster').sum()}, a tie on "
            f"{(ours['verdict'] == 'tie').sum()}, slower on {(~good).sum()} of {len(ours)} kernels; no slower and "
            f"found in less time on {(good & quick).sum()}; searches took {ours['seconds'].sum():.0f} s and "
            f"{rival['seconds'].sum():.0f} s")


def draw_study(table, ax=None, title=""):
    """Draw the time of each winner over that of MetaSchedule's; the band is a tie.

    Parameters
    ----------
    table : DataFrame
        Of `study_table`.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
    """
    kernels = list(dict.fromkeys(table["kernel"]))
    ax = new_axes(ax, height=1.5 + 0.45 * len(kernels), width=10)
    tuned = [name for name in dict.fromkeys(table["strategy"]) if name not in ("untuned", RIVAL)]
    ax.axvspan(1 - TIE, 1 + TIE, color="0.92", label=f"tie with {RIVAL}")
    ax.axvline(1, color=QUIET, linewidth=1)
    for place, name in enumerate(tuned):
        ratio = table[table["strategy"] == name].set_index("kernel")["ratio"].reindex(kernels)
        ax.plot(ratio, np.arange(len(kernels)) + 0.12 * (place - len(tuned) / 2 + 0.5), MARKS[place], markersize=6,
                color=PALETTE[place], label=name, markerfacecolor=PALETTE[place] if name == OURS else "white")
    untuned = table[table["strategy"] == "untuned"].set_index("kernel")["ratio"]
    ax.set_yticks(range(len(kernels)), [f"{name}\nuntuned: {untuned[name]:.0f} x" for name in kernels])
    ax.invert_yaxis()
    return dress(ax, title, f"time over that of {RIVAL}'s kernel (left is faster)", "", grid="x")


def draw_curves(study, ax=None, title=""):
    """Draw the best kernel so far against the seconds of each search.

    Parameters
    ----------
    study : dict
        Of `study_kernel`.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
    """
    ax = new_axes(ax)
    for place, (name, (known, best)) in enumerate(study["curves"].items()):
        ax.step(known, 1e3 * np.array(best), where="post", color=PALETTE[place], label=f"{name}, {len(best)}",
                linewidth=2 if name == OURS else 1.2, linestyle="-" if name == OURS else "--")
    least = 1e3 * min(min(best) for _, best in study["curves"].values())
    ax.set(xscale="log", ylim=(0.97 * least, 2 * least))
    return dress(ax, title, "seconds of search, TVM's start not counted", "best kernel so far, ms")
