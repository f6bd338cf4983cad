"""Search for fast schedules of the layers of known networks, and add the results to `kernels_networks.csv`.

    python notebooks/lab/studies/kernels/measure_networks.py alexnet,bert [--seeds 0 1] [--measurements 300]
        [--starts 3] [--minutes 60] [--searches random MetaSchedule] [--folder submissions/networks]

Every search and every race of winners is one small JSON in the folder. So the command can be killed and started again:
finished jobs are not repeated. A search in which every schedule failed is named, and the next one begins. The table
gets a row per layer, search, number of measurements, seed and machine. The random measurements are added to
`lab/kernels/measured.csv.gz`, from which a search of other layers learns. It needs TVM (requirements-kernels.txt).
"""
import argparse
import gzip
from functools import partial
from pathlib import Path

import pandas as pd

from kit.checks import check_whole
from kit.data import DataError
from kit.files import locked, replace_file, whole_file
from lab.kernels.carried import MEASURED
from lab.kernels.networks import network_layers
from lab.kernels.results import ENTRY, RUN, race_table, read_races
from lab.kernels.searches import CARRIED, RANDOM, RIVAL, SEARCHES, STARTS, SearchJob, finished_searches, measure_layers

HERE = Path(__file__).resolve().parents[3]          # notebooks/
TABLE = HERE / "kernels_networks.csv"
FOLDER = HERE.parent / "submissions" / "networks"
MACHINE_LAYER = ["kernel", "definition", "cpu", "threads"]


def planned(networks, seeds, searches, measurements, threads):
    """[the searches of one layer and seed], in the order in which they are run; a layer of two networks runs once."""
    kernels = dict.fromkeys(kernel for name in networks for kernel, _ in network_layers(name))
    return [[SearchJob(kernel, search, measurements, seed, threads) for search in searches]
            for seed in seeds for kernel in kernels]


def measured_table(folder, stored):
    """The stored random measurements and those of the folder, of seed 0, as a table for lab.kernels.carried.

    A row per schedule: its codes, and its microseconds, inf if it failed. Of several searches of a layer on one machine
    the longest counts, and of equally long ones that of the folder.
    """
    tables = [stored] * bool(len(stored)) + [
        pd.DataFrame({**{name: one[name] for name in ("kernel", "definition")},
                      **{name: one["machine"][name] for name in ("cpu", "threads")},
                      "codes": [" ".join(map(str, codes)) for codes in one["codes"]],
                      "us": [float(f"{1e6 * seconds:.5g}") for seconds in one["seconds"]]})
        for one in finished_searches(folder) if one["strategy"] == RANDOM and one["seed"] == 0]
    if not tables:
        return stored
    rows = pd.concat([table.assign(place=place) for place, table in enumerate(tables)], ignore_index=True)
    sizes = rows.groupby([*MACHINE_LAYER, "place"], as_index=False).size().sort_values(["size", "place"])
    longest = sizes.drop_duplicates(MACHINE_LAYER, keep="last")
    return rows.merge(longest[[*MACHINE_LAYER, "place"]]).drop(columns="place")


def write_rows(folder):
    """Add the races of the folder to the table, and its random measurements to what the kit knows."""
    races = race_table(folder)
    if len(races):
        stored = [read_races(TABLE)] if TABLE.is_file() else []
        races = pd.concat([*stored, races], ignore_index=True)
        races = races.drop_duplicates(["cpu", *RUN, *ENTRY], keep="last")
        replace_file(TABLE, races.to_csv(index=False))
    measured = measured_table(folder, pd.read_csv(MEASURED, keep_default_na=False))
    with whole_file(MEASURED) as part:                       # equal measurements make equal bytes
        part.write_bytes(gzip.compress(measured.to_csv(index=False).encode(), mtime=0))


def main():
    """Run the jobs that are not finished, until the time is over."""
    parser = argparse.ArgumentParser(prog="measure_networks.py", description=__doc__.splitlines()[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("networks", help="names with commas between")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help=" ")
    parser.add_argument("--searches", nargs="+", default=[CARRIED, RANDOM, RIVAL], choices=SEARCHES, help=" ")
    parser.add_argument("--measurements", type=int, default=300, help="of a search")
    parser.add_argument("--starts", type=int, default=STARTS, help="processes of a race")
    parser.add_argument("--threads", type=int, default=1, help="of a kernel")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no other layer begins")
    parser.add_argument("--folder", default=FOLDER, type=Path, help="of the jobs' files")
    given = parser.parse_args()
    try:
        check_whole(vars(given), measurements=1, starts=1, threads=1)
        plan = planned(given.networks.split(","), given.seeds, given.searches, given.measurements, given.threads)
        with locked(FOLDER / "lock") as holder:              # the tables are of this checkout, whatever the folder
            if holder is not None:
                parser.error(f"another command{holder} measures: two would disturb each other")
            failed, left = measure_layers(plan, given.folder, given.minutes, given.starts,
                                          partial(write_rows, given.folder))
    except (DataError, ImportError, RuntimeError, ValueError) as fault:
        parser.error(str(fault))
    print(f"not begun: {', '.join(left) or 'nothing'}")
    if failed:
        parser.exit(1, f"in {failed} searches no schedule ran; the lines above say why\n")


if __name__ == "__main__":
    main()
