"""What folds bring: models trained in folds against models trained on all programs. Prints a markdown table.

    python tests/benchmarks/folds_study.py [--taught 3] [--ranked 4] [--draws 200] [--folds 3] [--share 1]
        [--recipe short] [--collections layout:xla:random,layout:nlp:default] [--out DIR]

Each model is trained once per fold of the training programs of one sample. The models of all folds together rank the
programs of another sample, and each training program is ranked by the model that was trained without its fold. The
other side has as many models, which differ in their seeds alone; each is trained on all programs. Some programs of the
other sample are drawn as validation programs. The weights of the ensemble are chosen on these alone, or also on all
training programs, out of fold. Scores are of the other programs of the other sample. Models are trained once: their
costs stay in DIR. `--share`: of the steps of the recipe.
"""
import argparse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from weights_study import Scores, Situation, greedy, prepared_sample, table

from kit.baselines import fit_digit_ridge, fold_numbers
from kit.data import COLLECTIONS, clone_folder
from kit.ensemble import PRIOR, mean_zscore
from kit.metrics import kendall_tau
from kit.noise import bootstrap_interval
from kit.recipes import recipes_for
from lab.run import Store, training_graphs, wanted
from lab.studies.compare import rank_unseen, unseen_programs

SIZES = (0, 1, 2, 3, 5, 8)       # numbers of validation programs


class Sides(NamedTuple):
    """Costs {kind: {ID: cost}} of the programs of one collection."""
    one: dict                    # one model, trained on all programs; the ranked programs alone
    seeds: dict                  # as many models as folds, trained on all programs; the ranked programs alone
    folds: dict                  # trained in folds; the ranked programs, then the training programs, out of fold
    runtimes: dict               # {ID: runtime}, in the order of `folds`
    count: int                   # of ranked programs
    members: dict                # {kind: [{ID: cost} per seed]}, trained on all programs; the ranked programs alone


def both_sides(args, store):
    """{collection: Sides}: every kind of model of the recipe, and ridge regression."""
    taught, others = {}, {}
    for c in wanted(args.collections):
        taught[c] = training_graphs(prepared_sample(args.taught), c, k_hops=1)[0]
        others[c] = [g._replace(graph_id=f"ranked {c}:{g.graph_id}")
                     for g in unseen_programs(prepared_sample(0), c, True, k_hops=1, seed=args.ranked)]
    recipes = recipes_for(next(iter(taught)), args.recipe, len(next(iter(taught.values()))))
    one, seeds, folds, members = ({c: {} for c in taught} for _ in range(4))
    for kind in (*recipes, "ridge"):
        together = kind != "ridge" and recipes[kind].together
        for group in [[*taught]] if together else [[c] for c in taught]:
            # as the run does, copies of a program in two collections are in one fold: they have the same name here
            fold_of = fold_numbers([g for c in group for g in taught[c]], args.folds)
            graphs = [(fold_of[g.graph_id], g._replace(graph_id=f"{c}:{g.graph_id}")) for c in group for g in taught[c]]
            rank = ranker(kind, recipes, group, args, store)
            ranked, own, parts = [g for c in group for g in others[c]], {}, []
            for fold in range(args.folds):
                left = [g for number, g in graphs if number == fold]
                parts.append(rank(f"without fold {fold} of {args.folds}", 0,
                                  [g for number, g in graphs if number != fold], [*ranked, *left]))
                own |= {g.graph_id: mean_zscore([parts[-1][g.graph_id]]) for g in left}
            number = 1 if kind == "ridge" else args.folds                # ridge regression has no seed
            same = [rank("on all", seed, [g for _, g in graphs], ranked) for seed in range(number)]
            for c in group:
                members[c][kind] = same
                for side, models in ((one, same[:1]), (seeds, same), (folds, parts)):
                    side[c][kind] = {g.graph_id: mean_zscore([m[g.graph_id] for m in models]) for g in others[c]}
                folds[c][kind] |= {f"{c}:{g.graph_id}": own[f"{c}:{g.graph_id}"] for g in taught[c]}
    runtimes = {c: {g.graph_id: g.config_runtime for g in others[c]}
                | {f"{c}:{g.graph_id}": g.config_runtime for g in taught[c]} for c in taught}
    return {c: Sides(one[c], seeds[c], folds[c], runtimes[c], len(others[c]), members[c]) for c in taught}


def ranker(kind, recipes, group, args, store):
    """(words, seed, graphs to train on, graphs to rank) -> {graph_id: cost}, by one kind of model."""
    if kind == "ridge":
        def rank(words, seed, seen, ranked):
            ridge = fit_digit_ridge(seen)
            return {g.graph_id: ridge(g) for g in ranked}
        return rank
    settings = recipes[kind].settings
    recipe = recipes[kind]._replace(settings=replace(settings, steps=round(args.share * len(group) * settings.steps)))
    where = group[0] if len(group) == 1 else f"{len(group)} collections"
    name = f"{where} {kind} of sample {args.taught} on sample {args.ranked}"
    return lambda words, seed, seen, ranked: rank_unseen(recipe, f"{name} {words}", seed, seen, ranked, store)


def chosen(case, count, size, draws, extra=()):
    """Mean tau of each ranked program with chosen weights, over the draws that do not hold it: (count,).

    The first `count` programs of the Situation are ranked programs. The places `extra` choose in every draw.
    """
    rng, sums, times = np.random.default_rng(0), np.zeros(count), np.zeros(count)
    for _ in range(draws if size else 1):
        order = rng.permutation(count)
        taus = case.scores.of(greedy(case.scores, [*order[:size], *extra], case.prior))
        sums[order[size:]] += taus[order[size:]]
        times[order[size:]] += 1
    return sums / times


