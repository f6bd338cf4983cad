"""Which cost models rank real programs of families that they never saw, measured on this kind of machine.

    python notebooks/lab/studies/new_families.py [--data-root measured] [--seeds 3] [--out DIR] [--models A;B] [--prior]

A model learns from the training programs of one search, `random` or `default`, of both sources, and ranks validation
and test programs of families that no training program has. Two scores per program: Kendall's
tau of all rows, as in the competition, and tau among pairs of configurations that differ from the compiler's default in
equally many groups. A model that only counts these groups has 0 in the second one. The rows of the table are also
written to `measured_study.csv`, one row per model, program and seed. `--prior` compares weights of an ensemble instead,
on training programs alone: a fifth of their families at a time is left out of training and ranked.
"""
import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from sklearn.linear_model import RidgeCV

PROJECT = Path(__file__).resolve().parents[3]
sys.path[:0] = str(PROJECT), str(PROJECT / "notebooks")
from kit.baselines import fit_digit_ridge, frequency  # noqa: E402
from kit.ensemble import PRIOR, combine, mean_zscore  # noqa: E402
from kit.files import whole_file  # noqa: E402
from kit.metrics import kendall_tau  # noqa: E402
from kit.noise import bootstrap_interval, noise_ceiling  # noqa: E402
from kit.prune import config_ids, drop_duplicate_configs, prune  # noqa: E402
from kit.recipes import recipes_for  # noqa: E402
from lab.data import measured_table, open_data, read_split, teaching_graphs  # noqa: E402
from lab.run.store import Store  # noqa: E402
from lab.training import rank_unseen  # noqa: E402

SOURCES = "xla", "nlp"
COUNT = "count of deviations"
OWN_HALF, NOISE = "ridge on half of the same program", "ceiling: noise"
TOKEN, TREES = "token model, long form", "LightGBM"
MIX, ALL_KINDS = f"{TOKEN}, with {TREES}", f"{TOKEN}, with {TREES} and GNN"
MIXED = {MIX: (TOKEN, TREES), ALL_KINDS: (TOKEN, TREES, "GNN")}
KINDS = {TOKEN: "token", TREES: "lightgbm", "GNN": "gnn"}                # as in `PRIOR`
WEIGHTS = ((10, 0, 0), (0, 10, 0), (0, 0, 10), (10, 4, 0), (10, 4, 0.3), (10, 4, 2), (10, 4, 4), (10, 4, 6),
           (10, 4, 10))          # of token model, LightGBM and GNN
FOLDS = 5
CURVE = 4, 9                     # training programs of the learning curve; the long form needs 4
PENALTIES = tuple(10.0 ** p for p in range(-3, 4))


def deviations(graph):
    """By how many groups each configuration differs from the one that was measured most often, the default; (c,)."""
    ids = config_ids(graph)
    default = graph.config_codes[np.argmax(ids == np.bincount(ids).argmax())]
    return (graph.config_codes != default).sum(axis=1)


def equal_distance_tau(cost, runtime, distance):
    """Kendall's tau over the pairs of configurations with equal `distance`, whatever their runtimes; (c,) each.

    Pairs of equal runtimes do not count, and pairs of equal costs count as half right. NaN without any pair.
    """
    first, second = np.triu_indices(len(cost), 1)
    chosen = (distance[first] == distance[second]) & (runtime[first] != runtime[second])
    first, second = first[chosen], second[chosen]
    signs = np.sign(cost[first] - cost[second]) * np.sign(runtime[first] - runtime[second])
    return float(signs.mean()) if len(signs) else np.nan


def fit_same_program(graph, seed):
    """Cost of each configuration by ridge regression on one-hot codes, fitted on the half that it is not in; (c,)."""
    one_hot = np.concatenate([graph.config_codes[:, [g]] == np.arange(graph.config_codes[:, g].max() + 1)
                              for g in range(graph.config_codes.shape[1])], axis=1).astype(float)
    target = np.log(graph.config_runtime)
    half = np.random.default_rng(seed).permutation(len(target)) % 2 == 0
    cost = np.empty(len(target))
    for seen in (half, ~half):
        cost[~seen] = RidgeCV(PENALTIES).fit(one_hot[seen], target[seen]).predict(one_hot[~seen])
    return cost


def network_recipes(search, programs):
    """{name: Recipe} of the networks that are compared."""
    long = recipes_for(f"layout:xla:{search}", programs=programs)
    short = recipes_for(f"layout:xla:{search}", programs=1)["token"]
    token = long["token"]
    return {TOKEN: token,
            "token model, long form, no bytes": token._replace(shape=replace(token.shape, bytes=False)),
            "token model, long form, no pairs": token._replace(shape=replace(token.shape, pairs=False)),
            "token model, short form": short, "GNN": long["gnn"], TREES: long["lightgbm"]}


def costs_of(name, search, seed, taught, unseen, store):
    """What a model says of unseen programs, {graph_id: cost (c,)}."""
    networks = network_recipes(search, len(taught))
    if name in FEWER:
        chosen = np.random.default_rng(seed).permutation(len(taught))[:FEWER[name]]
        return rank_unseen(networks[TOKEN], f"measured {search} {name}", seed, [taught[i] for i in sorted(chosen)],
                           unseen, store, report=print)
    if name in MIXED:
        parts = [costs_of(one, search, seed, taught, unseen, store) for one in MIXED[name]]
        return combine(parts, mean_zscore, [PRIOR[KINDS[one]] for one in MIXED[name]])
    if name in networks:
        return rank_unseen(networks[name], f"measured {search} {name}", seed, taught, unseen, store, report=print)
    rank = {COUNT: lambda: deviations, "frequency of codes": lambda: frequency,
            "ridge on digits": lambda: fit_digit_ridge(taught)}[name]()
    return {graph.graph_id: rank(graph) for graph in unseen}


