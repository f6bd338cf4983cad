"""What a step of a run leaves in the folder of the run, and what it reads there from other steps."""
import csv
import hashlib
import json
import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from kit.data import COLLECTIONS, SPLITS, DataError
from kit.files import file_sha256, write_json
from kit.prepare import is_prepared
from kit.submit import read_submission, write_submission
from lab.run.ledger import list_runs
from lab.run.provenance import (
    from_data,
    from_settings,
    is_own,
    make_room,
    own_results,
    read_mark,
    set_aside,
    unfit,
    write_mark,
)
from lab.run.workflow import load_costs, note_settings, noted_settings, report_problems, save_costs, write_table

SETTINGS = "settings of the step"         # in a mark: a digest of those that the step notes for the ledger
_ANY = ("seeds", "first_seed", "device", "processes")        # settings that change no result, or stand in its name
_WEIGHTS = re.compile(r"weights(, fold \d+)?")           # what a mark calls the checkpoints of a model, not of others


class Results:
    """The results of one step. Each is written whole, with what it was made from; nothing else is overwritten.

    Parameters
    ----------
    out : str or Path
        The folder of the run.
    step : str
        The name of the step, as that of its notebook.
    data_root : str or Path
        The prepared data, as from `open_data`.
    settings : dict, optional
        The settings of the step, {name: plain value}; they are noted for the ledger with the first result, because
        those of an earlier run hold until then.

    Examples
    --------
    Predictions of your own become a member of the ensemble if they are saved like this: ::

        results = Results("submissions/my-run", "my model", data_root)
        for split, costs in (("valid", of_valid), ("test", of_test)):
            made_from = from_data(data_root, ["layout:xla:random"], "train", split)
            results.save_costs(f"predictions/layout_xla_random/mine_seed0.{split}.npz", costs, made_from)
    """

    def __init__(self, out, step, data_root, settings=None):
        self.out, self.step, self.data_root, self.made, self.read = Path(out), step, data_root, set(), {}
        self._data = from_data(data_root, COLLECTIONS, *SPLITS) if is_prepared(data_root) else {}
        self._settings, self._noted = settings, False

    def save(self, name, write, made_from):
        """Write one result; what else is there at this name is moved aside before.

        Parameters
        ----------
        name : str
            Where, in the folder of the run.
        write : callable
            Is called with the path, and writes the file.
        made_from : dict of str to str
            From `from_data`, `from_code`, `from_files` and `from_settings`.

        Returns
        -------
        Path
        """
        path = self.out / name
        make_room(path, self.out)
        earlier = read_mark(path) if path.is_file() else None
        if earlier and earlier["by"] != self.step:       # such as predictions that took a training
            print(f"note  {path} is a result of {earlier['by']}; it is kept as {set_aside(path, self.out)}")
        write(path)
        self.mark(path, made_from)
        return path

    def mark(self, path, made_from):
        """Write down what a result was made from that is written already; arguments as for `save`.

        Raises
        ------
        DataError
            If the data are not those that were there when this object was made.
        """
        changed = [name for name, digest in made_from.items() if self._data.get(name, digest) != digest]
        if changed:
            raise DataError(f"{self.data_root}: {', '.join(changed)} changed while {self.step} ran; run it again")
        if self._settings is not None:
            if not self._noted:
                note_settings(self.out, self.step, self._settings)
                self._noted = True
            made_from = made_from | {SETTINGS: _settings_digest(self._settings)}
        write_mark(path, self.out, self.step, made_from)
        self.made.add(Path(path))

    def save_costs(self, name, costs, made_from):
        """Save predictions {ID: cost (c,)}; the other arguments and the result are as for `save`."""
        return self.save(name, lambda path: save_costs(path, costs), made_from)

    def save_table(self, name, table, made_from):
        """Save a DataFrame as CSV; the other arguments and the result are as for `save`.

        An earlier table with collections that the new one lacks is moved aside, and a line says so.
        """
        path = self.out / name
        lost = _collections_in(path) - {*table.get("collection", ())} if is_own(path, self.out) else set()
        if lost:
            print(f"note  {path} had lines of {', '.join(sorted(lost))}, which the new one lacks; it is kept as "
                  f"{set_aside(path, self.out)}")
        return self.save(name, lambda path: write_table(path, table), made_from)

    def save_submission(self, costs, made_from, ledger=None):
        """Save submission.csv; a line says so if an earlier submission is moved aside.

        That is one with rows that the new one lacks, or another one that has a leaderboard score.

        Parameters
        ----------
        costs : dict of str to ndarray, shape (c,)
            As for `write_submission`.
        made_from : dict of str to str
            As for `save`.
        ledger : str or Path, optional
            The folder of the ledger, which has the leaderboard scores.

        Returns
        -------
        Path
        """
        path = self.out / "submission.csv"
        try:
            rows = read_submission(path).keys() if path.is_file() else set()
        except (DataError, ValueError):
            rows = set()                                         # not a submission; `save` moves it aside
        lost = rows - costs.keys()
        if lost:
            of = ", ".join(sorted({name.rpartition(":")[0] for name in lost}))
            print(f"note  the submission of {len(rows)} rows in {self.out} has {len(lost)} rows, of {of}, that the new "
                  f"one lacks; it is kept as {set_aside(path, self.out)}")
        elif rows and _is_scored(path, ledger) and _submission(costs) != path.read_bytes():
            print(f"note  {path} has a leaderboard score, and the new submission is another one; it is kept as "
                  f"{set_aside(path, self.out)}")
        return self.save("submission.csv", lambda place: write_submission(costs, place), made_from)

    def save_weights(self, shares, collections, made_from):
        """Save weights.json, the weights of the kinds of models; those of other collections stay in it.

        Weights of another collection stay as long as the ensemble of this collection can be used. If weights are lost,
        the earlier file is moved aside, and a line says so.

        Parameters
        ----------
        shares : dict of str to dict
            {collection: {kind: share}}.
        collections : sequence of str
            Those that were combined.
        made_from : dict of str to str
            As for `save`.

        Returns
        -------
        Path
        """
        path = self.out / "weights.json"
        old = json.loads(path.read_bytes()) if is_own(path, self.out) else {}       # another one, `save` moves aside
        kept = {c: own for c, own in old.items() if c not in collections
                and self.unfit(self.out / "ensemble" / f"{c.replace(':', '_')}.test.npz") is None}
        lost = old.keys() - kept.keys() - shares.keys()
        if lost:
            print(f"note  {path} had weights of {', '.join(sorted(lost))}, which the new one lacks; it is kept as "
                  f"{set_aside(path, self.out)}")
        return self.save("weights.json", lambda place: write_json(place, {**kept, **shares}), made_from)

    def unfit(self, path):
        """Why a result in the folder of the run cannot be used, as text; None if it can."""
        return unfit(path, self.out, self.data_root)

    def load_costs(self, path):
        """Read predictions.

        Returns
        -------
        dict of str to ndarray, shape (c,)

        Raises
        ------
        DataError
            If the file is not whole, or was not made from what is there now.
        """
        mark, why = read_mark(path), self.unfit(path)
        if why:
            raise DataError(f"{why}; run the step again that makes it")
        self.read[Path(path)] = mark["sha256"]           # as it is now: somebody may make another one meanwhile
        return load_costs(path)

    def load_members(self, folder, collections, out_of_fold=False):
        """Read what models predicted; files that cannot be used are left out, named, and reported as problems.

        Parameters
        ----------
        folder : str
            "predictions" or "baselines".
        collections : sequence of str
        out_of_fold : bool
            Also read what members that were trained in folds say of training programs: the split "train".

        Returns
        -------
        dict of (str, str, str) to dict
            {(`folder`, collection, "valid" or "test"): {member: {ID: cost (c,)}}}.
        """
        splits = ("valid", "test", *["train"] * out_of_fold)
        found = {(folder, c, split): {} for c in collections for split in splits}
        for (_, collection, split), members in found.items():
            end, own = f".{split}.npz", {}
            for path in sorted(Path(self.out, folder, collection.replace(":", "_")).glob(f"*{end}")):
                member = path.name.removesuffix(end)
                try:
                    members[member] = _checked(path, self.load_costs(path), collection)
                    own[member] = is_own(path, self.out)
                except DataError as fault:
                    self._leave_out(path, fault)
            # what differs from the predictions of this run, or else from most predictions, cannot be combined with them
            sizes = {member: frozenset((name, len(cost)) for name, cost in members[member].items()) for member in own}
            usual = Counter(sizes[member] for member in own if own[member] or not any(own.values())).most_common(1)
            for member in [member for member in own if sizes[member] != usual[0][0]]:
                path = Path(self.out, folder, collection.replace(":", "_"), member + end)
                self._leave_out(path, f"{path}: has {_size(sizes[member])}; the others have {_size(usual[0][0])}")
                del members[member]
        for (_, collection, split), members in found.items():
            others = found[folder, collection, "valid" if split == "test" else "test"]
            for member in sorted(members.keys() - others.keys()) if others and folder == "predictions" else ():
                path = Path(self.out, folder, collection.replace(":", "_"), f"{member}.{split}.npz")
                self._leave_out(path, f"{path}: there are no predictions of this model for the other split")
                del members[member]
        self._leave_out_mixed(found)
        return found

    def _leave_out_mixed(self, found):
        """Leave out predictions of one name that other weights made than those of the test split."""
        for (folder, collection, split), members in found.items():
            for member in [*members] if split != "test" else ():
                place = Path(self.out, folder, collection.replace(":", "_"))
                paths = [place / f"{member}.{one}.npz" for one in (split, "test")]
                here, tested = ({name: sha for name, sha in read_mark(path)["made_from"].items()
                                 if _WEIGHTS.fullmatch(name)} if path in self.read else {} for path in paths)
                if here and tested and here != tested:
                    self._leave_out(paths[0], f"{paths[0]}: other weights made it than {paths[1].name}")
                    del members[member]
                    if split == "valid":                         # which of the two is meant, nobody can tell
                        self._leave_out(paths[1], f"{paths[1]}: other weights made it than {paths[0].name}")
                        found[folder, collection, "test"].pop(member)

    def trained_on_valid(self, collection):
        """Whether predictions that were read come from models that were trained on validation graphs, too.

        Parameters
        ----------
        collection : str

        Returns
        -------
        bool
        """
        folder, said = self.out / "predictions" / collection.replace(":", "_"), from_settings(use_valid=True)
        marks = [read_mark(path) for path in self.read if path.parent == folder]
        return any(said.items() <= mark["made_from"].items() for mark in marks)

    def _leave_out(self, path, fault):
        """Name a file that is not used, and report it."""
        self.read.pop(path, None)
        print(f"left out: {fault}")
        report_problems(self.out / "problems" / f"{self.step}.jsonl", path, [str(fault)])

    def from_read(self, folder="", collection=""):
        """What a result was made from: what was read of this folder and collection; "": of all.

        Parameters
        ----------
        folder, collection : str

        Returns
        -------
        dict of str to str
        """
        start = "/".join(filter(None, [folder, collection.replace(":", "_")]))
        read = {path.relative_to(self.out).as_posix(): sha for path, sha in self.read.items()}
        return {f"file {name}": sha for name, sha in read.items() if name.startswith(start)}

    def retire(self, collections):
        """Move aside what this step of this run made earlier for these collections, but not now.

        Parameters
        ----------
        collections : sequence of str
            Checkpoints stay where they are.
        """
        stems = [collection.replace(":", "_") for collection in collections]
        for path in own_results(self.out, self.step):
            name = path.relative_to(self.out)
            if path not in self.made and name.parts[0] != "checkpoints" and any(stem in str(name) for stem in stems):
                print(f"note  {path} is of an earlier run of this step; it is kept as {set_aside(path, self.out)}")


