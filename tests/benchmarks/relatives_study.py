"""Specialists: a program ranked by its relatives in training alone, and what they add to an ensemble. Prints tables.

    python tests/benchmarks/relatives_study.py [--seeds 3] [--relatives 1] [--samples 2] [--out DIR]

The sample data have relatives of validation and test programs among the training programs. Tau is that of a ranking
without ties. Finished samples stay in DIR, so an interrupted study goes on with the next sample.
"""
import argparse
import hashlib
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from token_study import table, trained

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))

from kit.baselines import rank_by_relatives
from kit.data import COLLECTIONS
from kit.ensemble import PRIOR, choose_weights, mean_zscore
from kit.files import whole_file
from kit.metrics import kendall_tau
from kit.noise import bootstrap_interval
from kit.recipes import recipes_for
from kit.train import predict
from lab.run import known_truth, read_split, run_folder, training_graphs
from lab.run.code import code_digest
from lab.sample import write_sample

CODE = ("kit.baselines.specialists", "kit.models.config_token", "kit.recipes", "lab.sample", "kit.train")


def tau(cost, row):
    """Kendall's tau of the configurations of a Ranked, without credit for ties."""
    return strict_tau(cost, row.costs["runtime"])


strict_tau = partial(kendall_tau, strict=True)


def families(out, seeds, samples, relatives):
    """Sample data in families: the token model with and without specialists, where relatives exist and where not."""
    print()
    found = [ranked_sample(out, sample, seed, relatives) for sample in range(41, 41 + samples) for seed in range(seeds)]
    for words, kind in (("with relatives", "relatives"), ("no relatives", "strangers")):
        some = [replaced(row, kind) for rows in found for row in rows]
        table(("collection (sample data)", *HEAD),
              [(name, *scores_shown([row for row in some if row.collection in collections]))
               for name, collections in GROUPS.items()])
        print(f"\nSpecialists: {words}.")
        chosen_shown(some)


GROUPS = {**{c: [c] for c in COLLECTIONS[1:]}, "all four": COLLECTIONS[1:]}
HEAD = ("relative found", "token model", "relatives alone", "token model, corrected on relatives",
        "difference (95% interval)")


class Ranked(NamedTuple):
    """What models say of one program with c configurations."""
    sample: int                  # seed of the sample data
    seed: int                    # of the token model
    collection: str
    split: str                   # "valid" or "test"
    name: str
    costs: dict                  # {kind: (c,)}; "runtime" and "token", and where relatives are found "alone",
    #                              "relatives"; "strangers": corrected without relatives


def replaced(row, kind):
    """A Ranked whose specialist is that of `kind`."""
    costs = {name: row.costs[name] for name in ("runtime", "token")}
    costs |= {"relatives": row.costs[kind]} if kind in row.costs else {}
    costs |= {"alone": row.costs["alone"]} if kind == "relatives" and "alone" in row.costs else {}
    return row._replace(costs=costs)


def ranked_sample(out, sample, seed, relatives):
    """The Ranked of all validation and test programs of one sample; what was ranked before is read from `out`.

    One token model is trained on all layout collections, as in the default run on sample data. Its last weights are
    kept, so the ranked programs choose nothing.
    """
    made_from = code_digest(*CODE), sample, seed, relatives
    digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:12]
    path = Path(out, f"sample{sample}-seed{seed}-relatives{relatives}-{digest}.npz")
    if not path.is_file():
        with TemporaryDirectory() as folder:
            rows = rank_sample(write_sample(Path(folder, "sample"), seed=sample, relatives=relatives), sample, seed)
        about = {f"about {i}": np.array([*map(str, row[:-1])]) for i, row in enumerate(rows)}
        with whole_file(path) as part, open(part, "wb") as file:
            np.savez_compressed(file, **about, **{f"{kind} {i}": cost for i, row in enumerate(rows)
                                                  for kind, cost in row.costs.items()})
        print(f"sample {sample}, seed {seed}: ranked and kept", flush=True)
    with np.load(path, allow_pickle=False) as npz:
        costs = {}
        for key in npz.files:
            kind, number = key.split()
            costs.setdefault(int(number), {})[kind] = npz[key]
    return [Ranked(sample, seed, *map(str, one.pop("about")[2:]), one) for _, one in sorted(costs.items())]


