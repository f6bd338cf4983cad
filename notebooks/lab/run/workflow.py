"""What the notebooks share: the data, whole splits with bad files reported, training graphs, files between steps.

The folder of a run holds `predictions/<collection>/<model>_seed<k>.<split>.npz` (split "train": out of fold), the same
for `baselines/`, the combined predictions in `ensemble/` and their weights in `weights.json`, `checkpoints/`,
`settings/` (the parameters of each step), `problems/` (files that a step could not read or use), the executed
`notebooks/`, `scores.csv`, `graph_scores.csv` and `submission.csv`. Beside each result NAME lies NAME.made.json, which
says what it was made from (see `lab.run.provenance`). Files that made room for newer results are in `aside/`.
"""
import hashlib
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from kit.data import (
    COLLECTIONS,
    SPLITS,
    STRANGER,
    DataError,
    clone_folder,
    content_digest,
    find_data_root,
    npz_paths,
    own_files,
    target,
    teaches,
)
from kit.factored import read_graph
from kit.files import as_text, file_sha256, replace_file, unwritable_named, whole_file
from kit.prepare import is_prepared, open_prepared, prepare
from kit.prune import drop_duplicate_configs, fewer_configs, prune
from kit.training import CheckpointError, read_checkpoint
from lab.run.provenance import from_code, own_code, read_mark, set_aside, without_places
from lab.sample import write_sample

UNQUOTED = re.compile(r"[^\s,:;\"/\\]+")        # matches file stems that need no quotes in a CSV, and no ":" of an ID
DRIVE = Path("/content/drive/MyDrive")          # Google Drive, mounted on Colab
SCORE_COLUMNS = ("collection", "model", "score", "low", "high", "graphs", "seeds", "split")


def open_data(data_root=None, size="small", collections=None, folder=None):
    """Find the data set, or write the sample data, prepare it, and print what is used.

    `data_root` is as for `find_data_root`; "sample" asks for the sample data even if the data set is at hand. The
    sample data of `size` "tiny" or "small" goes to `folder`/sample-`size`. Only `collections` are prepared (None: all);
    others that were prepared earlier are prepared again where their files have changed.
    If a layout collection among them has no graph to train on, the other layout collections are prepared, too. The
    prepared folder is `folder`/prepared-<8 hex digits of the data root>; for sample data beside it; on Colab on Google
    Drive if it is mounted, so that the next session finds it. What is prepared already is not read again. A prepared
    folder is taken as it is. `folder` None: `data` in the clone around the working directory; outside of a clone, in
    the working directory. Returns the prepared folder, and whether it is sample data.
    DataError if `data_root` holds no data, or if one of these places holds something else.
    """
    root, place, is_sample = locate_data(data_root, size, folder)
    if root is None:
        try:
            root = Path(write_sample(place.parent, size=size, progress=True))
        except ValueError as fault:
            raise DataError(str(fault)) from fault
    print(f"{'sample data, simulated runtimes' if is_sample else 'data set'}: {root}")
    if place == root:
        return root, is_sample
    known = _known_collections(root, place)                      # a model of one collection may be made from others
    prepared = prepare(root, place, [c for c in COLLECTIONS if c in wanted(collections) or c in known])
    if any(not _may_teach(prepared.catalogue, c) for c in wanted(collections) if c.startswith("layout:")):
        others = [c for c in COLLECTIONS if c.startswith("layout:") or c in wanted(collections)]
        prepared = prepare(root, place, others)                  # `training_graphs` will read counterparts
    print(f"prepared: {prepared.folder}")
    for name, reason in left_out(prepared.folder, wanted(collections)):
        print(f"left out: {name}: {reason}")
    return prepared.folder, is_sample


