"""Find the data set, and read an npz file into checked NumPy arrays.

This file needs nothing else of the kit. All arrays that it returns can be written to. Its parts, in the order of use:

- names: `COLLECTIONS`, `SPLITS`, and the two records `TileGraph` and `LayoutGraph`
- files: `find_data_root`, `npz_paths`, `read_tile`, `read_layout`, `dense_configs`
- training: `target` is what the configurations are ranked by; `teaches` says whether a model can learn their order
- padding: files that pad axes with -1, as the first place's copy of the data, are read as the competition's, with 0
- factoring: a layout file is read in pieces and held in memory without loss, in a hundredth of its size
- `NpzFile`: an archive whose arrays are checked before anything uses them
- `OPCODE_NAMES`: what the numbers in `node_opcode` mean

Letters used in all shapes: n nodes, m edges, c configurations, nc configurable nodes, g groups, k codes.

A layout file stores 18 digits per configuration and configurable node, up to 2.6 GB as float32. The reader never holds
this array. Nodes whose digits always change together form a *group*. In each configuration, one small integer, the
*code*, stands for all digits of a group. This factored form is exact: `dense_configs` gives the stored digits back.

Data set: Phothilimthana et al., TpuGraphs, arXiv:2308.13490.
"""
import hashlib
import math
import os
import re
import warnings
import zipfile
import zlib
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

COLLECTIONS = ("tile:xla", "layout:xla:random", "layout:xla:default", "layout:nlp:random", "layout:nlp:default")
SPLITS = ("train", "valid", "test")
CATALOGUE = "catalogue.parquet"   # in a folder that `kit.prepare` wrote
DIGITS = 18                      # per node: the layouts of output, input and kernel, 6 digits each, minor to major
TENSORS = {"convolution": ("output", "input", "kernel"), "dot": ("output", "lhs", "rhs"),
           "reshape": ("output", "input")}                       # whose dimensions a configuration orders

STRANGER = "its name is none of the data set's test files; if it is a copy, delete it"

_KAGGLE_INPUT = Path("/kaggle/input")
_SLUG = "predict-ai-model-runtime"
_MEASURED = ("notebooks", "lab", "measured", "cpu")      # in a clone: the measured programs that come with the kit
_TEST_NAME = re.compile("[0-9a-f]{32}")      # the competition's test files hide the name of their program
_COPY_NAME = re.compile(r"(.*\s)?[0-9a-f]{32}", re.IGNORECASE)  # "HASH-Copy1", "HASH (1)", "Copy of HASH"
_CHUNK_BYTES = 1 << 21            # bytes that are inflated at a time; they fit the L2 cache of a core
_MAX_ARRAY_BYTES = 1 << 28        # limit for an array that is held whole; the largest public one has 24 MB
# columns of node_feat that hold axes: dimensions, spatial dimensions of a convolution's input and kernel, layout
_AXES = [*range(31, 37), *range(95, 99), *range(101, 105), *range(134, 140)]
_WEIGHTS = 7 ** np.arange(DIGITS, dtype=np.int64)        # 7 digit values; 7**18 < 2**53: a float64 sum is exact
_MAX_EXPECTED = 1 << 20           # limit for nodes x distinct rows, so that tables over them stay small
_MOST = 1 << 63                  # limit for a feature: features were 64-bit integers before they became float32


class DataError(ValueError):
    """A file or folder does not have the form that the data set documents; the message names the file and the fault."""


class TileGraph(NamedTuple):
    """One kernel of `tile:xla`: n nodes, m edges, c configurations of the whole kernel."""
    graph_id: str
    node_feat: np.ndarray                    # (n, 140) float32
    node_opcode: np.ndarray                  # (n,) int64
    edge_index: np.ndarray                   # (m, 2) int64; row [u, v]: u consumes the output of v
    config_feat: np.ndarray                  # (c, 24) float32
    config_runtime: np.ndarray               # (c,) int64, ns
    config_runtime_normalizers: np.ndarray   # (c,) int64, ns; runtime of the default configuration in the same run


class LayoutGraph(NamedTuple):
    """One program of a layout collection in factored form: g groups, at most k codes per group."""
    graph_id: str
    node_feat: np.ndarray                    # (n, 140) float32
    node_opcode: np.ndarray                  # (n,) int64
    edge_index: np.ndarray                   # (m, 2) int64; row [u, v]: u consumes the output of v
    node_config_ids: np.ndarray              # (nc,) int64; the configurable nodes
    node_splits: np.ndarray                  # (s,) int64; computation i has the nodes splits[i] to splits[i + 1] - 1
    config_codes: np.ndarray                 # (c, g) uint8, uint16 or uint32
    node_group: np.ndarray                   # (nc,) int64 in 0..g-1
    code_rows: np.ndarray                    # (nc, k, 18) int8; -1 throughout for codes that the group does not have
    config_runtime: np.ndarray               # (c,) int64, ns
    meetings: tuple = None                   # Meetings, from `kit.agreement.find_meetings`; None until they are found


