"""Read the data set's raw protobufs -> the same arrays as from its npz files.

Source for the content of the files, and for which of their runs count:
github.com/google-research-datasets/tpu_graphs, tuning.proto and tuning_data_iterator.cc.
"""
from pathlib import Path

import numpy as np

from kit.data import DIGITS, DataError, LayoutGraph, TileGraph, factor_configs
from kit.programs import file_bytes, parse_hlo, program_arrays, write_sequences


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
