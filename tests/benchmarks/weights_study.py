"""Weights of an ensemble of different models, chosen on few validation programs. Prints markdown tables.

    python tests/benchmarks/weights_study.py [--taught 3] [--ranked 4] [--draws 200] [--recipes quick,short] [--out DIR]

The models of the recipes are trained on one sample and rank the programs of another sample. Some of the ranked programs
are drawn as validation programs and choose the weights. The score is the mean over all other programs, and the loss is
the distance to the best fixed weights: the weights with the best mean over all ranked programs, known in hindsight.

The rule is that of notebook 05. The rule, its strength and the prior were chosen on samples 0 and 1. So nothing was
chosen on the programs of the default samples. Models are trained once: their costs stay in DIR.
"""
import argparse
import sys
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))

from kit.baselines.ridge import fit_digit_ridge
from kit.data import COLLECTIONS
from kit.ensemble import PRIOR, choose_weights, combine, mean_zscore
from kit.metrics import kendall_tau
from kit.noise import bootstrap_interval
from kit.prepare import prepare
from kit.recipes import recipes_for
from lab.run import Store, open_data, run_folder, training_graphs
from lab.sample import write_sample
from lab.studies.compare import rank_unseen, unseen_programs

SIZES = (0, 1, 2, 3, 5, 8)       # numbers of validation programs
PARTS = 20                       # the fixed weights are multiples of 1 / PARTS for two kinds, of 2 / PARTS for more


def prepared_sample(seed):
    """The prepared sample data of a seed; seed 0 is the sample of the notebooks."""
    first, _ = open_data("sample")
    if seed == 0:
        return first
    root = write_sample(first.parent.with_name(f"{first.parent.name}-seed{seed}"), seed=seed, progress=True)
    return prepare(root, root.parent / "prepared").folder


def ranked(collection, scale, taught, seed, store):
    """({kind: {ID: cost}}, {ID: runtime}): members trained on one sample rank all programs of another sample.

    The kinds are those of the recipes, and ridge regression. A kind is the mean over the seeds of its recipe.
    """
    graphs = training_graphs(prepared_sample(taught), collection, k_hops=1)[0]
    others = unseen_programs(prepared_sample(0), collection, True, k_hops=1, seed=seed)
    kinds = {}
    for kind, recipe in recipes_for(collection, scale, len(graphs)).items():
        name = f"{collection} {kind} of sample {taught} on sample {seed}"
        members = [rank_unseen(recipe, name, number, graphs, others, store) for number in range(recipe.seeds)]
        kinds[kind] = combine(members, mean_zscore)
    ridge = fit_digit_ridge(graphs)
    kinds["ridge"] = combine([{g.graph_id: ridge(g) for g in others}], mean_zscore)
    return kinds, {g.graph_id: g.config_runtime for g in others}


class Scores:
    """Taus of weighted sums of the costs of some kinds, for every program; each sum is computed once."""

    def __init__(self, kinds, runtimes):
        self.names, self.programs, self.runtimes = list(kinds), list(runtimes), list(runtimes.values())
        self.costs = [np.array([kinds[kind][i] for kind in kinds]) for i in runtimes]            # (kinds, c) each
        self.known = {}

    def of(self, shares):
        """Tau of every program, (programs,)."""
        key = tuple(np.round(shares, 9))
        if key not in self.known:
            self.known[key] = np.array([kendall_tau(np.array(key) @ costs, runtime)
                                        for costs, runtime in zip(self.costs, self.runtimes)])
        return self.known[key]

    def grid(self):
        """All weights that are multiples of 1 / PARTS, or of 2 / PARTS for three kinds and more, (number, kinds)."""
        kinds, parts = len(self.names), PARTS if len(self.names) == 2 else PARTS // 2
        bars = np.array(list(combinations(range(parts + kinds - 1), kinds - 1))).reshape(-1, kinds - 1)
        edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, parts + kinds - 1)))
        return (np.diff(edges, axis=1) - 1) / parts


def greedy(scores, drawn, prior):
    """The rule of the kit: scores, numbers of the drawn programs, prior weights -> weights.

    The cost of a kind is a row of an identity matrix, so a mean of costs holds its own weights.
    """
    rows, own = np.eye(len(prior)), {name: np.full(len(prior), name) for name in map(int, drawn)}
    shares = choose_weights({kind: dict.fromkeys(own, row) for kind, row in zip(scores.names, rows)}, own,
                            lambda mean, number: scores.of(mean)[number[0]],
                            prior=dict(zip(scores.names, prior)))
    return np.array(list(shares.values()))