class Meetings(NamedTuple):
    """The p pairs of configurable nodes whose layouts meet, sorted."""
    ends: np.ndarray             # (p, 2) int64; positions in node_config_ids: producer, then consumer or other producer
    joins: np.ndarray            # (p,) bool; True: two producers whose outputs are operands of one operation
    hops: np.ndarray             # (p,) int64; edges between the two nodes, through the place where their layouts meet
    names: np.ndarray            # (p, 2, 6) int64; in that place, the name of each output dimension of either node
    role: np.ndarray             # (p,) int64; what the consumer reads there, `operand_roles`; 0: two producers
    size: np.ndarray             # (p,) float64; bytes of the tensor in that place / bytes of the producer's output


def content_digest(graph):
    """SHA-256 of all that a graph holds: the names, types, shapes and values of its fields.

    Parameters
    ----------
    graph : LayoutGraph or TileGraph

    Returns
    -------
    str
        Hex digits; equal for equal graphs, whatever file they were read from.
    """
    digest = hashlib.sha256()
    for name, value in graph._asdict().items():
        for part in value if isinstance(value, tuple) else [value]:              # the meetings are a tuple of arrays
            array = np.ascontiguousarray("" if part is None else part)
            digest.update(f"{name} {array.dtype} {array.shape} ".encode() + b"\n")
            digest.update(array.tobytes())
    return digest.hexdigest()


def find_data_root(explicit=None):
    """Find the folder that holds `tile/` or `layout/`.

    Each place is searched together with its subfolders `npz/`, `npz_all/npz/` and `npz_all/`.

    Parameters
    ----------
    explicit : str or Path, optional
        The only place to search. None: the place in the environment variable TPUGRAPHS_ROOT if it is set; otherwise,
        in this order, a prepared data set among the Kaggle Datasets of a notebook, the mounts of Kaggle and Colab,
        `~/data/tpugraphs`, `data` in the working directory and in the clone around it, and the measured programs that
        come with the clone.

    Returns
    -------
    Path
        The folder that holds `tile/`, `layout/` or both.

    Raises
    ------
    DataError
        If no place has such a folder; the message lists the folders searched, or names the one that does not exist.
    """
    said = ""
    if explicit is None and os.environ.get("TPUGRAPHS_ROOT"):
        explicit, said = os.environ["TPUGRAPHS_ROOT"], "TPUGRAPHS_ROOT: "
    explicit = None if explicit is None else as_path(explicit, "data_root")
    mount, drive = _KAGGLE_INPUT, Path("/content/drive/MyDrive")
    prepared = [path.parent for kind in ("*", "datasets/*/*") for path in mount.glob(f"{kind}/{CATALOGUE}")]
    places = [Path(os.path.expanduser(explicit))] if explicit is not None else [
        *sorted(prepared), mount / "competitions" / _SLUG, mount / _SLUG,
        drive / "tpugraphs-prepared", Path("/content/tpugraphs"), drive / "tpugraphs",
        Path(os.path.expanduser("~/data/tpugraphs")), Path("data"), clone_folder() / "data",
        clone_folder().joinpath(*_MEASURED)]
    looked = [place / sub for place in dict.fromkeys(places) for sub in ("", "npz", "npz_all/npz", "npz_all")]
    for folder in looked:
        if (folder / "tile").is_dir() or (folder / "layout").is_dir():
            return folder
    if explicit is not None and not places[0].exists():
        raise DataError(f"{said}{places[0]} does not exist; expected a folder with tile/ or layout/ in it")
    raise DataError(f"no folder with tile/ or layout/ in it; looked at {', '.join(map(str, looked))}"
                    + ("; pass the data root or set TPUGRAPHS_ROOT; on Kaggle, add the competition with Add Input"
                       if explicit is None else ""))


def clone_folder():
    """The clone of the kit that the working directory lies in; outside of a clone, the working directory itself."""
    here = Path.cwd()
    clone = next((folder for folder in (here, *here.parents) if (folder / "kit").is_dir()
                  and (folder / "notebooks").is_dir()), here)
    return Path() if clone == here else clone


def as_path(path, name="path"):
    """A Path; DataError if `path`, the argument `name`, cannot be one."""
    if not isinstance(path, (str, os.PathLike)) or "\0" in os.fsdecode(path):
        raise DataError(f"{name} is {path!r:.80}; expected a str or Path")
    return Path(os.fsdecode(path))


