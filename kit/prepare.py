"""Read the whole data set once: one small file per graph in factored form, and a catalogue of all files.

`prepare` writes a *prepared folder*. It has the layout of the data set, so that it is accepted wherever a data root is:
`layout/xla/random/train/NAME.npz` holds the same graph as the source of this name, but opens in milliseconds and takes
a tenth of the space or less. `catalogue.parquet` describes every source file in one row; its columns are in `COLUMNS`.

`kit.factored` says how a file gets small without loss. A prepared file also holds its row of the catalogue, with the
size and the time of change of its source, so that an interrupted preparation resumes. Nothing in a prepared folder is
pickled.
"""
import hashlib
import io
import math
import multiprocessing
import os
import queue
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from tqdm import tqdm

from kit.checks import as_path, check_whole
from kit.data import (
    CATALOGUE,
    COLLECTIONS,
    OPCODES,
    SPLITS,
    STRANGER,
    DataError,
    NpzFile,
    content_digest,
    find_data_root,
    find_sample,
    npz_paths,
    own_files,
    target,
)
from kit.factored import graph_of, read_about, read_graph, structure_of, write_graph
from kit.files import as_text, locked, remove_leftovers, replace_file, whole_file
from kit.interrupts import deaf_children, follow_parent, without_script
from kit.noise import noise_ceiling
from kit.prune import config_ids

FORMAT = 8                               # of a prepared file; files of another format are prepared again
COLUMNS = {
    "collection": pl.String, "split": pl.String, "name": pl.String,      # name: the file name without .npz
    "format": pl.Int64,                  # `FORMAT` of the kit that prepared the file
    "reason": pl.String,                 # why the file is left out; null for a readable file
    # changed: time in ns, as the system gives it; null if the system could not read the file, which is then retried
    "source_bytes": pl.Int64, "source_changed": pl.Int64,
    "prepared_bytes": pl.Int64,
    "content": pl.String,                # digest of the graph, whatever file it was read from; see `content_digest`
    "padding": pl.Int64,                 # of axes in the source: 0, or -1, which readers change to 0
    "nodes": pl.Int64, "edges": pl.Int64, "configurable": pl.Int64, "groups": pl.Int64,
    "group_nodes": pl.List(pl.Int64), "options": pl.List(pl.Int64),      # nodes and codes per group
    "configs": pl.Int64, "distinct": pl.Int64, "repeats": pl.Int64,      # repeats: the most rows of one configuration
    "noise": pl.Float64,                 # standard deviation of one measurement / runtime; null without repeats
    "ceiling": pl.Float64,               # best expected score of any model, from at most CEILING_CONFIGS configurations
    # runtime in ns, for tiles runtime / normalizer; null for test files, whose runtimes are not published
    "shortest": pl.Float64, "quarter": pl.Float64, "median": pl.Float64, "three_quarters": pl.Float64,
    "longest": pl.Float64,
    "first_beats": pl.Float64,           # share of the other rows that are slower than the first row; ties count half
    # number of nodes per operation, by number as in `kit.data.OPCODE_NAMES`: all nodes, configurable nodes
    "opcodes": pl.List(pl.Int64), "configurable_opcodes": pl.List(pl.Int64),
    "family": pl.String,                 # equal for programs with the same operations and edges; sizes may differ
    # per group, in the order of the graph: digests of its operations and of its options, whatever the sizes and the
    # depth; see `kit.factored.structure_of`. Relatives agree in most of them; see `kit.relatives.structural_relatives`
    "structure": pl.List(pl.String),
}
_PLACE = ("collection", "split", "name")
_HELD = COLUMNS.keys() - {"prepared_bytes"}               # the columns that a prepared file holds itself
CEILING_CONFIGS = 500                    # the configurations that a ceiling is estimated from
CEILING_DRAWS = 20                       # simulated evaluations, as in notebook 04, so that both show the same ceiling
_LOCK = ".prepare.lock"
_UNFINISHED = ".prepare.unfinished"     # marks a folder that is being prepared
_BYTES_PER_PROCESS = 32 << 20            # of sources; starting a process takes as long as reading this much
_QUANTILES = ("shortest", "quarter", "median", "three_quarters", "longest")
_SAMPLE = "sample_submission.csv"
_LONGEST_NAME = 225                      # bytes; systems allow 255, and a file that is being written has 30 more


