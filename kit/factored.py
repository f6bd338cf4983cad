"""One file of a prepared folder: a graph in factored form.

Such a file holds what `kit.data` reads from its source, bit for bit, but opens in milliseconds and takes a tenth of the
space or less:

- configurations are stored in factored form (see `kit.data`): one code per configuration and group
- nodes with equal features share one row of features
- edges are stored as differences, because consumers come in order and producers are mostly near
- numbers have the smallest integer type that holds them

It also holds where layouts meet in the whole program (`kit.data.Meetings`), and in `about.json` what
`kit.prepare` says of its source. Nothing is pickled.

In factored form, groups of configurable nodes and their options can be read off. `structure_of` describes them so that
programs of one structure can be found without opening their files again.
"""
import hashlib
import json
import math
import zipfile
from typing import NamedTuple

import numpy as np

from kit.data import DataError, Meetings, NpzFile, layout_graph, tile_graph
from kit.files import whole_file


class Group(NamedTuple):
    """A group of configurable nodes that change together: n nodes, k options."""
    number: int              # of the group in the graph's `config_codes`
    opcodes: np.ndarray      # (n,) int64, sorted
    codes: np.ndarray        # (k,) int64; the codes of the options
    rows: np.ndarray         # (k, n, 18) int8; the digits of the nodes, in the order of `opcodes`


def read_graph(path, collection, split="test"):
    """Read a file of the data set or of a prepared folder -> TileGraph, or LayoutGraph, with `meetings` if stored."""
    with NpzFile(path) as npz:
        return graph_of(npz, collection, split)


def graph_of(npz, collection, split):
    """What `read_graph` returns, from an open file; DataError also if train or validation data have no runtimes."""
    graph = tile_graph(npz) if collection == "tile:xla" else layout_graph(npz)
    if split != "test" and not graph.config_runtime.any():
        raise DataError(f"{npz.path}: config_runtime is 0 throughout, the placeholder of test files; expected measured "
                        f"runtimes in {split}")
    if collection == "tile:xla":
        return graph
    return graph._replace(meetings=_read_meetings(npz, len(graph.node_config_ids)))


def write_graph(path, graph, about):
    """Write a graph and what is known `about` it, whole or not at all; the same graph gives the same bytes."""
    whole = np.ascontiguousarray(graph.node_feat).view(f"V{graph.node_feat.itemsize * 140}").ravel()
    _, first, number = np.unique(whole, return_index=True, return_inverse=True)
    consumer, producer = graph.edge_index.T
    arrays = {"node_rows": graph.node_feat[first], "node_row": number.ravel(), "node_opcode": graph.node_opcode,
              "edge_steps": np.stack([np.diff(consumer, prepend=0), consumer - producer], axis=1)}
    done = ("graph_id", "node_feat", "node_opcode", "edge_index", "meetings")
    arrays |= {name: value for name, value in graph._asdict().items() if name not in done}
    if hasattr(graph, "meetings"):
        arrays |= {f"meetings_{name}": value for name, value in graph.meetings._asdict().items()}
    kept = ("config_codes", "code_rows", "node_rows")            # their types are read as they are
    with whole_file(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(_member(f"{name}.npy"), "w") as file:
                # column by column: the values of a column are alike, so that they compress better
                np.lib.format.write_array(file, np.asfortranarray(array if name in kept else _narrow(array)), (1, 0))
        archive.writestr(_member("about.json"), json.dumps(about, separators=(",", ":")))


def _member(name):
    """The entry of an archive for one array; its date is the same at any time."""
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def _narrow(array):
    """The same values in the smallest integer type, if they are integers and no -0.0 is among them."""
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    if array.dtype.kind == "f":
        whole = (array == np.rint(array)).all() and np.abs(array).max(initial=0) < 2**53
        if not whole or np.signbit(array[array == 0]).any():
            return array
        array = array.astype(np.int64)
    low, high = array.min(initial=0), array.max(initial=0)
    return array.astype(next(t for t in ("u1", "i1", "u2", "i2", "u4", "i4", "i8")
                             if np.iinfo(t).min <= low and high <= np.iinfo(t).max))


def _read_meetings(npz, nc):
    """The meetings that are stored in a prepared file; None in a source file."""
    if not npz.has("meetings_ends"):
        return None
    ends = npz.array("meetings_ends", "iu", (None, 2), np.int64, low=0, high=nc - 1)
    p = len(ends)
    return Meetings(ends, npz.array("meetings_joins", "u", (p,), np.int64, low=0, high=1).astype(bool),
                    npz.array("meetings_hops", "iu", (p,), np.int64, low=1),
                    npz.array("meetings_names", "iu", (p, 2, 6), np.int64, low=0, high=5),
                    npz.array("meetings_role", "iu", (p,), np.int64, low=0, high=3),
                    npz.array("meetings_size", "iuf", (p,), np.float64, low=1e-30))


def read_about(path):
    """What `about.json` says in a prepared file; {} if `path` is none, or a damaged one."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = json.loads(archive.read("about.json"))
            return found if "format" in found and not archive.testzip() else {}
    except Exception:                        # zipfile raises a dozen types over bytes that it cannot read
        return {}


def groups_of(graph):
    """The groups of a LayoutGraph that have nodes, as a list of Group in the order of their first nodes."""
    nodes, k = graph.node_config_ids, graph.code_rows.shape[1]
    found = []
    for number in range(graph.config_codes.shape[1]):
        members = np.flatnonzero(graph.node_group == number)                       # (n,)
        if len(members):
            # nodes of one operation stay together, each operation in the order of the graph
            members = members[np.lexsort((nodes[members], graph.node_opcode[nodes[members]]))]
            rows = graph.code_rows[members].swapaxes(0, 1)                         # (k, n, 18)
            used = np.isin(np.arange(k), graph.config_codes[:, number]) | (rows >= 0).any(axis=(1, 2))
            codes = np.flatnonzero(used)
            found.append((nodes[members].min(), Group(number, graph.node_opcode[nodes[members]], codes, rows[codes])))
    return [group for _, group in sorted(found, key=lambda pair: pair[0])]


def structure_of(graph):
    """What makes programs relatives, in few bytes: a list of str, one per group, in the order of `groups_of`.

    A string holds digests of 8 characters, separated by spaces: first one of the group's operations and their shares,
    then one per option, sorted. Sizes of tensors do not matter. Depth does not matter where the nodes of a group have
    the same digits over the same parts of the group. The numbers of groups, options and configurations do not matter
    either.
    """
    return [_structure(group) for group in groups_of(graph)]


def _structure(group):
    """The string of a Group: each option as runs of nodes with the same digits, in shares of the group."""
    n, options = len(group.opcodes), set()
    new_operation = group.opcodes[1:] != group.opcodes[:-1]
    for rows in group.rows:
        changes = new_operation | (rows[1:] != rows[:-1]).any(axis=1)
        options.add(_digest(f"{_share(start, n)} {rows[start].tolist()}" for start in _starts(changes)))
    operations = _digest(f"{_share(start, n)} {group.opcodes[start]}" for start in _starts(new_operation))
    return " ".join([operations, *sorted(options)])


def _starts(changes):
    """Where runs of equal elements start; `changes` (n - 1,) says where an element differs from the one before."""
    return [0, *(np.flatnonzero(changes) + 1).tolist()]


def _share(part, whole):
    """A fraction as text, in lowest terms."""
    common = math.gcd(part, whole)
    return f"{part // common}/{whole // common}"


def _digest(words):
    return hashlib.sha256(";".join(words).encode()).hexdigest()[:8]
