"""What the token model learned of real programs, beside what their files show. Prints markdown tables.

    python tests/benchmarks/explain_study.py --data-root DIR [--draws 3] [--configs 500] [--terms 4] [--mix none]

For each layout program with runtimes under DIR, a token model is trained on four fifths of the different
configurations. `explain` splits the costs of held-out configurations into terms of groups and of pairs of groups.

- "In the model" is the share of a term in the variance of the cost: its covariance with the cost, divided by the
  variance of the cost. The shares of all terms and of the rest add up to 1.
- "In the file" is the share of the variance of the rank of the runtime, of all configurations, that lies between the
  codes of the group, or of the pair of groups; the share that as many codes would have by chance is taken off
  (adjusted R2). Ranks, because the loss of the model reads nothing but the order.

The file knows nothing of the model, so the second share is a check of the first one. Pairs contain their groups:
the share of a pair in the file is what the pair tells beyond its two groups, each alone.
"""
import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata, spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))

from kit.data import COLLECTIONS, OPCODE_NAMES, find_data_root, npz_paths, read_layout, target, teaches
from kit.metrics import kendall_tau
from kit.models.explanation import explain
from kit.pad import SHAPE
from kit.prune import drop_duplicate_configs, fewer_configs, hold_out_configs, prune
from kit.recipes import recipes_for
from kit.train import predict, train

MOST_TRAINED = 20_000            # configurations of one program
LEAST_CONFIGS = 100              # a program with fewer says nothing by shares of variance
REST = (-1, -1)                  # the place of the effects that do not add up


def shares_in_model(model, graph, rows, against):
    """{(group, group): share in the variance of the cost}, {REST: of the rest}, over the configurations `rows`."""
    tensors, terms, costs, rests = model.prepare(graph), [], [], []
    for row in rows:
        found = explain(model, graph, graph.config_codes[row], against, tensors)
        terms.append(found.by_group(graph))
        costs.append(found.cost)
        rests.append(found.rest)
    terms, centred = np.array(terms), np.array(costs) - np.mean(costs)
    part = np.tensordot(centred, terms - terms.mean(axis=0), 1) / (centred ** 2).sum()
    shares = {tuple(map(int, place)): part[tuple(place)] for place in np.argwhere(np.any(terms != 0, axis=0))}
    return shares | {REST: centred @ (np.array(rests) - np.mean(rests)) / (centred ** 2).sum()}


def between(labels, values):
    """Adjusted R2 of `values` (c,) by their label (c,): the share of variance between labels, without chance."""
    _, label = np.unique(labels, axis=0, return_inverse=True)
    label, count = label.ravel(), len(values)
    size = np.bincount(label)
    if len(size) >= count or not np.ptp(values):
        return 0.0
    within = ((values - (np.bincount(label, values) / size)[label]) ** 2).sum() / (count - len(size))
    return 1 - within / (((values - values.mean()) ** 2).sum() / (count - 1))


def shares_in_file(graph, places):
    """{(group, group): share in the variance of the log runtime} for the given places."""
    runtime, codes, found = rankdata(target(graph)), graph.config_codes, {}
    for low, high in places:
        alone = [between(codes[:, [group]], runtime) for group in {low, high}]
        found[low, high] = alone[0] if low == high else between(codes[:, [low, high]], runtime) - sum(alone)
    return found


def one_draw(graph, draw, most, mix):
    """Train on four fifths of the configurations (no two alike) -> (shares in the model, tau of held-out ones)."""
    rng = np.random.default_rng(draw)
    kept, held_out = (fewer_configs(part, MOST_TRAINED) for part in hold_out_configs(graph, 0.2, rng))
    recipe = recipes_for("layout:xla:random", "quick", 1)["token"]
    settings = replace(recipe.settings, seed=draw, keep="last", validate_every=1 << 30)
    model = recipe.network(replace(recipe.shape, seed=draw, mix=mix))
    train(model, [kept], settings, recipe.loss)
    rows = rng.choice(len(held_out.config_codes), min(most, len(held_out.config_codes)), replace=False)
    fastest = kept.config_codes[np.argmin(target(kept))].astype(np.int64)
    return shares_in_model(model, held_out, rows, fastest), kendall_tau(predict(model, held_out), target(held_out))


def where(graph, group):
    """A group in words: opcode, shape of its first operation, number of operations."""
    nodes = graph.node_config_ids[graph.node_group == group]
    shape = graph.node_feat[nodes[0], SHAPE].astype(int)
    more = f" and {len(nodes) - 1} more" * (len(nodes) > 1)
    return f"{OPCODE_NAMES[graph.node_opcode[nodes[0]]]} {'x'.join(map(str, shape[shape > 0])) or 'scalar'}{more}"


def mean_and_range(numbers):
    """"mean (least to most)"."""
    return f"{np.mean(numbers):.3f} ({min(numbers):.3f} to {max(numbers):.3f})"


def show(title, graph, draws, most, terms, mix):
    """Print the table of one program: the largest terms in the model, and all the others together."""
    found = [one_draw(graph, draw, most, mix) for draw in range(draws)]
    mean = {place: np.mean([shares.get(place, 0.0) for shares, _ in found])
            for place in set().union(*(shares for shares, _ in found))}
    places = sorted((p for p in mean if p != REST), key=lambda p: -mean[p])
    file = shares_in_file(graph, places)
    alone = [p for p in places if p[0] == p[1]]
    agreed = spearmanr([mean[p] for p in alone], [file[p] for p in alone]).statistic if len(alone) > 2 else np.nan
    print(f"\n### {title}\n\n{len(graph.config_codes):,} different configurations, {graph.config_codes.shape[1]} "
          f"groups, {draws} trainings; held-out tau {mean_and_range([tau for _, tau in found])}; rank correlation of "
          f"the shares of groups {agreed:.2f}\n\n| term | in the model | in the file |\n|---|---|---|")
    for low, high in places[:terms]:
        name = " -> ".join(where(graph, group) for group in dict.fromkeys((low, high)))
        print(f"| {name} | {mean_and_range([shares.get((low, high), 0.0) for shares, _ in found])} "
              f"| {file[low, high]:.3f} |")
    other = [sum(share for place, share in shares.items() if place != REST and place not in places[:terms])
             for shares, _ in found]
    print(f"| {max(len(places) - terms, 0)} other terms | {mean_and_range(other)} | |")
    print(f"| effects that do not add up | {mean_and_range([shares[REST] for shares, _ in found])} | |", flush=True)


def main():
    """Print one table for each program that has runtimes to learn from."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--draws", type=int, default=3, help="trainings, each with other held-out configurations")
    parser.add_argument("--configs", type=int, default=500, help="held-out configurations that are explained")
    parser.add_argument("--terms", type=int, default=4, help="rows of a table")
    parser.add_argument("--mix", default="none", choices=("pool", "none"), help='"none": the cost is its terms alone')
    args = parser.parse_args()
    torch.set_num_threads(1)
    root = find_data_root(args.data_root)
    for collection in (name for name in COLLECTIONS if name.startswith("layout")):
        for split in ("train", "valid"):
            for path in npz_paths(root, collection, split):
                graph = drop_duplicate_configs(prune(read_layout(path)))[0]
                if teaches(graph) and len(graph.config_codes) >= LEAST_CONFIGS:
                    show(f"{path.stem} (real file, {collection}, {split})", graph, args.draws, args.configs, args.terms,
                         args.mix)


if __name__ == "__main__":
    main()