class Source(NamedTuple):
    """One file of the data set."""
    collection: str
    split: str
    path: Path
    bytes: int
    changed: int                         # ns
    stranger: bool = False               # whether its name is none of the data set

    @property
    def key(self):
        """What names the file in a catalogue, where text is UTF-8."""
        return self.collection, self.split, as_text(self.path.stem)


class Prepared:
    """A prepared folder: the catalogue, and the graphs by name. `prepare` and `open_prepared` give one.

    Parameters
    ----------
    folder : str or Path
    catalogue : polars.DataFrame
        One row per source file, with the columns of `COLUMNS`, in the order of collection, split and file name.

    Examples
    --------
    The validation graphs of a collection, one after another: ::

        for graph in open_prepared("data/prepared").graphs("layout:xla:random", "valid"):
            print(graph.graph_id, len(graph.config_runtime))
    """

    def __init__(self, folder, catalogue):
        self.folder, self.catalogue = Path(folder), catalogue

    def __repr__(self):
        return f"Prepared({str(self.folder)!r}, {len(self.catalogue)} files)"

    def graph(self, collection, split, graph_id):
        """Read one graph.

        Parameters
        ----------
        collection, split : str
        graph_id : str
            The name of the source file without .npz.

        Returns
        -------
        TileGraph or LayoutGraph
            As the reader of the source gives it; a layout graph has its `meetings`, too.

        Raises
        ------
        DataError
            If there is no such file, with the reason if it was left out, or if the file is damaged.
        """
        path = prepared_path(self.folder, collection, split, graph_id)
        if not path.is_file():
            npz_paths(self.folder, collection, split)            # DataError if there is no such collection
            why = self.catalogue.filter(pl.col("collection") == collection, pl.col("split") == split,
                                        pl.col("name") == graph_id)["reason"].drop_nulls()
            raise DataError(f"{path}: not there; " + (f"it was left out: {why[0]}" if len(why) else "prepare it first"))
        return read_graph(path, collection)

    def graphs(self, collection, split):
        """Read the graphs of a split one after another, sorted by file name.

        Parameters
        ----------
        collection, split : str

        Returns
        -------
        iterator of TileGraph or LayoutGraph
            A damaged file is left out, and a printed line names it.

        Raises
        ------
        DataError
            If the name of the collection or split is unknown.
        """
        return self._read((collection, split, path.stem) for path in npz_paths(self.folder, collection, split))

    def read(self, rows):
        """Read the graphs of some rows of the catalogue one after another.

        Parameters
        ----------
        rows : polars.DataFrame
            With the columns collection, split and name.

        Returns
        -------
        iterator of TileGraph or LayoutGraph
            In the order of the rows, without damaged files; see `graphs`.
        """
        return self._read(rows.select(_PLACE).iter_rows())

    def _read(self, places):
        """Read the graphs at these (collection, split, name)."""
        graphs = (_undamaged(self.graph, *place) for place in places)
        return (graph for graph in graphs if graph is not None)


def _undamaged(read, *place):
    """Read something; name a damaged file and give None."""
    try:
        return read(*place)
    except DataError as fault:
        print(f"left out: {fault}")


