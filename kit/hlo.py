"""HLO protobufs, as XLA saves them or as the data set has them -> the same arrays as from npz files.

Only the fields that a feature needs are declared here, so XLA and TensorFlow are neither built nor imported. A parser
skips all other fields, also those that XLA adds later.

Source of field numbers: github.com/openxla/xla, hlo.proto and xla_data.proto. Source of the order of the 140 features,
their padding and the edges: github.com/google-research-datasets/tpu_graphs, featurizers.h and hlo_encoder.cc; of the
content of the data set's protobufs, and of which of their runs count: tuning.proto and tuning_data_iterator.cc there.
"""
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from kit.checks import as_path
from kit.data import DIGITS, OPCODE_NAMES, DataError, LayoutGraph, TileGraph, factor_configs
from kit.pad import ELEMENT_TYPE, IS_ROOT

# message: field[:type][*]=number; the type is int64 if none is named (enums are sent as int64), * is a repeated field
HLO_SCHEMA = """
Layout: minor_to_major*=1
Shape: element_type=2 dimensions*=3 tuple_shapes:bytes*=4 layout:Layout=5
    is_dynamic_dimension:bool*=6
WindowDimension: size=1 stride=2 padding_low=3 padding_high=4 window_dilation=5 base_dilation=6 window_reversal:bool=7
Window: dimensions:WindowDimension*=1
Convolution: kernel_in=3 kernel_out=4 kernel_spatial*=6 input_batch=7 input_feature=8 output_batch=9 output_feature=10
    input_spatial*=11 output_spatial*=12
Slice: start=1 limit=2 stride=3
PaddingDimension: low=1 high=2
Padding: dimensions:PaddingDimension*=1
Dot: lhs_contracting*=1 rhs_contracting*=2 lhs_batch*=3 rhs_batch*=4
Gather: offset*=1 collapsed_slice*=2 start_index_map*=3 index_vector=4
Metadata: op_name:string=2
Instruction: name:string=1 opcode:string=2 shape:Shape=3 metadata:Metadata=7 parameter_number=9 dimensions*=14
    window:Window=15 convolution:Convolution=16 slices:Slice*=17 dynamic_slice_sizes*=20 padding:Padding=21 dot:Dot=30
    gather:Gather=33 gather_slice_sizes*=34 id=35 operand_ids*=36 called_computation_ids*=38 feature_group_count=50
    batch_group_count=58 is_stable:bool=60 custom_call_target:bytes=28
Computation: name:string=1 instructions:Instruction*=2 id=5 root_id=6
Module: name:string=1 computations:Computation*=3 entry_computation_id=6
HloFile: module:Module=1
Snapshot: file:HloFile=1
TileSizes: kernel_bounds*=1 output_bounds*=2 input_bounds*=3
OpConfig: tile_sizes:TileSizes=1
TensorDims: dims:int32*=1
NodeConfig: tensors:TensorDims*=1
LayoutConfig: nodes:bytes*=1
ModuleConfig: layout:LayoutConfig=1
Profile: compute_time_ns=4
Run: op_config:OpConfig=1 module_config:bytes=2 error:bool=3 profile:Profile=4 is_default:bool=5
Tuned: module:Module=1 fingerprint:uint64=2 runs:bytes*=3 node_config_ids:uint64*=4
TunedModules: modules:bytes*=1
"""
# values of XLA's PrimitiveType in the order of the one-hot columns 2 to 20; newer types have no column
ELEMENT_TYPES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 15, 18, 13, 14, 17)
NODE_SCALARS = MappingProxyType({
    30: "parameter_number", 93: "convolution.input_batch", 94: "convolution.input_feature",
    99: "convolution.kernel_in", 100: "convolution.kernel_out", 105: "convolution.output_batch",
    106: "convolution.output_feature", 107: "feature_group_count", 108: "batch_group_count", 133: "is_stable"})
