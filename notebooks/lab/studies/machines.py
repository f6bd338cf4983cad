"""Does what one machine measured help to rank on another one? Prints a table.

    python notebooks/lab/studies/machines.py [--first measured] [--second DIR] [--seeds 3] [--out DIR]

Programs of two data roots that have one name are one program, measured on two machines with the same configurations:
`notebooks/measure_programs.py` draws the same ones anywhere. The recipe's three models learn from training programs of
one machine or of both, and rank programs of families that no training program has, by their runtimes on the second
machine. The scores are those of `lab/studies/new_families.py`.
"""
import argparse
import sys
from pathlib import Path

import numpy as np
import torch

PROJECT = Path(__file__).resolve().parents[3]
sys.path[:0] = str(PROJECT), str(PROJECT / "notebooks")
from kit.data import dense_configs  # noqa: E402
from kit.prune import prune  # noqa: E402
from lab.data import families_of, open_data  # noqa: E402
from lab.measured import SECOND  # noqa: E402
from lab.run.store import Store  # noqa: E402
from lab.studies.new_families import (  # noqa: E402
    ALL_KINDS,
    as_table,
    costs_of,
    familiar,
    rows_of,
    rows_without_model,
    summary,
    taught_programs,
    unseen_programs,
)

SAME, OTHER, BOTH = "trained on the same machine", "trained on the other machine", "trained on both machines"
ALL = "trained on all programs of the other machine"
RUNTIMES = "runtime of the same configuration on the other machine"


def runtimes_elsewhere(graph, elsewhere):
    """The mean runtime of each configuration of `graph` in another file of its program, (c,).

    KeyError if a configuration is not there.
    """
    found = {}
    for config, runtime in zip(_configs(elsewhere), elsewhere.config_runtime):
        found.setdefault(config, []).append(runtime)
    return np.array([np.mean(found[config]) for config in _configs(graph)])


def _configs(graph):
    """The options of each configuration as bytes, whatever their codes."""
    return [config.tobytes() for config in dense_configs(graph, range(len(graph.config_runtime)))]


def study(first, second, seeds, store, model=ALL_KINDS):
    """All rows, as a polars DataFrame with the columns of `lab.studies.new_families.study`."""
    here, there = taught_programs(second, "random"), taught_programs(first, "random")
    found, families = unseen_programs(first, "random", there), families_of(first)
    elsewhere = {graph.graph_id: graph for graph in found}
    unseen = [graph for graph in unseen_programs(second, "random", here) if graph.graph_id in elsewhere]
    shared = [graph for graph in there if graph.graph_id in {one.graph_id for one in here}]
    taught = {SAME: here, OTHER: shared, BOTH: here + shared} if here else {}
    taught |= {ALL: there} if len(shared) < len(there) else {}
    about = {g.graph_id: {"search": "random", "program": g.graph_id, "family": families[g.graph_id],
                          "familiar": familiar(g, here or there)} for g in unseen}
    other = {g.graph_id: runtimes_elsewhere(g, elsewhere[g.graph_id]) for g in unseen}
    rows = rows_without_model(unseen, about) + rows_of(RUNTIMES, 0, other, unseen, about)
    pruned = [prune(g, 1) for g in unseen]
    for name, graphs in taught.items():
        for seed in range(seeds):
            rows += rows_of(name, seed, costs_of(model, "random", seed, graphs, pruned, store), unseen, about)
    return as_table(rows)


def main(argv=None):
    """Run the study and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", default="measured")
    parser.add_argument("--second", default=str(SECOND))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=PROJECT / "submissions" / "measured-study")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    layouts = ["layout:xla:random", "layout:nlp:random"]
    first, second = (open_data(root, layouts) for root in (args.first, args.second))
    table = study(first, second, args.seeds, Store(args.out / "store"))
    print(summary(table, next(name for name in (SAME, ALL) if name in table["model"])))


if __name__ == "__main__":
    main()