def prepare(data_root, folder, collections=None, processes=None, progress=True, splits=SPLITS):
    """Read every source file once, and write it to a prepared folder in factored form.

    Parameters
    ----------
    data_root : str or Path
        The data set, as for `kit.data.find_data_root`. Its files are only read.
    folder : str or Path
        The prepared folder; it is created. It may hold an earlier or interrupted preparation of the same data: then
        only new, changed and missing files are read, and files whose source is gone are removed. A source counts as
        unchanged while its size and its time of change stay the same.
    collections : sequence of str, optional
        Prepare these collections only; what is there of others stays. None: all five.
    processes : int, optional
        How many processes read. None: one per CPU core, but fewer for little work. A process takes up to 1 GB of
        memory.
    progress : bool
        Show a progress bar.
    splits : sequence of str
        Prepare these splits only; what is there of others stays. Trained models rank without the training graphs.

    Returns
    -------
    Prepared
        Its catalogue has a row for each source file, also for those that are left out, with the reason.

    Raises
    ------
    DataError
        If there is no data set, a name is unknown, or `folder` holds other things than a preparation.
    OSError
        If the folder cannot be written to, for example because the disk is full. What was prepared stays. A folder
        with nothing left to do is only read: it need not be writable, and no lock is taken.
    RuntimeError
        If a process dies, for example for lack of memory.
    """
    root, folder = find_data_root(data_root), Path(os.path.expanduser(as_path(folder, "folder")))
    wanted = list(COLLECTIONS) if collections is None else [*collections] if np.iterable(collections) else [collections]
    check_whole(locals(), **{} if processes is None else {"processes": 1})
    _check_folder(root, folder, wanted, splits)
    if _is_complete(folder, _work_in(root, folder, wanted, splits), wanted):
        return open_prepared(folder)
    with _alone(folder):
        remove_leftovers(folder)
        rows, todo, sample, _ = _work_in(root, folder, wanted, splits)
        replace_file(folder / _UNFINISHED, "")
        for key, row in _prepare_all(todo, folder, processes, progress):
            rows[key] = row
        for path in _strangers(folder, wanted, rows):
            path.unlink()
        for collection in wanted:                                # a data root has tile/ or layout/, even without files
            folder.joinpath(*collection.split(":")).mkdir(parents=True, exist_ok=True)
        if sample is not None:                                   # says which rows a submission needs
            with whole_file(folder / _SAMPLE) as part:
                part.write_bytes(sample)
        _save(folder / CATALOGUE, rows)
        (folder / _UNFINISHED).unlink()
    return open_prepared(folder)


def open_prepared(folder):
    """Open a prepared folder, also one that cannot be written to, or that holds a part of the files.

    Parameters
    ----------
    folder : str or Path

    Returns
    -------
    Prepared
        Its catalogue has the rows of the files that are there, and of those that were left out.

    Raises
    ------
    DataError
        If the folder has no catalogue, or one of another version of the kit.
    """
    folder = Path(os.path.expanduser(as_path(folder, "folder")))
    path = folder / CATALOGUE
    if not path.is_file():
        raise DataError(f"{path}: not there; expected a folder that `kit.prepare.prepare` has written")
    rows = _read_catalogue(path)
    there = {source.key for source in _sources(folder, COLLECTIONS)}
    here = pl.Series([key in there for key in rows.select(_PLACE).iter_rows()], dtype=pl.Boolean)
    return Prepared(folder, rows.filter(here | rows["reason"].is_not_null()))


def is_prepared(data_root):
    """Whether a data root is a prepared folder."""
    return (Path(data_root) / CATALOGUE).is_file()


def content_digests(data_root, collection, split):
    """[(file name without .npz, digest of the content)] of the readable graphs of a split.

    From the catalogue of a prepared folder, unless a prepared file is newer than the catalogue. In other data roots,
    every file is read.
    """
    known, since, found = {}, 0, []
    if is_prepared(data_root):
        path = Path(data_root, CATALOGUE)
        rows = _read_catalogue(path).filter(collection=collection, split=split)
        known = {tuple(place): content for *place, content in rows.select("name", "prepared_bytes", "content").rows()}
        since = _changed(path.stat())
    for source in _sources(data_root, [collection], [split]):
        content = known.get((source.key[-1], source.bytes)) if source.changed <= since else None
        found.append((source.key[-1], content or _content_of(source)))
    return [(name, content) for name, content in found if content]


@lru_cache(20_000)
def _content_of(source):
    """The digest of the graph in a file, None if it is damaged; a file that changed since is another `source`."""
    graph = _undamaged(read_graph, source.path, source.collection, source.split)
    return _as_in_source(graph) if graph else None


def _as_in_source(graph):
    """The digest of a graph as its source file has it, where no meetings are listed."""
    return content_digest(graph._replace(meetings=None) if hasattr(graph, "meetings") else graph)


def prepared_path(folder, collection, split, graph_id):
    """Where a prepared folder has a graph: like the data set itself."""
    return Path(folder).joinpath(*collection.split(":"), split, f"{graph_id}.npz")


# --- one file