# first column: (number of values kept, statistics that follow them, field)
NODE_SEQUENCES = MappingProxyType({
    21: (6, "sum product", "shape.dimensions"), 31: (6, "axes", "dimensions"),
    37: (6, "sum product", "window.dimensions.size"), 45: (6, "sum product", "window.dimensions.stride"),
    53: (6, "sum product", "window.dimensions.padding_low"), 61: (6, "sum product", "window.dimensions.padding_high"),
    69: (6, "sum product", "window.dimensions.window_dilation"),
    77: (6, "sum product", "window.dimensions.base_dilation"),
    85: (6, "sum zeros", "window.dimensions.window_reversal"), 95: (4, "axes", "convolution.input_spatial"),
    101: (4, "axes", "convolution.kernel_spatial"), 109: (2, "sum product", "slices.start"),
    113: (2, "sum product", "slices.stride"), 117: (2, "sum product", "slices.limit"),
    121: (2, "sum product", "dynamic_slice_sizes"), 125: (2, "sum product", "padding.dimensions.low"),
    129: (2, "sum product", "padding.dimensions.high"), 134: (6, "axes", "shape.layout.minor_to_major")})
WIDTH = 140


@cache
def hlo_messages():
    """Build the message classes of `HLO_SCHEMA` -> {name: class}."""
    file = descriptor_pb2.FileDescriptorProto(name="kit_hlo.proto", package="kit", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for line in HLO_SCHEMA.replace("\n    ", " ").strip().splitlines():
        name, fields = line.split(": ")
        message = file.message_type.add(name=name)
        for field in fields.split():
            declared, number = field.split("=")
            word, _, kind = declared.rstrip("*").partition(":")
            label = kinds.LABEL_REPEATED if "*" in declared else kinds.LABEL_OPTIONAL
            own = kind[:1].isupper()
            message.field.add(name=word, number=int(number), label=label, type_name=f".kit.{kind}" if own else None,
                              type=kinds.TYPE_MESSAGE if own else getattr(kinds, f"TYPE_{(kind or 'int64').upper()}"))
    pool = descriptor_pool.DescriptorPool()          # TensorFlow registers XLA's messages in the default pool
    pool.AddSerializedFile(file.SerializeToString())
    return {message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kit.{message.name}"))
            for message in file.message_type}


def file_bytes(path):
    """The content of a file; a DataError names one that cannot be read."""
    try:
        return as_path(path).read_bytes()
    except (OSError, MemoryError) as fault:
        raise DataError(f"{path}: cannot be read ({fault})") from fault


def parse_hlo(data, kind, source):
    """Parse bytes as a message of `HLO_SCHEMA`; any fault is a DataError that names `source`."""
    try:
        return hlo_messages()[kind].FromString(data)
    except (DecodeError, ValueError, MemoryError) as fault:
        raise DataError(f"{source}: no protobuf of the kind {kind} ({fault}); fetch the file again") from fault


def program_arrays(module, source):
    """Encode a module as the official extractor does -> node_feat, node_opcode, edge_index, node_splits."""
    # node_feat is (n, 140) float32. Edges are sorted; row [u, v]: u consumes v, or calls the computation whose root
    # is v.
    instructions = [instruction for computation in module.computations for instruction in computation.instructions]
    if not instructions:
        raise DataError(f"{source}: the module has no instruction")
    opcodes = {name: number for number, name in enumerate(OPCODE_NAMES)}
    node_opcode = np.array([opcodes.get(instruction.opcode, 0) for instruction in instructions])
    edge_index, roots = _edges(module, source)
    fields = _Fields(instructions)
    node_feat = np.zeros((len(instructions), WIDTH), np.float32)
    node_feat[roots, IS_ROOT] = 1
    rows, types = fields.at("shape.element_type")
    hot = np.zeros(len(instructions), np.int64)
    hot[rows] = types
    node_feat[:, ELEMENT_TYPE] = hot[:, None] == ELEMENT_TYPES
    rows, tuples = fields.at("shape.tuple_shapes")
    node_feat[rows, 29] = [len(shapes) for shapes in tuples]
    for column, name in NODE_SCALARS.items():
        rows, values = fields.at(name)
        node_feat[rows, column] = np.array(values, np.int64)
    for first, (count, follows, name) in NODE_SEQUENCES.items():
        write_sequences(node_feat, *fields.at(name), first, count, follows)
    return node_feat, node_opcode, edge_index, _splits(module)


def write_sequences(table, rows, lists, first, count, follows):
    """Write the first `count` values of each list into its row from column `first` on, then the statistics named."""
    lengths = np.array([len(values) for values in lists], np.int64)
    flat = np.fromiter(chain.from_iterable(lists), np.int64, lengths.sum())
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(flat)) - np.repeat(starts, lengths)
    kept = place < count
    table[np.repeat(np.array(rows, np.int64), lengths)[kept], first + place[kept]] = flat[kept]
    if follows == "sum product":
        table[:, first + count + 1] = 1                      # product of an empty list
    if follows.startswith("sum") and len(flat):
        filled = lengths > 0
        rows, starts, lengths = np.array(rows, np.int64)[filled], starts[filled], lengths[filled]
        sums = np.add.reduceat(flat, starts)                 # 64-bit integers wrap, as in the extractor
        table[rows, first + count] = sums
        table[rows, first + count + 1] = (np.multiply.reduceat(flat, starts) if follows == "sum product"
                                          else lengths - sums)


