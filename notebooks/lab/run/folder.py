"""The folder of a run: what its steps publish, what they read from each other, and the files that people open.

- `store/`: results by the digest of their inputs (see `lab.run.store`)
- `steps/STEP.json`: what a step published, by collection: which results in the store, with which settings, from which
  data, by which code, and from what other steps had published
- views, made again at any time: `submission.csv`, `scores.csv`, `graph_scores.csv`, `weights.json`, `report.html`,
  `notebooks/` (as they were executed). A view that somebody changed is kept under another name before it is written
- `problems/STEP.jsonl`: files that a step could not use. `unfinished/STEP.json`: what is to be continued
"""
import hashlib
import json
import re
import shutil
from pathlib import Path

from kit.data import COLLECTIONS, SPLITS, DataError, clone_folder
from kit.files import copy_whole, file_sha256, part_name, plain, put_in_place, unwritable_named, write_json
from lab.data import Data, data_digest, open_data, report_problems, source_of, wanted
from lab.run.code import code_digest
from lab.run.store import Store, free_name
from lab.run.unfinished import earlier_stores

_RESULT = re.compile(r"(?!submission-)[A-Za-z0-9+_-]+-[0-9a-f]{16}\.(?:npz|pt|json)")
TRAINS = {"tile": "03_train_tile", "layout": "04_train_layout"}         # {kind of collection: step that predicts}
COMBINES = "05_ensemble"
_REMEMBERED = 20         # earlier versions of a view that are known to be of this run
# the modules that decide what a step publishes; a change of others leaves it as it is
_TRAINING = ("lab.training.members", "lab.training.relatives", "lab.predictions", "kit.recipes", "kit.models",
             "kit.baselines", "kit.relatives")
_CODE = {**dict.fromkeys(TRAINS.values(), _TRAINING),
         COMBINES: ("kit.ensemble", "kit.metrics", "kit.prune")}


