"""Which cost models rank real programs of families that they never saw, measured on this kind of machine.

    python notebooks/lab/studies/new_families.py [--data-root measured] [--seeds 3] [--out DIR] [--models A;B]
                                                 [--folds 6]
    python notebooks/lab/studies/new_families.py --prior

A model learns from the training programs of one search, `random` or `default`, of both sources, and ranks validation
and test programs of families that no training program has. With `--folds`, the families of all programs are dealt to so
many folds instead, and the programs of each fold are ranked by models that learned from the others. The scores of a
rank are those of `lab.scores.scores_of_rank`: each configuration counts once. The rows of the table are also written to
`measured_study.csv`, one row per model, program and seed. `--prior` compares weights of an ensemble instead, on
training programs alone: a fifth of their families at a time is left out of training and ranked.
"""
import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch

PROJECT = Path(__file__).resolve().parents[3]
sys.path[:0] = str(PROJECT), str(PROJECT / "notebooks")
from kit.baselines import fit_digit_ridge, frequency  # noqa: E402
from kit.data import SPLITS  # noqa: E402
from kit.ensemble import PRIOR, combine, mean_zscore  # noqa: E402
from kit.files import whole_file  # noqa: E402
from kit.noise import bootstrap_interval, noise_ceiling  # noqa: E402
from kit.pad import SHAPE  # noqa: E402
from kit.prune import config_ids, drop_duplicate_configs, prune  # noqa: E402
from kit.recipes import recipes_for  # noqa: E402
from lab.baselines import COUNT, DEFAULT_FIRST, OWN_HALF, RIDGE, default_first, own_half  # noqa: E402
from lab.data import (  # noqa: E402
    deviations,
    distinct_tau,
    each_once,
    equal_distance_tau,
    families_of,
    open_data,
    read_split,
    tau_ceiling,
    teaching_graphs,
)
from lab.run.store import Store  # noqa: E402
from lab.scores import OTHERS, scores_of_rank  # noqa: E402
from lab.training import rank_unseen  # noqa: E402

SOURCES = "xla", "nlp"
NOISE, FREQUENCY = "noise ceiling", "frequency of codes"
RULES = ((OWN_HALF, own_half, 3), (COUNT, lambda graph, seed: deviations(graph), 1),
         (DEFAULT_FIRST, lambda graph, seed: default_first(graph), 1))                 # (name, rank, seeds)
TOKEN, TREES, ADDITIVE = "token model, long form", "LightGBM", "additive trees"
ALL_KINDS, QUICK, FORMER = "recipe: all four kinds", "recipe without the GNN", "recipe without additive trees"
MIXED = {ALL_KINDS: (TOKEN, ADDITIVE, TREES, "GNN"), QUICK: (TOKEN, ADDITIVE, TREES), FORMER: (TOKEN, TREES, "GNN")}
KINDS = {TOKEN: "token", ADDITIVE: "additive", TREES: "lightgbm", "GNN": "gnn"}                # as in `PRIOR`
# of token model, additive trees, LightGBM and GNN
WEIGHTS = ((10, 0, 4, 4), (10, 0, 0, 0), (0, 10, 0, 0), (0, 0, 10, 0), (0, 0, 0, 10), (10, 4, 4, 4), (10, 10, 4, 4),
           (10, 16, 4, 4), (4, 10, 4, 4), (10, 10, 0, 4), (0, 10, 0, 4), (10, 10, 4, 0), (10, 10, 10, 10))
FOLDS = 5
FAMILIAR = 0.25                  # a program with this share of `familiar` nodes, or more, is familiar
CURVE = 4, 9                     # training programs of the learning curve; the long form needs 4


def network_recipes(search, programs):
    """{name: Recipe} of the networks that are compared."""
    long = recipes_for(f"layout:xla:{search}", programs=programs)
    short = recipes_for(f"layout:xla:{search}", programs=1)["token"]
    token = long["token"]
    return {TOKEN: token,
            "token model, long form, no bytes": token._replace(shape=replace(token.shape, bytes=False)),
            "token model, long form, no pairs": token._replace(shape=replace(token.shape, pairs=False)),
            "token model, short form": short, "GNN": long["gnn"], TREES: long["lightgbm"],
            ADDITIVE: long["additive"]}


def costs_of(name, search, seed, taught, unseen, store):
    """What a model says of unseen programs, {graph_id: cost (c,)}."""
    networks = network_recipes(search, len(taught))
    if name in FEWER:
        model, count = FEWER[name]
        chosen = np.random.default_rng(seed).permutation(len(taught))[:count]
        return rank_unseen(networks[model], f"measured {search} {name}", seed, [taught[i] for i in sorted(chosen)],
                           unseen, store, report=print)
    if name in MIXED:
        parts = [costs_of(one, search, seed, taught, unseen, store) for one in MIXED[name]]
        return combine(parts, mean_zscore, [PRIOR[KINDS[one]] for one in MIXED[name]])
    if name in networks:
        return rank_unseen(networks[name], f"measured {search} {name}", seed, taught, unseen, store, report=print)
    rank = {FREQUENCY: lambda: frequency, RIDGE: lambda: fit_digit_ridge(taught)}[name]()
    return {graph.graph_id: rank(graph) for graph in unseen}


