"""Features of the options of single nodes, for a model that adds up what each node's option costs.

An option is the layouts that one code gives to one configurable node. `option_features` describes each pair of a node
and an option by numbers that mean the same in every program: how far the option agrees with its surroundings
(`kit.agreement`), what the operation is, and what the option does in memory. `kit.features` has the other view, one
row per configuration.
"""
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import NamedTuple

import numpy as np

from kit.agreement import (
    CONVOLUTION,
    DOT,
    KERNEL_OUTPUT,
    TRANSPOSE,
    agreement_tables,
    first_and_kernel,
    tensor_bytes,
)
from kit.checks import check_graph
from kit.data import OPCODE_NAMES
from kit.pad import (
    DIMENSIONS,
    ELEMENT_TYPE,
    FEATURE_GROUPS,
    INPUT_FEATURE,
    KERNEL_INPUT,
    OUTPUT_FEATURE,
    SHAPE,
    TYPE_BYTES,
    WINDOW_PRODUCT,
    tensor_rank,
    whole_layouts,
)

TENSORS = "output", "input", "kernel"
RESHAPE = OPCODE_NAMES.index("reshape")
# What a dimension is to a product of matrices: one of its rows (batch, space, a free dimension of the first operand),
# one of its columns (a feature of the output, a free dimension of the kernel), summed over, or shared by all three
# tensors, as the batch of a dot is.
ROW, COLUMN, SUMMED, SHARED = range(4)
MINOR = ((0, "row", ROW), (0, "column", COLUMN), (1, "row", ROW), (1, "summed", SUMMED), (2, "column", COLUMN),
         (2, "summed", SUMMED))          # tensor, word, role: of minor dimensions
PRODUCERS = {"parameter": ("parameter", "constant"), "transpose": ("transpose",),
             "reshape": ("reshape", "bitcast", "copy"), "product": ("dot", "convolution")}
READERS = {name: PRODUCERS[name] for name in ("transpose", "reshape", "product")} | {"reduce": ("reduce",)}


def option_features(graph):
    """Features of each option of each configurable node of a layout graph.

    Parameters
    ----------
    graph : LayoutGraph
        Pruned or whole; its configurations and runtimes are not read.

    Returns
    -------
    names : tuple of str, length f
    values : ndarray, shape (nc, k, f), float32
        Values for codes that a group does not have mean nothing. TENSOR is output, input (the first operand) or kernel
        (the second one). Shares of bytes are shares of the largest tensor of the program.

        From `kit.agreement`, see `Agreement` and `OwnColumns` for the units:

        - `given_TENSOR`: 1 if the option gives a layout; `differs_WHERE`: how far it is from the default there, 0 to 1;
          `..._log`: times log(1 + elements) / 10; `padding_TENSOR`: log2 of growth in memory
        - `roof`: log2(time of arithmetic / time of memory); `met_TENSOR`: 1 if a configurable node delivers it
        - `bytes_TENSOR`, `copied_TENSOR`, `arithmetic`, `share_output`, `share_largest`, `work`: shares of bytes

        What the operation is, equal for all options of a node:

        - `is_KIND`: 1 for a convolution, dot, reshape; `log_rows`, `log_columns`, `log_summed`, `log_shared`:
          log2(1 + size) of the product of matrices, where shared is a dot's batch or a convolution's feature groups;
          0 without a product, as for a reshape
        - `share_of_work`, `share_of_bytes`: shares of the multiply-adds, and of the bytes of output and operands, of
          all configurable nodes; `rank_TENSOR`; `window`: positions of a convolution's window; `element_bytes`
        - `producers`, `readers`: number of edges; `reads_KIND_TENSOR`: 1 if an operation of this kind delivers it;
          `read_by_KIND`: number of readers of this kind

        What the option does in memory, 0 where it leaves a tensor to the compiler:

        - `minor_TENSOR_ROLE`: 1 if the minor dimension is a row of the product, a column, summed over
        - `row_major_TENSOR`: 1 if the whole layout, by `kit.pad.whole_layouts`, is row-major, else -1; `..._bytes`:
          times the tensor's share of bytes; `log_minor_TENSOR`: log2(1 + size of the minor dimension)
        - `undoes_transpose_TENSOR`: if a transpose delivers the operand, 1 if no data moves in it under this layout,
          else -1; 0 without a transpose

    Raises
    ------
    ValueError
        If it is not a layout graph.
    """
    check_graph(graph, tile=False, least=0)
    products = _products(graph)
    parts = [_agreement(agreement_tables(graph)), _operation(graph, products), _memory(graph, products)]
    shape = graph.code_rows.shape[:2]
    columns = [np.broadcast_to(column if column.ndim == 2 else column[:, None], shape)
               for part in parts for column in part.values()]
    return tuple(name for part in parts for name in part), np.stack(columns, axis=2).astype(np.float32)