def locate_data(data_root=None, size="small", folder=None):
    """Find the data set and where it is prepared, as `open_data` does, but write nothing.

    Returns the data root (None: sample data that is not written yet), the folder where it is prepared or will be, and
    whether it is sample data. The two paths are equal if the data root is a prepared folder itself.
    """
    root, folder = None, clone_folder() / "data" if folder is None else folder
    if data_root != "sample":
        try:
            root = find_data_root(data_root)
        except DataError:
            if data_root is not None or os.environ.get("TPUGRAPHS_ROOT"):
                raise
    if root is None:
        return None, Path(folder, f"sample-{size}", "prepared"), True
    is_sample = any((root.parent / "truth" / kind).is_dir() for kind in ("tile", "layout"))
    if is_prepared(root):
        return root, root, is_sample
    if is_sample:
        return root, root.parent / "prepared", True
    name = f"prepared-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]}"
    return root, DRIVE / "tpugraphs-prepared" if DRIVE.is_dir() else Path(folder, name), False


def _may_teach(catalogue, collection):
    """Whether a collection has no file at all, or a training graph from which `kit.data.teaches` something."""
    rows = catalogue.filter(collection=collection)
    different = (pl.col("shortest") < pl.col("longest")) & (pl.col("distinct") > 1)
    return rows.is_empty() or not rows.filter(different, split="train").is_empty()


def _known_collections(root, place):
    """The collections that are prepared already, and whose sources are still there."""
    try:
        known = {*open_prepared(place).catalogue["collection"]} if is_prepared(place) else set()
    except DataError:                            # damaged, or of another version of the kit
        return set()
    return {c for c in known if any(own_files(root, c, split)[0] for split in SPLITS)}


def run_folder(out_dir=None):
    """The folder of a run; None: `submissions/by-hand` in the clone around the working directory."""
    return Path(out_dir) if out_dir else clone_folder() / "submissions" / "by-hand"


def left_out(data_root, collections):
    """The source files that could not be prepared, as pairs of file name and reason."""
    if not is_prepared(data_root):
        return []
    bad = open_prepared(data_root).catalogue.filter(pl.col("reason").is_not_null())
    return [("/".join((*row["collection"].split(":"), row["split"], f"{row['name']}.npz")), row["reason"])
            for row in bad.iter_rows(named=True) if row["collection"] in collections]


def wanted(collections=None):
    """The chosen collections in the official order.

    `collections` is a list, or names joined by commas, or None for all five. DataError if a name is unknown.

    >>> wanted("layout:xla:random,tile:xla")
    ['tile:xla', 'layout:xla:random']
    """
    if collections is None:
        return list(COLLECTIONS)
    names = [n.strip() for n in collections.split(",")] if isinstance(collections, str) else list(collections)
    unknown = [n for n in names if n not in COLLECTIONS]
    if unknown:
        raise DataError(f"no collection {', '.join(unknown)}; there are {', '.join(COLLECTIONS)}")
    return [c for c in COLLECTIONS if c in names]


def read_split(data_root, collection, split, problems=None, k_hops=None):
    """Read every file of a split; a damaged file is reported and left out.

    Files whose names cannot stand in a submission or in predictions are left out, too. `problems`: a JSON-lines file
    that gets {"path", "reason"} per left-out file. `k_hops`: prune each layout graph to this neighbourhood when it is
    read, so that a split takes little memory.
    """
    (own, strangers), graphs, start = own_files(data_root, collection, split), [], time.monotonic()
    paths, shown = sorted(own + strangers), start
    for number, path in enumerate(paths, 1):
        try:
            graph = _read_graph(path, collection, split, path in strangers)
            graphs.append(graph if k_hops is None or collection == "tile:xla" else prune(graph, k_hops))
        except DataError as fault:
            print(f"left out: {fault}")
            if problems is not None:
                report_problems(problems, as_text(path), [str(fault)])
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{collection} {split}: read {number} of {len(paths)} files in {shown - start:.0f} s")
    return graphs


