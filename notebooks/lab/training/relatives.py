"""Correct the token model where training has a relative of a program: another program of its family, or itself."""
from functools import partial
from typing import NamedTuple

import numpy as np

from kit.data import content_digest
from kit.ensemble import mean_zscore
from kit.predict import predict
from kit.relatives import rank_by_relatives
from kit.train_parts.pool import default_workers, run_jobs
from lab.run import Store
from lab.run.code import code_digest
from lab.training.members import read_model
from lab.training.plan import Member


def correct_by_relatives(run, made, base="token", workers=None, report=print):
    """Correct the costs of the base on the nearest relatives of each program in training, in place.

    Each member of the kind `base` starts a specialist for each validation and test graph that has a relative among the
    graphs that this member learned from (`kit.relatives.rank_by_relatives`). The costs of the specialist replace those
    of the base. Where training holds other configurations of the same program, the specialist learns from them alone,
    and its costs replace those of every kind that is there, because nothing else knows as much.

    Parameters
    ----------
    run : Run
    made : Predictions
        From `train_recipes`; changed in place.
    base : str
    workers : int, optional
        As for `train_recipes`.
    report : callable
    """
    jobs = [(None, _Job(member, name, (run.store.folder, run.store.others), _name(run.store, member, name, made.data)))
            for member, name in made.trained if member.kind == base]
    if not jobs:
        return
    workers = 1 if run.scale == "tiny" and workers is None else workers or default_workers("cpu")
    found = run_jobs(_specialists, jobs, {None: made.data}, workers, report)
    by_row = {}                                  # {(collection, seed): what each fold's specialists say}
    for (_, job), costs in zip(jobs, found):
        for collection in job.member.ranks:
            by_row.setdefault((collection, job.member.seed), []).append(costs)
    report(_put(made, base, by_row))


class _Job(NamedTuple):
    """What a process needs to correct one member, beside the data."""
    member: Member
    trained: str             # name of its checkpoint in the store
    store: tuple             # folder of the store, and other stores
    found: str               # name of the result in the store


def _name(store, member, trained, data):
    asked = [[i, content_digest(graph)] for (_, split), own in member.asked(data).items() if split != "train"
             for i, graph in own.items()]
    return store.name("relatives", [trained, asked, code_digest("kit.relatives", "kit.predict")])


def _specialists(job, data, report):
    """{"same|SPLIT|ID" or "near|SPLIT|ID": cost (c,)} of the graphs with a relative; the store is asked first.

    In folds, "base|SPLIT|ID" is what the base says of a graph without a relative in the other folds.
    """
    store = Store(*job.store, report)

    def make():
        model, graphs, found = read_model(store, job.member, job.trained), job.member.taught(data), {}
        # no relative of "train" was trained on: families are in one fold
        for (_, split), own in job.member.asked(data).items():
            for i, graph in own.items() if split != "train" else ():
                one = rank_by_relatives(graph, graphs, partial(predict, model))
                if one is not None:
                    found[f"{'same' if one.same else 'near'}|{split}|{i}"] = one.cost
                elif job.member.fold is not None:
                    found[f"base|{split}|{i}"] = predict(model, graph)
        return found
    return store.made(job.found, make)


def _put(made, base, by_row):
    """Replace costs by those of specialists -> a line that says how many."""
    same, corrected, every = {}, set(), set()
    for place, row in enumerate(made.rows):
        if row.kind == base and (row.collection, row.seed) in by_row:
            parts = by_row[row.collection, row.seed]
            said = {i: _one_specialist([_of(part, row.split, i) for part in parts]) for i in row.costs}
            said = {i: one for i, one in said.items() if one is not None}
            same |= {(row.split, i): cost for i, (cost, known) in said.items() if known}
            made.rows[place] = _with_costs(row, {i: cost for i, (cost, _) in said.items()})
            corrected |= {*said}
            every |= {*row.costs} if row.split != "train" else set()
    for place, row in enumerate(made.rows):
        if not row.baseline:
            made.rows[place] = _with_costs(row, {i: same[row.split, i] for i in row.costs if (row.split, i) in same})
    return (f"{len(corrected)} of {len(every)} validation and test programs have a relative in training; training "
            f"holds other configurations of {len({i for _, i in same})} of them")


def _with_costs(row, costs):
    """A row of predictions with other costs of some graphs, by specialists."""
    return row._replace(costs=row.costs | costs, specialists=tuple(dict.fromkeys([*row.specialists, *costs])))


def _of(part, split, name):
    """(kind, cost) of what one fold says of a graph: "same", "near" or "base"; None if it says nothing."""
    return next(((kind, part[f"{kind}|{split}|{name}"]) for kind in ("same", "near", "base")
                 if f"{kind}|{split}|{name}" in part), None)


def _one_specialist(found):
    """The mean of what the specialists of all folds say of a program -> (cost, whether it is the same program) or None.

    The base of a fold counts where the fold has no relative. If a fold has other configurations of the same program,
    only such folds count.
    """
    found = [one for one in found if one is not None]
    if not any(kind != "base" for kind, _ in found):
        return None
    same = [cost for kind, cost in found if kind == "same"]
    said = same or [cost for _, cost in found]
    return (mean_zscore(said) if len(found) > 1 else np.asarray(said[0])), bool(same)
