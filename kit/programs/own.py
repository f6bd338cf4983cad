"""A program of one's own -> its graph, its configurable nodes, their tied groups and the options of each.

The compiler of the TPU is not public, so what it lets one choose is read from the data set: the rules below were
seen in real files and are tested against them. A configuration is one option per group, so the space is a small
grid: `dims` says how many options each group has.

Rules (tests/test_own_program.py counts on how many real nodes each holds)
- Configurable are the convolutions, dots and reshapes outside fused computations.
- A convolution gives the order of two dimensions of each tensor: batch and feature of output and input, input and
  output feature of the kernel. 8 options; the data set lacks those whose runs failed, as unet_3d's raw file shows.
- A dot gives the order of two dimensions of each tensor: the last free and the last contracting one of both
  operands, and these free ones in the output. 8 options; with matrices only, a ninth gives just the output's.
- A reshape gives whole layouts of output and input under which it moves no data, or nothing.
- Nodes of one operation with the same options are tied. The compiler splits these further, by the layouts that it
  would choose itself, which no saved program tells.
"""
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kit.data import DIGITS, OPCODE_NAMES, DataError, LayoutGraph
from kit.programs.hlo import parse_hlo, program_arrays
from kit.programs.options import MAX_RANK, TENSORS, layout_agreement, operation_options

MAX_LISTED = 1 << 20             # configurations that are numbered rather than drawn one by one


class OwnProgram(NamedTuple):
    """A program and the grid of its configurations: g groups."""
    graph: LayoutGraph           # without configurations; code_rows holds every option of each node
    dims: np.ndarray             # (g,) int64; how many options each group has
    written: np.ndarray          # (g,) int64; the option of each group that comes closest to the saved layouts


def program_from_hlo(source, tie=True):
    """Read a saved HLO module as a program with configurations to choose from.

    Parameters
    ----------
    source : str, Path or bytes
        An HloModuleProto, or an HloProto or raw protobuf of the data set that wraps one: a file or its bytes. From
        JAX: ``jax.jit(f).lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto()``, which is the program
        before anything is fused; a program compiled for a CPU hides its dots in fusions.
    tie : bool
        Whether nodes of one operation with the same options form one group, as in the data set; if not, each node
        is a group of its own and the space is far larger.

    Returns
    -------
    OwnProgram
        graph_id is the module's name. Layouts that the module does not give are row-major.

    Raises
    ------
    DataError
        If the source is no such protobuf, refers to what it lacks, or has no configurable node.
    """
    label = "the bytes" if isinstance(source, bytes) else source
    if not isinstance(source, bytes):
        try:
            source = Path(source).read_bytes()
        except OSError as fault:
            raise DataError(f"{label}: cannot be read ({fault})") from fault
    module = _module(source, label)
    for computation in module.computations:
        for instruction in computation.instructions:
            if not instruction.shape.layout.minor_to_major:
                instruction.shape.layout.minor_to_major.extend(reversed(range(len(instruction.shape.dimensions))))
    program = program_arrays(module, label)
    options, agreement = _options_by_node(module, label)
    if not options:
        raise DataError(f"{label}: no convolution, dot or reshape outside a fusion, so nothing can be configured; "
                        "save the program before it is compiled")
    keys = [(program[1][node], rows) if tie else node for node, rows in options.items()]
    sizes = {key: len(rows) for key, rows in zip(keys, options.values())}
    dims = np.array(list(sizes.values()), np.int64)
    code_rows = np.full((len(options), dims.max(), DIGITS), -1, np.int8)
    for row, own in zip(code_rows, options.values()):
        row[:len(own)] = own
    number = {key: group for group, key in enumerate(sizes)}
    node_group = np.array([number[key] for key in keys], np.int64)
    agreed = np.zeros((len(dims), dims.max()), np.int64)
    for group, own in zip(node_group, agreement):
        agreed[group, :len(own)] += own
    agreed[np.arange(dims.max()) >= dims[:, None]] = np.iinfo(np.int64).min
    codes = np.empty((0, len(dims)), np.min_scalar_type(int(dims.max()) - 1))
    node_feat, node_opcode, edge_index, node_splits = program
    return OwnProgram(LayoutGraph(module.name, node_feat, node_opcode, edge_index, np.array(list(options), np.int64),
                                  node_splits, codes, node_group, code_rows, np.empty(0, np.int64)), dims,
                      agreed.argmax(axis=1))