def prepare_file(source, folder):
    """Read one source file and write its prepared form -> its row of the catalogue; a bad file gets a reason."""
    path = prepared_path(folder, *source.key)
    row = None if source.stranger else _stored_row(folder, source)
    if row is None:
        try:
            with _opened(source) as file, NpzFile(source.path, file) as npz:
                graph = graph_of(npz, source.collection, source.split)
        except (DataError, OSError) as fault:
            path.unlink(missing_ok=True)
            reason = getattr(fault, "strerror", None) or str(fault).removeprefix(f"{source.path}: ")
            return _about(source) | {"reason": as_text(reason)} | (
                {"source_changed": None} if isinstance(fault, OSError) else {})
        row = _about(source) | {"content": _as_in_source(graph), "padding": npz.padding}
        if source.collection != "tile:xla" and graph.meetings is None:
            from kit.agreement import find_meetings  # who only reads prepared files does not need it
            graph = graph._replace(meetings=find_meetings(graph))
        row |= describe(graph, source.collection)
        write_graph(path, graph, {name: row.get(name) for name in COLUMNS if name in _HELD})
    return row | {"prepared_bytes": path.stat().st_size}


def _about(source):
    """What says whether a row of the catalogue is of a source as it is now."""
    return dict(zip(_PLACE, source.key)) | {"format": FORMAT, "source_bytes": source.bytes,
                                            "source_changed": source.changed}


def _stored_row(folder, source):
    """The row of the catalogue that a prepared file holds; None unless it is whole and of the source as it is now."""
    row = read_about(prepared_path(folder, *source.key))
    return row if row.keys() == _HELD and _about(source).items() <= row.items() else None


def _opened(source):
    """Open a source file; DataError if it is none, or has a name that a prepared file or a catalogue cannot have."""
    if not source.path.is_file():
        raise DataError(f"{source.path}: is not a file, or a link to nowhere")
    if source.stranger:
        raise DataError(STRANGER)
    if source.key[-1] != source.path.stem:
        raise DataError(f"{source.path}: its name is not UTF-8; rename the file")
    if len(os.fsencode(source.path.name)) > _LONGEST_NAME:
        raise DataError(f"{source.path}: its name has {len(os.fsencode(source.path.name))} bytes, expected at most "
                        f"{_LONGEST_NAME}; rename the file")
    return open(source.path, "rb")


def describe(graph, collection):
    """What the catalogue says about a graph, as {column: value}."""
    same = config_ids(graph)
    count = np.bincount(same)
    found = {"nodes": len(graph.node_feat), "edges": len(graph.edge_index), "configs": len(same),
             "distinct": len(count), "repeats": int(count.max()),
             "opcodes": np.bincount(graph.node_opcode, minlength=OPCODES).tolist(),
             "family": hashlib.sha256(graph.node_opcode.tobytes() + graph.edge_index.tobytes()).hexdigest()[:12]}
    if hasattr(graph, "node_group"):
        first = np.unique(graph.node_group, return_index=True)[1]
        chosen = graph.node_opcode[graph.node_config_ids]
        found |= {"configurable": len(graph.node_group), "groups": len(first),
                  "group_nodes": np.bincount(graph.node_group).tolist(),
                  "options": [len(np.unique(codes)) for codes in graph.config_codes.T],
                  "configurable_opcodes": np.bincount(chosen, minlength=OPCODES).tolist(),
                  "structure": structure_of(graph)}
    runtime = target(graph)
    if graph.config_runtime.any() and (collection != "tile:xla" or (graph.config_runtime_normalizers > 1).any()):
        found |= dict(zip(_QUANTILES, np.quantile(runtime, [0, 0.25, 0.5, 0.75, 1]).tolist()))
        if len(runtime) > 1:
            found["first_beats"] = float(np.sign(runtime[1:] - runtime[0]).mean() + 1) / 2
        if collection != "tile:xla":         # tilings with equal features may differ, so they are no repeats
            few = np.flatnonzero(same < CEILING_CONFIGS)         # numbered by first appearance
            ceiling = noise_ceiling(runtime[few], same[few], draws=CEILING_DRAWS)
            found |= {name: None if math.isnan(value) else value
                      for name, value in (("noise", ceiling.sigma), ("ceiling", ceiling.mean))}
    return found


