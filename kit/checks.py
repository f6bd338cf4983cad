"""Checks of arguments and of graphs. An error names the argument, what it is, and what was expected.

`named` is a dictionary of arguments or settings: `locals()` at the start of a function, `vars(self)` in a dataclass.
"""
from collections.abc import Iterable
from numbers import Integral, Real

import numpy as np

from kit.data import DIGITS, OPCODES, as_path
from kit.pad import LAYOUT

__all__ = ["as_numbers", "as_path", "check_callable", "check_choice", "check_graph", "check_number", "check_whole",
           "checked_graphs", "checked_rng", "expect"]
_WORDS = {"iu": "integers", "iuf": "finite numbers"}
_RANGES = {
    "a number above 0": lambda x: x > 0,
    "a number of at least 0": lambda x: x >= 0,
    "a share, 0 to 1": lambda x: 0 <= x <= 1,
    "at least 0 and less than 1": lambda x: 0 <= x < 1,
}


def expect(true, name, found, expected):
    """Raise a ValueError that says what an argument is and what was expected, unless `true`."""
    if not true:
        shown = f"a {type(found).__name__}" if hasattr(found, "_fields") else f"{found!r:.80}"
        raise ValueError(f"{name} is {shown}; expected {expected}")


def check_whole(named, **least):
    """Raise a ValueError unless each of these arguments is a whole number of at least the given value."""
    for name, low in least.items():
        found = named[name]
        whole = isinstance(found, Integral) and not isinstance(found, bool) and found >= low
        expect(whole, name, found, f"a whole number of at least {low}")
        expect(found < 2**63, name, found, "a number below 2**63")


def check_number(named, expected, *names):
    """Raise a ValueError unless these arguments are finite numbers in the range `expected`, one of `_RANGES`."""
    for name in names:
        found = named[name]
        expect(isinstance(found, Real) and abs(found) < np.inf and _RANGES[expected](found), name, found, expected)


def check_choice(named, **choices):
    """Raise a ValueError unless each of these arguments is one of its choices."""
    for name, known in choices.items():
        right = any(isinstance(named[name], type(one)) and named[name] == one for one in known)      # 1 is not True
        expect(right, name, named[name], " or ".join(map(repr, known)))


def check_callable(named, *names):
    """Raise a ValueError unless these arguments are functions."""
    for name in names:
        expect(callable(named[name]), name, named[name], "a function")


def checked_rng(rng, seed=None):
    """A random generator; with `seed`, None becomes a new generator with this seed."""
    rng = np.random.default_rng(seed) if rng is None and seed is not None else rng
    expect(isinstance(rng, np.random.Generator), "rng", rng, "a numpy.random.Generator, as numpy.random.default_rng(0)")
    return rng


def as_numbers(name, values, shape, kinds="iuf", low=None, high=None):
    """An array of finite numbers; a ValueError unless it has this shape (text: any length) and lies within the bounds.

    `kinds`: "iu" for integers, "iuf" for integers or floats.
    """
    array = np.asarray(values)
    fits = array.ndim == len(shape) and all(isinstance(s, str) or s == f for s, f in zip(shape, array.shape))
    if not fits or array.dtype.kind not in kinds:
        raise ValueError(f"{name} has shape {array.shape} and dtype {array.dtype}; expected {_WORDS[kinds]} of shape "
                         f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} has {(~np.isfinite(array)).sum()} NaN or infinite values; expected finite numbers")
    if array.size and low is not None:
        least, most = array.min().item(), array.max().item()
        if least < low or (high is not None and most > high):
            raise ValueError(f"{name} holds {least if least < low else most}; expected at least {low}"
                             + ("" if high is None else f" and at most {high}"))
    return array


def check_graph(graph, tile=None, least=1, name="graph"):
    """Raise a ValueError unless a graph is whole: its arrays have the right shapes, kinds and ranges.

    `tile`: True if a TileGraph is expected, False for a LayoutGraph, None for either. `least`: configurations.
    """
    kinds = {"config_feat": "TileGraph", "config_codes": "LayoutGraph"}
    wanted = {True: ["config_feat"], False: ["config_codes"], None: [*kinds]}[tile]
    expect(any(hasattr(graph, field) for field in wanted), name, graph,
           " or ".join(f"a {kinds[field]}" for field in wanted))

    def array(field, shape, low=None, high=None, kinds="iu"):
        return as_numbers(f"{graph.graph_id}: {field}", getattr(graph, field, None), shape, kinds, low, high)
    n, columns = array("node_feat", ("n", "140"), kinds="iuf").shape
    expect(n and columns >= LAYOUT.stop, f"{graph.graph_id}: shape of node_feat", (n, columns), "(n, 140), n > 0")
    array("node_opcode", (n,), 0, OPCODES - 1)
    array("edge_index", ("m", 2), 0, n - 1)
    c = len(array("config_runtime", ("c",), 0, kinds="iuf"))
    expect(c >= least, f"{graph.graph_id}: the number of configurations", c, f"at least {least}")
    if hasattr(graph, "config_feat"):
        array("config_feat", (c, 24), kinds="iuf")
        array("config_runtime_normalizers", (c,), 1, kinds="iuf")
        return
    ids = array("node_config_ids", ("nc",), 0, n - 1)
    nc = len(ids)
    expect(len(np.unique(ids)) == nc, f"{graph.graph_id}: node_config_ids", ids, "each configurable node once")
    k = array("code_rows", (nc, "k", DIGITS), -1, 5).shape[1]
    g = array("config_codes", (c, "g"), 0, k - 1).shape[1]
    array("node_group", (nc,), 0, g - 1)
    array("node_splits", ("s",), 0, n)
    if getattr(graph, "meetings", None) is not None:
        as_numbers(f"{graph.graph_id}: meetings.ends", graph.meetings.ends, ("p", 2), "iu", 0, nc - 1)


def checked_graphs(name, graphs, tile=None):
    """A list of graphs; each is checked by `check_graph`."""
    several = isinstance(graphs, Iterable) and not isinstance(graphs, str) and not hasattr(graphs, "_fields")
    expect(several, name, graphs, "a sequence of graphs")
    graphs = list(graphs)
    for place, graph in enumerate(graphs):
        check_graph(graph, tile, name=f"{name}[{place}]")
    return graphs
