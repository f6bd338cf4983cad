"""Searches for fast schedules of layers, cut into jobs that can be killed and resumed: one small JSON per job.

A search of one layer is one job. A race is another job: it measures the winners of all finished searches of a layer and
seed again, in turns, beside PyTorch. `measure_layers` runs both for many layers; lab.kernels.results makes tables.
"""
import hashlib
import json
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kit.data import DataError
from kit.files import replace_file
from kit.search import explore_then_droplet, random_search
from kit.train_parts import processor_name
from lab.kernels.bench import PYTORCH, KernelLab, NoScheduleRan, this_machine, tvm_version
from lab.kernels.carried import definition, known_cost
from lab.kernels.definitions import Kernel
from lab.kernels.metaschedule import Tuner
from lab.kernels.networks import known_layers
from lab.kernels.schedules import schedule_space

OURS, RANDOM, RIVAL, UNTUNED = "explore then droplet", "random", "MetaSchedule", "untuned"
CARRIED = f"{OURS}, carried over"            # with a cost model that learned from layers of other networks
STEADY = {"confirm": 3, "stamina": 64}       # for times with noise, and for spaces with several good regions
# finished searches are known by these names: a search with other settings needs another name
SETTINGS = {OURS: STEADY, CARRIED: {"doubt_model": True, **STEADY}}             # of `explore_then_droplet`
OUR_SPACE = RANDOM, *SETTINGS                # searches in the space of `schedule_space`
SEARCHES = (*SETTINGS, RANDOM, RIVAL)
COUNTS = (50, 100, 300, 1000, 3000)          # the best so far after so many measurements takes part in the race
STARTS, ROUNDS = 3, 5                        # a kernel's time differs from process to process


class SearchJob(NamedTuple):
    """One search of one kernel."""
    kernel: Kernel
    strategy: str            # one of SEARCHES
    measurements: int
    seed: int = 0
    threads: int = 1


def measure_layers(plan, folder, minutes=None, starts=STARTS, after=lambda: None):
    """Run the searches of each layer, and then its race; what is finished is not repeated.

    Parameters
    ----------
    plan : list of list of SearchJob
        The jobs of one layer and seed together.
    folder : Path
        Where the jobs' files are.
    minutes : float, optional
        After so many minutes no other layer is begun, but one at least.
    starts : int
        As of `run_race`.
    after : function
        Called after each race.

    Returns
    -------
    int, list of str
        In how many searches every schedule failed: such a search is told, and the next one begins. The names of the
        layers that were not begun.
    """
    start, begun, failed, left = time.monotonic(), False, 0, []
    for jobs in plan:
        kernel, *_, seed, threads = jobs[0]
        searched = all(search_path(folder, job).is_file() for job in jobs)
        if searched and _known_race(kernel, seed, threads, folder, starts)[0].is_file():
            continue
        if begun and minutes is not None and time.monotonic() - start > 60 * minutes:
            left.append(kernel.name)
            continue
        begun, ran = True, [_told_search(job, folder) for job in jobs]
        failed += ran.count(False)
        if any(ran):
            race = run_race(kernel, seed, threads, folder, starts)
            print(f"{kernel.name}: " + ", ".join(
                f"{one['strategy']} {one['measurements'] or ''} {1e3 * np.median(one['again']):.3f}"
                for one in race["entries"]), flush=True)
            after()
    return failed, left


def _told_search(job, folder):
    """Run a search, or read its result, and tell the best time that it saw -> whether any schedule ran."""
    try:
        found = run_search(job, folder)
    except NoScheduleRan as fault:
        print(f"note  {job.kernel.name}: {job.strategy}: {fault}", flush=True)
        return False
    print(f"{job.kernel.name}: {job.strategy}: {1e3 * min(found['seconds']):.3f} ms, "
          f"{len(found['seconds'])} measurements, {found['elapsed'][-1]:.0f} s", flush=True)
    return True


def search_path(folder, job):
    """Where a job's JSON is.

    The name also tells the machine and the version of TVM, so that folders of several machines can be joined, and no
    result of an older TVM counts.
    """
    about = [*job, processor_name(), definition(job.kernel), tvm_version()]
    if job.strategy == CARRIED and job.threads > 1:
        about.append("busiest thread")                       # earlier, the model did not count on how many threads
    name = f"{job.kernel.name} {job.strategy} {job.measurements} seed {job.seed}".replace(" ", "_")
    return Path(folder, f"{name}-{hashlib.sha256(repr(about).encode()).hexdigest()[:8]}.json")


