"""A program of one's own -> its graph, its configurable nodes, their tied groups and the options of each group.

A configuration is one option per group, so the space is a grid; `dims` holds the number of options per group. The TPU's
compiler is not public. These rules were found in real files; tests/test_own_program.py counts on how many real nodes
each one holds.

- Convolutions, dots and reshapes outside fused computations can be configured.
- A convolution orders two dimensions of each tensor: batch and feature of the output and the input, input and output
  feature of the kernel. That gives 8 options; the data set lacks options whose runs failed, as in unet_3d's raw file.
- A dot orders two dimensions of each tensor: the last free and the last contracting dimension of both operands, and
  these free dimensions in the output. That gives 8 options; for matrices a ninth orders the output alone.
- A reshape sets the whole layouts of output and input, such that it moves no data, or it sets nothing.
- Nodes of the same operation with the same options are tied. The compiler splits such groups further, by the layouts
  that it would choose itself; a saved program does not contain these.
"""
from typing import NamedTuple

import numpy as np

from kit.data import DIGITS, OPCODE_NAMES, DataError, LayoutGraph
from kit.programs.hlo import file_bytes, parse_hlo, program_arrays
from kit.programs.options import MAX_RANK, TENSORS, layout_agreement, operation_options


class OwnProgram(NamedTuple):
    """A program and the grid of its configurations, with g groups."""
    graph: LayoutGraph           # without configurations; code_rows holds every option of each node
    dims: np.ndarray             # (g,) int64; number of options per group
    written: np.ndarray          # (g,) int64; the option per group that is closest to the saved layouts


def program_from_hlo(source, tie=True):
    """Read a saved HLO module, from a file or from its bytes, as a program with configurations to choose from.

    The source is an HloModuleProto, or an HloProto or raw protobuf of the data set that wraps one. JAX gives it by
    ``jax.jit(f).lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto()``, before operations are fused; a program
    compiled for a CPU hides its dots in fusions. With `tie`, nodes of the same operation with the same options form one
    group, as in the data set; else each node is its own group. Layouts that the module does not give are row-major. A
    DataError if the source is no such protobuf, refers to missing parts, or has no configurable node.
    """
    label = "the bytes" if isinstance(source, bytes) else source
    module = _module(source if isinstance(source, bytes) else file_bytes(source), label)
    for computation in module.computations:
        for instruction in computation.instructions:
            if not instruction.shape.layout.minor_to_major:
                instruction.shape.layout.minor_to_major.extend(reversed(range(len(instruction.shape.dimensions))))
    node_feat, node_opcode, edge_index, node_splits = program_arrays(module, label)
    options, agreement = _options_by_node(module, label)
    if not options:
        raise DataError(f"{label}: no convolution, dot or reshape outside a fusion, so nothing can be configured; "
                        "save the program before it is compiled")
    # tied nodes share a key, and a key is a group
    keys = [(node_opcode[node], rows) if tie else node for node, rows in options.items()]
    sizes = {key: len(rows) for key, rows in zip(keys, options.values())}
    dims, number = np.array(list(sizes.values()), np.int64), {key: group for group, key in enumerate(sizes)}
    node_group = np.array([number[key] for key in keys], np.int64)
    # every option of each node, and how far the options of a group agree with the saved layouts
    code_rows = np.full((len(options), dims.max(), DIGITS), -1, np.int8)
    agreed = np.where(np.arange(dims.max()) < dims[:, None], 0, np.iinfo(np.int64).min)
    for place, (group, rows, own) in enumerate(zip(node_group, options.values(), agreement)):
        code_rows[place, :len(rows)] = rows
        agreed[group, :len(own)] += own
    codes = np.empty((0, len(dims)), np.min_scalar_type(int(dims.max()) - 1))
    graph = LayoutGraph(module.name, node_feat, node_opcode, edge_index, np.array(list(options), np.int64),
                        node_splits, codes, node_group, code_rows, np.empty(0, np.int64))
    return OwnProgram(graph, dims, agreed.argmax(axis=1))


def with_configs(program, codes):
    """Give a program the configurations `codes` (c, g) that a model shall score: one option per group -> LayoutGraph.

    Its config_runtime is 0, the placeholder for "not measured". A ValueError if `codes` has another shape, or an option
    that its group lacks.
    """
    codes = np.asarray(codes)
    if codes.ndim != 2 or codes.shape[1] != len(program.dims) or codes.dtype.kind not in "iu":
        raise ValueError(f"codes has shape {codes.shape} and dtype {codes.dtype}, expected integers of shape (c, "
                         f"{len(program.dims)}), one option per group")
    if ((codes < 0) | (codes >= program.dims)).any():
        raise ValueError(f"codes hold an option that its group lacks; the groups have {program.dims.tolist()} options")
    return program.graph._replace(config_codes=codes.astype(program.graph.config_codes.dtype),
                                  config_runtime=np.zeros(len(codes), np.int64))


def layout_words(program, code):
    """Describe the layouts that a configuration `code` (g,) gives the nodes of each group -> one text per group.

    Layouts are written as XLA writes them, minor dimension first. In "output {3,0} kernel {2,3}", neighbours along
    dimension 3 of the output lie closer together than neighbours along dimension 0. "nothing" leaves the choice to the
    compiler.
    """
    words = []
    for group, option in enumerate(code):
        place = program.graph.node_group.tolist().index(group)
        opcode = OPCODE_NAMES[program.graph.node_opcode[program.graph.node_config_ids[place]]]
        words.append(row_words(opcode, program.graph.code_rows[place, option]))
    return words


def row_words(opcode, row):
    """Describe one `row` (18,) of layout digits, given to an operation named `opcode`, as `layout_words` does."""
    digits = [own[own >= 0] for own in row.reshape(-1, MAX_RANK)]
    names = TENSORS.get(opcode, ("output", "input", "kernel"))
    words = [f"{name} {{{','.join(map(str, own))}}}" for name, own in zip(names, digits) if len(own)]
    return " ".join(words) or "nothing"


def _module(data, label):
    """The module in `data`, which may be wrapped in another message."""
    fault = DataError(f"{label}: the module has no instruction")
    for kind in ("HloFile", "Module"):       # field 1 of a bare module is its name, hardly ever a module
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
    """{configurable node: its options, sorted rows of 18 digits}, and their agreement with the saved layouts."""
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