# --- all files


def _prepare_all(sources, folder, processes, progress):
    """Prepare the sources, the largest first, and yield (key, row) as they get done."""
    sources = sorted(sources, key=lambda source: -source.bytes)
    total = sum(source.bytes for source in sources)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = min(cores, 1 + total // _BYTES_PER_PROCESS) if processes is None else processes
    # in a log a line per 10 s; little work shows no bar
    with tqdm(total=total, unit="B", unit_scale=True, desc="prepare", disable=not progress or not sources, delay=2,
              file=sys.stdout, mininterval=1 if sys.stdout.isatty() else 10) as bar:
        for done, (source, row) in enumerate(_work_off(sources, folder, min(processes, len(sources))), 1):
            bar.set_postfix_str(f"{done} of {len(sources)} files", refresh=False)
            bar.update(source.bytes)
            yield source.key, {name: row.get(name) for name in COLUMNS}


def _work_off(sources, folder, processes):
    """Call `prepare_file` for each source, here or in several processes, and yield (source, row) in any order."""
    if processes <= 1:
        yield from ((source, prepare_file(source, folder)) for source in sources)
        return
    before, results, left = {*multiprocessing.active_children()}, queue.SimpleQueue(), len(sources)
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=follow_parent)
    try:
        with deaf_children(), without_script():      # one that is just starting would print an error
            for source in sources:
                future = pool.submit(prepare_file, source, folder)
                future.add_done_callback(lambda done, source=source: results.put((source, done)))
        while left:
            with suppress(queue.Empty):          # a second at most: polars makes waits go on after Ctrl-C
                source, future = results.get(timeout=1)
                left -= 1
                yield source, future.result()
    except BrokenProcessPool as fault:
        raise RuntimeError("a process that prepared files died; out of memory? What is prepared stays: run it again, "
                           "with fewer `processes`") from fault
    finally:                                 # also if the caller stops in the middle
        for process in {*multiprocessing.active_children()} - before:
            process.kill()
        pool.shutdown(cancel_futures=True)   # waits: Python prints an error if it ends while the pool's thread does


def _check_folder(root, folder, collections, chosen):
    """DataError if `folder` cannot become a prepared folder of `root`."""
    if is_prepared(root):
        raise DataError(f"{root}: is a prepared folder already; open it with `open_prepared`")
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file; expected a folder for prepared files")
    splits = [Path(*collection.split(":"), split) for collection in COLLECTIONS for split in SPLITS]
    data = [(root / part).resolve() for part in ("tile", "layout", *splits)]
    for place in (folder, *(folder / split for split in splits)):        # any of them may be a link
        if any(place.resolve().is_relative_to(part) for part in data):
            raise DataError(f"{folder}: prepared files would lie among the files of the data set, in "
                            f"{place.resolve()}; prepare into another folder")
    others = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    if others and not {_LOCK, _UNFINISHED, CATALOGUE} & {*others}:
        raise DataError(f"{folder}: holds other files ({', '.join(sorted(others)[:3])}); prepare into a new folder")
    if not np.iterable(chosen):
        raise DataError(f"splits is {chosen!r}; expected a sequence of {', '.join(SPLITS)}")
    for collection, split in [(c, s) for c in collections for s in ("train", *chosen)]:
        own_files(root, collection, split)                       # DataError if there is no such collection or split


@contextmanager
def _alone(folder):
    """Wait until no other process prepares this folder; the marks of a preparation are in it afterwards."""
    said = False
    while True:
        with locked(folder / _LOCK) as holder:
            if holder is None:
                yield
                return
        if not said:
            print(f"{folder}: another process prepares it{holder}; waiting", flush=True)
            said = True
        time.sleep(0.5)


def _sources(root, collections, splits=SPLITS, strangers=False):
    """Yield all files of these collections and splits, with `strangers` also those that are not of the data set."""
    for collection in collections:
        for split in splits:
            own, others = own_files(root, collection, split)
            for path in sorted(own + others) if strangers else own:
                try:
                    stat = path.stat()
                    yield Source(collection, split, path, stat.st_size, _changed(stat), path in others)
                except OSError:              # a link to nowhere; reading it gives the reason
                    yield Source(collection, split, path, 0, 0, path in others)