def npz_paths(data_root, collection, split):
    """List the files of one split, sorted by name.

    Parameters
    ----------
    data_root : str or Path
        As `explicit` in `find_data_root`.
    collection : str
        One of `COLLECTIONS`.
    split : str
        "train", "valid" or "test".

    Returns
    -------
    list of Path
        Empty if the data root has no files of this collection and split. Test files that are not of the data set, such
        as copies, are left out, and a warning names them; see `own_files`.

    Raises
    ------
    DataError
        If the name of the collection or split is unknown, or no data root is found.
    """
    paths, strangers = own_files(data_root, collection, split)
    if strangers:
        names = ", ".join(ascii(path.name) for path in strangers[:3]) + ", ..." * (len(strangers) > 3)
        warnings.warn(f"{strangers[0].parent}: left out {len(strangers)} files whose names no test file of the data "
                      f"set has; if they are copies, delete them: {names}", stacklevel=2)
    return paths


def own_files(data_root, collection, split):
    """List the files of one split, sorted by name, and apart from them the strangers among the test files.

    The competition's test files have names of 32 hex digits; the sample submission, where one lies beside
    (`find_sample`), may name others. Data of one's own, without any such name, have no strangers but copies of a test
    file of the competition, whose names have its 32 digits at the start or after a space. A prepared folder has none:
    strangers were left out when it was made. Arguments and errors are as in `npz_paths`. Returns two lists of Path.
    """
    if collection not in COLLECTIONS:
        raise DataError(f"no collection {collection!r}; there are {', '.join(COLLECTIONS)}")
    if split not in SPLITS:
        raise DataError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    root = find_data_root(data_root)
    paths = _files(root, collection, split)
    if split != "test" or (root / CATALOGUE).is_file() or all(is_test_name(path.stem) for path in paths):
        return paths, []
    sampled, mine = _sampled(root, collection), not any(is_test_name(path.stem) for path in _all_tests(root))
    own = [path for path in paths if is_test_name(path.stem) or path.stem in sampled
           or (mine and not sampled and not _COPY_NAME.match(path.stem))]
    return own, sorted({*paths} - {*own})


def _sampled(root, collection):
    """Names of the test graphs of a collection in the sample submission; empty where none can be read."""
    path = find_sample(root)
    if path is None:
        return set()
    try:
        with open(path, "rb") as plain, ExitStack() as opened:
            file = plain
            if zipfile.is_zipfile(path):
                archive = opened.enter_context(zipfile.ZipFile(plain))
                tables = [name for name in archive.namelist() if name.endswith(".csv") and "__MACOSX" not in name]
                file = opened.enter_context(archive.open(tables[0]))
            data = file.read(_MAX_ARRAY_BYTES)
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, zlib.error, zipfile.BadZipFile):
        return set()                         # `kit.submit.check_submission` says what is wrong with it
    text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")
    return set(re.findall(rf'^[\ufeff"]*{collection}:([^",\s]+)', text.replace("\r", "\n"), re.MULTILINE))


def _all_tests(root):
    """The test files of all collections."""
    return [path for collection in COLLECTIONS for path in _files(root, collection, "test")]


def _files(root, collection, split):
    """All finished files of one split, sorted by name."""
    folder = root.joinpath(*collection.split(":"), split)
    return sorted(p for p in folder.glob("*.npz") if not p.name.startswith("."))


def is_test_name(stem):
    """Whether this can be the name of one of the competition's test files, without .npz."""
    return bool(_TEST_NAME.fullmatch(stem))


def is_competition(root):
    """Whether a data root holds test files of the competition, maybe not all."""
    return any(is_test_name(path.stem) for path in _all_tests(root))


def find_sample(data_root=None):
    """Find the competition's sample submission, where `kit.kaggle.download` or Kaggle puts it -> Path or None.

    It lies in the data root, or in the folder that holds npz/ or npz_all/; for files of the competition, and for
    `data_root` None, also in Kaggle's mounts. It may still be zipped.
    """
    folders, mounts = [], [_KAGGLE_INPUT / "competitions" / _SLUG, _KAGGLE_INPUT / _SLUG]
    if data_root is not None:
        root = find_data_root(data_root)
        folders = [root]
        while folders[-1].absolute().name in ("npz", "npz_all"):
            folders.append(folders[-1].absolute().parent)
        mounts = mounts if is_competition(root) else []
    names = ("sample_submission.csv", "sample_submission.csv.zip", "sample_submission.zip")
    return next((folder / name for folder in (*folders, *mounts) for name in names if (folder / name).is_file()), None)


def read_tile(path):
    """Read and check one file of `tile:xla`.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    TileGraph

    Raises
    ------
    DataError
        If the file is damaged, or an array does not have the documented shape, type or range. Nothing is unpickled.
    """
    with NpzFile(path) as npz:
        return tile_graph(npz)


def read_layout(path):
    """Read and check one layout file; the result is the exact factored form, not the large array (c, nc, 18).

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    LayoutGraph
        Groups are numbered in the order of their first nodes. The codes of a group are numbered in the order of
        the digits of its first node.

    Raises
    ------
    DataError
        As `read_tile`, and if a digit is not an integer in -1..5.
    """
    with NpzFile(path) as npz:
        return layout_graph(npz)