def run_search(job, folder):
    """Search unless the result is there -> {"seconds" (p,) of the kernels, "elapsed" (p,), "winners" {count: job}}.

    NoScheduleRan, and no result, if every schedule failed.
    """
    path = search_path(folder, job)
    if path.is_file():
        return _read_job(path)
    kernel, strategy, measurements, seed, threads = job
    tried = (_tried_codes if strategy in OUR_SPACE else _tried_traces)(job)
    counts = [count for count in COUNTS if count < measurements] + [measurements]
    found = {"kernel": kernel.name, "definition": definition(kernel), "strategy": strategy,
             "measurements": measurements, "seed": seed, "machine": this_machine(threads),
             "seconds": tried.seconds.tolist(), "elapsed": tried.elapsed.tolist(),
             "winners": {str(count): tried.first(count).winner(SETTINGS.get(strategy, {}).get("confirm", 1))[0]
                         for count in counts}}
    if strategy in OUR_SPACE:
        found["codes"] = tried.jobs
    replace_file(path, json.dumps(found))
    return json.loads(json.dumps(found))


def _tried_codes(job):
    """The trials of a search in our space of schedules."""
    space, begun = schedule_space(job.kernel), time.perf_counter()
    model = known_cost(job.kernel, job.threads) if job.strategy == CARRIED else None
    fitted = time.perf_counter() - begun                     # counts as time of the search, TVM's start does not
    about = [len(choice.values) for choice in space], job.measurements, np.random.default_rng(job.seed)
    with closing(KernelLab(job.kernel, job.threads)) as lab:
        start = lab.begin() - fitted
        if job.strategy == RANDOM:
            random_search(lab, *about)
        else:
            explore_then_droplet(lab, *about, ordered=[choice.ordered for choice in space], model=model,
                                 **SETTINGS[job.strategy])
        return lab.tried_since(start)


def _tried_traces(job):
    """The trials of a search in MetaSchedule's space."""
    with closing(Tuner(job.threads)) as tuner, closing(KernelLab(job.kernel, job.threads)) as lab:
        return tuner.tune(lab, job.measurements, job.seed).first(job.measurements)


def finished_searches(folder):
    """The searches in the folder, as `run_search` returns them; those of older definitions of layers do not count."""
    return _as_defined(set(Path(folder).glob("*.json")) - set(Path(folder).glob("race_*.json")))


def finished_races(folder):
    """The races in the folder, as `run_race` returns them; those of older definitions of layers do not count."""
    return _as_defined(Path(folder).glob("race_*.json"))


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
    now = {name: definition(kernel) for name, kernel in known_layers().items()}
    found = [_read_job(path) for path in sorted(paths)]
    return [one for one in found if one.setdefault("definition", "") == now.get(one["kernel"], one["definition"])]


def run_race(kernel, seed, threads, folder, starts=STARTS):
    """Measure the winners of all finished searches of a kernel and seed on this machine again, in turns -> the race.

    All rounds are repeated with new processes, `starts` times, because times differ from process to process. A race of
    the same winners and starts is read. Of two searches with one strategy the longer takes part. A search that ended
    before its last measurement takes part with what it had.

    Returns {"entries": [{"strategy", "measurements", "seconds" of the search, "schedule" (codes or None), "again"
    (all rounds,)}]}, with the kernel, the seed, the number of starts, the machine, and "race", a digest of the entries.
    """
    path, entries, runners = _known_race(kernel, seed, threads, folder, starts)
    if path.is_file():
        return _read_job(path)
    distinct = list(dict.fromkeys(runners[1:]))              # a winner of several searches runs once
    times = {runner: [] for runner in runners}
    for _ in range(starts):
        with closing(KernelLab(kernel, threads)) as lab:
            for runner, again in zip(distinct, lab.measure_rounds(distinct, ROUNDS).T.tolist()):
                times[runner] += again
            times[None].append(lab.measure([None])[0][0])    # it is slow, so once
    race = {"kernel": kernel.name, "definition": definition(kernel), "seed": seed,
            "race": path.stem.rpartition("-")[2], "starts": starts, "machine": this_machine(threads),
            "entries": [{**entry, "again": times[runner]} for entry, runner in zip(entries, runners)]}
    replace_file(path, json.dumps(race))
    return race


def _known_race(kernel, seed, threads, folder, starts):
    """(path of a race, its entries without their times, what KernelLab runs for each entry)."""
    about = kernel.name, definition(kernel), seed, threads, processor_name(), tvm_version()
    entries, runners = _racers(_longest_searches(folder, about))
    name = repr([*about, torch.__version__, starts, entries, runners])
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return Path(folder, f"race_{kernel.name.replace(' ', '_')}_seed_{seed}-{digest}.json"), entries, runners


def layer_of(found):
    """What searches and races of a layer have in common: (kernel, definition, seed, threads, cpu, version of TVM)."""
    machine = found["machine"]
    return found["kernel"], found["definition"], found["seed"], machine["threads"], machine["cpu"], machine["tvm"]


def _longest_searches(folder, about):
    """The finished searches of a layer, as of `layer_of`, that take part in its race."""
    searches = {}
    for found in finished_searches(folder):
        rival = searches.get(found["strategy"])
        if layer_of(found) == about and (rival is None or found["measurements"] > rival["measurements"]):
            searches[found["strategy"]] = found
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