def _changed(stat):
    """When a file changed, in ns; copying and moving it counts, whatever time the copy is given."""
    return max(stat.st_mtime_ns, stat.st_ctime_ns)


def _key(row):
    return row["collection"], row["split"], row["name"]


def _known_rows(folder):
    """{key: row} of an earlier preparation, and when they were written, in ns."""
    path = folder / CATALOGUE
    try:
        rows = _read_catalogue(path).to_dicts() if path.is_file() else []
    except DataError:                        # damaged; the rows are in the prepared files, too
        rows = []
    return {_key(row): row for row in rows}, _changed(path.stat()) if rows else 0


def _is_current(folder, source, row, since):
    """Whether a row tells of this source as it is now, and its prepared file is there.

    A prepared file that was changed or copied after `since`, the time of the catalogue in ns, is read.
    """
    if row is None or not _about(source).items() <= row.items() or source.stranger != (row["reason"] == STRANGER):
        return False
    path = prepared_path(folder, *source.key)
    if row["reason"] is not None or not path.is_file():     # a file that was left out has no prepared file
        return row["reason"] is not None and not path.is_file()
    stat = path.stat()
    return stat.st_size == row["prepared_bytes"] and (
        _changed(stat) <= since or _stored_row(folder, source) is not None)


def _strangers(folder, collections, rows):
    """Prepared files of sources that are gone."""
    return [path for collection in collections for split in SPLITS
            for path in sorted(folder.joinpath(*collection.split(":"), split).glob("*.npz"))
            if ((row := rows.get((collection, split, path.stem))) is None or row["reason"] is not None)
            and read_about(path)]


def _work_in(root, folder, wanted, splits):
    """What is to do -> {key: row} that stay, sources to read, bytes of a sample or None, how many rows were known."""
    sample = find_sample(root)
    sources = {source.key: source for source in _sources(root, wanted, splits, strangers=True)}
    known, since = _known_rows(folder)
    rows = {key: row for key, row in known.items() if key in sources or key[0] not in wanted or key[1] not in splits}
    todo = [source for key, source in sources.items() if not _is_current(folder, source, rows.get(key), since)]
    return rows, todo, sample and sample.read_bytes(), len(known)


def _is_complete(folder, work, wanted):
    """Whether nothing is to do in a prepared folder, which then needs no lock, and need not be written to."""
    rows, todo, sample, known = work
    kept = folder / _SAMPLE
    return (is_prepared(folder) and not (folder / _UNFINISHED).exists() and not todo and len(rows) == known
            and all(folder.joinpath(*collection.split(":")).is_dir() for collection in wanted)
            and (sample is None or (kept.is_file() and kept.read_bytes() == sample))
            and not _strangers(folder, wanted, rows))


def _save(path, rows):
    """Write the catalogue, whole or not at all; the same rows give the same bytes."""
    order = {name: number for number, name in enumerate((*COLLECTIONS, *SPLITS))}
    rows = sorted(rows.values(), key=lambda row: (order[row["collection"]], order[row["split"]], f"{row['name']}.npz"))
    file = io.BytesIO()                      # on a full disk polars would not name the file
    pl.DataFrame(rows, schema=COLUMNS).write_parquet(file)
    with whole_file(path) as part:
        part.write_bytes(file.getvalue())


def _read_catalogue(path):
    """Read a catalogue, unless it is as it was the last time; DataError if it is none."""
    stat = path.stat()
    return _catalogue_as_of(path, stat.st_size, _changed(stat))


@lru_cache(8)
def _catalogue_as_of(path, size, changed):
    data = io.BytesIO(path.read_bytes())     # given a path, polars would read [ and * in it as a pattern
    try:
        table = pl.read_parquet(data)
    except (Exception, pl.exceptions.PanicException) as fault:   # polars has a dozen types; a panic is no Exception
        raise DataError(f"{path}: not a readable catalogue ({type(fault).__name__}); delete it and prepare "
                        "again") from fault
    if dict(table.schema) != COLUMNS:
        raise DataError(f"{path}: a catalogue of another version of the kit; delete it and prepare again")
    return table
