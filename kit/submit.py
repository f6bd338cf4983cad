"""Write costs as a submission.csv, read a submission, and check it."""
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

try:
    from kit.data import DataError, NpzFile, as_path, npz_paths
    from kit.files import as_text, replace_file
except ImportError:              # pasted into a notebook; names that a cell with data.py has defined before stay
    DataError, as_path = globals().get("DataError", ValueError), globals().get("as_path", Path)
    npz_paths, as_text = globals().get("npz_paths"), globals().get("as_text", str)

    # bytes: on Windows, `write_text` would end lines with a carriage return
    replace_file = globals().get("replace_file", lambda path, text: path.write_bytes(text.encode("utf-8")))

# repeated from kit/data.py, so that this file works alone
COLLECTIONS = ("tile:xla", "layout:xla:random", "layout:xla:default", "layout:nlp:random", "layout:nlp:default")
_HEADER = "ID,TopConfigs"
_TILE_TOP = 5                     # the competition tries the first five
_INTEGERS = re.compile("(0|-?[1-9][0-9]{0,17})(;(0|-?[1-9][0-9]{0,17}))*")     # 18 digits fit int64; no -0, no 0012


def top_configs(cost, collection):
    """Rank the configurations of one graph for a submission.

    Parameters
    ----------
    cost : ndarray, shape (c,)
        Predicted; lower is faster. Equal costs are ordered by fixed random bits, not by index: a raw tile file
        starts with the compiler's default, which a model without knowledge would then rank first.
    collection : str
        One of the five collections.

    Returns
    -------
    ndarray of int64
        Indices, fastest first. tile: the first 5, or all c if there are fewer. layout: all c.

    Raises
    ------
    ValueError
        If the collection is unknown, or `cost` is empty, has another number of axes, or contains NaN.

    Examples
    --------
    >>> top_configs([3.0, 1.0, 2.0], "layout:xla:random")
    array([1, 2, 0])
    """
    if collection not in COLLECTIONS:
        raise ValueError(f"no collection {collection!r}; there are {', '.join(COLLECTIONS)}")
    cost = np.asarray(cost)
    if cost.ndim != 1 or cost.size == 0 or cost.dtype.kind not in "iuf":
        raise ValueError(f"cost has shape {cost.shape} and dtype {cost.dtype}; expected (c,) numbers, c > 0")
    if np.isnan(cost).any():
        raise ValueError(f"cost has {np.isnan(cost).sum()} NaN among {cost.size} values")
    bits = np.random.PCG64(len(cost)).random_raw(len(cost))      # this stream is the same in every NumPy
    order = np.lexsort((bits, cost)).astype(np.int64)
    return order[:_TILE_TOP] if collection.startswith("tile:") else order


def write_submission(costs, path):
    """Write the CSV, sorted by collection and stem; the file appears whole or not at all.

    Parameters
    ----------
    costs : dict of str to ndarray, shape (c,)
        {ID: cost}, ID = "{collection}:{file stem}".
    path : str or Path
        Missing parent folders are made.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ValueError
        If `costs` is empty, an ID is not "{collection}:{stem}", or a cost cannot be ranked; the message names the ID.
    """
    path = as_path(path)
    if not isinstance(costs, Mapping) or not costs:
        raise ValueError(f"{path}: no costs to write; expected costs as {{ID: cost}}, found {costs!r:.60}")
    rows = []
    for name, cost in costs.items():
        collection, stem = _split_id(name)
        if collection is None:
            raise ValueError(f"{path}: ID {name!r} is not COLLECTION:STEM with one of {', '.join(COLLECTIONS)}")
        try:
            indices = top_configs(cost, collection)
        except ValueError as fault:
            raise ValueError(f"{path}: {name}: {fault}") from fault
        rows.append((COLLECTIONS.index(collection), stem, f"{name},{';'.join(map(str, indices))}\n"))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, _HEADER + "\n" + "".join(row for *_, row in sorted(rows)))
    return path


def read_submission(path):
    """Read a submission, or the competition's sample submission.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    dict of str to ndarray of int64
        {ID: indices, fastest first}, in the order of the file.

    Raises
    ------
    DataError
        If the file is missing or not in the exact form; the message names the first fault and its line.
    """
    rows, _, problems = _parse_submission(path)
    if problems:
        raise DataError(f"{path}: {problems[0]}" + (f" (and {len(problems) - 1} more)" if problems[1:] else ""))
    return {name: indices for _, name, indices in rows}


def check_submission(path, data_root=None, sample=None):
    """List what is wrong with a submission; the check is at least as strict as Kaggle's.

    The sample decides which IDs are expected; without a sample, the test files under `data_root` decide. The number of
    configurations of a graph comes from its test file, if there is one. Without sample and test files, the check uses
    the CSV alone. A tile row must have 5 indices, or all if the graph has fewer configurations: the competition ignores
    further indices.

    Parameters
    ----------
    path : str or Path
        The CSV.
    data_root : str or Path
        As in `kit.data.npz_paths`; may be incomplete.
    sample : str or Path
        The competition's sample_submission.csv. Only its IDs are trusted: some rows have 1000 indices for 1001
        configurations, others five indices for fewer configurations.

    Returns
    -------
    list of str
        The problems; empty if the submission is valid.
    """
    rows, named, problems = _parse_submission(path)
    counts, sample_sizes = {}, None
    if data_root is not None:
        counts, faults = _config_counts(data_root)
        problems += faults
    if sample is not None:
        try:
            sample_sizes = {name: len(indices) for name, indices in read_submission(sample).items()}
        except DataError as fault:
            problems.append(f"sample {fault}")
    expected = counts if sample_sizes is None else sample_sizes
    source = f"the test files under {data_root}" if sample_sizes is None else f"the sample {sample}"
    if expected:
        problems += _listed("missing", f"in {source}", set(expected) - named)
        problems += _listed("unknown", f"not in {source}", named - set(expected))
    for line, name, indices in rows:
        collection = _split_id(name)[0]
        if collection is not None:
            words = _index_problems(indices, collection, counts.get(name), (sample_sizes or {}).get(name, 1))
            problems += [f"line {line}: {name} {word}" for word in words]
    return problems


