"""The data of a notebook or a run: found, prepared, and read split by split with bad files named and left out."""
import hashlib
import json
import os
import re
import time
from pathlib import Path

import numpy as np
import polars as pl

from kit.data import (
    COLLECTIONS,
    SPLITS,
    STRANGER,
    DataError,
    clone_folder,
    find_data_root,
    is_competition,
    npz_paths,
    own_files,
    target,
    teaches,
)
from kit.factored import read_graph
from kit.files import as_text, copy_whole, unwritable_named
from kit.prepare import is_prepared, open_prepared, prepare
from kit.prune import drop_duplicate_configs, fewer_configs, prune

MEASURED_TABLE = "measured.csv"
UNQUOTED = re.compile(r"[^\s,:;\"/\\]+")        # matches file stems that need no quotes in a CSV, and no ":" of an ID
DRIVE = Path("/content/drive/MyDrive")          # Google Drive, mounted on Colab
MEASURED = Path(__file__).resolve().parent / "measured" / "cpu" / "npz"      # come with the kit


def open_data(data_root=None, collections=None, folder=None):
    """Find the data set, else the measured programs that come with the kit, prepare it, and print what is used.

    `data_root` is as for `find_data_root`; "measured" asks for the measured programs even if the data set is at hand.
    Only `collections` are prepared (None: all); others that were prepared earlier are prepared again where their files
    have changed. If a layout collection among them has no graph to train on, the other layout collections are prepared,
    too. The prepared folder is `folder`/prepared-<8 hex digits of the data root>; on Colab on Google Drive if it is
    mounted, so that the next session finds it. What is prepared already is not read again. A prepared folder is taken
    as it is. `folder` None: `data` in the clone around the working directory; outside of a clone, in the working
    directory. Returns the prepared folder.
    DataError if `data_root` holds no data, or if the prepared folder holds something else.
    """
    root, place = locate_data(data_root, folder)
    if is_measured(root) and is_competition(root):
        raise DataError(f"{measured_table(root)}: lies beside files of the competition, whose test runtimes are "
                        "hidden; move it away")
    print(f"{'measured programs' if is_measured(root) else 'data set'}: {root}")
    if place == root:
        return root
    known = _known_collections(root, place)                      # a model of one collection may be made from others
    prepared = prepare(root, place, [c for c in COLLECTIONS if c in wanted(collections) or c in known])
    if any(not _may_teach(prepared.catalogue, c) for c in wanted(collections) if c.startswith("layout:")):
        others = [c for c in COLLECTIONS if c.startswith("layout:") or c in wanted(collections)]
        prepared = prepare(root, place, others)                  # `training_graphs` will read counterparts
    copy_table(root, place)
    print(f"prepared: {prepared.folder}")
    for name, reason in left_out(prepared.folder, wanted(collections)):
        print(f"left out: {name}: {reason}")
    return prepared.folder


def locate_data(data_root=None, folder=None):
    """Find the data set and where it is prepared, as `open_data` does, but write nothing -> (data root, that folder).

    The two paths are equal if the data root is a prepared folder itself.
    """
    folder = clone_folder() / "data" if folder is None else folder
    try:
        root = None if data_root == "measured" else find_data_root(data_root)
    except DataError:
        if data_root is not None or os.environ.get("TPUGRAPHS_ROOT") or not MEASURED.is_dir():      # not in a bundle
            raise
        root = None
    if root is None:
        return find_data_root(MEASURED), Path(folder, "measured")
    if is_prepared(root):
        return root, root
    name = f"prepared-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]}"
    return root, DRIVE / "tpugraphs-prepared" if DRIVE.is_dir() and not is_measured(root) else Path(folder, name)


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
    sets = [[collection]]
    if collection != "tile:xla":
        _, source, search = collection.split(":")
        other, opposite = {"xla": "nlp", "nlp": "xla"}[source], {"random": "default", "default": "random"}[search]
        sets += [[f"layout:{source}:{opposite}"], [f"layout:{other}:{search}", f"layout:{other}:{opposite}"]]
    for one in sets:
        found = {c: teaching_graphs(data_root, c, "train", problems, k_hops) for c in one}
        trained_on = [c for c in one if found[c]]
        if trained_on:
            break
        print(f"{' and '.join(one)}: no training graph with two different configurations and runtimes")
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


def report_problems(log, path, reasons):
    """Add a line {"path", "reason"} per reason to the JSON-lines file `log`; the run then does not exit with 0."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with unwritable_named(log), open(log, "a") as file:
        file.writelines(json.dumps({"path": str(path), "reason": reason}) + "\n" for reason in reasons)


def source_of(root):
    """What tables and pictures say of a data root: "measured programs" or "real files"."""
    return "measured programs" if is_measured(root) else "real files"


def is_measured(root):
    """Whether a data root, or a folder prepared from it, was written by `notebooks/measure.py`."""
    return measured_table(root).is_file()


def measured_table(root):
    """Where `notebooks/measure.py` says what was measured: beside a data root, but in a folder prepared from it."""
    return (Path(root) if is_prepared(root) else Path(root).resolve().parent) / MEASURED_TABLE


def copy_table(root, place):
    """Let a prepared folder say as much of what was measured as its data root does; it may be prepared anew."""
    table, copy = measured_table(root), Path(place, MEASURED_TABLE)
    if not table.is_file():
        copy.unlink(missing_ok=True)
    elif not (copy.is_file() and copy.read_bytes() == table.read_bytes()):       # new, or programs were measured since
        copy_whole(table, copy)


def known_truth(data_root, collection):
    """Runtimes of the test graphs, {ID: runtime (c,)}; for tiles divided by the normalizers.

    Empty if only the competition knows them.
    """
    paths = npz_paths(Path(data_root), collection, "test") if is_measured(data_root) else ()
    return {f"{collection}:{path.stem}": target(read_graph(path, collection)) for path in paths}