def sample_configs(dims, count, rng):
    """Draw distinct configurations of a grid, all equally likely.

    Parameters
    ----------
    dims : ndarray, shape (g,), int
        Number of options of each group.
    count : int
        How many; all of them, in drawn order, if the grid has no more.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray, shape (min(count, number of configurations), g), int64
    """
    size = 1
    for options in dims:
        size *= int(options)
    if size <= max(MAX_LISTED, 2 * count):
        drawn = rng.permutation(size)[:count]
        return np.stack(np.unravel_index(drawn, tuple(dims)), axis=1) if len(dims) else np.empty((len(drawn), 0), int)
    found = {}
    while len(found) < count:
        found.update(dict.fromkeys(map(tuple, rng.integers(0, dims, (count - len(found), len(dims))).tolist())))
    return np.array(list(found), np.int64).reshape(count, len(dims))


def with_configs(program, codes):
    """Give a program the configurations that a model is to score.

    Parameters
    ----------
    program : OwnProgram
    codes : ndarray, shape (c, g), int
        The option of each group.

    Returns
    -------
    LayoutGraph
        config_runtime is 0, the placeholder for what was not measured.

    Raises
    ------
    ValueError
        If codes has another shape, or an option that its group lacks.
    """
    codes = np.asarray(codes)
    if codes.ndim != 2 or codes.shape[1] != len(program.dims) or codes.dtype.kind not in "iu":
        raise ValueError(f"codes has shape {codes.shape} and dtype {codes.dtype}, expected integers of shape (c, "
                         f"{len(program.dims)}), one option per group")
    if ((codes < 0) | (codes >= program.dims)).any():
        raise ValueError(f"codes hold an option that its group lacks; the groups have {program.dims.tolist()} options")
    return program.graph._replace(config_codes=codes.astype(program.graph.config_codes.dtype),
                                  config_runtime=np.zeros(len(codes), np.int64))


def layout_objective(program, predictors):
    """Make a program what `kit.search.strategies` searches: codes -> costs.

    Parameters
    ----------
    program : OwnProgram
        Its graph may be pruned.
    predictors : sequence of callable
        LayoutGraph -> (c,) costs, as ``partial(predict, model)``; of several the mean counts.

    Returns
    -------
    callable
        (k, g) int codes -> (k,) costs; lower is faster.
    """
    return lambda codes: np.mean([predict(with_configs(program, codes)) for predict in predictors], axis=0)


def layout_words(program, code):
    """Say what a configuration gives the nodes of each group.

    Parameters
    ----------
    program : OwnProgram
    code : ndarray, shape (g,), int

    Returns
    -------
    list of str, length g
        As XLA writes layouts, minor first: "output {3,0} kernel {2,3}" lets neighbours along dimension 3 of the
        output lie closer together than those along 0. "nothing" leaves the choice to the compiler.
    """
    words = []
    for group, option in enumerate(code):
        place = program.graph.node_group.tolist().index(group)
        names = TENSORS[OPCODE_NAMES[program.graph.node_opcode[program.graph.node_config_ids[place]]]]
        digits = [row[row >= 0] for row in program.graph.code_rows[place, option].reshape(-1, MAX_RANK)]
        words.append(" ".join(f"{name} {{{','.join(map(str, own))}}}" for name, own in zip(names, digits) if len(own)))
    return [text or "nothing" for text in words]


def _module(data, label):
    """The module in `data`, wrapped in another message or not."""
    fault = DataError(f"{label}: the module has no instruction")
    for kind in ("HloFile", "Module"):       # a bare module's name, field 1, is hardly ever a module itself
        try:
            parsed = parse_hlo(data, kind, label)
        except DataError as error:
            fault = error
            continue
        module = parsed.module if kind == "HloFile" else parsed
        if any(computation.instructions for computation in module.computations):
            return module
    raise fault


def _options_by_node(module, label):
    """{configurable node: its options, sorted rows of 18 digits}; for each node how far its options agree with the
    saved layouts."""
    fused = {called for computation in module.computations for instruction in computation.instructions
             if instruction.opcode == "fusion" for called in instruction.called_computation_ids}
    found, agreement, first = {}, [], 0
    for computation in module.computations:
        shapes = {instruction.id: instruction.shape for instruction in computation.instructions}
        for node, instruction in enumerate(computation.instructions, first):
            given = [shapes[i] for i in (instruction.id, *instruction.operand_ids)]
            tensors = [tuple(shape.dimensions) for shape in given]
            arity = len(TENSORS.get(instruction.opcode, ()))
            if len(tensors) == arity and max(map(len, tensors)) <= MAX_RANK and computation.id not in fused:
                layouts = [tuple(shape.layout.minor_to_major) for shape in given]
                for layout, tensor in zip(layouts, tensors):
                    if sorted(layout) != list(range(len(tensor))):
                        raise DataError(f"{label}: {instruction.opcode} {instruction.name!r} has the layout "
                                        f"{list(layout)} of a tensor of {len(tensor)} dimensions")
                found[node] = operation_options(instruction, tensors, label)
                agreement.append(layout_agreement(found[node], layouts))
        first += len(computation.instructions)
    return found, agreement