def _read_graph(path, collection, split, stranger=False):
    """Read one file; DataError if it is damaged or cannot be used in its split."""
    if as_text(path.name) != path.name:
        raise DataError(f"{as_text(path)}: its name is not UTF-8; rename the file")
    if split == "test" and not UNQUOTED.fullmatch(path.stem):
        raise DataError(f"{path}: its name cannot stand in a submission; expected no space, comma, colon, semicolon or "
                        "quote; if it is a copy, delete it")
    if split == "valid" and ":" in path.stem:
        raise DataError(f"{path}: its name holds a colon, which separates the collection from the name in predictions; "
                        "rename the file")
    if stranger:
        raise DataError(f"{path}: {STRANGER}")
    return read_graph(path, collection, split)


def training_graphs(data_root, collection, problems=None, k_hops=None):
    """The graphs to train on for a collection: its own, or those of its counterparts if its own teach nothing.

    A layout collection has two sets of counterparts, tried in this order: the other search on the same source, then
    both collections of the other source. Returns the list of graphs that `teaches` accepts, layout graphs deduplicated,
    and the list of their collections; both are empty if there is nothing to train on.
    """
    families = [[collection]]
    if collection != "tile:xla":
        _, source, search = collection.split(":")
        other, opposite = {"xla": "nlp", "nlp": "xla"}[source], {"random": "default", "default": "random"}[search]
        families += [[f"layout:{source}:{opposite}"], [f"layout:{other}:{search}", f"layout:{other}:{opposite}"]]
    for family in families:
        found = {c: teaching_graphs(data_root, c, "train", problems, k_hops) for c in family}
        trained_on = [c for c in family if found[c]]
        if trained_on:
            break
        print(f"{' and '.join(family)}: no training graph with two different configurations and runtimes")
    graphs = [g for c in trained_on for g in found[c]]
    if trained_on and trained_on != [collection]:
        print(f"{collection} is therefore trained on {len(graphs)} graphs of {' and '.join(trained_on)}")
    return graphs, trained_on


def teaching_graphs(data_root, collection, split, problems=None, k_hops=None):
    """The graphs of a split that `teaches` accepts, layout graphs deduplicated; arguments are as for `read_split`."""
    graphs = read_split(data_root, collection, split, problems, k_hops)
    if collection != "tile:xla":
        graphs = [drop_duplicate_configs(g)[0] for g in graphs]
    return [g for g in graphs if teaches(g)]


def runtimes_of(data_root, collection, splits, predictions):
    """The runtimes of the graphs of some splits that all models rank: {ID: runtime (c,)}, for tiles divided.

    `predictions`: one {ID: cost (c,)} per model. Notebook 04 ranks a part of many configurations; the runtimes are of
    the same part. Graphs with equal runtimes are left out, because nobody can rank their configurations.
    """
    predictions, found = list(predictions), {}
    for graph in [g for split in splits for g in read_split(data_root, collection, split)] if predictions else ():
        name = f"{collection}:{graph.graph_id}"
        if all(name in costs for costs in predictions):
            graph = graph if collection == "tile:xla" else fewer_configs(graph, len(predictions[0][name]))
            runtime = target(graph)
            if len(np.unique(runtime)) > 1 and all(len(costs[name]) == len(runtime) for costs in predictions):
                found[name] = runtime
    return found


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


def checkpoint_path(out, name, model, settings, graphs, valid=(), functions=()):
    """The checkpoint of a training run; other settings or other graphs give another file.

    `out`/checkpoints/`name`-<8 hex digits>.pt. The digits change with the settings, the content of the graphs and the
    code that trains. If a file of this name is damaged, or is a copy of another training's checkpoint, it is moved
    aside, and a line says so; training then starts anew. `model` has its `settings`; `graphs` and `valid` are as for
    `train`. `functions`: the loss, and the score if it chooses weights; their names and arguments count, and so do
    their modules of the kit, or their own code if it is not of the kit; see `lab.run.provenance.own_code`.
    """
    # where validation chooses the weights, the scores count, too
    modules = [*modules_of(functions), *["kit.metrics"] * (settings.keep == "best" and bool(valid))]
    code = from_code("kit.train", type(model).__module__, *modules) | own_code(type(model), *functions)
    about = repr((model.settings, replace(settings, device=""), sorted(code.values()),
                  [[content_digest(graph) for graph in some] for some in (graphs, valid)],
                  [without_places(function) for function in functions]))
    stem = name.replace(":", "_").replace(" ", "-")
    path = Path(out, "checkpoints", f"{stem}-{hashlib.sha256(about.encode()).hexdigest()[:8]}.pt")
    mark = read_mark(path)
    if path.is_file() and (fault := _unfit_checkpoint(path, mark)):
        print(f"note  {path} {fault}; it is kept as {set_aside(path, out)}, and training starts anew")
    return path


