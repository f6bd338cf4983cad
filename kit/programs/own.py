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
- A program that was compiled is refused if convolutions or dots are hidden: inside fusions, or behind calls of a
  library. So is a program with sizes, types or operations that the data set does not have; a few newer operations are
  read as the operation of the data set that is most like them, see `LIKE`.
- Nodes of the same operation with the same options are tied. The compiler splits such groups further, by the layouts
  that it would choose itself; a saved program does not contain these.
"""
import re
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from kit.data import DIGITS, OPCODE_NAMES, TENSORS, DataError, LayoutGraph, row_words
from kit.hlo import ELEMENT_TYPES, file_bytes, parse_hlo, program_arrays
from kit.programs.options import MAX_RANK, layout_agreement, operation_options

SAVE = 'save it before it is compiled: jax.jit(f).lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto()'
# operations that are newer than the data set
LIKE = MappingProxyType({
    **dict.fromkeys(("erf", "acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh"), "tanh"), "topk": "sort",
    "collective-broadcast": "collective-permute", "ragged-all-to-all": "all-to-all"})
# values of XLA's PrimitiveType that are newer than the data set
NEW_TYPES = MappingProxyType(dict(enumerate((
    "f8e5m2", "f8e4m3fn", "s4", "u4", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "s2", "u2", "f8e4m3", "f8e3m4", "s1",
    "u1", "f4e2m1fn", "f8e8m0fnu"), 19)))
_LIBRARY = re.compile(b"matmul|gemm|dot|conv(?!ert)", re.IGNORECASE)      # in the name of what a custom call runs
# how files begin that are saved instead of an HLO module, or what is in them
_BEGINNINGS = ((b"HloModule", "HLO text"), (b"ML\xefR", "StableHLO bytecode"), (b"module", "StableHLO text"),
               (b"#loc", "StableHLO text"), (b"PK", "a zip"), (b"\x1f\x8b", "a gzip"), (b"\x80", "a pickle"),
               (b"digraph", "a drawing of a graph"))


class OwnProgram(NamedTuple):
    """A program and the grid of its configurations, with g groups."""
    graph: LayoutGraph           # without configurations; code_rows holds every option of each node
    dims: np.ndarray             # (g,) int64; number of options per group
    written: np.ndarray          # (g,) int64; the option per group that is closest to the saved layouts


class ConfigurableNode(NamedTuple):
    """A convolution, a dot or a reshape of an HLO module."""
    name: str
    opcode: str
    op_name: str                 # the scopes in which a framework made it, and its operation there
    tensors: tuple               # the sizes of the output and of each operand
    layouts: tuple               # of the same tensors, minor dimension first
    rows: tuple                  # its options, sorted rows of 18 digits


def program_from_hlo(source, tie=True):
    """Read a saved HLO module as a program with configurations to choose from.

    Parameters
    ----------
    source : path or bytes
        An HloModuleProto, or an HloProto or raw protobuf of the data set that wraps one. JAX gives it by
        ``jax.jit(f).lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto()``, before operations are fused.
        Layouts that the module does not give are row-major.
    tie : bool or str
        True: nodes of the same operation with the same options form one group, as in the data set. "shapes": their
        tensors must have the same sizes, too. False: each node is its own group.

    Returns
    -------
    OwnProgram

    Raises
    ------
    DataError
        If the source is no such protobuf; it says what the source is instead. Also if the program refers to missing
        parts, was compiled so that convolutions or dots are hidden, or has no configurable node; and if an
        instruction, which the message names, has a size or type or is an operation that the data set does not have.
    ValueError
        If `tie` has another value.
    """
    if isinstance(source, str) and ("\n" in source or len(source) > 4096):        # a program, not a path
        raise DataError(f"the text: {_what_it_is(source.encode('utf-8', 'replace'))}; {SAVE}")
    label = "the bytes" if isinstance(source, bytes) else source
    module = checked_module(source if isinstance(source, bytes) else file_bytes(source), label)
    arrays = program_arrays(module, label)        # checks that the module is whole, before its parts are looked up
    nodes = configurable_nodes(module, label)
    if not nodes:
        large = next((f"{label}: {instruction.opcode} {instruction.name!r} has a tensor of more than {MAX_RANK} "
                      "dimensions, which cannot be configured, and nothing else can" for computation
                      in module.computations for instruction in computation.instructions
                      if instruction.opcode == "reshape" and _rank(computation, instruction) > MAX_RANK), None)
        raise DataError(large or f"{label}: no convolution, dot or reshape outside a fusion, so nothing can be "
                        f"configured; {SAVE}")
    return grouped(module.name, arrays, nodes, group_keys(nodes, tie))


def checked_module(data, label):
    """Parse an HLO module whose instructions all fit the data set; layouts that it does not give become row-major."""
    module = _module(data, label)
    _check_instructions(module, label)
    for computation in module.computations:
        for instruction in computation.instructions:
            if not instruction.shape.layout.minor_to_major:
                instruction.shape.layout.minor_to_major.extend(reversed(range(len(instruction.shape.dimensions))))
    return module


def group_keys(nodes, tie):
    """Give each of `nodes` {number: ConfigurableNode} the key of its group -> list; see `program_from_hlo` for `tie`.

    A ValueError if `tie` is none of True, "shapes" and False.
    """
    if tie not in (True, "shapes", False):
        raise ValueError(f'tie is {tie!r}; expected True, "shapes" or False')
    return [(one.opcode, one.rows, one.tensors if tie == "shapes" else None) if tie else node
            for node, one in nodes.items()]


def grouped(name, arrays, nodes, keys):
    """Make a program of what `program_arrays` gave; configurable `nodes` with one key form a group -> OwnProgram."""
    node_feat, node_opcode, edge_index, node_splits = arrays
    sizes = {key: len(one.rows) for key, one in zip(keys, nodes.values())}
    dims, number = np.array(list(sizes.values()), np.int64), {key: group for group, key in enumerate(sizes)}
    node_group = np.array([number[key] for key in keys], np.int64)
    # every option of each node, and how far the options of a group agree with the saved layouts
    code_rows = np.full((len(nodes), dims.max(), DIGITS), -1, np.int8)
    agreed = np.where(np.arange(dims.max()) < dims[:, None], 0, np.iinfo(np.int64).min)
    for place, (group, one) in enumerate(zip(node_group, nodes.values())):
        code_rows[place, :len(one.rows)] = one.rows
        agreed[group, :len(one.rows)] += layout_agreement(one.rows, one.layouts)
    codes = np.empty((0, len(dims)), np.min_scalar_type(int(dims.max()) - 1))
    graph = LayoutGraph(name, node_feat, node_opcode, edge_index, np.array(list(nodes), np.int64),
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


def _module(data, label):
    """The module in `data`, which may be wrapped in another message."""
    for kind in ("HloFile", "Module"):       # field 1 of a bare module is its name, hardly ever a module
        try:
            parsed = parse_hlo(data, kind, label)
        except DataError:
            continue
        module = parsed.module if kind == "HloFile" else parsed
        if any(computation.instructions for computation in module.computations):
            return module
    raise DataError(f"{label}: {_what_it_is(data)}; {SAVE}")


def _what_it_is(data):
    """What bytes are that hold no HLO module, in a few words."""
    if not data:
        return "is empty"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):        # PowerShell writes what a program prints as UTF-16
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    data = data.removeprefix(b"\xef\xbb\xbf")
    found = next((what for start, what in _BEGINNINGS if data.lstrip().startswith(start)), None)
    if found is None and b"\0" not in data[:1 << 16]:          # a comment may come first
        found = next((what for word, what in ((b"\nHloModule ", "HLO text"), (b"stablehlo.", "StableHLO text"))
                      if word in data[:1 << 16]), None)
    if found is None and (b"ML\xefR" in data or b"StableHLO" in data):
        found = "a program of jax.export, with StableHLO bytecode inside"
    if found is None:
        try:
            inside = parse_hlo(data, "Snapshot", "").file.module
            found = "an HLO snapshot, a compiled program with its inputs" if inside.computations else None
        except DataError:
            pass
    if found is None and data[:64].isascii() and data[:64].decode().replace("\n", " ").isprintable():
        found = f"text that begins with {data[:20].decode()!r}"
    if found is not None:
        return f"is {found}; expected an HLO module as a protobuf"
    if (cut := _cut(data)) is not None:
        return f"is a part of a protobuf: ends after {len(data)} bytes, where at least {cut} are needed"
    return "is no HLO module saved as a protobuf, or has no instruction"


def _cut(data):
    """How many bytes a protobuf that ends too early needs at least; None if its fields do not show that."""
    place = 0
    while place < len(data):
        numbers = []
        for _ in range(2):                   # tag and length, 7 bits per byte
            number = shift = 0
            while place < len(data) and data[place] & 128 and shift < 63:
                number, shift, place = number | (data[place] & 127) << shift, shift + 7, place + 1
            if place == len(data):
                return place + 1
            numbers.append(number | data[place] << shift)
            place += 1
            if numbers[0] & 7 == 0 and len(numbers) == 1:
                continue                     # a plain number takes the place of the length
        tag, length = numbers
        if tag & 7 not in (0, 2) or not 0 < tag >> 3 < 64:
            return None
        place += length if tag & 7 == 2 else 0
    return place if place > len(data) and place < 1 << 34 else None


def _rank(computation, instruction):
    """The most dimensions of a tensor that an instruction reads or writes."""
    named = {instruction.id, *instruction.operand_ids}
    return max(len(other.shape.dimensions) for other in computation.instructions if other.id in named)


def _hidden(module):
    """Convolutions and dots that nothing can configure, as names, and how many others there are."""
    inside, calls = set(), {computation.id: {called for instruction in computation.instructions for called
                                             in instruction.called_computation_ids}
                            for computation in module.computations}
    more = {called for computation in module.computations for instruction in computation.instructions
            if instruction.opcode == "fusion" for called in instruction.called_computation_ids}
    while more:                              # what a fused computation calls is fused, too
        inside |= more
        more = set(chain.from_iterable(calls.get(one, ()) for one in more)) - inside
    hidden, others = [], 0
    for computation in module.computations:
        for instruction in computation.instructions:
            is_library = instruction.opcode == "custom-call" and _LIBRARY.search(instruction.custom_call_target)
            if is_library or (instruction.opcode in ("convolution", "dot") and computation.id in inside):
                hidden.append(instruction.name)
            others += instruction.opcode in ("convolution", "dot") and computation.id not in inside
    return hidden, others


def _check_instructions(module, label):
    """DataError names the first instruction that the arrays could not hold as it is; newer operations get like ones."""
    for computation in module.computations:
        for instruction in computation.instructions:
            shape, name = instruction.shape, f"{label}: {instruction.opcode} {instruction.name!r}"
            shown = ",".join("?" if size < 0 else f"<={size}" if dynamic else str(size) for size, dynamic in
                             zip(shape.dimensions, [*shape.is_dynamic_dimension, *[False] * len(shape.dimensions)]))
            if "?" in shown or any(shape.is_dynamic_dimension):
                raise DataError(f"{name} has the sizes [{shown}]; expected numbers: save the program for inputs of "
                                "fixed sizes")
            if shape.element_type not in ELEMENT_TYPES:
                kind = NEW_TYPES.get(shape.element_type, f"number {shape.element_type}")
                raise DataError(f"{name} has the element type {kind}, which the data set does not have; use another "
                                "type, such as bf16 or s8")
            instruction.opcode = LIKE.get(instruction.opcode, instruction.opcode)
            if instruction.opcode not in OPCODE_NAMES:
                raise DataError(f"{name} is an operation that the data set does not have; write it with others, such "
                                "as dot, convolution, reduce")
            if instruction.opcode in ("convolution", "dot") and _rank(computation, instruction) > MAX_RANK:
                raise DataError(f"{name} has a tensor of {_rank(computation, instruction)} dimensions; at most "
                                f"{MAX_RANK} can be configured: merge some")
    hidden, others = _hidden(module)
    if hidden:
        raise DataError(f"{label}: {len(hidden)} of {len(hidden) + others} convolutions and dots are inside fusions or "
                        f"library calls, such as {hidden[0]!r}, and cannot be configured: the program was compiled; "
                        f"{SAVE}")


def configurable_nodes(module, label):
    """The nodes of a module that can be configured -> {number: ConfigurableNode}."""
    fused = {called for computation in module.computations for instruction in computation.instructions
             if instruction.opcode == "fusion" for called in instruction.called_computation_ids}
    found, first = {}, 0
    for computation in module.computations:
        shapes = {instruction.id: instruction.shape for instruction in computation.instructions}
        for node, instruction in enumerate(computation.instructions, first):
            given = [shapes[i] for i in (instruction.id, *instruction.operand_ids)]
            tensors = tuple(tuple(shape.dimensions) for shape in given)
            arity = len(TENSORS.get(instruction.opcode, ()))
            if len(tensors) == arity and max(map(len, tensors)) <= MAX_RANK and computation.id not in fused:
                layouts = tuple(tuple(shape.layout.minor_to_major) for shape in given)
                for layout, tensor in zip(layouts, tensors):
                    if sorted(layout) != list(range(len(tensor))):
                        raise DataError(f"{label}: {instruction.opcode} {instruction.name!r} has the layout "
                                        f"{list(layout)} of a tensor of {len(tensor)} dimensions")
                found[node] = ConfigurableNode(instruction.name, instruction.opcode, instruction.metadata.op_name,
                                               tensors, layouts, operation_options(instruction, tensors, label))
        first += len(computation.instructions)
    return found
