"""Compare segment training with training on whole graphs, on unseen test programs of the sample data.

    python tests/benchmarks/gst_score.py [--collections layout:xla:random,layout:nlp:random] [--steps 1000]
"""
import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kit.metrics import kendall_tau
from kit.models import LayoutGNN, LayoutGNNSettings
from kit.models.segments import SegmentSettings, SegmentTraining
from kit.noise import bootstrap_interval
from kit.run.workflow import open_data, read_split, sample_truth, training_graphs, wanted
from kit.train import TrainSettings, predict, train

SEEDS = 3
NETWORK = dict(width=32, config_attention=False, both_directions=True, agreement=True, dropout=0.1)
WAYS = {            # name: (segments, or None for whole graphs; factor on the steps); programs have 60-220 nodes
    "whole graphs": (None, 1),
    "1 segment of 64 nodes": (SegmentSettings(64), 1),
    "1 segment of 64 nodes, twice the steps": (SegmentSettings(64), 2),
    "1 segment of 64 nodes and a margin": (SegmentSettings(64, margin=1), 1),
    "1 segment of 64 nodes and a margin, twice the steps": (SegmentSettings(64, margin=1), 2),
}


def taus(graphs, tests, truth, way, seed, steps):
    """Train once -> Kendall's tau per test program, seconds of training."""
    model = LayoutGNN(LayoutGNNSettings(seed=seed, **NETWORK))
    model = model if way is None else SegmentTraining(model, way)
    about = train(model, graphs, TrainSettings(steps=steps, configs_per_step=64, seed=seed, validate_every=steps,
                                               keep="last"))
    return [kendall_tau(predict(model, graph), truth[graph.graph_id]) for graph in tests], about["seconds"]


def main():
    """Train in every way on every collection and print one line per training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collections", metavar="A,B", default="layout:xla:random,layout:nlp:random")
    parser.add_argument("--steps", type=int, default=1000, help="steps of training on whole graphs")
    args = parser.parse_args()
    root, _ = open_data("sample")
    print(f"sample data, {SEEDS} seeds, {args.steps} steps: Kendall's tau on test programs with its 95% interval, then "
          "the difference to whole graphs, paired by program and seed")
    for collection in wanted(args.collections):
        graphs, _ = training_graphs(root, collection)
        truth = {name.rsplit(":", 1)[1]: value for name, value in sample_truth(root, collection).items()}
        tests, whole = read_split(root, collection, "test"), None
        for name, (way, times) in WAYS.items():
            tau, seconds = zip(*(taus(graphs, tests, truth, way, seed, times * args.steps) for seed in range(SEEDS)))
            tau = np.array(tau)
            whole = tau if whole is None else whole
            ends, apart = bootstrap_interval(tau), bootstrap_interval(tau - whole)
            print(f"{collection}  {name:<52} {tau.mean():.3f} [{ends[0]:.3f}, {ends[1]:.3f}]  "
                  f"{(tau - whole).mean():+.3f} [{apart[0]:+.3f}, {apart[1]:+.3f}]  {np.median(seconds):.0f} s",
                  flush=True)


if __name__ == "__main__":
    main()