FEWER = {f"{model}, {count} training programs": (model, count) for model in (TOKEN, ADDITIVE) for count in CURVE}
MODELS = (ALL_KINDS, QUICK, FORMER, ADDITIVE, TOKEN, *FEWER, "token model, short form",
          "token model, long form, no bytes", "token model, long form, no pairs", "GNN", TREES, RIDGE, FREQUENCY)
WITHOUT_SEEDS = RIDGE, FREQUENCY


def familiar(graph, taught):
    """The share of a program's configurable nodes whose operation has the same shapes somewhere in `taught`."""
    known = set().union(*map(_operations, taught))
    own = _operations(graph)
    return sum(one in known for one in own) / len(own)


def _operations(graph):
    """Opcode and shapes, of the output and of the sorted operands, of each configurable node, as tuples."""
    shapes = [tuple(row) for row in graph.node_feat[:, SHAPE].astype(int).tolist()]
    operands = {}
    for consumer, producer in graph.edge_index.tolist():
        operands.setdefault(consumer, []).append(shapes[producer])
    return [(int(graph.node_opcode[node]), shapes[node], *sorted(operands.get(node, ())))
            for node in graph.node_config_ids.tolist()]


def ceiling_row(graph):
    """The scores of a model that knows each mean runtime, {name: value}, as those of `scores_of_rank`."""
    ids, distance = config_ids(graph), deviations(graph)
    once = ~np.isnan(each_once(graph))

    def equal(cost, runtime):
        known = each_once(graph._replace(config_runtime=runtime))
        return equal_distance_tau(cost[once], known[once], distance[once])
    return {"tau": tau_ceiling(graph, once=True, draws=50), "tau of the file": tau_ceiling(graph, once=False, draws=50),
            "at equal distance": noise_ceiling(graph.config_runtime, ids, equal).mean}


def study(root, search, seeds, names, store, folds=None):
    """All rows of one search, as a polars DataFrame."""
    family_of, rows = families_of(root), []
    for taught, unseen in splits(root, search, folds):
        pruned = [prune(g, 1) for g in unseen]
        about = {g.graph_id: {"search": search, "program": g.graph_id, "family": family_of[g.graph_id],
                              "familiar": familiar(g, taught)} for g in unseen}
        rows += rows_without_model(unseen, about)
        for name in [n for n in names if FEWER.get(n, (n, 0))[1] < len(taught)]:
            for seed in range(1 if name in WITHOUT_SEEDS else seeds):
                rows += rows_of(name, seed, costs_of(name, search, seed, taught, pruned, store), unseen, about)
    return as_table(rows)


def rows_of(model, seed, costs, graphs, about):
    """A row per graph: `about` it {graph_id: {column: value}}, and the scores of its costs {graph_id: cost (c,)}."""
    return [{**about[g.graph_id], "model": model, "seed": seed, **scores_of_rank(costs[g.graph_id], g)} for g in graphs]


def rows_without_model(graphs, about):
    """Rows of the noise ceiling, and of the simplest rules."""
    ceilings = [{**about[g.graph_id], "model": NOISE, "seed": 0, **ceiling_row(g)} for g in graphs]
    return ceilings + [row for model, rank, many in RULES for seed in range(many)
                       for row in rows_of(model, seed, {g.graph_id: rank(g, seed) for g in graphs}, graphs, about)]


def as_table(rows):
    """Rows as a polars DataFrame."""
    return pl.DataFrame(rows, infer_schema_length=None).select(
        "search", "model", "program", "family", "familiar", "seed", "tau", *OTHERS)


def splits(root, search, folds=None):
    """Yield programs to learn from, pruned and each configuration once, and programs to rank, of other families."""
    taught, family_of = taught_programs(root, search), families_of(root)
    if folds is None:
        yield taught, unseen_programs(root, search, taught)
        return
    every = [g for split in SPLITS for s in SOURCES for g in read_split(root, f"layout:{s}:{search}", split)]
    families = np.random.default_rng(0).permutation(sorted({family_of[g.graph_id] for g in every}))
    for left_out in np.array_split(families, folds):
        out = [g for g in every if family_of[g.graph_id] in left_out]
        yield [drop_duplicate_configs(prune(g, 1))[0] for g in every if family_of[g.graph_id] not in left_out], out