def rank_sample(data, sample, seed):
    """The Ranked of all validation and test programs of sample data."""
    taught = {c: training_graphs(data, c, k_hops=1)[0] for c in COLLECTIONS[1:]}
    recipe = recipes_for(COLLECTIONS[1], "short")["token"]
    recipe = recipe._replace(settings=replace(recipe.settings, steps=recipe.settings.steps * len(taught)))
    model, seconds = trained(recipe, [g for graphs in taught.values() for g in graphs], seed)
    print(f"sample {sample}, seed {seed}: token model trained in {seconds:.0f} s", flush=True)
    rows, base = [], partial(predict, model)
    for collection, programs in taught.items():
        truth = known_truth(data, collection)
        unrelated = [g for g in programs if "_relative_" not in g.graph_id]
        graphs = [(split, g) for split in ("valid", "test") for g in read_split(data, collection, split, k_hops=1)]
        for split, g in graphs:
            specialists = {"alone": rank_by_relatives(g, programs), "relatives": rank_by_relatives(g, programs, base),
                           "strangers": rank_by_relatives(g, unrelated, base)}
            costs = {"runtime": g.config_runtime if split == "valid" else truth[f"{collection}:{g.graph_id}"],
                     "token": base(g)} | {kind: one.cost for kind, one in specialists.items() if one}
            rows.append(Ranked(sample, seed, collection, split, g.graph_id, costs))
    return rows


def scores_shown(rows):
    """Cells of a table: how many programs with a relative, mean taus, and what the correction gains."""
    base, alone, both = (np.array([tau(row.costs[kind], row) if kind in row.costs else np.nan for row in rows])
                         for kind in ("token", "alone", "relatives"))
    found, both = np.isfinite(both).sum(), np.where(np.isfinite(both), both, base)
    return (f"{found} of {len(rows)}", f"{base.mean():.3f}",
            f"{np.nanmean(alone):.3f}" if np.isfinite(alone).any() else "", f"{both.mean():.3f}",
            interval(by_program(rows, both - base)))


def by_program(rows, values):
    """The means of values (rows,) per program: both searches of a source hold the same programs; (seeds, programs)."""
    found = {}
    for row, value in zip(rows, values):
        program = row.sample, row.collection.split(":")[1], row.name
        found.setdefault(program, {}).setdefault(row.seed, []).append(value)
    return np.array([[np.mean(some) for _, some in sorted(seeds.items())] for seeds in found.values()]).T


def chosen_shown(rows):
    """Print what the ensemble gains by relatives, if weights are chosen as notebook 05 does, per collection."""
    choices = {"weights chosen": (PRIOR, True), "prior weights": (PRIOR, False),
               "weights chosen, no prior weight for relatives": (PRIOR | {"relatives": 0}, True)}
    shown = []
    for words, (prior, choose) in choices.items():
        gains = {}
        for key in dict.fromkeys((row.sample, row.seed, row.collection) for row in rows):
            some = [row for row in rows if (row.sample, row.seed, row.collection) == key]
            kinds = {kind: {row.name: mean_zscore([row.costs.get(kind, row.costs["token"])]) for row in some}
                     for kind in ("token", "relatives")}
            known = {row.name: row.costs["runtime"] for row in some if row.split == "valid" and choose}
            if not any("relatives" in row.costs for row in some):        # then notebook 04 has no such kind
                del kinds["relatives"]
            shares = choose_weights(kinds, known, strict_tau, prior=prior)
            for row in some:
                if row.split == "test":
                    cost = sum(share * kinds[kind][row.name] for kind, share in shares.items())
                    gains.setdefault(row.collection, []).append(
                        (row, shares.get("relatives", 0), tau(row.costs["token"], row), tau(cost, row)))
        every = [one for some in gains.values() for one in some]
        groups = {name: [one for c in collections for one in gains[c]] for name, collections in GROUPS.items()}
        groups = (groups if words == "weights chosen" else {"all four": every}) | {
            "with a relative": [one for one in every if "relatives" in one[0].costs]}
        for name, some in groups.items():
            if some:
                tests, share, base, both = zip(*some)
                shown.append((name, words, len(tests), f"{np.mean(share):.0%}", f"{np.mean(base):.4f}",
                              f"{np.mean(both):.4f}", interval(by_program(tests, np.subtract(both, base)))))
    table(("collection (sample data)", "weights", "test programs", "mean weight of relatives", "token model",
           "token model and relatives", "difference (95% interval)"), shown)


def interval(values):
    """Mean and 95% interval as text."""
    low, high = bootstrap_interval(values)
    return f"{values.mean():+.4f} ({low:+.4f} to {high:+.4f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--relatives", type=int, default=1, help="of each program")
    parser.add_argument("--samples", type=int, default=2, help="how many sample data sets")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=run_folder().with_name("relatives-study"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    families(args.out, args.seeds, args.samples, args.relatives)


if __name__ == "__main__":
    main()