FEWER = {f"{TOKEN}, {count} training programs": count for count in CURVE}
MODELS = (ALL_KINDS, MIX, TOKEN, *FEWER, "token model, short form", "token model, long form, no bytes",
          "token model, long form, no pairs", "GNN", TREES, "ridge on digits", COUNT, "frequency of codes")
WITHOUT_SEEDS = "ridge on digits", "frequency of codes", COUNT


def scored(graph, cost):
    """(tau of all rows, tau at equal distance of distinct configurations)."""
    first = np.unique(config_ids(graph), return_index=True)[1]
    distinct = drop_duplicate_configs(graph)[0]
    order = np.sort(first)                                      # as `drop_duplicate_configs` orders them
    return (kendall_tau(cost, graph.config_runtime),
            equal_distance_tau(cost[order], distinct.config_runtime, deviations(graph)[order]))


def own_rows(graph):
    """Rows (model, tau, tau at equal distance) of the noise ceiling of a program, and of ridge on half of its rows."""
    ids, distance = config_ids(graph), deviations(graph)
    noise = noise_ceiling(graph.config_runtime, ids).mean
    place = np.unique(ids, return_index=True)[1]
    first = np.sort(place)
    equal = noise_ceiling(graph.config_runtime, ids, lambda cost, runtime: equal_distance_tau(
        cost[first], runtime[first], distance[first])).mean
    distinct, own = drop_duplicate_configs(graph)[0], []
    for seed in range(3):
        cost = fit_same_program(distinct, seed)
        own.append(scored(graph, cost[np.searchsorted(first, place[ids])]))
    return [(NOISE, noise, equal), (OWN_HALF, *np.mean(own, axis=0))]


def study(root, search, seeds, names, store):
    """All rows of one search, as a polars DataFrame."""
    taught = taught_programs(root, search)
    unseen, families = unseen_programs(root, search, taught)
    pruned, names = [prune(g, 1) for g in unseen], [n for n in names if FEWER.get(n, 0) < len(taught)]
    rows = [(search, model, g.graph_id, families[g.graph_id], 0, *both) for g in unseen for model, *both in own_rows(g)]
    for name in names:
        for seed in range(1 if name in WITHOUT_SEEDS else seeds):
            costs = costs_of(name, search, seed, taught, pruned, store)
            rows += [(search, name, g.graph_id, families[g.graph_id], seed, *scored(g, costs[g.graph_id]))
                     for g in unseen]
    return pl.DataFrame(rows, ("search", "model", "program", "family", "seed", "tau", "equal_distance"), orient="row")


def taught_programs(root, search):
    """The training programs of both sources of one search, pruned, each configuration once."""
    return [g for s in SOURCES for g in teaching_graphs(root, f"layout:{s}:{search}", "train", k_hops=1)]


def families_of(root):
    """{graph_id: family} of the measured programs."""
    return dict(pl.read_csv(measured_table(root)).select("program", "family").iter_rows())


def unseen_programs(root, search, taught):
    """Validation and test programs of families that none of `taught` has -> (graphs, {graph_id: family})."""
    families = families_of(root)
    known = {families[g.graph_id] for g in taught}
    return [g for s in SOURCES for split in ("valid", "test") for g in read_split(root, f"layout:{s}:{search}", split)
            if families[g.graph_id] not in known], families


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
        tau[weights] = np.array([[kendall_tau(mix[g.graph_id], g.config_runtime) for g in taught] for mix in mixes])
    lines = ["| token model : LightGBM : GNN | tau | difference to 10 : 4 : 0 |", "|---" * 3 + "|"]
    for weights, own in tau.items():
        gain = _with_interval((own - tau[10, 4, 0]).mean(axis=0))
        lines.append(f"| {' : '.join(map(str, weights))} | {_with_interval(own)} | {gain} |")
    return "\n".join(lines)


def summary(table, reference):
    """The table of the page as lines of Markdown: means with intervals, and how far `reference` is ahead."""
    head = "model", "tau", "tau at equal distance", "first row minus this row, in tau", "at equal distance"
    lines = []
    for search in table["search"].unique(maintain_order=True):
        part = table.filter(search=search)
        names = [reference, *(n for n in part["model"].unique(maintain_order=True) if n != reference)]
        lines += ["", f"`{search}`: {part['program'].n_unique()} programs of {part['family'].n_unique()} families", "",
                  f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for name in names:
            pairs = [[_seeds_by_programs(part, model, score) for model in (name, reference)]
                     for score in ("tau", "equal_distance")]
            behind = [_with_interval(best.mean(axis=0) - own.mean(axis=0)) if name != reference else ""
                      for own, best in pairs]
            lines.append(f"| {' | '.join([name, *(_with_interval(own) for own, _ in pairs), *behind])} |")
    return "\n".join(lines)


def _seeds_by_programs(table, model, score):
    """(seeds, programs); programs in one order."""
    rows = table.filter(model=model).sort("seed", "program")
    return rows[score].to_numpy().reshape(rows["seed"].n_unique(), -1)


def _with_interval(values):
    low, high = bootstrap_interval(values)
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
    parser.add_argument("--prior", action="store_true", help="compare weights of an ensemble on training programs")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    root = open_data(args.data_root)
    if args.prior:
        print(prior_table(root, "random", args.seeds, Store(args.out / "store")))
        return
    table = pl.concat(study(root, search, args.seeds, args.models, Store(args.out / "store"))
                      for search in args.searches)
    with whole_file(args.out / "measured_study.csv") as part:
        table.write_csv(part)
    print(summary(table, args.models[0]))


if __name__ == "__main__":
    main()