class _Fields:
    """The fields of many messages, each gathered once: dotted name -> (rows, values)."""

    def __init__(self, messages):
        self.found, self.gathered = {"": (range(len(messages)), messages)}, set()

    def at(self, name):
        parent, _, field = name.rpartition(".")
        if name not in self.found and parent not in self.gathered:
            rows, messages = self.at(parent)
            if len(messages) and not hasattr(messages[0], "ListFields"):             # lists of messages
                self.found[name] = rows, [[getattr(message, field) for message in listed] for listed in messages]
            else:
                self.gathered.add(parent)
                dot = parent and parent + "."
                for row, message in zip(rows, messages):
                    for descriptor, value in message.ListFields():
                        where, values = self.found.setdefault(dot + descriptor.name, ([], []))
                        where.append(row)
                        values.append(value)
        return self.found.get(name, ([], []))


def _edges(module, source):
    """The module's edges, sorted; its roots."""
    edges, roots, root_of, calls, node = [], [], {}, [], 0
    for computation in module.computations:
        place = {instruction.id: node + i for i, instruction in enumerate(computation.instructions)}
        if len(place) < len(computation.instructions):
            raise DataError(f"{source}: two instructions of computation {computation.name!r} have one id")
        if computation.root_id in place:
            root_of[computation.id] = place[computation.root_id]
            roots.append(place[computation.root_id])
        for instruction in computation.instructions:
            operands = [place.get(operand) for operand in instruction.operand_ids]
            if None in operands or node in operands:
                raise DataError(f"{source}: operand_ids of instruction {instruction.name!r} name "
                                f"{list(instruction.operand_ids)}, which are not all other instructions of its "
                                "computation")
            edges += [(node, operand) for operand in operands]
            calls += [(node, called) for called in instruction.called_computation_ids]
            node += 1
    lacking = {called for _, called in calls} - set(root_of)
    if lacking:
        raise DataError(f"{source}: called_computation_ids name computation {min(lacking)}, which the module lacks or "
                        "which has no root")
    edges += [(user, root_of[called]) for user, called in calls]
    return np.array(sorted(set(edges)), np.int64).reshape(-1, 2), roots


def _splits(module):
    """Ends of the computations that the official extractor counts as major."""
    splits, end = [0], 0
    for computation in module.computations:
        end += len(computation.instructions)
        if any(word in computation.name for word in ("cluster", "while", "cond")):
            splits.append(end)
    return np.array(splits if splits[-1] == end else [*splits, end], np.int64)


def read_layout_pb(path):
    """Read the raw protobuf of one program of a layout collection.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    LayoutGraph
        Its configurations are the runs measured without error, in file order. If no run has a profile, as in a file
        without runtimes, its configurations are all runs without error, with runtime 0.

    Raises
    ------
    DataError
        If the file is no such protobuf, or a field is not as described.
    """
    tuned = parse_hlo(file_bytes(path), "Tuned", path)
    node_feat, node_opcode, edge_index, node_splits = program_arrays(tuned.module, path)
    node_config_ids = np.array(tuned.node_config_ids, np.uint64)
    if len(np.unique(node_config_ids)) < len(node_config_ids):
        raise DataError(f"{path}: config_index_to_node names a node twice")
    if len(node_config_ids) and node_config_ids.max() >= len(node_feat):
        raise DataError(f"{path}: config_index_to_node names node {node_config_ids.max()}, but there are "
                        f"{len(node_feat)} nodes")
    runs = _runs(tuned, path)
    runs = [run for run in runs if run.module_config and not run.error]
    if any(run.HasField("profile") for run in runs):
        runs = [run for run in runs if run.HasField("profile")]
        if (least := min(run.profile.compute_time_ns for run in runs)) < 1:
            raise DataError(f"{path}: a run has compute_time_ns {least}, expected at least 1")
    runtime = np.array([run.profile.compute_time_ns for run in runs], np.int64)
    row_ids, rows = _digit_ids([run.module_config for run in runs], len(node_config_ids), path)
    return LayoutGraph(Path(path).stem, node_feat, node_opcode, edge_index, node_config_ids.astype(np.int64),
                       node_splits, *factor_configs(row_ids, rows), runtime)


