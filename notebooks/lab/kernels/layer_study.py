"""Searches of many layers, cut into jobs that can be killed and resumed: one small JSON per layer, search and seed.

A search is one job. A race is another job: it measures the winners of all finished searches of a layer and seed again,
in turns, beside PyTorch. `race_table` makes a table from the races.
"""
import hashlib
import json
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from kit.data import DataError
from kit.files import replace_file
from lab.kernels.carried import carried_cost, definition, fit_known, known_measurements, measurements_needed
from lab.kernels.definitions import Kernel
from lab.kernels.measure import PYTORCH, KernelLab, processor_name, this_machine, tvm_version
from lab.kernels.metaschedule import Tuner
from lab.kernels.networks import network_layers, network_names
from lab.kernels.results import quartiles
from lab.kernels.schedules import schedule_space
from lab.kernels.searches import CARRIED, RANDOM, RIVAL, SETTINGS, check_target, confirmations, kernel_search

UNTUNED, RIVAL_DROPLET = "untuned", f"{RIVAL} and its Droplet"
RIVAL_DESCENT = f"{RIVAL}, then our droplet"       # in MetaSchedule's own space; the first third is MetaSchedule's
RIVAL_RANDOM = f"{RIVAL}, random"                  # drawn at random from MetaSchedule's space
SEARCHES = (*SETTINGS, RANDOM, RIVAL, RIVAL_DROPLET, RIVAL_DESCENT, RIVAL_RANDOM)
TWO_PARTS = RIVAL_DROPLET, RIVAL_DESCENT     # a part of the measurements each, so that a longer search begins otherwise
COUNTS = (50, 100, 300, 1000, 3000)          # the best so far after so many measurements takes part in the race
STARTS, ROUNDS = 3, 5                        # a kernel's time differs from process to process
MACHINE_LAYER = ["kernel", "definition", "cpu", "threads"]
LAYER_SEED = ["kernel", "seed", "cpu", "threads", "tvm"]            # what races of the same winners have in common


class SearchJob(NamedTuple):
    """One search of one kernel."""
    kernel: Kernel
    strategy: str            # one of SEARCHES
    measurements: int
    seed: int = 0
    threads: int = 1
    target: str | None = None          # as of KernelLab
    taught: tuple = ()       # CARRIED learns from these networks; (): from all that do not have the kernel


def search_path(folder, job):
    """Where a job's JSON is.

    The name also tells the machine and the version of TVM, so that folders of several machines can be joined, and no
    result of an older TVM counts.
    """
    about = [*job[:5], *job.taught, processor_name(job.target), definition(job.kernel), tvm_version()]
    if job.strategy == CARRIED and job.threads > 1:
        about.append("busiest thread")                       # earlier, the model did not count on how many threads
    name = f"{job.kernel.name} {job.strategy} {job.measurements} seed {job.seed}".replace(" ", "_")
    return Path(folder, f"{name}-{hashlib.sha256(repr(about).encode()).hexdigest()[:8]}.json")


