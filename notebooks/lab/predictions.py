"""What models say of graphs: rows of predictions, made by training, by a function of your own, or read from files."""
import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl

from kit.checks import check_callable
from kit.data import COLLECTIONS, DataError
from kit.ensemble import combine, mean_zscore
from kit.prepare import open_prepared
from kit.prune import drawn_rows
from lab.data import MOST_CONFIGS
from lab.run import step_of

SPLITS = ("valid", "test", "train")          # "train": out of fold
_KIND = re.compile(r"[^\s/\\:|](?:[^/\\:|]*[^\s/\\:|])?")


class Prediction(NamedTuple):
    """What one model says of the graphs of a collection and split."""
    collection: str
    split: str               # "valid" or "test"; "train": out of fold
    kind: str                # such as "token"
    seed: int                # None: of other people's predictions, and of an ensemble
    costs: dict              # {ID: cost (c,)}; lower is faster
    trains_on: tuple = ()    # the collections whose training graphs the model learned from
    model: str = ""          # name of the checkpoint in the store, if one gives these costs
    specialists: tuple = ()  # IDs whose costs are those of specialists
    baseline: bool = False   # compared with, and not combined

    @property
    def member(self):
        """The name of this member of an ensemble, without spaces: KIND_seedK."""
        return (self.kind if self.seed is None else f"{self.kind}_seed{self.seed}").replace(" ", "-")


