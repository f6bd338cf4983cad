"""Search for fast schedules of the layers of known networks, and add the results to `kernels_networks.csv`.

    python notebooks/lab/studies/kernels/measure_networks.py alexnet,bert [--seeds 0,1] [--measurements 300]
        [--starts 3] [--minutes 60] [--searches "explore then droplet, carried over;random;MetaSchedule 3000"]
        [--layers "conv2d 1x1,softmax"] [--target cuda] [--folder submissions/networks] [--only-left]

Every search and every race of winners is one small JSON in the folder. So the command can be killed and started again:
finished jobs are not repeated. A search in which every schedule failed is named, and the next one begins. The table
gets a row per layer, search, number of measurements, seed and machine. The random measurements are added to
`lab/kernels/measured.csv.gz`, from which a search of other layers learns. At the end, and with `--only-left` at once,
the command says what is left. A number behind a search is its number of measurements. It needs TVM
(requirements-kernels.txt); with `--target cuda` also cuda-bindings, or the environment variable
TVM_CUDA_COMPILE_MODE=nvcc and CUDA's compiler.
"""
import argparse
import gzip
import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pandas as pd

from kit.data import DataError
from kit.files import locked, replace_file, whole_file
from lab.kernels.carried import MEASURED
from lab.kernels.measure import GPU, processor_name, tvm_version
from lab.kernels.networks import network_layers
from lab.kernels.results import merged_races, race_table, read_races
from lab.kernels.searches import (
    CARRIED,
    RANDOM,
    RIVAL,
    SEARCHES,
    STARTS,
    SearchJob,
    check_target,
    finished_searches,
    jobs_left,
    measure_layers,
)

HERE = Path(__file__).resolve().parents[3]          # notebooks/
TABLE = HERE / "kernels_networks.csv"
FOLDER = HERE.parent / "submissions" / "networks"
MACHINE_LAYER = ["kernel", "definition", "cpu", "threads"]


def named_searches(text, measurements):
    """[(strategy, its number of measurements)] of names with semicolons between; a number may stand behind a name."""
    found = [re.fullmatch(r"(.*?)(?: ([1-9]\d*))?", name.strip()).groups() for name in text.split(";")]
    if unknown := {name for name, _ in found} - set(SEARCHES):
        raise ValueError(f"no search {', '.join(sorted(unknown))}; there are {'; '.join(SEARCHES)}")
    return [(name, int(count or measurements)) for name, count in found]


def planned(networks, texts, seeds, searches, threads, target):
    """[the searches of one layer and seed], in the order in which they are run; a layer of two networks runs once."""
    check_target([search for search, _ in searches], target)
    processor_name(target)                                   # a GPU that is not there is missed now, too
    kernels = dict.fromkeys(kernel for name in networks for kernel, _ in network_layers(name)
                            if any(text in kernel.name for text in texts or [""]))
    if not kernels:
        raise ValueError(f"no layer of {', '.join(networks)} has {' or '.join(map(repr, texts))} in its name")
    return [[SearchJob(kernel, search, count, seed, threads, target) for search, count in searches]
            for seed in seeds for kernel in kernels]


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
    tables = [table.assign(place=place) for place, table in enumerate([*stored, *new])]
    rows = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["place", *MACHINE_LAYER])
    last = rows.groupby(["kernel", "cpu", "threads"])["place"].transform("max")         # one table holds all of a layer
    return rows[rows["place"] == last].drop(columns="place").reset_index(drop=True)


def write_rows(folder):
    """Add the races of the folder to the table, and its random measurements to what the kit knows."""
    stored = [read_races(TABLE)] if TABLE.is_file() else []
    measured = [pd.read_csv(MEASURED, keep_default_na=False)] if MEASURED.is_file() else []
    races, random = merged_races(*stored, race_table(folder)), measured_table(folder, *measured)
    if len(races):                                           # a table without rows has no columns, and cannot be read
        replace_file(TABLE, races.to_csv(index=False))
    if len(random):
        with whole_file(MEASURED) as part:                   # equal measurements make equal bytes
            part.write_bytes(gzip.compress(random.to_csv(index=False).encode(), mtime=0))


def at_least(least, kind=int):
    """A type of argparse: numbers of a kind that are not below `least`."""
    def number(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not value >= least:
            whole = "whole " * (kind is int)
            raise argparse.ArgumentTypeError(f"{text!r}; expected a {whole}number of at least {least}")
        return value
    return number


def seed_list(text):
    """A type of argparse: seeds with commas between."""
    return list(map(at_least(0), text.split(",")))


def main():
    """Run the jobs that are not finished, until the time is over."""
    parser = argparse.ArgumentParser(prog="measure_networks.py", description=__doc__.splitlines()[0])
    parser.add_argument("networks", help="names with commas between")
    parser.add_argument("--layers", default="", help="only layers whose names contain one of these texts")
    parser.add_argument("--seeds", type=seed_list, default="0", help="with commas between, default: %(default)s")
    parser.add_argument("--searches", default=f"{CARRIED};{RANDOM};{RIVAL}",
                        help=f"with semicolons between, of {'; '.join(SEARCHES)}; a number of measurements may follow")
    parser.add_argument("--measurements", type=at_least(1), default=300, help="of a search that names no number; "
                        "default: %(default)s")
    parser.add_argument("--starts", type=at_least(1), default=STARTS, help="processes of a race; a race that has fewer "
                        "gets the missing ones; default: %(default)s")
    parser.add_argument("--threads", type=at_least(1), default=1, help="of a kernel; default: %(default)s")
    parser.add_argument("--target", choices=[GPU], help="for the GPU; by default the CPU of this machine")
    parser.add_argument("--minutes", type=at_least(0, float), default=60.0, help="after which no other layer begins; "
                        "default: %(default)s")
    parser.add_argument("--folder", default=FOLDER, type=Path,
                        help="of the jobs' files; default: submissions/networks")
    parser.add_argument("--only-left", action="store_true", help="run nothing")
    given = parser.parse_args()
    try:
        plan = planned(given.networks.split(","), [*filter(None, given.layers.split(","))], given.seeds,
                       named_searches(given.searches, given.measurements), given.threads, given.target)
    except ValueError as fault:
        parser.error(str(fault))
    failed = 0
    try:
        if not given.only_left:
            with ExitStack() as held:
                # the tables are of this checkout, whatever the folder
                for lock in dict.fromkeys([given.folder.resolve() / "lock", FOLDER.resolve() / "lock"]):
                    holder = held.enter_context(locked(lock))
                    if holder is not None:
                        parser.error(f"another command{holder} measures and holds {lock}: two would disturb each other")
                failed, _ = measure_layers(plan, given.folder, given.minutes, given.starts,
                                           partial(write_rows, given.folder), partial(print, flush=True))
                write_rows(given.folder)
        print_left(plan, given)
    except (DataError, RuntimeError) as fault:
        parser.error(str(fault))
    if failed:
        parser.exit(1, f"in {failed} searches no schedule ran; the lines above say why\n")


def print_left(plan, given):
    """Say which searches are not finished, and which races lack starts."""
    searches, races = jobs_left(plan, given.folder, given.starts)
    print(f"{len(searches)} of {sum(map(len, plan))} searches and {len(races)} of {len(plan)} races left" + "".join(
        f"\n  {job.kernel.name}: {job.strategy}, seed {job.seed}" for job in searches) + "".join(
        f"\n  {job.kernel.name}: race, seed {job.seed}" for job in races))


if __name__ == "__main__":
    main()