class Folder:
    """What steps published in the folder of a run, checked against the data and the code that are here now.

    Parameters
    ----------
    out : str or Path
        The folder of the run.
    root : str or Path, optional
        A prepared folder, to compare the data with.
    """

    def __init__(self, out, root=""):
        self.out, self.root, self.store = Path(out), Path(root), Store(Path(out, "store"), earlier_stores())
        self.read = {}                                   # {collection: {step: digest of the section that was read}}

    def record(self, step):
        """What a step published: {"sections": {collection: section}, "views": {name: [SHA-256, the last one now]}}."""
        path = self.out / "steps" / f"{step}.json"
        try:
            found = json.loads(path.read_bytes())
            if found.pop("digest") == _digest([step, found]):        # a record of another step is none of this one
                return found
        except FileNotFoundError:
            return {"sections": {}, "views": {}}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        self.store.set_aside(path)
        return {"sections": {}, "views": {}}

    def sections(self, *steps):
        """The sections of some steps, of all collections; whether they can be used now is not checked."""
        return [section for step in steps for section in self.record(step)["sections"].values()]

    def section(self, step, collection):
        """What a step published for a collection, or None; DataError if the data, code or results changed since."""
        section = self.record(step)["sections"].get(collection)
        if section is None:
            return None
        if why := self._stale(step, collection, section):
            raise DataError(f"{self.out / 'steps' / step}.json: {collection}: {why}; run {step[:2]} again")
        self.read.setdefault(collection, {})[step] = _digest(section)
        return section

    def _stale(self, step, collection, section):
        """Why a section cannot be used now, or None."""
        for name, digest in section["data"].items():
            if digest != data_digest(self.root, *name.rsplit(" ", 1)):
                return f"made from other data, {name} has changed since"
        if section["code"] != _code_of(step):
            return "made by other code of the kit"
        for other, digest in section["read"].items():
            now = self.record(other)["sections"].get(collection)
            if now is None or _digest(now) != digest:
                return f"made from other results of {other[:2]} than those that are there"
            if why := self._stale(other, collection, now):
                return f"made from results of {other[:2]} that cannot be used: {why}"
        return None

    def results_fault(self, step, collections):
        """Why what a step published for collections cannot be used, or is not whole; None if it can."""
        sections = self.record(step)["sections"]
        for collection in [one for one in collections if one in sections]:
            if why := self.section_fault(step, collection, sections[collection]):
                return f"{collection}: {why}"
        return None

    def section_fault(self, step, collection, section):
        """Why a section of a step cannot be used, or its results are not whole; None if it can."""
        gone = [one["file"] for one in section["costs"] if self.store.find(one["file"]) is None]
        return f"{gone[0]} is gone" if gone else self._stale(step, collection, section)

    def fault(self, step, collections):
        """As `results_fault`; or what is wrong with the views of a step."""
        views = self.record(step)["views"]
        return self.results_fault(step, collections) or next(filter(None, (
            self.view_fault(step, name) for name in views)), None)

    def view_fault(self, step, name):
        """Why a view is not as a step wrote it last, or None."""
        path, written = self.out / name, self.record(step)["views"].get(name)
        if not path.is_file():
            return f"{path} is gone"
        return None if written and file_sha256(path) == written[-1] else f"{path} was changed, or not made by {step}"

    def unused(self):
        """The results in the store that no step of this folder needs now; submissions and kept files stay."""
        used = set()
        for path in (self.out / "steps").glob("*.json"):
            record = self.record(path.stem)
            used |= {*record.get("used", ())}.union(*(section["used"] for section in record["sections"].values()))
        return [path for path in sorted(self.store.folder.glob("*")) if _RESULT.fullmatch(path.name)
                and path.stem not in used]

    def write_record(self, step, record):
        """Write what a step published."""
        write_json(self.out / "steps" / f"{step}.json", {**record, "digest": _digest([step, record])})

    def view(self, step, name, write):
        """Write a file that people open with `write(path)`; what somebody put or changed there gets another name."""
        path, record = self.out / name, self.record(step)
        part = part_name(path)
        with unwritable_named(path):
            part.mkdir(parents=True)
            try:
                write(part / path.name)
                sha, written = file_sha256(part / path.name), record["views"].setdefault(name, [])
                if path.is_file() and file_sha256(path) not in (sha, *written):
                    place = free_name(path)
                    path.replace(place)
                    print(f"note  {path} was changed, or not made by this run; it is kept as {place.name}", flush=True)
                written[:] = [*[one for one in written if one != sha][-_REMEMBERED:], sha]
                record["used"] = sorted(self.store.used) or record.get("used", [])
                self.write_record(step, record)          # first: after a kill, the file is known to be of this run
                put_in_place(part / path.name, path)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return path

    def view_table(self, step, name, table):
        """Write a DataFrame as a view, as CSV with six decimals."""
        return self.view(step, name, lambda path: path.write_text(
            table.round(6).to_csv(index=False, lineterminator="\n"), "utf-8"))

    def costs(self, step, collections, split="test"):
        """{ID: cost (c,)} that a step published for a split; collections that it did not publish are left out."""
        found = {}
        for collection in collections:
            for one in (self.section(step, collection) or {"costs": ()})["costs"]:
                found |= self.store.read(one["file"]) if one["split"] == split else {}
        return found

    def settings(self, collections):
        """The settings of the steps that a submission comes from: {step: settings}; apart where collections differ."""
        found = {}
        for step in (*TRAINS.values(), COMBINES):
            own = {c: section["settings"] for c, section in self.record(step)["sections"].items() if c in collections}
            alike = len({json.dumps(one, sort_keys=True) for one in own.values()}) == 1
            found |= {step: [*own.values()][0]} if alike else {f"{step} {c}": one for c, one in own.items()}
        return found

    def origin(self, collections):
        """What a submission was made from, for the ledger; the first 16 hex digits of each digest.

        {"data": {"COLLECTION SPLIT": digest}, "code": {step: digest}, "predictions": {"COLLECTION/MEMBER": digest},
        "weights": {the same: name of the checkpoint}}.
        """
        found = {"data": {}, "code": {}, "predictions": {}, "weights": {}}
        for step in (*TRAINS.values(), COMBINES):
            sections = self.record(step)["sections"]
            for collection in sections.keys() & {*collections}:
                found["data"] |= {name: digest[:16] for name, digest in sections[collection]["data"].items()}
                found["code"][step] = sections[collection]["code"][:16]
                for one in sections[collection]["costs"] if step != COMBINES else ():
                    if one["split"] == "test" and not one["baseline"]:
                        member = f"{collection.replace(':', '_')}/{one['member']}"
                        found["predictions"][member] = one["file"].rpartition("-")[2]
                        found["weights"] |= {member: one["model"]} if one["model"] else {}
        return {kind: dict(sorted(pairs.items())) for kind, pairs in found.items()}

    def checkpoints(self, kind, collection):
        """Paths of the checkpoints of a kind of model, such as "token", by seed; [] if they cannot be used now."""
        step = step_of(collection)
        found = {} if self.results_fault(step, [collection]) else self.record(step)["sections"].get(collection, {})
        names = {one["seed"]: one["model"] for one in found.get("costs", ()) if one["model"] and one["kind"] == kind}
        return [path for _, name in sorted(names.items()) if (path := self.store.path(name, ".pt")).is_file()]