class Predictions:
    """The predictions of several models, one row per collection, split, kind and seed.

    Parameters
    ----------
    data : lab.data.Data
    rows : sequence of Prediction
    folds : int, optional
        The number of folds that `add` splits training graphs into; None: it ranks no training graph.

    Attributes
    ----------
    rows : list of Prediction
    histories : dict of str to list
        {what was learned from: {kind: [what `kit.train.train` returned] for each model}}, for `lab.plots`
    trained : list of tuple
        (Member, name of its checkpoint in the store) of each trained model.
    """

    def __init__(self, data, rows=(), folds=None):
        self.data, self.rows, self.folds, self.histories, self.trained = data, list(rows), folds, {}, []

    @property
    def collections(self):
        """The collections that a member of an ensemble ranks, in the official order."""
        return [c for c in COLLECTIONS if any(row.collection == c and not row.baseline for row in self.rows)]

    def only(self, *kinds):
        """The rows of these kinds alone."""
        return Predictions(self.data, [row for row in self.rows if row.kind in kinds], self.folds)

    def table(self):
        """A row per kind of model and the collections that it learned from: what it ranks, with how many seeds."""
        found, steps = {}, {(one.kind, one.trains_on): one.recipe.settings.steps for one, _ in self.trained}
        for row in self.rows:
            found.setdefault((row.kind, row.trains_on), []).append(row)
        columns = ["model", "learns from", "graphs", "ranks", "seeds", "steps"]
        return pd.DataFrame(columns=columns, data=[{
            "model": kind, "learns from": " + ".join(trains_on) or "no training graph",
            "graphs": len(self.data.graphs(trains_on)), "ranks": ", ".join(dict.fromkeys(r.collection for r in rows)),
            "seeds": len({r.seed for r in rows}), "steps": str(steps.get((kind, trains_on), ""))}
            for (kind, trains_on), rows in found.items()])

    # --- rows are added

    def add(self, kind, fit, seed=0, search="", baseline=False, learns=True):
        """Let a model of your own rank the graphs of each collection.

        Parameters
        ----------
        kind : str
            Its name in tables.
        fit : callable
            Training graphs -> a function from a graph to its cost, shape (c,); lower is faster. `fit` is called once
            per collection, with the graphs of `data.train`; with folds, once per fold, without the graphs of the fold.
        seed : int
            Several seeds of a kind share its weight in an ensemble.
        search : str or tuple of str
            "random" or "default": only for the layout collections of this search; both: not for tiles.
        baseline : bool
            Only to compare with: it ranks the graphs whose runtimes are known, and is no member of the ensemble.
        learns : bool
            False: the model reads no runtime, and tables say so.

        Raises
        ------
        ValueError
            If the name cannot be one, or a cost has another shape or is not finite.
        """
        from kit.relatives import fold_numbers  # its trees take a second to load
        check_callable(locals(), "fit")
        if not isinstance(kind, str) or not _KIND.fullmatch(kind):
            raise ValueError(f"kind is {kind!r:.80}; expected a name without / \\ : and |")
        for c in [c for c in self.data.taught if c.endswith(search)]:
            trains_on, graphs = tuple(self.data.teachers(c)) if learns else (), self.data.train[c]
            own = self.folds and not baseline and c in self.data.teachers(c)         # no stand-ins
            folds = fold_numbers(graphs, self.folds) if own else {}
            parts = []                                   # of each fold: {split: {ID: cost}}
            for fold in sorted({*folds.values()}) or [None]:
                rank = fit([g for g in graphs if fold is None or folds[g.graph_id] != fold])
                asked = {"train": {i: g for i, g in self.data.named(c, "train").items()
                                 if folds.get(g.graph_id) == fold}} if folds else {}
                asked |= {split: self.data.named(c, split) for split in ("valid", "test")
                        if not baseline or split == self.data.scored}
                parts.append({split: {i: _checked_cost(kind, i, g, rank(g)) for i, g in some.items()}
                              for split, some in asked.items()})
            self.put(c, kind, seed, mean_of_folds(parts), trains_on=trains_on, baseline=baseline)

    def put(self, collection, kind, seed, costs, **about):
        """Add costs {split: {ID: cost (c,)}}, as rows; `about`: other fields of `Prediction`."""
        self.rows += [Prediction(collection, split, kind, seed, own, **about) for split, own in costs.items() if own]

    # --- costs are asked for

    def seeds(self, collection, split):
        """{kind: [{ID: cost (c,)} of each seed]}; baselines come last."""
        rows = [row for row in self.rows if (row.collection, row.split) == (collection, split)]
        found = {}
        for row in sorted(rows, key=lambda row: row.baseline):
            found.setdefault(row.kind, []).append(row.costs)
        return found

    def members(self, collection):
        """{member: {split: {ID: cost (c,)}}} of what an ensemble may combine."""
        found = {}
        for row in self.rows:
            if row.collection == collection and not row.baseline:
                found.setdefault(row.member, {})[row.split] = row.costs
        return found

    def kinds(self, collection):
        """{kind: its members} of what an ensemble may combine."""
        found = {}
        for row in self.rows:
            if row.collection == collection and not row.baseline:
                found.setdefault(row.kind, {})[row.member] = None
        return {kind: [*members] for kind, members in found.items()}

    def known(self, collection):
        """{ID: runtime (c,)} of the graphs that may choose weights: ranked by every member, and by none that knew them.

        As `data.truth`. These are the validation graphs; and training graphs, if every member ranked them out of fold.
        """
        members, found = self.members(collection), {}
        for split in ("valid", "train"):
            if members and all(split in own for own in members.values()):
                found |= {i: runtime for i, runtime in self.data.truth(collection, split).items()
                          if all(i in own[split] for own in members.values())}
        return found

    def by_kind(self, collection, names, rule=mean_zscore):
        """{kind: {ID: cost (c,)}} of some graphs that may choose weights; the seeds of a kind are combined."""
        members = {member: own.get("valid", {}) | own.get("train", {})
                   for member, own in self.members(collection).items()}
        return {kind: {i: rule([members[member][i] for member in own]) for i in names}
                for kind, own in self.kinds(collection).items()}

    def combined(self, collection, split, weights, rule=mean_zscore):
        """{ID: cost (c,)}: the mean of all members; the seeds of a kind share its weight in `weights` {kind: share}."""
        members, shares = self.members(collection), {}
        for kind, own in self.kinds(collection).items():
            shares |= {member: weights[kind] / len(own) for member in own if weights.get(kind)}
        return combine([members[member][split] for member in shares], rule, [*shares.values()])

    def ensemble(self, weights, rule=mean_zscore):
        """Add the kind "ensemble": in each collection the mean with its weights {collection: {kind: share}}."""
        for c, own in weights.items():
            splits = [split for split in ("valid", "test") if any(split in one for one in self.members(c).values())]
            found = {split: self.combined(c, split, own, rule) for split in splits}
            rows = [Prediction(c, split, "ensemble", None, costs) for split, costs in found.items()]
            self.rows = rows + self.rows


def mean_of_folds(parts):
    """The costs of the models of all folds -> {split: {ID: cost}}: means of z-scores; one model: its costs as they are.

    Each graph of "train" was ranked by the model that did not see its fold.
    """
    if len(parts) == 1:
        return parts[0]
    names = {split: dict.fromkeys(i for part in parts for i in part[split]) for split in parts[0]}
    return {split: {i: mean_zscore([part[split][i] for part in parts if i in part[split]]) for i in own}
            for split, own in names.items()}


def _checked_cost(kind, name, graph, cost):
    cost, c = np.asarray(cost, dtype=float), len(graph.config_runtime)
    if cost.shape != (c,) or not np.isfinite(cost).all():
        raise ValueError(f"{kind}: {name} got costs of shape {cost.shape}" + " that are not all finite" * (
            cost.shape == (c,)) + f"; expected one finite cost for each of {c} configurations")
    return cost


