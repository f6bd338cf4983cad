"""Specialists: a program ranked by its relatives in training alone, and what they add to an ensemble. Prints tables.

    python tests/benchmarks/siblings_study.py [alexnet,unets,families,differences] [--data-root DIR] [--seeds 3]
                                              [--relatives 1] [--samples 5]

`alexnet` and `unets` need real files under the data root. `families` and `differences` need sample data alone, with
relatives of validation and test programs among the training programs. In `differences`, the sample data have networks
of all kinds; a relative differs in one thing, and some programs have no relatives. Tau is that of a ranking without
ties.
"""
import argparse
import hashlib
import re
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingRegressor
from token_study import KNOWN, THIRD, named, table, trained

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kit.baselines import nearest_relatives, rank_by_relatives
from kit.baselines.specialists import Rows, common_codes, fit_codes, fit_pairs, fit_trees
from kit.data import COLLECTIONS, find_data_root
from kit.metrics import kendall_tau
from kit.noise import bootstrap_interval
from kit.prune import drop_duplicate_configs, hold_out_configs, prune
from kit.recipes import recipes_for
from kit.run.workflow import read_split, sample_truth, training_graphs
from kit.sample import write_sample
from kit.sample.architectures import DIFFERENCES
from kit.train import predict


def tau(cost, graph):
    """Kendall's tau of a graph's configurations, without credit for ties."""
    return kendall_tau(cost, graph.config_runtime, strict=True)


def shares(weights):
    """Weights as text."""
    return ", ".join(f"{weight:.0%} {name}" for name, weight in weights.items())


def alexnet(root, seeds):
    """Configurations of alexnet that were held out; the program is its own sibling."""
    graph = drop_duplicate_configs(prune(named(root, "layout:xla:default", "train", KNOWN[0])))[0]
    other = prune(named(root, "layout:xla:default", "train", KNOWN[1]))
    found, mixes = {}, []
    for seed in range(seeds):
        seen, held = hold_out_configs(graph, 0.2, np.random.default_rng(seed))
        own, codes, sizes = common_codes(held, nearest_relatives(held, [seen]))
        rows = [Rows(code, np.zeros(len(code))) for code in (codes[0], own)]
        one_hot = [np.concatenate([code[:, [g]] == np.arange(size) for g, size in enumerate(sizes)], axis=1)
                   for code, _ in rows]
        trees = HistGradientBoostingRegressor(max_iter=400, random_state=seed)
        model = token([seen, other], seed)
        for name, rank in {
            "boosted trees of one-hot codes, trained on alexnet alone":
                partial(fit_and_rank, trees, *one_hot, rankdata(seen.config_runtime)),
            "ridge regression on codes, trained on alexnet alone": partial(
                lambda held, *known: fit_codes(*known)(held), rows[1], rows[:1], [seen.config_runtime], sizes),
            "specialist, with alexnet and unet3d to choose from": partial(mixed, held, [seen, other], mixes),
            "token model, trained on alexnet and unet3d": partial(predict, model, held),
            "specialist with the token model as base": partial(mixed, held, [seen, other], mixes, model),
        }.items():
            start = time.perf_counter()
            found.setdefault(name, []).append((tau(rank(), held), time.perf_counter() - start))
    first = np.array(found[next(iter(found))])[:, 0]
    table(("model", "tau, one number per seed", "mean", "difference to the first row (95% interval)", "seconds"),
          [(name, ", ".join(f"{t:.4f}" for t, _ in runs), f"{np.mean([t for t, _ in runs]):.4f}",
            interval(np.array([t for t, _ in runs]) - first), f"{np.median([s for _, s in runs]):.1f}")
           for name, runs in found.items()])
    print("\nMixes of the specialist:", "; ".join(map(shares, mixes)))


def fit_and_rank(model, seen, held, ranks):
    """The cost of held-out rows by a model of scikit-learn."""
    return model.fit(seen, ranks).predict(held)


def token(graphs, seed):
    """The token model of the recipe for real files, trained."""
    return trained(recipes_for("layout:xla:default", programs=len(graphs))["token"], graphs, seed)[0]


def mixed(graph, graphs, mixes, model=None):
    """The cost of a specialist; its weights are noted."""
    found = rank_by_relatives(graph, graphs, model and partial(predict, model))
    mixes.append(found.weights)
    return found.cost