def taught_programs(root, search):
    """The training programs of both sources of one search, pruned, each configuration once."""
    return [g for s in SOURCES for g in teaching_graphs(root, f"layout:{s}:{search}", "train", k_hops=1)]


def unseen_programs(root, search, taught):
    """Validation and test programs of families that none of `taught` has."""
    families = families_of(root)
    known = {families[g.graph_id] for g in taught}
    return [g for s in SOURCES for split in ("valid", "test") for g in read_split(root, f"layout:{s}:{search}", split)
            if families[g.graph_id] not in known]


def prior_table(root, search, seeds, store):
    """Lines of Markdown: tau of mixes with `WEIGHTS` on training programs, whose family each model was not taught."""
    taught, family_of = taught_programs(root, search), families_of(root)
    families = np.random.default_rng(0).permutation(sorted({family_of[g.graph_id] for g in taught}))
    costs = {(kind, seed): {} for kind in KINDS for seed in range(seeds)}
    for fold, left_out in enumerate(np.array_split(families, FOLDS)):
        left, seen = [[g for g in taught if (family_of[g.graph_id] in left_out) == out] for out in (True, False)]
        for kind, seed in costs:
            costs[kind, seed] |= rank_unseen(network_recipes(search, len(taught))[kind], f"fold {fold} {kind}", seed,
                                             seen, left, store)
    tau = {}
    for weights in WEIGHTS:
        mixes = [combine([costs[kind, seed] for kind in KINDS], mean_zscore, weights) for seed in range(seeds)]
        tau[weights] = np.array([[distinct_tau(mix[g.graph_id], g.config_runtime.astype(float)) for g in taught]
                                 for mix in mixes])
    lines = ["| token : additive : LightGBM : GNN | tau | difference to the first row |", "|---" * 3 + "|"]
    for weights, own in tau.items():
        of = [family_of[g.graph_id] for g in taught]
        gain = _with_interval((own - tau[WEIGHTS[0]]).mean(axis=0), of)
        lines.append(f"| {' : '.join(map(str, weights))} | {_with_interval(own, of)} | {gain} |")
    return "\n".join(lines)


def summary(table, reference):
    """The table of the page as lines of Markdown: means with intervals, and how far `reference` is ahead."""
    head = ("model", "tau", "first row minus this row", "without familiar programs", "tau of the file",
            "at equal distance", "best of five")
    lines = []
    for search in table["search"].unique(maintain_order=True):
        part = table.filter(search=search)
        names = [reference, *(n for n in part["model"].unique(maintain_order=True) if n != reference)]
        new = part.filter(pl.col("familiar") < FAMILIAR)
        lines += ["", f"`{search}`: {part['program'].n_unique()} programs of {part['family'].n_unique()} families; "
                  f"{new['program'].n_unique()} are not familiar", "", f"| {' | '.join(head)} |",
                  "|---" * len(head) + "|"]
        best, families = _seeds_by_programs(part, reference, "tau")
        for name in names:
            own = _seeds_by_programs(part, name, "tau")[0]
            behind = _with_interval(best.mean(axis=0) - own.mean(axis=0), families) if name != reference else ""
            others = [part.filter(model=name)[column] for column in OTHERS]
            cells = [_with_interval(own, families), behind, _number(new.filter(model=name)["tau"].mean()),
                     *(_number(column.mean()) for column in others[:2]),
                     _number(None if others[3].null_count() else np.exp(others[3].log().mean()))]
            lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def _seeds_by_programs(table, model, score):
    """(seeds, programs), and the family of each program; programs in one order."""
    rows = table.filter(model=model).sort("seed", "program")
    each = rows[score].to_numpy().reshape(rows["seed"].n_unique(), -1)
    return each, rows["family"].to_list()[:each.shape[1]]


def _number(value):
    return "" if value is None else f"{value:.3f}"


def _with_interval(values, families):
    low, high = bootstrap_interval(values, families=families)
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"


def main(argv=None):
    """Run the study and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", default="measured")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=PROJECT / "submissions" / "measured-study")
    parser.add_argument("--models", type=partial(str.split, sep=";"), default=MODELS, help="joined by ;")
    parser.add_argument("--searches", type=partial(str.split, sep=","), default=("random", "default"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folds", type=int, help="of the families of all programs; None: the splits of the data")
    parser.add_argument("--prior", action="store_true", help="compare weights of an ensemble on training programs")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    root = open_data(args.data_root)
    if args.prior:
        print(prior_table(root, "random", args.seeds, Store(args.out / "store")))
        return
    table = pl.concat(study(root, search, args.seeds, args.models, Store(args.out / "store"), args.folds)
                      for search in args.searches)
    with whole_file(args.out / "measured_study.csv") as part:
        table.write_csv(part)
    print(summary(table, args.models[0]))


if __name__ == "__main__":
    main()