class _Products(NamedTuple):
    """What the nc configurable nodes are as products of matrices."""
    operands: np.ndarray         # (2, nc) int64; the first operand and the kernel, -1 if there is none
    roles: np.ndarray            # (nc, 3, 6) int8; of each dimension of output, input, kernel; -1 without a product
    sizes: np.ndarray            # (nc, 4) float64; rows, columns, summed, shared; 0 without a product


def _products(graph):
    """The operands of each configurable node, and the roles of their dimensions -> _Products."""
    rank, operands = tensor_rank(graph.node_feat), first_and_kernel(graph)
    roles, sizes = np.full((operands.shape[1], 3, 6), -1, np.int8), np.zeros((operands.shape[1], 4))
    opcode = graph.node_opcode[graph.node_config_ids]
    for at in np.flatnonzero(np.isin(opcode, (CONVOLUTION, DOT)) & (operands >= 0).all(axis=0)):
        node = graph.node_config_ids[at]
        shapes = [tuple(graph.node_feat[v, SHAPE][:rank[v]].astype(int).tolist()) for v in (node, *operands[:, at])]
        if opcode[at] == CONVOLUTION:
            found = _convolution_roles(graph.node_feat[node], *map(len, shapes))
        else:
            found = dot_roles(*shapes)
            if found is None:            # sizes alone may have misled `first_and_kernel`
                output, kernel, first = shapes
                found = dot_roles(output, first, kernel)
                if found is not None:
                    shapes, operands[:, at] = (output, first, kernel), operands[::-1, at]
        if found is not None:
            for tensor, own in enumerate(found):
                roles[at, tensor, :len(own)] = own
            sizes[at] = [prod(size for size, role in zip(shapes[tensor], found[tensor]) if role == wanted)
                         for wanted, tensor in ((ROW, 0), (COLUMN, 0), (SUMMED, 2), (SHARED, 0))]
            if opcode[at] == CONVOLUTION:
                window, groups = np.maximum(graph.node_feat[node, [WINDOW_PRODUCT, FEATURE_GROUPS]], 1)
                sizes[at] *= 1, 1 / groups, window, groups
    return _Products(operands, roles, sizes)


def _convolution_roles(row, *ranks):
    """The roles of the dimensions of a convolution's output, input and kernel; `row`: its node features."""
    roles = [[ROW] * rank for rank in ranks]
    for tensor, column, role in ((0, OUTPUT_FEATURE, COLUMN), (1, INPUT_FEATURE, SUMMED), (2, KERNEL_INPUT, SUMMED),
                                 (2, KERNEL_OUTPUT, COLUMN)):
        if 0 <= row[column] < ranks[tensor]:
            roles[tensor][int(row[column])] = role
    return roles


@lru_cache(4096)
def dot_roles(output, first, kernel):
    """The roles of the dimensions of a dot's tensors, which are given by their shapes -> three tuples.

    The output has the shared dimensions first, then the rows of the first operand, then the columns of the kernel.
    Where sizes leave a choice, the shared dimensions come first in each operand; the first operand sums over its last
    dimension, the kernel over its first one. None if no choice of dimensions fits.
    """
    for summed in range(1, 1 + min(len(first), len(kernel))):
        shared = len(first) + len(kernel) - len(output) - 2 * summed
        rows, columns = len(first) - shared - summed, len(kernel) - shared - summed
        if min(shared, rows, columns) < 0:
            continue
        batch, free = output[:shared], output[shared:]
        left = _operand_roles(first, batch, free[:rows], ROW, last=True)
        right = _operand_roles(kernel, batch, free[rows:], COLUMN, last=False)
        for one in left:
            for other in right:
                if (sorted(size for size, role in zip(first, one) if role == SUMMED)
                        == sorted(size for size, role in zip(kernel, other) if role == SUMMED)):
                    return (SHARED,) * shared + (ROW,) * rows + (COLUMN,) * columns, one, other
    return None


def _operand_roles(sizes, batch, free, role, last):
    """All choices of roles for the dimensions of an operand of a dot, the likeliest first."""
    places, found = range(len(sizes)), []
    for kept in combinations(places, len(free)):
        if tuple(sizes[p] for p in kept) != free:
            continue
        others = [p for p in places if p not in kept]
        for shared in combinations(others, len(batch)):
            if sorted(sizes[p] for p in shared) == sorted(batch):
                own = tuple(role if p in kept else SHARED if p in shared else SUMMED for p in places)
                summed = sum(p for p in places if own[p] == SUMMED)
                found.append((sum(shared), -summed if last else summed, own))
    return [own for *_, own in sorted(found)]


def _agreement(tables):
    """The columns of `kit.agreement`."""
    own = ("given_output", "given_input", "given_kernel", "differs_output", "differs_input_best", "differs_kernel_best",
           "differs_readers", "differs_output_log", "differs_input_best_log", "differs_kernel_best_log",
           "differs_readers_log", "padding_output", "padding_largest", "padding_smallest", "differs_input",
           "differs_kernel", "padding_input", "padding_kernel", "roof", "met_input", "met_kernel")
    moved = "bytes_output", "bytes_input", "bytes_kernel", "copied_input", "copied_kernel", "arithmetic"
    return (dict(zip(own, np.moveaxis(tables.own, 2, 0), strict=True))
            | dict(zip(moved, np.moveaxis(tables.bytes, 2, 0), strict=True))
            | {"share_output": tables.share, "share_largest": tables.reads, "work": tables.work})


