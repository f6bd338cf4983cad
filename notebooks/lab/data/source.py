"""Where the data of a notebook or a run are: found, and prepared in a folder."""
import hashlib
import json
import os
from pathlib import Path

import polars as pl

from kit.data import COLLECTIONS, SPLITS, DataError, clone_folder, find_data_root, is_competition, own_files
from kit.files import copy_whole, plain, unwritable_named
from kit.prepare import content_digests, is_prepared, open_prepared, prepare

MEASURED_TABLE = "measured.csv"
DRIVE = Path("/content/drive/MyDrive")          # Google Drive, mounted on Colab
MEASURED = Path(__file__).resolve().parents[1] / "measured" / "cpu" / "npz"      # come with the kit


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
        prepared = prepare(root, place, others)                  # `Data.train` will read counterparts
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
        root = MEASURED if data_root == "measured" else find_data_root(data_root)
    except DataError:
        if data_root is not None or os.environ.get("TPUGRAPHS_ROOT") or not MEASURED.is_dir():      # not in a bundle
            raise
        root = MEASURED
    if root.resolve() == MEASURED.resolve():
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


def data_digest(root, collection, split):
    """A digest of the content of all prepared graphs of a split, with their names, and of their source."""
    found = plain([source_of(root), content_digests(root, collection, split)])
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def report_problems(log, path, reasons):
    """Add a line {"path", "reason"} per reason to the JSON-lines file `log`; the run then does not exit with 0."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with unwritable_named(log), open(log, "a") as file:
        file.writelines(json.dumps({"path": str(path), "reason": reason}) + "\n" for reason in reasons)


def source_of(root):
    """What tables and pictures say of a data root: "measured programs" or "real files"."""
    return "measured programs" if is_measured(root) else "real files"


def is_measured(root):
    """Whether a data root, or a folder prepared from it, was written by `notebooks/measure_programs.py`."""
    return measured_table(root).is_file()


def measured_table(root):
    """Where notebooks/measure_programs.py says what was measured: beside a data root, in a folder prepared from it."""
    return (Path(root) if is_prepared(root) else Path(root).resolve().parent) / MEASURED_TABLE


def families_of(root):
    """{name of a graph: family} of the measured programs and kernels."""
    return dict(pl.read_csv(measured_table(root)).select("program", "family").iter_rows())


def copy_table(root, place):
    """Let a prepared folder say as much of what was measured as its data root does; it may be prepared anew."""
    table, copy = measured_table(root), Path(place, MEASURED_TABLE)
    if not table.is_file():
        copy.unlink(missing_ok=True)
    elif not (copy.is_file() and copy.read_bytes() == table.read_bytes()):       # new, or programs were measured since
        copy_whole(table, copy)