def _unfit_checkpoint(path, mark):
    """Why a checkpoint is not the one that a training wrote under this name, or ""."""
    try:
        saved = read_checkpoint(path)
    except CheckpointError:
        saved = None
    if saved is None or mark and mark["sha256"] != file_sha256(path):
        return "is damaged, or was changed"
    name = saved.get("name")
    return "" if name == path.name else f"was written as {name}, the checkpoint of another training"


def modules_of(functions):
    """The modules where functions are defined, also those that a functools.partial calls."""
    return [getattr(function, "func", function).__module__ for function in functions]


def save_costs(path, costs):
    """Write predictions {"collection:file stem": cost (c,)} to an npz file, whole or not at all."""
    with whole_file(path) as part, open(part, "wb") as file:        # given a name, NumPy appends .npz to it
        np.savez_compressed(file, **costs)


def load_costs(path):
    """Read predictions {ID: cost (c,)} that `save_costs` wrote; DataError if the file holds anything else."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as npz:
            costs = {name: npz[name] for name in npz.files}
    except FileNotFoundError:
        raise
    except Exception as fault:               # zipfile and NumPy raise a dozen types
        raise DataError(f"{path}: unreadable predictions ({type(fault).__name__}: {fault}); delete the file and "
                        "predict again") from fault
    for name, cost in costs.items():
        if cost.ndim != 1 or cost.dtype.kind not in "fiu":
            raise DataError(f"{path}: {name} has shape {cost.shape} and dtype {cost.dtype}, expected one axis of costs")
    return costs


def write_table(path, table):
    """Write a DataFrame as CSV with four decimals, whole or not at all; without columns, it gets SCORE_COLUMNS."""
    table = table if len(table.columns) else table.reindex(columns=SCORE_COLUMNS)
    replace_file(path, table.round(4).to_csv(index=False, lineterminator="\n"))


def note_settings(out, step, settings):
    """Note the settings of a step, {name: plain value}, in the folder of the run, for the ledger."""
    replace_file(Path(out, "settings", f"{step}.json"), json.dumps(settings, indent=1) + "\n")


def noted_settings(out):
    """The noted settings of a run as {step: settings}; DataError if a file is damaged."""
    noted = {}
    for path in sorted(Path(out, "settings").glob("*.json")):
        try:
            noted[path.stem] = dict(json.loads(path.read_text()).items())
        except (ValueError, AttributeError, RecursionError) as fault:
            raise DataError(f"{path}: holds no settings in JSON ({type(fault).__name__}); delete it and run that step "
                            "again") from fault
    return noted


def report_problems(log, path, reasons):
    """Add a line {"path", "reason"} per reason to the JSON-lines file `log`; the run then does not exit with 0."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with unwritable_named(log), open(log, "a") as file:
        file.writelines(json.dumps({"path": str(path), "reason": reason}) + "\n" for reason in reasons)


def sample_truth(data_root, collection):
    """True runtimes of the sample data's test graphs, {ID: runtime (c,)}; for tiles divided by the normalizers."""
    truth = {}
    for path in npz_paths(data_root, collection, "test"):
        with np.load(Path(data_root).parent / "truth" / path.relative_to(data_root), allow_pickle=False) as npz:
            runtime = npz["config_runtime"]
            truth[f"{collection}:{path.stem}"] = (
                runtime / npz["config_runtime_normalizers"] if collection == "tile:xla" else runtime)
    return truth
