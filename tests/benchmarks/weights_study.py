"""Weights of an ensemble of different models: equal, or chosen on validation programs. Prints a markdown table.

    python tests/benchmarks/weights_study.py [--seeds 3] [--draws 100] [--threads 1]

On sample data, the recipes' token model and GNN rank programs that neither was trained on. Some of these programs are
drawn as validation programs and choose the weights. The score is the mean over all other programs and over many draws.
"""
import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from token_study import trained

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kit.baselines.compare import unseen_programs
from kit.data import COLLECTIONS
from kit.ensemble import choose_weights, combine, mean_zscore
from kit.metrics import kendall_tau
from kit.recipes import recipes_for
from kit.run.workflow import open_data, training_graphs
from kit.train import predict


def ranked(collection, root, seeds):
    """({kind: {ID: cost}}, mean over seeds; {ID: runtime}) of the unseen programs of one collection."""
    graphs = training_graphs(root, collection, k_hops=1)[0]
    others = unseen_programs(root, collection, True, k_hops=1, seed=1)
    kinds = {}
    for kind, recipe in recipes_for(collection).items():
        models = [trained(recipe, graphs, seed)[0] for seed in range(seeds)]
        kinds[kind] = combine([{g.graph_id: predict(model, g) for g in others} for model in models], mean_zscore)
    return kinds, {g.graph_id: g.config_runtime for g in others}


def score(kinds, shares, runtimes, names):
    """Mean tau of the programs in `names`."""
    return np.mean([kendall_tau(sum(shares[k] * kinds[k][i] for k in kinds), runtimes[i]) for i in names])


def by_draws(kinds, runtimes, size, draws):
    """Score with weights chosen on `size` drawn programs: mean over the other programs, and the GNN's mean weight."""
    rng, found = np.random.default_rng(0), []
    for _ in range(draws):
        names = [str(name) for name in rng.permutation(sorted(runtimes))]
        shares = choose_weights(kinds, {i: runtimes[i] for i in names[:size]}, kendall_tau)
        equal = dict.fromkeys(kinds, 1 / len(kinds))
        found.append((score(kinds, shares, runtimes, names[size:]), score(kinds, equal, runtimes, names[size:]),
                      shares["gnn"]))
    (chosen, equal, share), worst = np.mean(found, axis=0), np.min([c - e for c, e, _ in found])
    return f"{chosen:.3f} ({share:.0%} GNN; worst draw {worst:+.3f} against equal weights, mean {chosen - equal:+.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("seeds", 3), ("draws", 100), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    root, _ = open_data("sample")
    print("\n| collection (sample data) | token alone | GNN alone | equal weights | weights from 5 programs | "
          "weights from 8 programs |\n|---|---|---|---|---|---|")
    for collection in COLLECTIONS[1:]:
        kinds, runtimes = ranked(collection, root, args.seeds)
        fixed = [f"{score(kinds, shares, runtimes, runtimes):.3f}" for shares in (
            {"token": 1, "gnn": 0}, {"token": 0, "gnn": 1}, {"token": .5, "gnn": .5})]
        chosen = [by_draws(kinds, runtimes, size, args.draws) for size in (5, 8)]
        print("| " + " | ".join([f"`{collection}`", *fixed, *chosen]) + " |", flush=True)


if __name__ == "__main__":
    main()