def unets(root, seeds):
    """unet_3d, random and default, ranked by models of its relative unet3d (default) and by the token model."""
    teacher, other = (drop_duplicate_configs(prune(named(root, "layout:xla:default", "train", name)))[0]
                      for name in KNOWN[::-1])
    models, rows = [token([teacher, other], seed) for seed in range(seeds)], []
    for search in ("random", "default"):
        graph = prune(named(root, f"layout:xla:{search}", "valid", THIRD))
        relatives = nearest_relatives(graph, [teacher, other])
        own, codes, sizes = common_codes(graph, relatives)
        rows_of = [Rows(code, np.zeros(len(code))) for code in (codes[0], own)]
        fits = {"ridge regression on codes": fit_codes, "ridge regression on codes and pairs": fit_pairs,
                "boosted trees of codes": fit_trees}
        for name, fit in fits.items():
            cost = fit(rows_of[:1], [relatives[0].graph.config_runtime], sizes)(rows_of[1])
            rows.append((search, name, f"{tau(cost, graph):.3f}"))
        found = rank_by_relatives(graph, [teacher, other])
        rows.append((search, f"specialist ({shares(found.weights)})", f"{tau(found.cost, graph):.3f}"))
        taus = np.array([[tau(predict(model, graph), graph), tau(mixed(graph, [teacher, other], [], model), graph)]
                         for model in models])
        for name, column in zip(("token model, trained on alexnet and unet3d",
                                 "specialist with the token model as base"), taus.T):
            rows.append((search, name, f"{column.mean():.3f} ({', '.join(f'{t:.3f}' for t in column)})"))
    alignment = relatives[0].alignment
    print(f"\nSimilarity of the two programs: {alignment.similarity:.2f}. Groups that line up: "
          + ", ".join(f"{i}-{j} ({alike:.2f})" for (i, j), alike in zip(alignment.pairs, alignment.alike)))
    table(("unet_3d", "model, trained on unet3d alone unless it says more", "tau (one number per seed)"), rows)


def families(root, seeds, relatives=1, sample_seeds=(41, 42)):
    """Sample data in families: the token model with and without specialists, where relatives exist and where not."""
    rows, found = [], {}
    for sample_seed in sample_seeds:
        with TemporaryDirectory() as folder:
            data = write_sample(Path(folder, "sample"), seed=sample_seed, relatives=relatives)
            for collection in COLLECTIONS[1:]:
                for words, scores in family_scores(data, collection, seeds).items():
                    found.setdefault(words, {}).setdefault(collection, []).append(scores)
    for words, by_collection in found.items():
        by_collection = {c: np.concatenate(parts, axis=-1) for c, parts in by_collection.items()}
        by_collection["all four"] = np.concatenate(list(by_collection.values()), axis=-1)
        for collection, (near, base, alone, both) in by_collection.items():
            near = near[0] > 0
            rows.append((collection, words, f"{near.sum()} of {len(near)}", f"{base.mean():.3f}",
                         f"{np.nanmean(alone[:, near]):.3f}" if near.any() else "", f"{both.mean():.3f}",
                         interval(both - base)))
    table(("collection (sample data)", "trained on", "programs with a relative", "token model", "relatives alone",
           "token model, corrected on relatives", "difference (95% interval)"), rows)


def family_scores(data, collection, seeds):
    """{what specialists were trained on: (has a relative, tau of token model, specialist, both; seeds; programs)}.

    Programs are those of the validation and the test split. They choose nothing: the last weights of the token model
    are kept.
    """
    taught = training_graphs(data, collection, k_hops=1)[0]
    graphs, truth = read_split(data, collection, "valid", k_hops=1), sample_truth(data, collection)
    graphs += [g._replace(config_runtime=truth[f"{collection}:{g.graph_id}"])
               for g in read_split(data, collection, "test", k_hops=1)]
    models = [trained(recipes_for(collection, "short")["token"], taught, seed)[0] for seed in range(seeds)]
    teachers = {"with relatives": taught, "no relatives": [g for g in taught if "_relative_" not in g.graph_id]}
    scores = {}
    for words, programs in teachers.items():
        columns = []
        for g in graphs:
            alone = rank_by_relatives(g, programs)
            for model in models:
                both = rank_by_relatives(g, programs, partial(predict, model))
                cost = predict(model, g)
                columns.append((alone is not None, tau(cost, g), tau(alone.cost, g) if alone else np.nan,
                                tau(both.cost if both else cost, g)))
        scores[words] = np.array(columns).reshape(len(graphs), len(models), 4).transpose(2, 1, 0)
    return scores


