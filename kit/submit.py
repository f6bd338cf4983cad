"""Write costs as a submission.csv, read a submission, and check it."""
import math
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

try:
    from kit.data import (
        DataError,
        NpzFile,
        as_path,
        find_data_root,
        find_sample,
        is_competition,
        is_test_name,
        own_files,
    )
    from kit.files import as_text, replace_file
except ModuleNotFoundError as fault:
    if fault.name != "kit":
        raise
    # pasted into a notebook without the kit; names that a cell with data.py has defined before stay
    _before = globals().get
    DataError, as_path, as_text = _before("DataError", ValueError), _before("as_path", Path), _before("as_text", str)
    own_files, find_sample = _before("own_files"), _before("find_sample")       # None: no check against test files
    is_test_name = _before("is_test_name", re.compile("[0-9a-f]{32}").fullmatch)

    # bytes: on Windows, `write_text` would end lines with a carriage return
    replace_file = _before("replace_file", lambda path, text: path.write_bytes(text.encode("utf-8")))

# repeated from kit/data.py, so that this file works alone
COLLECTIONS = ("tile:xla", "layout:xla:random", "layout:xla:default", "layout:nlp:random", "layout:nlp:default")
TEST_GRAPHS = dict(zip(COLLECTIONS, (844, 8, 8, 17, 17)))     # rows that the competition wants
_HEADER = "ID,TopConfigs"
_MOST_BYTES = 1 << 27             # of the text, packed or not; a submission to the competition has less than 1 MB
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, IndexError)     # of a zip
_TILE_TOP = 5                     # the competition tries the first five
_QUOTES = re.compile('^"|"$|"(?=,)|(?<=,)"', re.MULTILINE)      # around a field
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

    The CSV may be packed as a zip, whatever the file's name. It may have carriage returns, a byte order mark, quotation
    marks around fields, blank lines, or other capitals and spaces in its header. `check_submission` is stricter.

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
        If the file is missing or not in this form; the message names the first fault and its line.
    """
    rows, _, _, problems = _parse_submission(path)
    if problems:
        raise DataError(f"{path}: {problems[0]}" + (f" (and {len(problems) - 1} more)" if problems[1:] else ""))
    return {name: indices for _, name, indices in rows}


def check_submission(path, data_root=None, sample=None):
    """List what is wrong with a submission; the check is at least as strict as Kaggle's.

    Missing rows come first in the list. What is required is known: the IDs of the competition's sample submission; if
    it is not given, it is looked for beside the data (see `kit.data.find_sample`). Without a sample, the competition
    wants 844 rows of tile:xla, 8 of each xla and 17 of each nlp collection, whatever files are at hand. The test files
    under `data_root` decide if they are not the competition's: files with other names than 32 hex digits. Without
    `data_root`, a CSV is for the competition if it has such names.

    The number of configurations of a graph comes from its test file, if there is one. A tile row must have 5 indices,
    or all if the graph has fewer configurations: the competition ignores further indices.

    Parameters
    ----------
    path : str or Path
        The CSV, or a zip of it, named so.
    data_root : str or Path
        As in `kit.data.npz_paths`; may be incomplete.
    sample : str or Path
        The competition's sample_submission.csv, also packed. Only its IDs are trusted: some rows have 1000 indices for
        1001 configurations, others five indices for fewer configurations.

    Returns
    -------
    list of str
        The problems; empty if the submission is valid.
    """
    missing, others = submission_problems(path, data_root, sample)
    return missing + others


def submission_problems(path, data_root=None, sample=None):
    """What `check_submission` lists, in two parts: rows that are missing, other problems."""
    rows, named, remarks, problems = _parse_submission(path)
    problems = remarks + problems
    counts, sample_sizes, root = {}, None, None
    if data_root is not None:
        counts, root, faults = _config_counts(data_root)
        problems += faults
    if sample is None and find_sample and (root is not None or _for_competition(named)):
        sample = find_sample(root)
    if sample is not None:
        try:
            sample_sizes = {name: len(indices) for name, indices in read_submission(sample).items()}
        except DataError as fault:
            problems.append(f"sample {fault}")
    competition = is_competition(root) if root is not None else _for_competition(named)
    missing, unknown = [], []
    if sample_sizes is None and competition:
        missing, unknown = _counted(named, counts)
    elif expected := counts if sample_sizes is None else sample_sizes:
        source = f"the test files under {data_root}" if sample_sizes is None else f"the sample {sample}"
        missing = _listed("missing", f"in {source}", set(expected) - named)
        unknown = _listed("unknown", f"not in {source}", named - set(expected))
    problems += unknown
    for line, name, indices in rows:
        collection = _split_id(name)[0]
        if collection is not None:
            words = _index_problems(indices, collection, counts.get(name), (sample_sizes or {}).get(name, 1))
            problems += [f"line {line}: {name} {word}" for word in words]
    return ([], problems + missing) if not named else (missing, problems)      # without an ID, a fault of form is first


def _split_id(name):
    """"layout:xla:random:abc" -> ("layout:xla:random", "abc"); (None, None) for anything but an ID."""
    collection, _, stem = str(name).rpartition(":")
    ok = collection in COLLECTIONS and re.fullmatch(r"[^\s,;\"/\\\ud800-\udfff]+", stem)      # \ud800: not UTF-8
    return (collection, stem) if ok else (None, None)


def _read_text(path):
    """A CSV as text, maybe packed -> text, [what a reader can ignore but no submission should have]; or DataError."""
    remarks = []
    try:
        with open(path, "rb") as file:
            packed = file.read(4) == b"PK\3\4"
            file.seek(0)
            data = _unzipped(file) if packed else file.read(_MOST_BYTES + 1)
        wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        text = data.decode("utf-16" if wide else "utf-8")
    except (OSError, UnicodeDecodeError, *_DAMAGED) as fault:
        raise DataError(f"cannot be read as UTF-8 text ({fault})") from fault
    if len(data) > _MOST_BYTES:
        raise DataError(f"holds more than {_MOST_BYTES >> 20} MiB of text; this is no submission")
    if packed and path.suffix.lower() != ".zip":
        remarks.append(f"{path} is packed, which its name does not say; call it {path.name}.zip, or unpack it")
    if wide:
        remarks.append("line 1: is UTF-16; write plain UTF-8")
    if text.startswith("\ufeff"):
        remarks.append("line 1: starts with a byte order mark; write plain UTF-8")
    if "\r" in text:
        remarks.append("line 1: has a carriage return; end lines with a line feed alone")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if first := _QUOTES.search(text):
        remarks.append(f"line {text.count(chr(10), 0, first.start()) + 1}: has quotation marks; write none")
    return _QUOTES.sub("", text), remarks


def _unzipped(file):
    """The bytes of the one file in an open zip."""
    with zipfile.ZipFile(file) as archive:
        inside = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX/" not in name]
        if len(inside) != 1:
            raise DataError(f"is a zip of {len(inside)} files; expected one CSV")
        with archive.open(inside[0]) as member:
            return member.read(_MOST_BYTES + 1)


def _parse_submission(path):
    """-> [(line, ID, indices)] of the valid rows, set of all IDs that occur, [remark of `_read_text`], [problem]."""
    problems = []
    path = as_path(path)
    try:
        text, remarks = _read_text(path)
    except DataError as fault:
        return [], set(), [], [f"{path} {fault}"]
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines or lines[0] != _HEADER:
        readable = bool(lines) and [name.strip().lower() for name in lines[0].split(",")] == _HEADER.lower().split(",")
        (remarks if readable else problems).append(
            f"line 1: is {lines[0][:60] if lines else ''!r}; expected the header {_HEADER}")
    rows, line_of = [], {}
    for line, row in enumerate(lines[1:], start=2):
        name, *fields = row.split(",")
        if not row.strip():
            remarks.append(f"line {line}: is blank")
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
    if not line_of and not problems:
        problems.append("line 2: is missing; expected a row per graph after the header")
    return rows, set(line_of), remarks, problems


def _config_counts(data_root):
    """-> {ID: number of configurations or None}, data root, [problem]; only the headers of the test files are read."""
    counts, problems = {}, []
    if own_files is None:
        return {}, None, [f"the test files under {data_root} can only be read with the kit installed; pass the sample "
                          "alone"]
    try:
        root = find_data_root(data_root)
    except DataError as fault:
        return {}, None, [str(fault)]
    for collection in COLLECTIONS:
        for path in own_files(root, collection, "test")[0]:
            name = f"{collection}:{as_text(path.stem)}"
            counts[name] = None
            try:
                with NpzFile(path) as npz:
                    (counts[name],) = npz.open("config_runtime", "iuf")[1]
            except ValueError as fault:                       # DataError, or a shape of another rank
                problems.append(f"{name}: the number of its configurations is unknown ({as_text(fault)})")
    return counts, root, problems or ([] if counts else [f"no test file under {data_root}"])


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


def _for_competition(names):
    """Whether IDs are the competition's: any of them has a name as its test files have."""
    return any(is_test_name(str(name).rpartition(":")[2]) for name in names)