def dense_configs(graph, index):
    """Expand configurations from the factored form to exactly the digits that the file stores.

    Parameters
    ----------
    graph : LayoutGraph
    index : array_like of int, shape (j,)
        Configurations of `graph`.

    Returns
    -------
    ndarray, shape (j, nc, 18), int8

    Raises
    ------
    ValueError
        If `index` names a configuration that the graph does not have, or `graph` is no LayoutGraph.
    """
    if not hasattr(graph, "config_codes"):
        raise ValueError(f"graph is a {type(graph).__name__}; expected a LayoutGraph")
    index, c = np.asarray(index), len(graph.config_codes)
    integers = index.dtype.kind in "iu" or index.size == 0
    if index.ndim != 1 or not integers or (index.size and (index.min() < 0 or index.max() >= c)):
        raise ValueError(f"index must be integers in 0..{c - 1}, the configurations of this file")
    codes = graph.config_codes[index.astype(np.int64)][:, graph.node_group]      # (j, nc)
    return graph.code_rows[np.arange(len(graph.node_group)), codes]


def row_words(opcode, row):
    """Describe a `row` (18,) of layout digits, given to an operation named `opcode`: "output {3,0} kernel {2,3}".

    A layout is written as XLA writes it, minor dimension first. "nothing" leaves the choice to the compiler.
    """
    digits = [own[own >= 0] for own in row.reshape(3, -1)]
    names = TENSORS.get(opcode, ("output", "input", "kernel"))
    words = [f"{name} {{{','.join(map(str, own))}}}" for name, own in zip(names, digits) if len(own)]
    return " ".join(words) or "nothing"


def target(graph):
    """What configurations are ranked by, (c,): runtime in ns (int64), for tiles runtime / normalizer (float64)."""
    if hasattr(graph, "config_runtime_normalizers"):
        return graph.config_runtime / graph.config_runtime_normalizers
    return graph.config_runtime


def teaches(graph):
    """Whether a model can learn an order from a graph: it has different configurations and different runtimes."""
    runtime = target(graph)
    configs = graph.config_feat if hasattr(graph, "config_feat") else graph.config_codes
    return bool((runtime != runtime[0]).any() and (configs != configs[0]).any())


def tile_graph(npz):
    """What `read_tile` returns, from an open NpzFile."""
    node_feat, node_opcode, edge_index = _read_program(npz)
    config_feat = npz.array("config_feat", "fiu", (None, 24), np.float32, -_MOST, _MOST)
    c = len(config_feat)
    runtime = _read_runtime(npz, c)
    normalizers = npz.array("config_runtime_normalizers", "iu", (c,), np.int64, low=1)
    npz.check(c > 0, "config_feat", "holds no configuration")
    return TileGraph(npz.path.stem, node_feat, node_opcode, edge_index, config_feat, runtime, normalizers)


def layout_graph(npz):
    """What `read_layout` returns, from an open NpzFile."""
    node_feat, node_opcode, edge_index = _read_program(npz)
    n = len(node_feat)
    node_config_ids = npz.array("node_config_ids", "iu", (None,), np.int64, low=0, high=n - 1)
    npz.check(len(np.unique(node_config_ids)) == len(node_config_ids), "node_config_ids", "names a node twice")
    node_splits = npz.array("node_splits", "iu", None, np.int64, low=0, high=n)    # stored as (1, s) or (s,)
    runtime = _read_runtime(npz, None)
    c = len(runtime)
    npz.check(c > 0, "config_runtime", "holds no configuration")
    nc = len(node_config_ids)
    read = _read_factored if npz.has("config_codes") else _read_configs
    return LayoutGraph(npz.path.stem, node_feat, node_opcode, edge_index, node_config_ids, node_splits,
                       *read(npz, c, nc), runtime)


def _read_program(npz):
    """The arrays that tile and layout files share: node_feat, node_opcode, edge_index."""
    if npz.has("node_rows"):                 # a file that `kit.prepare` wrote: distinct rows, and a row number per node
        rows = npz.array("node_rows", "f", (None, 140), np.float32, -_MOST, _MOST)
        numbers = npz.array("node_row", "iu", (None,), np.int64, low=0, high=len(rows) - 1)
        most = _MAX_ARRAY_BYTES // (140 * 4)
        npz.check(0 < len(numbers) <= most, "node_row", f"has {len(numbers)} nodes, expected 1 to {most}")
        node_feat = rows[numbers]
    else:
        node_feat = npz.array("node_feat", "f", (None, 140), np.float32, -_MOST, _MOST)
        npz.check(len(node_feat) > 0, "node_feat", "has no node")
    npz.padding = _pad_with_zeros(node_feat)
    n = len(node_feat)
    node_opcode = npz.array("node_opcode", "iu", (n,), np.int64, low=0, high=OPCODES - 1)
    name = "edge_steps" if npz.has("edge_steps") else "edge_index"
    edge_index = npz.array(name, "iu", (None, 2), np.int64)
    if name == "edge_steps":                 # from `kit.prepare`: consumer - consumer before, consumer - producer
        # these sums may overflow, but never to another number in range: modulo 2**64 each step has one result
        consumer = edge_index[:, 0].cumsum()
        edge_index = np.stack([consumer, consumer - edge_index[:, 1]], axis=1)
    if len(edge_index):
        low, high = edge_index.min(), edge_index.max()
        npz.check(low >= 0, name, f"refers to node {low}")
        npz.check(high < n, name, f"refers to node {high}, but there are {n} nodes")
    return node_feat, node_opcode, edge_index