# --- predictions that are there already


def read_predictions(run, data, predictions_from=None):
    """Read what this run's models predicted, and other people's predictions; what cannot be used is named.

    Parameters
    ----------
    run : Run
    data : lab.data.Data
    predictions_from : str or Path, optional
        A folder of other people's predictions: COLLECTION/NAME.SPLIT.npz with arrays {ID: cost (c,)}, such as
        layout_xla_random/mine.test.npz; the same for "valid", and for "train" if they are out of fold.

    Returns
    -------
    Predictions
        Members have costs of the same graphs in all their splits.

    Raises
    ------
    DataError
        If `predictions_from` is no folder with such files.
    """
    files = _files_of_others(predictions_from) if predictions_from else {}
    known = _graphs_of(run.root) if files else {}
    found = []
    for c in data.collections:
        rows = []
        for one in (run.section(step_of(c), c) or {"costs": ()})["costs"]:
            _add(rows, Prediction(c, one["split"], one["kind"], one["seed"], {}, tuple(one["trains_on"]), one["model"],
                                  tuple(one["specialists"]), one["baseline"]),
                 partial(run.store.read, one["file"]), run.store.path(one["file"], ".npz"), run)
        for path, member, split in files.get(c, ()):
            if any((row.member, row.split, row.baseline) == (member, split, False) for row in rows):
                run.note(path, f"{path}: this run has a model of the same name; rename the file")
            else:
                kind, _, seed = member.rpartition("_seed") if re.search(r"_seed\d+$", member) else (member, "", None)
                _add(rows, Prediction(c, split, kind, None if seed is None else int(seed), {}),
                     partial(_costs_of_others, path, known[c], split), path, run)
        for baseline in (False, True):
            own = [row for row in rows if row.baseline == baseline]
            own = [row for split in SPLITS for row in _alike([r for r in own if r.split == split], run)]
            found += own if baseline else _in_all_splits(own, run)
    # by name, so that sums do not depend on the order in which models were published, here or on several machines
    return Predictions(data, sorted(found, key=lambda row: (row.baseline, row.member)))


def _files_of_others(folder):
    """{collection: [(path, member, split)]} of a folder of other people's predictions; DataError if it has none."""
    folder, found = Path(folder).expanduser(), {}
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected predictions, see notebooks/own_model.md")
    for c in COLLECTIONS:
        for path in sorted(folder.joinpath(c.replace(":", "_")).glob("*.npz")):
            member, _, split = path.name.removesuffix(".npz").rpartition(".")
            if member and split in SPLITS:
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
        total, cut = known[name][1], split != "test" and not name.startswith("tile:")
        if len(cost) != total and not (cut and len(cost) == MOST_CONFIGS < total):
            raise DataError(f"{path}: {name} has {len(cost):,} costs, and its file {total:,} configurations"
                            + f"; expected all of them, or those of fewer_configs(graph, {MOST_CONFIGS})" * (
                                cut and total > MOST_CONFIGS))
        if cut and len(cost) == total:
            costs[name] = cost[drawn_rows(total, MOST_CONFIGS)]
    return costs


def _add(rows, row, read, path, run):
    """Add the row with its costs, if they can be used."""
    try:
        rows.append(row._replace(costs=checked(read(), path, row.collection)))
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


def _alike(rows, run):
    """The rows of a collection and split without those of other graphs than most: such costs cannot be combined."""
    sizes = [frozenset((name, len(cost)) for name, cost in row.costs.items()) for row in rows]
    usual = Counter(sizes).most_common(1)[0][0] if rows else None
    for row, size in zip(rows, sizes):
        if size != usual:
            where = f"{row.collection}, {row.split}"
            run.note(f"{where} {row.member}", f"{where}: {row.member} has {_words(size)}; the others have "
                                              f"{_words(usual)}")
    return [row for row, size in zip(rows, sizes) if size == usual]


def _words(sizes):
    return f"{sum(number for _, number in sizes)} costs of {len(sizes)} graphs"


def _in_all_splits(rows, run):
    """The rows of a collection without members that lack a split, test or validation, which others have."""
    there = {split: {row.member for row in rows if row.split == split} for split in SPLITS}
    odd = {}
    for split in SPLITS:
        other = there["valid" if split == "test" else "test"]
        odd |= {member: split for member in sorted(there[split] - other) if other}
    for member, split in odd.items():
        c = rows[0].collection
        run.note(f"{c} {member}", f"{c} {member}: has predictions of {split}, and not of other splits")
    return [row for row in rows if row.member not in odd]


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


def earlier_weights(path, collection, kinds):
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