def differences(samples):
    """Networks of all kinds: what specialists add, by what a program's relative differs in."""
    rows = []
    for sample_seed in range(51, 51 + samples):
        with TemporaryDirectory() as folder:
            data = write_sample(Path(folder, "sample"), seed=sample_seed, relatives=1, kinds="all")
            rows += difference_scores(data)
        print(f"sample {sample_seed} done", flush=True)
    shown = []
    for kind in (*DIFFERENCES, "has no relative"):
        some = [row for row in rows if row.difference == (kind if kind in DIFFERENCES else "")]
        shown.append((f"{kind}, {sum(row.found for row in some)} of {len(some)} found", *scores_shown(some)))
    for words, some in {
        "all with a relative that was found": [row for row in rows if row.difference and row.found],
        "all without": [row for row in rows if not row.difference],
        "all": rows, **{c: [row for row in rows if row.collection == c] for c in COLLECTIONS[1:]},
        "mode, taken as a relative": [row._replace(alone=row.forced_alone, both=row.forced)
                                      for row in rows if row.difference == "mode"],
    }.items():
        shown.append((words, *scores_shown(some)))
    table(("programs (sample data, all kinds)", "programs", "token model", "relatives alone",
           "token model, corrected on relatives", "difference (95% interval)"), shown)


class Scored(NamedTuple):
    """Taus of one program."""
    collection: str
    difference: str              # what its relative in training differs in; "": it has none
    found: bool                  # a relative was found
    base: float                  # token model
    alone: float                 # relatives alone; nan without any
    both: float                  # the token model, corrected on relatives, if there are any
    forced_alone: float          # the same by its own relative, however similar it is; nan without one
    forced: float


def scores_shown(rows):
    """Number and mean taus as text."""
    base, alone, both = (np.array([getattr(row, name) for row in rows]) for name in ("base", "alone", "both"))
    return (len(rows), f"{base.mean():.3f}", f"{np.nanmean(alone):.3f}" if np.isfinite(alone).any() else "",
            f"{both.mean():.3f}", interval(both - base))


def difference_scores(data):
    """A Scored per validation and test program, of a token model that was trained on all layout collections."""
    taught = {c: training_graphs(data, c, k_hops=1)[0] for c in COLLECTIONS[1:]}
    recipe = recipes_for(COLLECTIONS[1], "short")["token"]
    recipe = recipe._replace(settings=replace(recipe.settings, steps=recipe.settings.steps * len(taught)))
    model = trained(recipe, [g for graphs in taught.values() for g in graphs], 0)[0]
    rows = []
    for collection, programs in taught.items():
        graphs, truth = read_split(data, collection, "valid", k_hops=1), sample_truth(data, collection)
        graphs += [g._replace(config_runtime=truth[f"{collection}:{g.graph_id}"])
                   for g in read_split(data, collection, "test", k_hops=1)]
        own = own_relatives(programs)
        for g in graphs:
            near, base = own.get(g.graph_id), partial(predict, model)
            alone, both = rank_by_relatives(g, programs), rank_by_relatives(g, programs, base)
            forced = [rank_by_relatives(g, [near], by, least=0) for by in (None, base)] if near else [None, None]
            cost = base(g)
            taus = [tau(one.cost, g) if one else np.nan for one in (alone, *forced)]
            rows.append(Scored(collection, near.graph_id.rsplit("_", 1)[1] if near else "", alone is not None,
                               tau(cost, g), taus[0], tau(both.cost if both else cost, g), taus[1],
                               tau(forced[1].cost if forced[1] else cost, g)))
    return rows


def own_relatives(graphs):
    """{name of a validation or test program: the training program that was made as its relative}."""
    found = {}
    for g in graphs:
        made = re.fullmatch(r"(.*)_relative_\d+_\w+", g.graph_id)
        for name in possible_names(made[1]) if made else ():
            found[name] = found[hashlib.md5(name.encode()).hexdigest()] = g      # test files hide their names
    return found


def possible_names(name):
    """The names that a program may have whose relative is called `name`: batch size and mode may differ."""
    modes = {name, name.replace("_net_inference_", "_net_"), name.replace("_net_batch", "_net_inference_batch"),
             name.replace("_train_batch", "_inference_batch"), name.replace("_inference_batch", "_train_batch")}
    return {re.sub(r"_batch_\d+_", f"_batch_{batch}_", mode) for mode in modes for batch in range(1, 257)}


def interval(values):
    """Mean and 95% interval as text."""
    low, high = bootstrap_interval(values)
    return f"{values.mean():+.4f} ({low:+.4f} to {high:+.4f})"


def main():
    parts = {"alexnet": alexnet, "unets": unets, "families": families,
             "differences": differences}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="?", default=",".join(parts))
    parser.add_argument("--data-root")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--relatives", type=int, default=1, help="of each program, in `families`")
    parser.add_argument("--samples", type=int, default=5, help="how many sample data sets, in `differences`")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    wanted = args.parts.split(",")
    root = find_data_root(args.data_root) if {"alexnet", "unets"} & {*wanted} else None
    for name in wanted:
        print(f"\n## {name}: {parts[name].__doc__.splitlines()[0]}", flush=True)
        if name == "differences":
            differences(args.samples)
        else:
            parts[name](root, args.seeds, **{"relatives": args.relatives} if name == "families" else {})


if __name__ == "__main__":
    main()