class Run(Folder):
    """One step of a run: the data, what it publishes, and what it reads from the steps before.

    Parameters
    ----------
    step : str
        The name of the notebook.
    data_root : str or Path, optional
    out_dir : str or Path, optional
        The folder of the run. None: `submissions/by-hand` in the clone around the working directory.
    collections : str or sequence of str, optional
        As for `open_data`, like `data_root`.
    size : str
        "tiny" only tries the cells: the recipes of scale "tiny".
    recipe : str, optional
        The scale of recipes (`kit.recipes`); None: "quick" on real files, "short" on measured programs.

    Attributes
    ----------
    root : Path
        The prepared folder.
    source : str
        "measured programs" or "real files", for tables and pictures.
    scored : str
        "test" where the runtimes of test graphs are known, else "valid": the split that tables of scores are of.
    scale : str
        What `recipe` and `size` come to.
    collections : list of str
    problems : Path
        The log for `read_split`.
    """

    def __init__(self, step, data_root=None, out_dir=None, collections=None, size="small", recipe=None):
        super().__init__(run_folder(out_dir), open_data(data_root, collections))
        self.step, self.collections = step, wanted(collections)
        self.source = source_of(self.root)
        self.scored = "valid" if self.source == "real files" else "test"
        self.scale = "tiny" if size == "tiny" else recipe or ("quick" if self.source == "real files" else "short")
        self.problems = self.out / "problems" / f"{step}.jsonl"
        self._data = {f"{c} {split}": data_digest(self.root, c, split) for c in COLLECTIONS for split in SPLITS}

    def data(self, kind="", k_hops=None, use_valid=False):
        """The Data of this step: of its collections whose names begin with `kind`; other arguments as for `Data`."""
        collections = [c for c in self.collections if c.startswith(kind)]
        return Data(self.root, collections, k_hops, use_valid, self.problems)

    def publish(self, made, **settings):
        """Publish predictions; what this step published for these collections before is replaced.

        Parameters
        ----------
        made : lab.predictions.Predictions
            A collection of its data without predictions is published as such.
        **settings
            Plain values, for the ledger.

        Raises
        ------
        DataError
            If the data changed while the step ran.
        """
        record = self.record(self.step)
        for c in made.data.collections:
            rows = [row for row in made.rows if row.collection == c]
            names = dict.fromkeys([c, *(one for row in rows for one in row.trains_on)])
            data = {f"{one} {split}": data_digest(self.root, one, split) for one in names for split in SPLITS}
            changed = [name for name, digest in data.items() if self._data.get(name, digest) != digest]
            if changed:
                raise DataError(f"{self.root}: {', '.join(changed)} changed while {self.step} ran; run it again")
            costs = [row._asdict() | {"member": row.member, "costs": None, "file": self.store.keep("costs", row.costs)}
                     for row in rows]
            record["sections"][c] = plain({
                "settings": {**settings, "k_hops": made.data.k_hops}, "data": data, "code": _code_of(self.step),
                "read": self.read.get(c, {}), "costs": costs, "used": sorted(self.store.used)})
        self.write_record(self.step, record)

    def save(self, name, write):
        """Write a view; as `view`."""
        return self.view(self.step, name, write)

    def save_table(self, name, table):
        """Write a DataFrame as a view, as CSV with six decimals."""
        return self.view_table(self.step, name, table)

    def save_submission(self, costs):
        """Write submission.csv, a view; the store keeps each submission."""
        from kit.submit import write_submission  # of all notebooks, 06 alone writes one
        self._keep_submission()                          # the last one, whose copy may be gone or changed since then
        path = self.save("submission.csv", lambda place: write_submission(costs, place))
        self._keep_submission()
        return path

    def _keep_submission(self):
        path, written = self.out / "submission.csv", self.record(self.step)["views"].get("submission.csv", ())
        if not path.is_file() or (sha := file_sha256(path)) not in written:      # what is not of this run, `view` keeps
            return
        kept = self.store.path(f"submission-{sha[:16]}", ".csv")
        with unwritable_named(kept):
            if kept.exists() and not (kept.is_file() and file_sha256(kept) == sha):
                self.store.set_aside(kept)
            if not kept.exists():
                copy_whole(path, kept)

    def note(self, path, reason):
        """Say that something was left out, and report it as a problem of the run."""
        print(f"left out: {reason}")
        report_problems(self.problems, path, [reason])


def run_folder(out_dir=None):
    """The folder of a run; None: `submissions/by-hand` in the clone around the working directory."""
    return Path(out_dir) if out_dir else clone_folder() / "submissions" / "by-hand"


def step_of(collection):
    """The step that publishes predictions for a collection."""
    return TRAINS[collection.partition(":")[0]]


def _code_of(step):
    return code_digest(*_CODE.get(step, ()))


def _digest(value):
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()