def _operation(graph, products):
    """What the operation is: columns (nc,)."""
    ids, feat, opcode, operands = graph.node_config_ids, graph.node_feat, graph.node_opcode, products.operands
    nc, there = len(ids), operands >= 0
    kinds = {"convolution": CONVOLUTION, "dot": DOT, "reshape": RESHAPE}
    columns = {f"is_{name}": opcode[ids] == number for name, number in kinds.items()}
    columns |= {f"log_{name}": np.log2(1 + size) for name, size in
                zip(("rows", "columns", "summed", "shared"), products.sizes.T)}
    work = products.sizes.prod(axis=1)
    many = tensor_bytes(feat)
    moved = many[ids] + (many[operands] * there).sum(axis=0)
    columns |= {"share_of_work": work / max(work.sum(), 1), "share_of_bytes": moved / max(moved.sum(), 1)}
    rank = tensor_rank(feat)
    columns |= {"rank_output": rank[ids], "rank_input": rank[operands[0]] * there[0],
                "rank_kernel": rank[operands[1]] * there[1]}
    columns |= {"window": feat[ids, WINDOW_PRODUCT], "element_bytes": feat[ids][:, ELEMENT_TYPE] @ np.array(TYPE_BYTES)}
    place = np.full(len(feat), -1)
    place[ids] = np.arange(nc)
    consumer, producer = graph.edge_index.T
    reader = place[producer] >= 0
    columns |= {"producers": np.bincount(place[consumer[place[consumer] >= 0]], minlength=nc),
                "readers": np.bincount(place[producer[reader]], minlength=nc)}
    for name, kinds in PRODUCERS.items():
        kind = np.isin(opcode, [OPCODE_NAMES.index(one) for one in kinds])
        columns |= {f"reads_{name}_{tensor}": kind[node] & (node >= 0) for tensor, node in zip(TENSORS[1:], operands)}
    for name, kinds in READERS.items():
        read = reader & np.isin(opcode[consumer], [OPCODE_NAMES.index(one) for one in kinds])
        columns[f"read_by_{name}"] = np.bincount(place[producer[read]], minlength=nc)
    return columns


def _memory(graph, products):
    """What an option does in memory: columns (nc, k)."""
    feat, nodes = graph.node_feat, np.stack([graph.node_config_ids, *products.operands])
    there = nodes >= 0
    rank = tensor_rank(feat)[nodes] * there                                              # (3, nc)
    shape = feat[:, SHAPE][nodes] * there[..., None]
    many = tensor_bytes(feat)
    many = many[nodes] * there / many.max(initial=1)
    digits = np.moveaxis(graph.code_rows.reshape(*graph.code_rows.shape[:2], 3, 6), 2, 0)
    layouts = whole_layouts(digits, rank[:, :, None])                                    # (3, nc, k, 6)
    usual = rank[..., None] - 1 - np.arange(6)
    usual = np.where(usual < 0, -1, usual)[:, :, None]                                   # (3, nc, 1, 6)
    given, minor = layouts[..., 0] >= 0, layouts[..., 0].clip(0).astype(np.int64)
    plain = (layouts == usual).all(axis=3)
    columns = {}
    for tensor, word, role in MINOR:
        own = np.take_along_axis(products.roles[:, tensor], minor[tensor], axis=1)
        columns[f"minor_{TENSORS[tensor]}_{word}"] = given[tensor] & (own == role)
    for tensor, name in enumerate(TENSORS):
        order = np.where(given[tensor], np.where(plain[tensor], 1, -1), 0)
        columns[f"row_major_{name}"] = order
        columns[f"row_major_{name}_bytes"] = order * many[tensor][:, None]
        size = np.take_along_axis(shape[tensor], minor[tensor], axis=1)
        columns[f"log_minor_{name}"] = np.log2(1 + size) * given[tensor]
    for tensor, node in enumerate(products.operands, 1):
        # a transpose moves no data if its output has the layout in which its own operand lies row-major
        moved = (node >= 0) & (graph.node_opcode[node] == TRANSPOSE)
        source = feat[node][:, DIMENSIONS].astype(np.int64)
        before = np.take_along_axis(np.broadcast_to(source[:, None].clip(0, 5), layouts[tensor].shape),
                                    layouts[tensor].clip(0).astype(np.int64), axis=2)
        before = np.where(layouts[tensor] < 0, -1, before)
        undone = (before == usual[tensor]).all(axis=2) & given[tensor]
        columns[f"undoes_transpose_{TENSORS[tensor]}"] = np.where(undone, 1, -1) * (moved[:, None] & given[tensor])
    return columns