def _checked(path, costs, collection):
    """The costs; DataError if one is of another collection, or not finite."""
    for name, cost in costs.items():
        if name.rpartition(":")[0] != collection:
            raise DataError(f"{path}: has costs of {name}; expected programs of {collection}")
        if not np.isfinite(cost).all():
            raise DataError(f"{path}: {name} has a cost that is not finite")
    return costs


def _collections_in(path):
    """The collections of a table, from its column of this name."""
    with open(path, encoding="utf-8", newline="") as file:
        return {row.get("collection") for row in csv.DictReader(file)} & {*COLLECTIONS}


def _is_scored(path, ledger):
    """Whether the ledger has a leaderboard score of a submission."""
    runs = [] if ledger is None else list_runs(ledger)
    return file_sha256(path) in {run["sha256"] for run in runs if (run["public"], run["private"]) != (None, None)}


def _submission(costs):
    """The bytes of a submission."""
    with tempfile.TemporaryDirectory() as folder:
        return write_submission(costs, Path(folder, "submission.csv")).read_bytes()


def _size(sizes):
    """(graph, number of costs) -> words."""
    return f"{sum(number for _, number in sizes)} costs of {len(sizes)} graphs"


def made_otherwise(out, paths):
    """Which results come from a run of their step with other settings than those that are noted now.

    Parameters
    ----------
    out : str or Path
        The folder of the run.
    paths : sequence of str or Path
        Results in this folder; the results that they were made from are looked at, too.

    Returns
    -------
    list of str
        Names in this folder, sorted.

    Raises
    ------
    DataError
        If noted settings cannot be read.
    """
    noted = {step: _settings_digest(settings) for step, settings in noted_settings(out).items()}
    todo = [Path(path) for path in paths]
    for path in todo:                                            # grows on the way
        sources = (read_mark(path) or {"made_from": {}})["made_from"]
        inner = [Path(name.removeprefix("file ")) for name in sources if name.startswith("file ")]
        todo += [Path(out, one) for one in inner
                 if not one.is_absolute() and ".." not in one.parts and Path(out, one) not in todo]
    marks = {path: mark for path in todo if (mark := read_mark(path))}
    return sorted(path.relative_to(out).as_posix() for path, mark in marks.items()
                  if mark["made_from"].get(SETTINGS) not in (None, noted.get(mark["by"])))


def _settings_digest(settings):
    """A digest of what the settings of a step say about its results."""
    told = {name: value for name, value in settings.items() if name not in _ANY}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
