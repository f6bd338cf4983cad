"""The config-token model against LayoutGNN on real files: time to rank, time to train, an unseen program.

    python tests/benchmarks/token_study.py [PART,PART,...] [--data-root DIR] [--threads 2]

The parts are rank, files, alexnet and zero-shot. They need real files under the data root, and print markdown tables.
All rows of a table are measured in one run, so compare numbers within a table.
"""
import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingRegressor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))

from kit.data import COLLECTIONS, find_data_root, npz_paths, read_layout, read_tile
from kit.metrics import kendall_tau
from kit.models import ConfigTokenModel, ConfigTokenSettings, LayoutGNN, LayoutGNNSettings, TileModel
from kit.noise import bootstrap_interval, noise_ceiling
from kit.prune import config_ids, drop_duplicate_configs, hold_out_configs, prune
from kit.recipes import recipes_for
from kit.train import TrainSettings, predict, train
from lab.data import Data

LARGEST = "3a0c5517a87df8d82fd637b83298a3ba"         # the test program of 21,918 nodes
KNOWN, THIRD = ("alexnet_train_batch_32", "unet3d"), "unet_3d.4x4.bf16"


def timed(call):
    """(seconds, result)."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def named(root, collection, split, name):
    """Read the file whose name starts with `name`, not pruned."""
    path = next((p for p in npz_paths(root, collection, split) if p.stem.startswith(name)), None)
    if path is None:
        raise SystemExit(f"{root}: no {name}*.npz in the {split} split of {collection}, which this part measures")
    return read_layout(path)


def table(head, rows):
    """Print a markdown table, each row as soon as it is known."""
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def trained(recipe, graphs, seed, **changes):
    """Train by a recipe and keep the last weights -> (model, seconds)."""
    model = recipe.network(replace(recipe.shape, seed=seed))
    settings = replace(recipe.settings, seed=seed, keep="last", **{"validate_every": 1 << 30, **changes})
    return model, train(model, graphs, settings, recipe.loss)["seconds"]


def rank(root):
    """Time to rank all configurations of the real program of 21,918 nodes."""
    whole = named(root, "layout:nlp:default", "test", LARGEST)
    graph = prune(whole)
    token, gnn = ConfigTokenModel(), LayoutGNN()
    token.fit_scale([graph]), gnn.fit_scale([graph])
    fast, slow = [], []
    for _ in range(3):
        fast += [timed(lambda: predict(token, graph))[0] for _ in range(3)]
        slow.append(timed(lambda: predict(gnn, graph))[0])
    c = len(graph.config_runtime)
    table(("model", "seconds", "configurations per second", "times faster"),
          [("LayoutGNN, first place's settings", f"{median(slow):.1f}", f"{c / median(slow):.0f}", 1),
           ("ConfigTokenModel", f"{median(fast):.2f}", f"{c / median(fast):,.0f}",
            f"{median(slow) / median(fast):.0f}")])


def files(root):
    """Time to read, prune, prepare and rank every test file."""
    token, tile, count, start = ConfigTokenModel(), TileModel(), 0, time.perf_counter()
    for collection in COLLECTIONS:
        for path in npz_paths(root, collection, "test"):
            graph = read_tile(path) if collection == "tile:xla" else prune(read_layout(path))
            model = tile if collection == "tile:xla" else token
            if not model.fitted:
                model.fit_scale([graph])
            predict(model, graph)
            count += 1
    print(f"\n{count} test files read, pruned and ranked in {time.perf_counter() - start:.1f} s")


def alexnet(root, seeds=3):
    """The shortest training that reaches tau .845, and the tau of longer trainings; one 80/20 split.

    Tau is the score of a ranking without ties. Tau-b of tied costs is higher, up to .89 for trees that are stumps.
    """
    graph = drop_duplicate_configs(prune(named(root, "layout:xla:default", "train", KNOWN[0])))[0]
    seen, held = hold_out_configs(graph, 0.2, np.random.default_rng(0))
    few = hold_out_configs(held, 1000 / len(held.config_runtime), np.random.default_rng(0))[1]
    token = recipes_for("layout:xla:default")["token"]
    fast = TrainSettings(configs_per_step=512, learning_rate=1e-2, weight_decay=0.3)
    plain = token._replace(shape=ConfigTokenSettings(32, token_width=32, dropout=0.0), settings=fast)
    gnn = token._replace(network=LayoutGNN, shape=LayoutGNNSettings(), settings=TrainSettings())
    slow = plain._replace(settings=replace(fast, learning_rate=5e-3))
    rows = []
    for name, recipe, steps in (("LayoutGNN, first place's settings", gnn, (50, 100, 200, 400)),
                                ("ConfigTokenModel", plain, (50, 75, 100, 150)),
                                ("ConfigTokenModel", slow, (600, 1500, 3000))):
        for count in steps:
            runs = [trained(recipe, [seen], seed, steps=count) for seed in range(1 if recipe is gnn else seeds)]
            tau = [[kendall_tau(predict(m, test), test.config_runtime, strict=True)
                    for test in ((few,) if recipe is gnn else (few, held))] for m, _ in runs]
            rows.append((name, count, recipe.settings.learning_rate, f"{median(s for _, s in runs):.1f}",
                         f"{np.mean(tau, axis=0)[0]:.4f}", ", ".join(f"{t[1]:.4f}" for t in tau if len(t) > 1)))
    one_hot = np.eye(graph.code_rows.shape[1])
    shown = [one_hot[g.config_codes].reshape(len(g.config_codes), -1) for g in (seen, few, held)]
    start = time.perf_counter()
    trees = HistGradientBoostingRegressor(max_iter=400).fit(shown[0], rankdata(seen.config_runtime))
    took = time.perf_counter() - start
    tau = [kendall_tau(trees.predict(x), g.config_runtime, strict=True) for x, g in zip(shown[1:], (few, held))]
    rows.append(("gradient boosting of one-hot codes", 400, 0.1, f"{took:.1f}", *(f"{t:.4f}" for t in tau)))
    table(("model", "steps", "learning rate", "seconds", "tau on 1,000 of the held-out configurations",
           f"tau on all {len(held.config_runtime):,}, one number per seed"), rows)


def zero_shot(root, seeds=5):
    """Train on alexnet and unet3d alone, and rank unet_3d."""
    taught = Data(root, "layout:xla:default", k_hops=1).train["layout:xla:default"]
    graphs = [g for g in taught if g.graph_id.startswith(KNOWN)]
    third = {s: prune(named(root, f"layout:xla:{s}", "valid", THIRD)) for s in ("random", "default")}
    short, full = (recipes_for("layout:xla:default", programs=p)["token"] for p in (len(graphs), None))
    with_bytes, rows = short._replace(shape=replace(short.shape, bytes=True)), []
    for name, recipe in (("opcode and agreement alone (short form)", short),
                         ("opcode, agreement and bytes", with_bytes), ("all (long form)", full)):
        taus = []
        for seed in range(seeds):
            model = recipe.network(replace(recipe.shape, seed=seed))
            train(model, graphs, replace(recipe.settings, seed=seed, keep="last", validate_every=1 << 30))
            taus.append([kendall_tau(predict(model, g), g.config_runtime) for g in third.values()])
        cells = []
        for tau in np.array(taus).T:
            low, high = bootstrap_interval(tau)
            cells.append(f"{tau.mean():.3f} ({low:.3f} to {high:.3f})")
        rows.append((name, *cells))
    ceiling = noise_ceiling(third["default"].config_runtime, config_ids(third["default"])).mean
    table(("inputs of the token model", "unet_3d random", f"unet_3d default (ceiling {ceiling:.3f})"),
          rows)


def main():
    parts = {"rank": rank, "files": files, "alexnet": alexnet, "zero-shot": zero_shot}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="?", default=",".join(parts))
    parser.add_argument("--data-root")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    root = find_data_root(args.data_root)
    print(f"PyTorch {torch.__version__}, {args.threads} threads")
    for name in args.parts.split(","):
        print(f"\n## {name}: {parts[name].__doc__.splitlines()[0]}", flush=True)
        parts[name](root)


if __name__ == "__main__":
    main()
