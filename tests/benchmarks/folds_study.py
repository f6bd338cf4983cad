"""Weights of an ensemble, chosen by out-of-fold programs beside few validation programs. Prints markdown tables.

    python tests/benchmarks/folds_study.py [--taught 3] [--ranked 4] [--draws 200] [--folds 3] [--share 0.25]
        [--recipe short] [--collections layout:xla:random,layout:nlp:default] [--out DIR]

As weights_study.py, but each model is trained once per fold of the training programs of one sample. The models of all
folds together rank the programs of another sample, and each training program is ranked by the model that was trained
without its fold. Some programs of the other sample are drawn as validation programs. The weights are chosen on these
alone, or on these and all training programs. The loss is the distance to the best fixed weights on the other programs
of the other sample, known in hindsight. `--share`: of the steps of the recipe, to keep the study short.
"""
import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from weights_study import Scores, Situation, greedy, prepared_sample, table

from kit.baselines import fit_digit_ridge, fold_numbers
from kit.baselines.compare import rank_unseen, unseen_programs
from kit.ensemble import PRIOR, mean_zscore
from kit.noise import bootstrap_interval
from kit.recipes import recipes_for
from kit.run import Results, run_folder, training_graphs, wanted

SIZES = (0, 1, 2, 3, 5)          # numbers of validation programs


def ranked_in_folds(collection, args, results):
    """({kind: {ID: cost}}, {ID: runtime}, number of ranked programs): these first, then the training programs."""
    taught = training_graphs(prepared_sample(args.taught), collection, k_hops=1)[0]
    others = unseen_programs(prepared_sample(0), collection, True, k_hops=1, seed=args.ranked)
    fold_of = fold_numbers(taught, args.folds)
    others = [g._replace(graph_id=f"ranked {g.graph_id}") for g in others]
    recipes, kinds = recipes_for(collection, args.recipe, len(taught)), {}
    for kind in (*recipes, "ridge"):
        parts, own = [], {}
        for fold in sorted({*fold_of.values()}):
            seen = [g for g in taught if fold_of[g.graph_id] != fold]
            left = [g for g in taught if fold_of[g.graph_id] == fold]
            if kind == "ridge":
                ridge = fit_digit_ridge(seen)
                costs = {g.graph_id: ridge(g) for g in [*others, *left]}
            else:
                settings = recipes[kind].settings
                recipe = recipes[kind]._replace(settings=replace(settings, steps=round(args.share * settings.steps)))
                name = f"{collection} {kind} of sample {args.taught} without fold {fold} of {args.folds}"
                costs = rank_unseen(recipe, name, 0, seen, [*others, *left], results)
            parts.append(costs)
            own |= {g.graph_id: mean_zscore([costs[g.graph_id]]) for g in left}
        kinds[kind] = {g.graph_id: mean_zscore([costs[g.graph_id] for costs in parts]) for g in others}
        kinds[kind] |= {g.graph_id: own[g.graph_id] for g in taught}
    return kinds, {g.graph_id: g.config_runtime for g in [*others, *taught]}, len(others)


def losses(case, count, size, draws, out_of_fold):
    """What chosen weights lose against the best fixed ones on the ranked programs that were not drawn, (draws,).

    The first `count` programs are ranked programs; the others are training programs.
    """
    grid, rng = case.scores.grid(), np.random.default_rng(0)
    best = case.scores.of(max(grid, key=lambda shares: case.scores.of(shares)[:count].mean()))
    extra, found = np.arange(count, len(case.scores.runtimes)) if out_of_fold else np.arange(0), []
    for _ in range(draws if size else 1):
        order = rng.permutation(count)
        shares = greedy(case.scores, [*order[:size], *extra], case.prior)
        found.append((best - case.scores.of(shares))[order[size:]].mean())
    return np.array(found)


def situations(kinds, runtimes):
    """{name: Situation}: the prior of the kit, the prior exchanged, and ridge regression as third kind."""
    prior = np.array([PRIOR.get(kind, 1) for kind in kinds], float)
    two, three = Scores({kind: kinds[kind] for kind in list(kinds)[:2]}, runtimes), Scores(kinds, runtimes)
    return {"prior of the kit": Situation(two, prior[:2] / prior[:2].sum()),
            "prior exchanged": Situation(two, prior[1::-1] / prior[:2].sum()),
            "ridge as third kind": Situation(three, prior / prior.sum())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("taught", 3), ("ranked", 4), ("draws", 200), ("folds", 3), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--recipe", default="short")
    parser.add_argument("--collections", default="layout:xla:random,layout:nlp:default")
    parser.add_argument("--out", type=Path, default=run_folder().with_name("folds-study"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results, found = Results(args.out, "folds_study", prepared_sample(0)), {}
    for collection in wanted(args.collections):
        kinds, runtimes, count = ranked_in_folds(collection, args, results)
        for name, case in situations(kinds, runtimes).items():
            for size in SIZES:
                for extra in (False, True):
                    found[collection, name, size, extra] = losses(case, count, size, args.draws, extra)
        print(f"{collection}: {count} ranked programs, {len(runtimes) - count} training programs in {args.folds} folds")
    names = list(dict.fromkeys(name for _, name, _, _ in found))
    table(("prior, validation programs", "validation alone: loss", "and out-of-fold programs: loss", "gain (95%)"),
          ((f"{name}, {size}", *_cells(found, name, size)) for name in names for size in SIZES))


def _cells(found, name, size):
    """Mean losses over collections and draws, and what out-of-fold programs gain, with the interval over draws."""
    one, two = ([loss for key, loss in found.items() if key[1:] == (name, size, extra)] for extra in (False, True))
    gain = np.concatenate(one) - np.concatenate(two)
    interval = " ({:+.4f} to {:+.4f})".format(*bootstrap_interval(gain)) if size else ""
    return f"{np.mean(one):.4f}", f"{np.mean(two):.4f}", f"{gain.mean():+.4f}{interval}"


if __name__ == "__main__":
    main()
