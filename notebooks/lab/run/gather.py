"""The predictions that an ensemble combines: those of this run, and those of other people, checked when read."""
import json
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from kit.data import COLLECTIONS, DataError
from kit.prepare import open_prepared
from lab.run.folder import step_of

_SPLITS = ("valid", "test", "train")


def gather_predictions(run, predictions_from=None):
    """Read what models predicted; predictions that cannot be used are left out, named, and reported as problems.

    Parameters
    ----------
    run : Run
    predictions_from : str or Path, optional
        A folder of other people's predictions: COLLECTION/NAME.SPLIT.npz with arrays {ID: cost (c,)}, such as
        layout_xla_random/mine.test.npz; the same for "valid", and for "train" if they are out of fold.

    Returns
    -------
    dict of (str, str, str) to dict
        {("predictions" or "baselines", collection, "valid", "test" or "train"): {member: {ID: cost (c,)}}}.

    Raises
    ------
    DataError
        If `predictions_from` is no folder with such files.
    """
    files = _files_of_others(predictions_from) if predictions_from else {}
    known = _graphs_of(run.root) if files else {}
    found = {(kind, c, split): {} for kind in ("predictions", "baselines") for c in run.collections
             for split in _SPLITS}
    for c in run.collections:
        for one in (run.section(step_of(c), c) or {"costs": ()})["costs"]:
            path = run.store.path(one["file"], ".npz")
            _add(found["baselines" if one["baseline"] else "predictions", c, one["split"]], one["member"],
                 lambda file=one["file"]: run.store.read(file), path, c, run)
        for path, member, split in files.get(c, ()):
            if member in found["predictions", c, split]:
                run.note(path, f"{path}: this run has a model of the same name; rename the file")
            else:
                _add(found["predictions", c, split], member, partial(_costs_of_others, path, known[c], split), path, c,
                     run)
    # by name, so that sums do not depend on the order in which models were published, here or on several machines
    found = {key: dict(sorted(members.items())) for key, members in found.items()}
    for (_, c, split), members in found.items():
        _leave_out_odd(members, f"{c}, {split}", run)
    for (kind, c, split), members in found.items():
        other = found[kind, c, "valid" if split == "test" else "test"] if kind == "predictions" else ()
        for member in sorted(members.keys() - other.keys()) if other else ():
            run.note(f"{c} {member}", f"{c} {member}: has predictions of {split}, and not of other splits")
            del members[member]
    return found


def _files_of_others(folder):
    """{collection: [(path, member, split)]} of a folder of other people's predictions; DataError if it has none."""
    folder, found = Path(folder).expanduser(), {}
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected predictions, see notebooks/own_model.md")
    for c in COLLECTIONS:
        for path in sorted(folder.joinpath(c.replace(":", "_")).glob("*.npz")):
            member, _, split = path.name.removesuffix(".npz").rpartition(".")
            if member and split in _SPLITS:
                found.setdefault(c, []).append((path, member, split))
    if not found:
        raise DataError(f"{folder}: no COLLECTION/NAME.test.npz in it; expected files such as "
                        f"{folder / 'layout_xla_random' / 'NAME.test.npz'}")
    return found


def _graphs_of(root):
    """{collection: {ID: (split, number of configurations)}} of the graphs in the data."""
    rows, found = open_prepared(root).catalogue.filter(pl.col("reason").is_null()), {c: {} for c in COLLECTIONS}
    for c, split, name, configs in rows.select("collection", "split", "name", "configs").iter_rows():
        found[c][f"{c}:{name}"] = split, configs
    return found


def _costs_of_others(path, known, split):
    """{ID: cost (c,)} of a file; DataError if they are not those of the graphs `known`, one per configuration."""
    costs = load_costs(path)
    own = [name for name, (where, _) in known.items() if where == split]
    if strange := [name for name in costs if name not in known or split != "train" and known[name][0] != split]:
        raise DataError(f"{path}: has costs of {strange[0]}; the data have no such {split} graph")
    if split != "train" and (missing := [name for name in own if name not in costs]):
        raise DataError(f"{path}: lacks {len(missing)} of {len(own)} {split} graphs, such as {missing[0]}")
    for name, cost in costs.items():
        if len(cost) > known[name][1] or split == "test" and len(cost) < known[name][1]:
            raise DataError(f"{path}: {name} has {len(cost):,} costs, and its file {known[name][1]:,} configurations")
    return costs


def _add(members, member, read, path, collection, run):
    """Add the costs of a member, if they can be used."""
    try:
        members[member] = checked(read(), path, collection)
    except DataError as fault:
        run.note(path, str(fault))


def checked(costs, path, collection):
    """The costs; DataError if one is of another collection, or not finite."""
    for name, cost in costs.items():
        if name.rpartition(":")[0] != collection:
            raise DataError(f"{path}: has costs of {name}; expected programs of {collection}")
        if not np.isfinite(cost).all():
            raise DataError(f"{path}: {name} has a cost that is not finite")
    return costs


def _leave_out_odd(members, where, run):
    """What has other graphs or numbers of costs than most predictions cannot be combined with them."""
    sizes = {member: frozenset((name, len(cost)) for name, cost in costs.items()) for member, costs in members.items()}
    usual = Counter(sizes.values()).most_common(1)
    for member in [member for member in sizes if sizes[member] != usual[0][0]]:
        run.note(f"{where} {member}", f"{where}: {member} has {_size(sizes[member])}; the others have "
                                      f"{_size(usual[0][0])}")
        del members[member]


def _size(sizes):
    return f"{sum(number for _, number in sizes)} costs of {len(sizes)} graphs"


def load_costs(path):
    """Read a file of predictions {ID: cost (c,)}; DataError if it holds anything else."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as npz:
            costs = {name: npz[name] for name in npz.files}
    except FileNotFoundError:
        raise
    except Exception as fault:               # zipfile and NumPy raise a dozen types
        raise DataError(f"{path}: unreadable predictions ({type(fault).__name__}: {fault}); expected arrays "
                        "{ID: cost}") from fault
    for name, cost in costs.items():
        if cost.ndim != 1 or cost.dtype.kind not in "fiu":
            raise DataError(f"{path}: {name} has shape {cost.shape} and dtype {cost.dtype}, expected one axis of costs")
    return costs


def read_weights(path, collection, kinds):
    """The weights of some kinds of models in an earlier run, from its weights.json: {kind: share}, sum 1.

    A kind that the earlier run did not have gets 0. DataError if the file holds no weight for any of the kinds.
    """
    try:
        own = json.loads(Path(path).expanduser().read_text("utf-8"))[collection]
        found = {kind: own.get(kind, 0) for kind in kinds}
        good = all(type(share) in (int, float) and 0 <= share < np.inf for share in found.values()) and any(
            found.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise DataError(f"{path}: has no weights of {', '.join(kinds)} for {collection}; expected the weights.json of "
                        "a run with these models and this collection")
    return {kind: share / sum(found.values()) for kind, share in found.items()}