def _split_id(name):
    """"layout:xla:random:abc" -> ("layout:xla:random", "abc"); (None, None) for anything but an ID."""
    collection, _, stem = str(name).rpartition(":")
    ok = collection in COLLECTIONS and re.fullmatch(r"[^\s,;\"/\\\ud800-\udfff]+", stem)      # \ud800: not UTF-8
    return (collection, stem) if ok else (None, None)


def _parse_submission(path):
    """-> [(line, ID, indices)] of the valid rows, set of all IDs that occur, [problem]."""
    try:
        text = as_path(path).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        return [], set(), [f"{path} cannot be read as UTF-8 text ({fault})"]
    problems = []
    if text.startswith("\ufeff"):
        problems.append("line 1: starts with a byte order mark; write plain UTF-8")
    if "\r" in text:
        problems.append(f"line {text[:text.index(chr(13))].count(chr(10)) + 1}: has a carriage return; "
                        "end lines with a line feed alone")
    lines = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines or lines[0] != _HEADER:
        problems.append(f"line 1: is {lines[0][:60] if lines else ''!r}; expected the header {_HEADER}")
    rows, line_of = [], {}
    for line, row in enumerate(lines[1:], start=2):
        name, *fields = row.split(",")
        if not row.strip():
            problems.append(f"line {line}: is blank")
        elif len(fields) != 1:
            problems.append(f"line {line}: has {len(fields) + 1} fields; expected {_HEADER}")
        elif _split_id(name)[0] is None:
            problems.append(f"line {line}: ID {name[:80]!r} is not COLLECTION:STEM with one of "
                            f"{', '.join(COLLECTIONS)}")
        elif name in line_of:
            problems.append(f"line {line}: {name} occurs again; it is on line {line_of[name]} already")
        elif not _INTEGERS.fullmatch(fields[0]):
            problems.append(f"line {line}: {name} {fields[0][:60]!r} is not integers joined by ';', as in 0;12")
            line_of[name] = line
        else:
            rows.append((line, name, np.array(fields[0].split(";"), dtype=np.int64)))
            line_of[name] = line
    if len(lines) == 1 and not problems:
        problems.append("line 2: is missing; expected a row per graph after the header")
    return rows, set(line_of), problems


def _config_counts(data_root):
    """-> {ID: number of configurations or None}, [problem]; only the headers of the test files are read."""
    counts, problems = {}, []
    if npz_paths is None:
        return {}, [f"the test files under {data_root} can only be read with the kit installed; pass the sample alone"]
    for collection in COLLECTIONS:
        try:
            paths = npz_paths(data_root, collection, "test")
        except DataError as fault:
            return {}, [str(fault)]
        for path in paths:
            name = f"{collection}:{as_text(path.stem)}"
            counts[name] = None
            try:
                with NpzFile(path) as npz:
                    (counts[name],) = npz.open("config_runtime", "iuf")[1]
            except ValueError as fault:                       # DataError, or a shape of another rank
                problems.append(f"{name}: the number of its configurations is unknown ({as_text(fault)})")
    return counts, problems or ([] if counts else [f"no test file under {data_root}"])


def _index_problems(indices, collection, count, least):
    """Problems of one row; `count`: configurations of the graph or None, `least`: indices in the sample."""
    tile, size, words = collection.startswith("tile:"), len(indices), []
    if count is not None:
        wanted = min(_TILE_TOP, count) if tile else count
        if size != wanted:
            words.append(f"names {size} indices; expected {wanted} of the graph's {count} configurations")
    elif tile and size > _TILE_TOP:
        words.append(f"names {size} indices; only the first {_TILE_TOP} count, name no more")
    elif not tile and size < least:
        words.append(f"names {size} indices; the sample names {least}")
    limit = count if count is not None else math.inf if tile else size
    outside = indices[(indices < 0) | (indices >= limit)]
    if len(outside):
        words.append(f"names index {outside[0]}; expected 0..{limit - 1 if limit < math.inf else ''}")
    values, times = np.unique(indices, return_counts=True)
    if len(values) < size:
        words.append(f"names index {values[times > 1][0]} more than once")
    return words


def _listed(kind, where, names):
    """One problem per collection, not per row: an incomplete submission may lack hundreds."""
    groups = {}
    for name in sorted(names):
        groups.setdefault(next(c for c in COLLECTIONS if name.startswith(c)), []).append(name)
    return [f"{collection}: {len(group)} {kind} ID, {where}: {', '.join(group[:3])}{', ...' * (len(group) > 3)}"
            for collection, group in groups.items()]