def of_members(sides):
    """{members of an ensemble without a validation program: tau of each ranked program}; a GNN has its prior weight."""
    share, names = 1 / (1 + PRIOR["token"] / PRIOR.get("gnn", 1)), list(sides.seeds["token"])
    zscores = {kind: [{i: mean_zscore([costs[i]]) for i in names} for costs in sides.members[kind]]
               for kind in ("token", "gnn")}
    tokens = {count: {i: mean_zscore([costs[i] for costs in zscores["token"][:count]]) for i in names}
              for count in range(1, len(zscores["token"]) + 1)}
    found = {f"token model, {count} seed{'s' * (count > 1)}": costs for count, costs in tokens.items()}
    for count in (1, 2):
        mixed = {i: (1 - share) * tokens[count][i] + share * zscores["gnn"][0][i] for i in names}
        found[f"token model, {count} seed{'s' * (count > 1)}, and GNN"] = mixed
    return {words: np.array([kendall_tau(costs[i], sides.runtimes[i]) for i in names])
            for words, costs in found.items()}


def situations(kinds, runtimes):
    """{name: Situation}: the prior of the kit, the prior exchanged, and ridge regression as third kind."""
    runtimes = {i: runtimes[i] for i in next(iter(kinds.values()))}
    prior = np.array([PRIOR.get(kind, 1) for kind in kinds], float)
    two, three = Scores({kind: kinds[kind] for kind in list(kinds)[:2]}, runtimes), Scores(kinds, runtimes)
    return {"prior of the kit": Situation(two, prior[:2] / prior[:2].sum()),
            "prior exchanged": Situation(two, prior[1::-1] / prior[:2].sum()),
            "ridge as third kind": Situation(three, prior / prior.sum())}


def best_fixed(case, count):
    """The mean tau of the best fixed weights on the ranked programs, known in hindsight."""
    return max(case.scores.of(shares)[:count].mean() for shares in case.scores.grid())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("taught", 3), ("ranked", 4), ("draws", 200), ("folds", 3), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--share", type=float, default=1)
    parser.add_argument("--recipe", default="short")
    parser.add_argument("--collections", default=",".join(COLLECTIONS[1:]))
    parser.add_argument("--out", type=Path, default=clone_folder() / "submissions" / "folds-study")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found, best, programs, taus_of = {}, {}, [], {}
    for collection, sides in both_sides(args, Store(args.out)).items():
        for words, taus in of_members(sides).items():
            taus_of.setdefault(words, []).append(taus)
        programs += [name.partition(" ")[2].split(":", 3) for name in list(sides.runtimes)[:sides.count]]
        extra = np.arange(sides.count, len(sides.runtimes))
        for side, kinds in zip(sides._fields, sides[:3]):
            for name, case in situations(kinds, sides.runtimes).items():
                best.setdefault((name, side), []).append(best_fixed(case, sides.count))
                for size in SIZES:
                    taus = found.setdefault((name, size), {})
                    taus.setdefault(side, []).append(chosen(case, sides.count, size, args.draws))
                    if side == "folds":
                        taus.setdefault("out of fold", []).append(chosen(case, sides.count, size, args.draws, extra))
        print(f"{collection}: {sides.count} ranked programs, {len(extra)} training programs in {args.folds} folds")
    keys = [(source, program) for _, source, _, program in programs]
    taus_of = {words: np.concatenate(some) for words, some in taus_of.items()}
    first = next(iter(taus_of.values()))
    table(("members, trained on all programs", "tau", "difference to the first row (95% interval)"),
          ((words, f"{taus.mean():.4f}", gain(keys, taus - first)) for words, taus in taus_of.items()))
    table(("prior, validation programs", "all programs, one seed: tau", f"all programs, {args.folds} seeds: tau",
           f"{args.folds} folds, validation alone: tau", "folds, also out-of-fold programs: tau",
           "loss by choice, in the same order", "gain of the last over the second (95% interval)",
           "gain by out-of-fold programs (95% interval)"),
          (row(f"{name}, {size}", keys, {side: np.concatenate(some) for side, some in by_side.items()},
               {side: np.mean(best[name, side]) for side in ("one", "seeds", "folds")})
           for (name, size), by_side in found.items()))


def row(name, keys, taus, best):
    """The cells of a row; `taus` {side: (programs,)}, `keys` the program behind each, `best` {side: mean tau}."""
    means = [taus[side].mean() for side in ("one", "seeds", "folds", "out of fold")]
    losses = ", ".join(f"{best[side] - mean:.4f}" for side, mean in zip(("one", "seeds", "folds", "folds"), means))
    return (name, *[f"{mean:.4f}" for mean in means], losses,
            *[gain(keys, taus["out of fold"] - taus[side]) for side in ("seeds", "folds")])


def gain(keys, values):
    """Mean and 95% interval as text; a program that both searches of a source hold counts once."""
    found = {}
    for key, value in zip(keys, values):
        found.setdefault(key, []).append(value)
    values = np.array([np.mean(some) for some in found.values()])
    return "{:+.4f} ({:+.4f} to {:+.4f})".format(values.mean(), *bootstrap_interval(values))


if __name__ == "__main__":
    main()