def _counted(named, counts):
    """Missing and unknown rows of a submission to the competition; some of its test files, `counts`, are at hand."""
    missing, unknown = [], []
    for collection, wanted in TEST_GRAPHS.items():
        rows, here = ({name for name in names if _split_id(name)[0] == collection} for names in (named, counts))
        right = {name for name in rows if is_test_name(name.rpartition(":")[2])}
        if (short := max(wanted - len(right), len(here - right))) > 0:
            first = sorted(here - right)[:3]
            missing.append(f"{collection}: {short} missing ID, of the competition's {wanted} test graphs"
                           + (f": {', '.join(first)}{', ...' * (short > len(first))}" if first else ""))
        unknown += _listed("unknown", "which no test file of the competition has", rows - right)
        if len(here) >= wanted:
            unknown += _listed("unknown", "not in the test files at hand", right - here)
        elif len(right) > wanted:
            unknown.append(f"{collection}: has {len(right)} rows; the competition has {wanted} test graphs")
    return missing, unknown


def _listed(kind, where, names):
    """One problem per collection, not per row: an incomplete submission may lack hundreds."""
    groups = {}
    for name in sorted(names):
        groups.setdefault(next(c for c in COLLECTIONS if name.startswith(c)), []).append(name)
    return [f"{collection}: {len(group)} {kind} ID, {where}: {', '.join(group[:3])}{', ...' * (len(group) > 3)}"
            for collection, group in groups.items()]