def _pad_with_zeros(node_feat):
    """Pad the axes in `node_feat` with 0, in place, as the competition's files do -> the padding before: 0 or -1.

    The first place's public copy of the data pads them with -1. A model that learned from one form ranks the other
    form worse. Only layouts need -1; `kit.pad.repad_layout` brings it back there.
    """
    axes = node_feat[:, _AXES]
    padded = axes == -1
    if not padded.any():
        return 0
    node_feat[:, _AXES] = np.where(padded, 0, axes)
    return -1


def _read_runtime(npz, c):
    """(c,) int64: all measured, or all 0 as in the test files, whose runtimes are not published."""
    runtime = npz.array("config_runtime", "iu", (c,), np.int64, low=0)
    npz.check(runtime.all() or not runtime.any(), "config_runtime",
              f"holds {(runtime == 0).sum()} zeros beside {np.count_nonzero(runtime)} measured runtimes")
    return runtime


class _Groups(NamedTuple):
    """Configurable nodes that change together."""
    node_group: np.ndarray                   # (nc,) int64 in 0..g-1
    first: np.ndarray                        # (g,) int64; position of the first node of each group
    node_rows: list                          # per node, (codes of its group,) row numbers


def factor_configs(row_ids, rows):
    """(nc, c) row number per node and configuration, (K, 18) distinct rows -> config_codes, node_group, code_rows."""
    groups = _group_nodes(row_ids, len(rows))
    return _number_codes(groups, row_ids[groups.first], rows)