def read_tile_pb(path):
    """Read the raw protobuf of one program's kernels of `tile:xla`.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    list of TileGraph
        In file order. As in the npz files, kernels with fewer than two runs or with a run without tile sizes are left
        out. graph_id is the name of the npz file: the program's name and the kernel's fingerprint.

    Raises
    ------
    DataError
        If the file is no such protobuf, holds no kernel, or a field is not as described.
    """
    graphs = []
    for number, data in enumerate(parse_hlo(file_bytes(path), "TunedModules", path).modules):
        source = f"{path}: modules[{number}]"
        tuned = parse_hlo(data, "Tuned", source)
        runs = _runs(tuned, source)
        if len(runs) < 2 or not all(run.op_config.HasField("tile_sizes") for run in runs):
            continue
        program = program_arrays(tuned.module, source)[:3]
        runs = [run for run in runs if not run.error and run.profile.compute_time_ns > 1]   # 1 ns: not measured
        default = [run.profile.compute_time_ns for run in runs if run.is_default]
        if not default:
            raise DataError(f"{source}: no run of the default configuration was measured")
        config_feat = np.zeros((len(runs), 24), np.float32)
        for first, bounds in ((0, "kernel_bounds"), (8, "output_bounds"), (16, "input_bounds")):
            lists = [getattr(run.op_config.tile_sizes, bounds) for run in runs]
            write_sequences(config_feat, range(len(runs)), lists, first, 6, "sum product")
            config_feat[[not values for values in lists], first + 7] = 0      # here the product of an empty list is 0
        fingerprint = tuned.fingerprint - (tuned.fingerprint >> 63 << 64)          # signed in file names
        runtime = np.array([run.profile.compute_time_ns for run in runs], np.int64)
        graphs.append(TileGraph(f"{Path(path).stem}_{fingerprint:x}", *program, config_feat, runtime,
                                np.full(len(runs), default[0], np.int64)))
    if not graphs:
        raise DataError(f"{path}: modules holds no kernel with two runs and tile sizes")
    return graphs


def _runs(tuned, source):
    """The parsed runs of a tuned module."""
    return [parse_hlo(run, "Run", f"{source}: runs[{i}]") for i, run in enumerate(tuned.runs)]


def _digit_ids(configs, nc, source):
    """(c,) encoded configurations -> (nc, c) ids of distinct rows, and these rows, (K, 18) int8."""
    # configurations repeat, and so do their nodes: each distinct string of bytes is decoded once
    seen, ids_of = {}, {}
    for config in configs:
        if config not in ids_of:
            nodes = parse_hlo(config, "ModuleConfig", source).layout.nodes
            if len(nodes) != nc:
                raise DataError(f"{source}: layout_config has {len(nodes)} nodes, config_index_to_node {nc}")
            ids_of[config] = np.array([seen.setdefault(node, len(seen)) for node in nodes], np.int32)
    rows = np.full((len(seen), DIGITS), -1, np.int8)
    for row, node in zip(rows, seen):
        tensors = parse_hlo(node, "NodeConfig", source).tensors
        if len(tensors) > 3:
            raise DataError(f"{source}: layout_config gives {len(tensors)} tensors of a node; it has at most 3")
        for place, tensor in enumerate(tensors):
            digits = list(tensor.dims)[:6]
            if not all(-1 <= digit <= 5 for digit in digits):
                raise DataError(f"{source}: layout_config holds the digits {digits}; digits are integers in -1..5")
            row[6 * place:6 * place + len(digits)] = digits
    rows, same = np.unique(rows, axis=0, return_inverse=True)      # different bytes may encode equal rows
    row_ids = np.empty((nc, len(configs)), np.int32)
    for column, config in enumerate(configs):
        row_ids[:, column] = same.reshape(-1)[ids_of[config]]
    return row_ids, rows