class Situation(NamedTuple):
    """Kinds of models with their scores on the ranked programs of one collection, and their prior weights."""
    scores: Scores
    prior: np.ndarray        # (kinds,), sum 1

    def best(self):
        """The best fixed weights in hindsight, (kinds,)."""
        grid = self.scores.grid()
        return grid[np.argmax([self.scores.of(shares).mean() for shares in grid])]

    def loss_of_equal(self):
        """What equal weights lose against the best fixed ones on all programs."""
        kinds = len(self.scores.names)
        return (self.scores.of(self.best()) - self.scores.of(np.full(kinds, 1 / kinds))).mean()

    def losses(self, size, draws):
        """What weights chosen on `size` drawn programs lose against the best fixed ones on all others, (draws,)."""
        return np.nanmean(self.each_loss(size, draws), axis=1)

    def each_loss(self, size, draws):
        """As `losses`, of each program; nan for drawn programs, (draws, programs)."""
        count, rng, best = len(self.scores.runtimes), np.random.default_rng(0), self.scores.of(self.best())
        found = np.full((draws if size else 1, count), np.nan)
        for draw in found:
            order = rng.permutation(count)
            left = order[size:]
            draw[left] = (best - self.scores.of(greedy(self.scores, order[:size], self.prior)))[left]
        return found


def situations(collection, scale, args, store):
    """{name: Situation}: two kinds with their prior and with each other's, and three kinds with a poor one."""
    kinds, runtimes = ranked(collection, scale, args.taught, args.ranked, store)
    prior = np.array([PRIOR.get(kind, 1) for kind in kinds])
    two, three = Scores({kind: kinds[kind] for kind in list(kinds)[:2]}, runtimes), Scores(kinds, runtimes)
    return {"prior of the kit": Situation(two, prior[:2] / prior[:2].sum()),
            "prior exchanged": Situation(two, prior[1::-1] / prior[:2].sum()),
            "ridge as third kind": Situation(three, prior / prior.sum())}


def table(head, rows):
    """Print a markdown table, each row as soon as it is known."""
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


def mean_loss(cases, name, size, draws):
    """Mean loss over collections, recipes and draws in the situation `name`."""
    return np.mean([case[name].losses(size, draws).mean() for case in cases.values()])


def loss_shown(cases, name, size, draws):
    """The mean loss with its interval over programs; a program of several rows counts once."""
    found = {}
    for (collection, _), case in cases.items():
        case = case[name]
        losses = np.nanmean(case.each_loss(size, draws), axis=0)
        for program, loss in zip(case.scores.programs, losses):
            found.setdefault((collection.split(":")[1], program), []).append(loss)
    low, high = bootstrap_interval(np.array([np.mean(some) for some in found.values()]))
    return f"{mean_loss(cases, name, size, draws):.4f} ({low:.4f} to {high:.4f})"


def report(args):
    """Print the scores of fixed weights, and the loss of chosen ones, per collection and on average."""
    store = Store(args.out / "store")
    cases = {(c, scale): situations(c, scale, args, store)
             for scale in args.recipes.split(",") for c in COLLECTIONS[1:]}
    names = list(next(iter(cases.values())))
    sizes = [f"loss, {size} program{'s' * (size != 1)}" for size in SIZES]
    table(("collection (sample data)", "recipe", "token alone", "GNN alone", "equal weights", "best fixed weights",
           *sizes),
          (fixed_scores(found[names[0]], (c, scale)) + [
              f"{losses.mean():.4f} ({np.quantile(losses, .95):.3f})" for losses in
              (found[names[0]].losses(size, args.draws) for size in SIZES)]
           for (c, scale), found in cases.items()))
    table(("mean of all rows", "equal weights", *sizes),
          ((name, f"{np.mean([case[name].loss_of_equal() for case in cases.values()]):.4f}",
            *[loss_shown(cases, name, size, args.draws) for size in SIZES]) for name in names))


def fixed_scores(case, start):
    """The cells of a row: `start`, then the score of each kind alone, of equal weights and of the best weights."""
    best = case.best()
    return [*start, *[f"{case.scores.of(shares).mean():.3f}" for shares in (*np.eye(2), np.full(2, .5))],
            f"{case.scores.of(best).mean():.3f} ({best[1]:.0%} GNN)"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("taught", 3), ("ranked", 4), ("draws", 200), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--recipes", default="quick,short")
    parser.add_argument("--out", type=Path, default=run_folder().with_name("weights-study"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    report(args)


if __name__ == "__main__":
    main()