def run_search(job, folder):
    """Search unless the result is there -> {"seconds" (p,) of the kernels, "elapsed" (p,), "winners" {count: job}}.

    "strategy" names the networks that were `taught`, if the job chose them: such a search has races of its own. A
    ValueError if the search is not for the target. NoScheduleRan, and no result, if every schedule failed.
    """
    path = search_path(folder, job)
    if path.is_file():
        return _read_job(path)
    kernel, strategy, measurements, seed, threads, target, taught = job
    check_target([strategy], target)
    explicit, learned, model = strategy in (RANDOM, *SETTINGS), [], None
    if explicit:
        dims = [len(choice.values) for choice in schedule_space(kernel)]
        begun = time.perf_counter()
        if strategy == CARRIED:
            learned = known_measurements(kernel, taught)
            model = carried_cost(fit_known(learned), kernel, threads) if learned else None
        search, more = kernel_search(strategy, kernel, model)
        fitted = time.perf_counter() - begun                 # counts as time of the search, TVM's start does not
        with closing(KernelLab(kernel, threads, target)) as lab:
            start = lab.begin() - fitted
            search(lab, dims, measurements, np.random.default_rng(seed), **more)
            tried = lab.tried_since(start)
    else:
        second = {RIVAL_DROPLET: measurements // 3, RIVAL_DESCENT: 2 * measurements // 3}.get(strategy, 0)
        more = {RIVAL_DROPLET: {"droplet": second + 1}, RIVAL_DESCENT: {"descent": second},
                RIVAL_RANDOM: {"evolve": False}}.get(strategy, {})
        with closing(Tuner(threads, target)) as tuner, closing(KernelLab(kernel, threads, target)) as lab:
            tried = tuner.tune(lab, measurements - second, seed, **more).first(measurements)
    counts = [count for count in COUNTS if count < measurements and strategy not in TWO_PARTS] + [measurements]
    found = {"kernel": kernel.name, "definition": definition(kernel),
             "strategy": strategy + f", taught {' and '.join(taught)}" * bool(taught),
             "measurements": measurements, "seed": seed,
             "machine": this_machine(threads, target),
             "seconds": tried.seconds.tolist(), "elapsed": tried.elapsed.tolist(),
             "winners": {str(count): tried.first(count).winner(confirmations(strategy))[0] for count in counts}}
    if explicit:
        found |= {"codes": tried.jobs, "taught": [known.name for known, _, _ in learned]}
    replace_file(path, json.dumps(found))
    return json.loads(json.dumps(found))


def finished_searches(folder):
    """The searches in the folder, as `run_search` returns them; those of older definitions of layers do not count."""
    return _as_defined(set(Path(folder).glob("*.json")) - set(Path(folder).glob("race_*.json")))


def _read_job(path):
    """The search or the race in a file; a DataError if it is neither."""
    try:
        found = json.loads(path.read_text("utf-8"))
        if found.keys() >= {"kernel", "seed", "machine"} and ("seconds" in found or "entries" in found):
            return found
    except (ValueError, AttributeError):
        pass
    raise DataError(f"{path}: neither a search nor a race of layers; move it away, and it is measured again if needed")


def _as_defined(paths):
    """The searches or races in files, without those of a layer of a known network that is defined otherwise now."""
    now = {kernel.name: definition(kernel) for name in network_names() for kernel, _ in network_layers(name)}
    found = [_read_job(path) for path in sorted(paths)]
    return [one for one in found if one.setdefault("definition", "") == now.get(one["kernel"], one["definition"])]


def measured_table(folder, *stored):
    """The random measurements of the folder, of seed 0, and of stored such tables, as a table for lab.kernels.carried.

    A row per schedule: its codes, and its microseconds, inf if it failed. Of several searches of a kernel on one
    machine the longest counts, and of equally long ones that of the folder; in the folder, those with the TVM that is
    installed come first. Stored rows of another definition go.
    """
    longest, now = {}, tvm_version()
    known = [table.groupby(MACHINE_LAYER).size() for table in stored if len(table)]
    for one in finished_searches(folder):
        if one["strategy"] == RANDOM and one["seed"] == 0:
            key = one["kernel"], one["definition"], one["machine"]["cpu"], one["machine"]["threads"]
            longest[key] = max(longest.get(key, one), one, key=lambda found: (
                found["machine"]["tvm"] == now, len(found["seconds"])))
    longest = {key: one for key, one in longest.items()
               if len(one["seconds"]) >= max((sizes.get(key, 0) for sizes in known), default=0)}
    new = [pd.DataFrame(dict(zip(MACHINE_LAYER, key)) | {
        "codes": [" ".join(map(str, codes)) for codes in one["codes"]],
        "us": [float(f"{1e6 * seconds:.5g}") for seconds in one["seconds"]]}) for key, one in longest.items()]
    return _last_ones([*stored, *new], ["kernel", "cpu", "threads"])


def run_race(kernel, seed, threads, folder, rounds=ROUNDS, target=None, starts=STARTS):
    """Measure the winners of all finished searches of a kernel and seed on this machine again, in turns -> the race.

    All rounds are repeated with new processes, `starts` times, because times differ from process to process. The race
    is written after each start. A race of the same winners is read; if it has fewer starts, the missing ones are run.
    Of two searches with one strategy the longer takes part, but all of `TWO_PARTS`.
    Returns {"entries": [{"strategy", "measurements", "seconds" of the search, "schedule" (codes or None), "again"
    (all rounds,)}]}, with the kernel, the seed, the number of starts and the machine. A search that ended before its
    last measurement takes part with what it had. "race" is a digest of which searches take part.
    """
    path, race, entries, runners = _known_race(kernel, seed, threads, folder, target)
    if race["starts"] >= starts:
        return race
    distinct = list(dict.fromkeys(runners[1:]))              # a winner of several searches runs once
    before = [entry["again"] for entry in race["entries"]] or [[]] * len(entries)
    for done in range(race["starts"] + 1, starts + 1):
        with closing(KernelLab(kernel, threads, target)) as lab:
            again = dict(zip(distinct, lab.measure_rounds(distinct, rounds).T.tolist()))
            again[None] = [lab.measure([None])[0][0]]
        before = [known + again[runner] for known, runner in zip(before, runners)]
        race = {"kernel": kernel.name, "definition": definition(kernel), "seed": seed,
                "race": path.stem.rpartition("-")[2], "starts": done, "machine": this_machine(threads, target),
                "entries": [{**entry, "again": known} for entry, known in zip(entries, before)]}
        replace_file(path, json.dumps(race))
    return race


def starts_left(kernel, seed, threads, folder, target=None, starts=STARTS):
    """How many starts `run_race` would run, with the same arguments."""
    return max(0, starts - _known_race(kernel, seed, threads, folder, target)[1]["starts"])


def _known_race(kernel, seed, threads, folder, target):
    """(path of a race, what is known of it, its entries without their times, what KernelLab runs for each entry)."""
    about = kernel.name, definition(kernel), seed, threads, processor_name(target), tvm_version()
    searches = _longest_searches(folder, about)
    name = repr([*about, torch.__version__, *sorted((found["strategy"], found["measurements"]) for found in searches)])
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    path = Path(folder, f"race_{kernel.name.replace(' ', '_')}_seed_{seed}-{digest}.json")
    entries, runners = _racers(searches)
    race = _read_job(path) if path.is_file() else {"starts": 0, "entries": []}
    if [{name: value for name, value in one.items() if name != "again"} for one in race["entries"]] != entries:
        race = {"starts": 0, "entries": []}                  # there is none, or a search was made again
    return path, race, entries, runners


def _longest_searches(folder, about):
    """The finished searches of a layer, as of `_layer_of`, that take part in its race."""
    searches = {}
    for found in finished_searches(folder):
        kind = found["strategy"], found["strategy"] in TWO_PARTS and found["measurements"]
        rival = searches.get(kind)
        if _layer_of(found) == about and (rival is None or found["measurements"] > rival["measurements"]):
            searches[kind] = found
    return list(searches.values())


def _racers(searches):
    """The entries of a race without their times, and what KernelLab runs for each; None is the untuned kernel."""
    alone = {"measurements": 0, "seconds": 0.0, "schedule": None}
    entries, runners = [{"strategy": UNTUNED, **alone}, {"strategy": PYTORCH, **alone}], [None, PYTORCH]
    for found in searches:
        for count, winner in found["winners"].items():
            plain, last = not isinstance(winner, str), len(found["elapsed"])      # a search may end early
            entries.append({"strategy": found["strategy"], "measurements": int(count),
                            "seconds": found["elapsed"][min(int(count), last) - 1],
                            "schedule": winner if plain else None})
            runners.append(tuple(winner) if plain else winner)
    return entries, runners


def race_table(folder):
    """The races in a folder as a table: a row per kernel, strategy, number of measurements, and seed.

    "seconds" are of the search until that measurement, "ms" is the median of the rounds after the search, "low" and
    "high" are their quartiles, inf if the kernel exceeded the lab's limit, "schedule" the winner's codes. "needed" is
    how many measurements the search made until one was within 5% of the lowest that any search of this kernel and seed
    saw; one more than it made if none was, 0 without a search, and empty if the search's file is gone. "seen" is the
    "ms" of the winner in its search, the mean if it was measured several times there, and NaN for untuned kernels,
    PyTorch and searches whose file is gone. "cpu" names the threads, too, if there are several. A race is left out if
    another one of the kernel and seed has all its entries and more starts, or as many starts and more entries.
    """
    races = _as_defined(Path(folder).glob("race_*.json"))
    races = sorted(races, key=lambda race: (race.get("starts", 1), len(race["entries"])))
    searches, tables = finished_searches(folder), []
    needed, seen = _needed(searches), _seen(searches)
    for race in races:
        rows, threads = [], race["machine"]["threads"]
        for entry in race["entries"]:
            low, middle, high = 1e3 * quartiles(entry["again"])
            search, asked = (*_layer_of(race), entry["strategy"]), entry["measurements"]
            rows.append({"kernel": race["kernel"], "strategy": entry["strategy"],
                         "measurements": asked, "seed": race["seed"], "race": race.get("race", ""),
                         "seconds": round(entry["seconds"], 1), "ms": round(middle, 5), "low": round(low, 5),
                         "high": round(high, 5), "rounds": len(entry["again"]),
                         "needed": needed.get(search) if asked else 0,
                         "seen": round(1e3 * seen.get((*search, asked), np.nan), 5),
                         "schedule": " ".join(map(str, entry["schedule"] or ())), **race["machine"],
                         "cpu": race["machine"]["cpu"] + f", {threads} threads" * (threads > 1)})
        tables.append(pd.DataFrame(rows).astype({"needed": "Int64"}))
    return merged_races(*tables)


def _layer_of(found):
    """What searches and races of a layer have in common: (kernel, definition, seed, threads, cpu, version of TVM)."""
    machine = found["machine"]
    return found["kernel"], found["definition"], found["seed"], machine["threads"], machine["cpu"], machine["tvm"]


def _needed(searches):
    """{(*layer, strategy): "needed" of `race_table`}; of several searches the longest counts."""
    found, lowest = {}, {}
    for one in searches:
        key = _layer_of(one)
        lowest[key] = min(lowest.get(key, np.inf), *one["seconds"])
        found[(*key, one["strategy"])] = max(found.get((*key, one["strategy"]), []), one["seconds"], key=len)
    return {key: measurements_needed(seconds, lowest[key[:-1]]) for key, seconds in found.items()}


def _seen(searches):
    """{(*layer, strategy, count): seconds of the winner of so many measurements, in its search}.

    A search whose trials do not say what was measured, as those of MetaSchedule, measures nothing twice.
    """
    found = {}
    for one in sorted(searches, key=lambda one: len(one["seconds"])):
        for count, winner in one["winners"].items():
            first = one["seconds"][:int(count)]
            same = [took for took, codes in zip(first, one.get("codes", ())) if codes == winner] or [min(first)]
            found[(*_layer_of(one), one["strategy"], int(count))] = float(np.mean(same))
    return found


def merged_races(*tables):
    """Tables of races as one; a race replaces the earlier ones of its kernel, seed and machine that it covers.

    It covers those without an entry, a strategy with its number of measurements, that it does not have. Others stay
    beside it: the folder of another day's searches may be gone, and with it their winners.
    """
    rows, covered = _joined(tables).reset_index(drop=True), []
    for _, same in rows.groupby(LAYER_SEED, sort=False) if len(rows) else ():
        races = [(part.index, {*zip(part["strategy"], part["measurements"])})
                 for _, part in same.groupby(["place", "race"], sort=False)]
        covered += [index for i, (index, entries) in enumerate(races)
                    if any(entries <= later for _, later in races[i + 1:])]
    rows = rows.drop(np.concatenate(covered)) if covered else rows
    return rows.drop(columns="place", errors="ignore").reset_index(drop=True)


def _last_ones(tables, same):
    """Tables as one; of rows with equal `same`, those of the last table that has some count."""
    rows = _joined(tables)
    if len(rows):
        rows = rows[rows["place"] == rows.groupby(same)["place"].transform("max")].drop(columns="place")
    return rows.reset_index(drop=True)


def _joined(tables):
    """Tables as one, with "place", the number of the table that a row is of."""
    tables = [table.assign(place=i) for i, table in enumerate(tables) if len(table)]       # an empty one has no types
    return pd.concat(tables) if tables else pd.DataFrame()