def _group_nodes(row_ids, count):
    """(nc, c) row number, below `count`, per node and configuration -> _Groups, numbered by their first nodes."""
    nc, c = row_ids.shape
    node_group, node_rows, first, candidates = np.zeros(nc, np.int64), [], [], {}
    if c == 0:
        return _Groups(node_group, np.arange(min(nc, 1)), [np.zeros(0, np.int64)] * nc)
    block = max(1, _CHUNK_BYTES // (8 * c))
    for start in range(0, nc, block):
        # number the rows of each node by first appearance: two nodes that change together have equal numbers
        keys = row_ids[start:start + block] + count * np.arange(len(row_ids[start:start + block]))[:, None]
        codes, values = pd.factorize(keys.ravel())
        codes = codes.reshape(keys.shape)
        bounds = codes[:, 0]
        codes = codes - bounds[:, None]
        node_rows += np.split(values % count, bounds[1:])
        for node, own in enumerate(codes.astype(_smallest_unsigned(int(codes.max()) + 1)), start):
            like = candidates.setdefault(zlib.crc32(own.astype(np.uint32)), [])
            group = next((number for number, other in like if np.array_equal(own, other)), len(first))
            if group == len(first):
                first.append(node)
                like.append((group, own))
            node_group[node] = group
    return _Groups(node_group, np.array(first, np.int64), node_rows)


def _number_codes(groups, row_ids, rows):
    """Number the codes by the digits of each group's first node; `row_ids`: (g, c), the row numbers of these nodes."""
    # first appearance would depend on the order of the configurations
    order = [np.lexsort(rows[groups.node_rows[node]].T[::-1]) for node in groups.first]
    k = max([len(own) for own in order], default=1)
    code_rows = np.full((len(groups.node_group), k, DIGITS), -1, np.int8)
    for node, (group, own) in enumerate(zip(groups.node_group, groups.node_rows)):
        code_rows[node, :len(own)] = rows[own[order[group]]]
    config_codes = np.empty((row_ids.shape[1], len(order)), _smallest_unsigned(k))
    code_of = np.zeros(len(rows), config_codes.dtype)
    for group, own in enumerate(order):
        code_of[groups.node_rows[groups.first[group]][own]] = np.arange(len(own))
        config_codes[:, group] = code_of[row_ids[group]]
    return config_codes, groups.node_group, code_rows


def _smallest_unsigned(count):
    """The smallest unsigned integer type for the numbers 0..count-1."""
    return np.min_scalar_type(max(count - 1, 0))


def _read_factored(npz, c, nc):
    """The configurations of a file that `kit.prepare` wrote -> config_codes, node_group, code_rows."""
    code_rows = npz.array("code_rows", "i", (nc, None, DIGITS), np.int8, low=-1, high=5)
    k = code_rows.shape[1]
    config_codes = npz.array("config_codes", "u", (c, None), _smallest_unsigned(k), high=k - 1)
    g = config_codes.shape[1]
    node_group = npz.array("node_group", "iu", (nc,), np.int64, low=0, high=g - 1)
    found, first = np.unique(node_group, return_index=True)
    npz.check(len(found) == g and (np.diff(first) > 0).all(), "node_group",
              f"does not number {g} groups by their first nodes")
    return config_codes, node_group, code_rows


class _DistinctRows:
    """The rows of 18 digits seen so far, numbered by first appearance."""

    def __init__(self, npz, configs, nc):
        # reused for each chunk: the page faults of fresh memory would take longer than the sums
        self.buffers = tuple(np.empty((configs, nc, DIGITS), kind) for kind in (np.int8, bool, np.float64))
        self.npz, self.keys = npz, pd.Index([], dtype=np.int64)

    def __len__(self):
        return len(self.keys)

    def number(self, chunk, start):
        """(j, nc, 18), from configuration `start` on -> (nc, j) row numbers; new rows get the next numbers."""
        ids, values = pd.factorize(_checked_keys(self.npz, chunk, start, *(b[:len(chunk)] for b in self.buffers)))
        known = self.keys.get_indexer(values)
        new = known < 0
        if new.any():                                # a longer index makes pandas hash all keys again
            known[new] = len(self.keys) + np.arange(new.sum())
            self.keys = self.keys.append(pd.Index(values[new]))
        return known[ids].reshape(chunk.shape[:2]).T.astype(_smallest_unsigned(len(self.keys)))

    def digits(self):
        """(K, 18) int8."""
        shifted = self.keys.to_numpy() + _WEIGHTS.sum()          # with 1 added to every digit, a number in base 7
        return (shifted[:, None] // _WEIGHTS % 7 - 1).astype(np.int8)


class _Expectation:
    """What configurations must look like if only known codes occur in them."""

    def __init__(self, row_ids, rows, dtype):
        self.groups = _group_nodes(row_ids, len(rows))
        nc, k = len(row_ids), max(map(len, self.groups.node_rows))
        self.row_ids = np.zeros((nc, k), np.int64)
        for node, own in enumerate(self.groups.node_rows):
            self.row_ids[node, :len(own)] = own
        # each row as the file stores it, in one value; the rows of a node begin at `start`
        self.stored = rows.digits().astype(dtype)[self.row_ids].view(f"V{DIGITS * dtype.itemsize}").reshape(-1)
        self.start, self.buffer = k * np.arange(nc), bytearray()
        # the codes of the first node of each group, by the place of its row among the sorted keys; -1 for no code
        order = np.argsort(rows.keys.to_numpy())
        self.keys = rows.keys.to_numpy()[order]
        self.code_of = np.full((len(self.groups.first), len(rows)), -1)
        for group, node in enumerate(self.groups.first):
            own = self.groups.node_rows[node]
            self.code_of[group, own] = np.arange(len(own))
        self.code_of = self.code_of[:, order]

    def codes(self, chunk):
        """(j, nc, 18) -> (j, g) codes if every digit is as expected, else None."""
        first = self.groups.first
        with np.errstate(invalid="ignore"):                      # what is no digit is found by the comparison below
            keys = _row_keys(chunk[:, first].astype(np.float64)).reshape(len(chunk), len(first))
        place = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        codes = self.code_of[np.arange(len(first)), place]
        if (codes < 0).any() or not np.array_equal(self.keys[place], keys):
            return None
        if len(self.buffer) != chunk.nbytes:
            self.buffer = bytearray(chunk.nbytes)
        place = codes.take(self.groups.node_group, axis=1)
        place += self.start
        self.stored.take(place.ravel(), out=np.frombuffer(self.buffer, self.stored.dtype), mode="clip")
        return codes if self.buffer == np.ascontiguousarray(chunk) else None         # compares the bytes

    def first_rows(self, nodes, codes):
        """(g,) nodes, (j, groups) codes -> (g, j) row numbers."""
        return self.row_ids[nodes[:, None], codes[:, self.groups.node_group[nodes]].T]


def _read_configs(npz, c, nc):
    """Stream node_config_feat -> config_codes, node_group, code_rows."""
    stream, shape, fortran, dtype = npz.open("node_config_feat", "fiu")
    npz.check(shape == (c, nc, DIGITS), "node_config_feat", f"has shape {shape}, expected {(c, nc, DIGITS)}")
    step = max(1, _CHUNK_BYTES // max(nc * DIGITS * dtype.itemsize, 1))
    starts = range(0, c, step)
    if fortran:                  # in no public file; this order cannot be streamed configuration by configuration
        dense = npz.array("node_config_feat", "fiu", shape, dtype)
        chunks = (dense[start:start + step] for start in starts)
    else:
        chunks = npz.chunks(stream, "node_config_feat", shape, dtype, starts)
    rows, expectation = _DistinctRows(npz, min(step, c), nc), None
    parts, surprises, learned = [], [np.zeros((nc, 0), np.uint8)], 0
    with closing(chunks):
        for chunk, start in zip(chunks, starts):         # `chunks` first: then zip runs this generator to its end
            codes = expectation.codes(chunk) if expectation else None
            if codes is not None:
                parts.append((expectation, codes))
                continue
            # a chunk with something new is taken apart row by row; what it teaches saves that for most others
            surprises.append(rows.number(chunk, start))
            parts.append((None, surprises[-1]))
            if nc and len(surprises) > 2 * learned and nc * len(rows) <= _MAX_EXPECTED:
                learned = len(surprises)
                expectation = _Expectation(np.concatenate(surprises, axis=1), rows, dtype)
    # every chunk that was as expected holds only what the surprises hold: their groups are the groups of the file
    groups = _group_nodes(np.concatenate(surprises, axis=1), max(len(rows), 1))
    row_ids = np.concatenate([codes[groups.first] if expected is None else expected.first_rows(groups.first, codes)
                              for expected, codes in parts] or [np.zeros((len(groups.first), 0), np.uint8)], axis=1)
    return _number_codes(groups, row_ids, rows.digits())


def _checked_keys(npz, chunk, start, digits, equal, wide):
    """Check the digits of a chunk (j, nc, 18) -> (j * nc,) int64, one key per row."""
    with np.errstate(invalid="ignore"):                  # the comparison below finds NaN, whatever int8 it becomes
        np.copyto(digits, chunk, casting="unsafe")
    np.equal(digits, chunk, out=equal)
    if chunk.size and not (-1 <= digits.min() and digits.max() <= 5 and equal.all()):
        config, node, digit = np.argwhere(~equal | (digits < -1) | (digits > 5))[0]
        npz.check(False, "node_config_feat", f"holds {chunk[config, node, digit]} in configuration {start + config}, "
                  f"node {node}, digit {digit}; digits are integers in -1..5")
    np.copyto(wide, chunk)
    return _row_keys(wide)


def _row_keys(digits):
    """(..., 18) float64 -> one int64 key per row: the sum of digit * 7**place."""
    # einsum, not @: starting the threads of BLAS costs ten times more than this product of 18 columns
    return np.einsum("rd,d->r", digits.reshape(-1, DIGITS), _WEIGHTS.astype(np.float64)).astype(np.int64)


class NpzFile:
    """An npz archive, opened by `with`, that checks each array before it hands it out."""

    def __init__(self, path, file=None):
        self.path, self.file = as_path(path), file          # file: the opened file, if it is open
        self.padding = None                                 # of the axes in node_feat, once they are read: 0 or -1

    def __enter__(self):
        self.opened = ExitStack()
        with self._faults("not a readable npz file ({})"):
            self.zip = self.opened.enter_context(zipfile.ZipFile(self.file or self.path))
        return self

    def __exit__(self, *_):
        self.opened.close()

    @contextmanager
    def _faults(self, words):
        """Turn any error of zipfile, zlib or NumPy about unreadable bytes into a DataError."""
        try:
            yield
        except Exception as fault:       # far more kinds than are documented: IndexError, TokenError, MemoryError...
            reason = f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
            raise DataError(f"{self.path}: {words.format(reason)}; {self._cure()}") from fault

    def _cure(self):
        """What helps against damage."""
        prepared = any((folder / CATALOGUE).is_file() for folder in self.path.parents)
        return "delete the file and prepare again" if prepared else "fetch the file again"

    def check(self, true, name, fault):
        """Raise a DataError that names the array, unless `true`."""
        if not true:
            raise DataError(f"{self.path}: {name} {fault}")

    def has(self, name):
        """Whether there is an array of this name."""
        return name + ".npy" in self.zip.NameToInfo

    def open(self, name, kinds):
        """Open one array -> (stream at its first value, shape, fortran order, dtype); its size is checked."""
        self.check(self.has(name), name, f"is missing; there are {self.zip.namelist()}")
        with self._faults(name + " has no readable header ({})"), warnings.catch_warnings():
            warnings.simplefilter("ignore")          # for headers that Python 2 wrote or that have invalid escapes
            info = self.zip.getinfo(name + ".npy")
            stream = self.opened.enter_context(self.zip.open(info))
            version = np.lib.format.read_magic(stream)
            if version != (1, 0):                    # structured types alone need later ones; their headers reach 4 GB
                raise NotImplementedError(f"npy version {version}, expected (1, 0)")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        words = {"f": "floats", "iu": "integers", "i": "signed integers", "u": "unsigned integers"}
        self.check(dtype.kind in kinds and dtype.itemsize <= 8, name, f"has dtype {dtype}, expected "
                   f"{words.get(kinds, 'integers or floats')}{' (nanoseconds)' * name.startswith('config_runtime')}")
        declared, stored = dtype.itemsize * math.prod(shape), info.file_size - stream.tell()
        self.check(declared == stored and min(shape, default=0) >= 0, name,
                   f"of shape {shape} needs {declared} bytes, the file holds {stored}")
        return stream, shape, fortran, dtype

    def _read(self, stream, name, nbytes):
        """Read exactly `nbytes`."""
        with self._faults(name + " is damaged ({})"):
            data = stream.read(nbytes)
        self.check(len(data) == nbytes, name, f"ends after {len(data)} of {nbytes} bytes; {self._cure()}")
        return data

    def array(self, name, kinds, shape, to, low=None, high=None):
        """Read one array as type `to`; None in `shape`: any length; `shape` None: any shape, returned flat."""
        stream, found, fortran, dtype = self.open(name, kinds)
        fits = shape is None or (len(found) == len(shape) and all(s in (None, f) for s, f in zip(shape, found)))
        self.check(fits, name, f"has shape {found}, expected {shape}")
        nbytes = max(dtype.itemsize, np.dtype(to).itemsize) * math.prod(found)
        self.check(nbytes <= _MAX_ARRAY_BYTES, name, f"takes {nbytes} bytes; at most {_MAX_ARRAY_BYTES} are read")
        values = np.frombuffer(self._read(stream, name, dtype.itemsize * math.prod(found)), dtype)
        self._read_end(stream, name)
        if shape is not None:
            values = values.reshape(found, order="F" if fortran else "C")
        with np.errstate(over="ignore"):         # the bounds may overflow in float16, the values in the cast to `to`
            if values.size:
                self.check(np.isfinite(values).all(), name, "holds a value that is not finite")
                least, most = values.min(), values.max()
                self.check(low is None or least >= low, name, f"holds {least}, expected at least {low}")
                self.check(high is None or most <= high, name, f"holds {most}, expected at most {high}")
                self.check(np.dtype(to).kind != "i" or most <= np.iinfo(to).max, name, f"holds {most}, too large for "
                           f"{np.dtype(to)}")
            values = np.ascontiguousarray(values, dtype=to)
            # where no conversion made a copy, this is an array over the bytes read, and cannot be written to
            values = values if values.flags.writeable else values.copy()
        self.check(np.isfinite(values).all(), name, f"holds a value too large for {np.dtype(to)}")
        return values

    def _read_end(self, stream, name):
        """Read past the end, so that zipfile compares the checksum."""
        with self._faults(name + " is damaged ({})"):
            stream.read(1)

    def chunks(self, stream, name, shape, dtype, starts):
        """Yield a streamed array in pieces along its first axis."""
        # no thread inflates ahead: the rest takes a sixth of the time, and several files are read side by side anyway
        for start in starts:
            piece = (min(starts.step, shape[0] - start), *shape[1:])
            yield np.frombuffer(self._read(stream, name, math.prod(piece) * dtype.itemsize), dtype).reshape(piece)
        self._read_end(stream, name)


OPCODE_NAMES = (
    "unknown", "abs", "add", "add-dependency", "after-all", "all-reduce", "all-to-all", "atan2",
    "batch-norm-grad", "batch-norm-inference", "batch-norm-training", "bitcast", "bitcast-convert",
    "broadcast", "call", "ceil", "cholesky", "clamp", "collective-permute", "count-leading-zeros",
    "compare", "complex", "concatenate", "conditional", "constant", "convert", "convolution", "copy",
    "copy-done", "copy-start", "cosine", "custom-call", "divide", "domain", "dot", "dynamic-slice",
    "dynamic-update-slice", "exponential", "exponential-minus-one", "fft", "floor", "fusion", "gather",
    "get-dimension-size", "set-dimension-size", "get-tuple-element", "imag", "infeed", "iota", "is-finite",
    "log", "log-plus-one", "and", "not", "or", "xor", "map", "maximum", "minimum", "multiply", "negate",
    "outfeed", "pad", "parameter", "partition-id", "popcnt", "power", "real", "recv", "recv-done", "reduce",
    "reduce-precision", "reduce-window", "remainder", "replica-id", "reshape", "reverse", "rng",
    "rng-get-and-update-state", "rng-bit-generator", "round-nearest-afz", "rsqrt", "scatter", "select",
    "select-and-scatter", "send", "send-done", "shift-left", "shift-right-arithmetic",
    "shift-right-logical", "sign", "sine", "slice", "sort", "sqrt", "subtract", "tanh", "trace",
    "transpose", "triangular-solve", "tuple", "tuple-select", "while", "cbrt", "all-gather",
    "collective-permute-start", "collective-permute-done", "logistic", "dynamic-reshape",
    "all-reduce-start", "all-reduce-done", "reduce-scatter", "all-gather-start", "all-gather-done",
    "opt-barrier", "async-start", "async-update", "async-done", "round-nearest-even", "stochastic-convert",
    "tan",
)
OPCODES = len(OPCODE_NAMES)      # rows of an opcode table; XLA's HloOpcode runs from 1 to 120
