"""Raw protobufs: equal to the official npz files and to a second encoder; no bytes raise anything but DataError."""
import numpy as np
import pytest

from kit.data import OPCODE_NAMES, DataError, dense_configs, read_layout, read_tile
from kit.hlo import hlo_messages, program_arrays, read_layout_pb, read_tile_pb

UNET = "layout/xla/default/valid/unet_3d.4x4.bf16"
ALEXNET = "tile/xla/train/alexnet_train_batch_32"
PROGRAM = ("node_feat", "node_opcode", "edge_index", "node_config_ids", "node_splits")
F32, TUPLE = 11, 13              # of XLA's PrimitiveType


def shape(*sizes, layout=None):
    return {"element_type": F32, "dimensions": sizes,
            "layout": {"minor_to_major": tuple(range(len(sizes)))[::-1] if layout is None else layout}}


def drawn_module():
    """A while loop over a called computation, and one instruction of each kind that has features of its own."""
    window = {"dimensions": [{"size": 3, "stride": 2, "padding_low": -1, "padding_high": 1, "window_dilation": 1,
                              "base_dilation": 1, "window_reversal": True}, {"size": 5, "stride": 1}]}
    axes = {"input_batch": 3, "input_feature": 2, "input_spatial": [0, 1], "kernel_in": 2, "kernel_out": 3,
            "kernel_spatial": [0, 1], "output_batch": 3, "output_feature": 2, "output_spatial": [0, 1]}
    gather = {"offset": [1], "collapsed_slice": [0], "start_index_map": [0], "index_vector": 1}
    dot = {"lhs_contracting": [1], "rhs_contracting": [0], "lhs_batch": [2, 3], "rhs_batch": [3]}
    body = [dict(opcode="parameter", id=70, shape=shape(8, 16)),
            dict(opcode="add", id=71, shape=shape(8, 16), operand_ids=[70, 70])]
    entry = [
        dict(opcode="parameter", id=5, shape=shape(28, 29, 3, 8, layout=(2, 3, 1, 0)), parameter_number=2),
        dict(opcode="parameter", id=6, shape=shape(3, 5, 3, 64)),
        dict(opcode="convolution", id=8, shape=shape(14, 25, 64, 8), operand_ids=[5, 6], window=window,
             convolution=axes, feature_group_count=1, batch_group_count=4),
        dict(opcode="reshape", id=9, shape=shape(22400, 8), operand_ids=[8]),
        dict(opcode="dot", id=20, shape=shape(22400, 4), operand_ids=[9, 6], dot=dot),
        dict(opcode="gather", id=21, shape=shape(7, 8), operand_ids=[9, 20], gather=gather, gather_slice_sizes=[1, 8]),
        dict(opcode="slice", id=22, shape=shape(2, 8), operand_ids=[21],
             slices=[{"start": 1, "limit": 5, "stride": 2}, {"limit": 8, "stride": 1}]),
        dict(opcode="dynamic-slice", id=23, shape=shape(2, 3), operand_ids=[22], dynamic_slice_sizes=[2, 3]),
        dict(opcode="pad", id=24, shape=shape(1, 2, 3, 4, 5, 6, 7), operand_ids=[23],
             padding={"dimensions": [{"low": -2, "high": 9}, {"low": 1}, {"high": 3}]}),
        dict(opcode="sort", id=25, shape=shape(2 ** 40, 2 ** 40), operand_ids=[24], is_stable=True, dimensions=[1]),
        dict(opcode="while", id=26, shape={"element_type": TUPLE, "tuple_shapes": [b"", b"", b""]},
             operand_ids=[25], called_computation_ids=[1]),
        dict(opcode="brand-new", id=27, operand_ids=[26, 24]),
    ]
    return {"name": "drawn", "computations": [
        {"name": "while_body", "id": 1, "root_id": 71, "instructions": body},
        {"name": "main", "id": 2, "root_id": 27, "instructions": entry}]}


def message(kind, fields):
    """A message from nested dicts; `bytes` fields may be given as (kind, fields)."""
    def encoded(value):
        if isinstance(value, tuple) and value and isinstance(value[0], str):
            return message(*value).SerializeToString()
        if isinstance(value, dict):
            return {name: encoded(inner) for name, inner in value.items()}
        return [encoded(inner) for inner in value] if isinstance(value, (list, tuple)) else value
    return hlo_messages()[kind](**encoded(fields))


def config(*nodes):
    return "ModuleConfig", {"layout": {"nodes": [("NodeConfig", {"tensors": [{"dims": dims} for dims in tensors]})
                                                 for tensors in nodes]}}


CONV, DEFAULT = ([3, 2, 1, 0], [0, 1], [2, 3]), ()


def drawn_layout_file(**changes):
    """Three configurable nodes, the first and the last tied; five runs, of which the fourth failed."""
    runs = [dict(module_config=config(CONV, DEFAULT, CONV), profile={"compute_time_ns": 70}),
            dict(module_config=config(DEFAULT, ([1, 0],), DEFAULT), profile={"compute_time_ns": 2 ** 40}),
            dict(module_config=config(CONV, DEFAULT, CONV), profile={"compute_time_ns": 71}, is_default=True),
            dict(module_config=config(CONV, CONV, CONV), profile={"compute_time_ns": 1}, error=True),
            dict(module_config=config(CONV, ([1, 0],), CONV))]
    fields = {"module": drawn_module(), "runs": [("Run", run) for run in runs], "node_config_ids": [4, 6, 5], **changes}
    return message("Tuned", fields).SerializeToString()


def drawn_kernel(**changes):
    runs = [dict(op_config={"tile_sizes": {"output_bounds": [2, 128], "kernel_bounds": [3]}},
                 profile={"compute_time_ns": 500}, is_default=True),
            dict(op_config={"tile_sizes": {"output_bounds": [8, 8, 8, 8, 8, 8, 3]}}, profile={"compute_time_ns": 400}),
            dict(op_config={"tile_sizes": {}}, profile={"compute_time_ns": 1})]
    return "Tuned", {"module": drawn_module(), "fingerprint": 2 ** 64 - 255, "runs": [("Run", run) for run in runs],
                     **changes}


def drawn_tile_file(*kernels):
    return message("TunedModules", {"modules": kernels or [drawn_kernel()]}).SerializeToString()


@pytest.fixture
def file(tmp_path):
    def write(data):
        path = tmp_path / "drawn.pb"
        path.write_bytes(data)
        return path
    return write


def slow_features(instruction, root_id):
    """One instruction's 140 features, pushed one after the other."""
    def wrapped(value):
        return (value + 2 ** 63) % 2 ** 64 - 2 ** 63

    def listed(values, count):
        values = [int(value) for value in values][:count]
        return values + [0] * (count - len(values))

    def summed(values, count):
        product = 1
        for value in values:
            product *= value
        return listed(values, count) + [wrapped(sum(values)), wrapped(product)]

    i, window, c = instruction, instruction.window.dimensions, instruction.convolution
    row = [int(i.id == root_id), 0]
    row += [int(i.shape.element_type == t) for t in (*range(13), 16, 15, 18, 13, 14, 17)]
    row += summed(i.shape.dimensions, 6) + [len(i.shape.tuple_shapes), i.parameter_number]
    row += listed(i.dimensions, 6)
    for field in ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation"):
        row += summed([getattr(d, field) for d in window], 6)
    flipped = [d.window_reversal for d in window]
    row += listed(flipped, 6) + [sum(flipped), len(flipped) - sum(flipped)]
    row += [c.input_batch, c.input_feature, *listed(c.input_spatial, 4), c.kernel_in, c.kernel_out,
            *listed(c.kernel_spatial, 4), c.output_batch, c.output_feature]
    row += [i.feature_group_count, i.batch_group_count]
    for field in ("start", "stride", "limit"):
        row += summed([getattr(s, field) for s in i.slices], 2)
    row += summed(i.dynamic_slice_sizes, 2)
    for field in ("low", "high"):
        row += summed([getattr(d, field) for d in i.padding.dimensions], 2)
    return row + [int(i.is_stable)] + listed(i.shape.layout.minor_to_major, 6)


def test_unet_3d_is_the_official_file_bit_for_bit(real_data):
    graph, official = (read(real_data / kind / f"{UNET}.{kind}") for read, kind in
                       ((read_layout_pb, "pb"), (read_layout, "npz")))
    for name in PROGRAM:
        own, theirs = getattr(graph, name), getattr(official, name)
        assert (own.dtype, own.shape, own.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes()), name
    assert graph.graph_id == official.graph_id
    known = {(rows.tobytes(), runtime) for rows, runtime in
             zip(dense_configs(official, range(len(official.config_runtime))), official.config_runtime)}
    runs = list(zip(dense_configs(graph, range(len(graph.config_runtime))), graph.config_runtime))
    assert len(runs) == 112 and all((rows.tobytes(), runtime) in known for rows, runtime in runs)


def test_11_alexnet_kernels_are_the_official_files_bit_for_bit(real_data):
    graphs = read_tile_pb(real_data / "pb" / f"{ALEXNET}.pb")
    assert len(graphs) == 11
    for graph in graphs:
        official = read_tile(real_data / "npz" / "tile/xla/train" / f"{graph.graph_id}.npz")
        assert graph.graph_id == official.graph_id
        for name, own, theirs in zip(graph._fields[1:], graph[1:], official[1:]):
            assert (own.dtype, own.shape, own.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes()), name


def test_features_of_a_drawn_program_are_those_of_a_second_encoder(file):
    module = message("Module", drawn_module())
    graph = read_layout_pb(file(drawn_layout_file()))
    expected = [slow_features(instruction, computation.root_id)
                for computation in module.computations for instruction in computation.instructions]
    np.testing.assert_array_equal(graph.node_feat, np.array(expected, np.float32))
    assert graph.node_feat.dtype == np.float32


def test_opcodes_edges_and_splits_of_a_drawn_program(file):
    graph = read_layout_pb(file(drawn_layout_file()))
    names = ("parameter add parameter parameter convolution reshape dot gather slice dynamic-slice pad sort while "
             "unknown").split()
    assert [OPCODE_NAMES[number] for number in graph.node_opcode] == names
    assert graph.edge_index.tolist() == [[1, 0], [4, 2], [4, 3], [5, 4], [6, 3], [6, 5], [7, 5], [7, 6], [8, 7],
                                         [9, 8], [10, 9], [11, 10], [12, 1], [12, 11], [13, 10], [13, 12]]
    assert graph.node_splits.tolist() == [0, 2, 14]
    assert graph.node_config_ids.tolist() == [4, 6, 5]


def test_runs_become_codes_and_failed_or_unmeasured_ones_do_not(file):
    graph = read_layout_pb(file(drawn_layout_file()))
    assert graph.config_runtime.tolist() == [70, 2 ** 40, 71]
    assert graph.config_codes.shape == (3, 1), "the second node changes whenever the others do"
    conv = [3, 2, 1, 0, -1, -1, 0, 1, -1, -1, -1, -1, 2, 3, -1, -1, -1, -1]
    none, reshape = [-1] * 18, [1, 0] + [-1] * 16
    assert dense_configs(graph, range(3)).tolist() == [[conv, none, conv], [none, reshape, none], [conv, none, conv]]


def test_a_file_without_runs_gives_its_graph_and_no_configuration(file):
    graph = read_layout_pb(file(drawn_layout_file(runs=[])))
    assert graph.node_feat.shape == (14, 140) and len(graph.config_runtime) == 0
    assert dense_configs(graph, []).shape == (0, 3, 18)


def test_tile_sizes_of_a_drawn_kernel(file):
    first, second = read_tile_pb(file(drawn_tile_file(drawn_kernel(), drawn_kernel(fingerprint=255))))
    assert [first.graph_id, second.graph_id] == ["drawn_-ff", "drawn_ff"]
    assert first.config_runtime.tolist() == [500, 400] and first.config_runtime_normalizers.tolist() == [500, 500]
    assert first.config_feat.tolist() == [
        [3, 0, 0, 0, 0, 0, 3, 3, 2, 128, 0, 0, 0, 0, 130, 256] + [0] * 8,
        [0] * 8 + [8, 8, 8, 8, 8, 8, 51, 3 * 8 ** 6] + [0] * 8]


def test_kernels_without_a_choice_of_tile_sizes_are_left_out(file):
    lonely = drawn_kernel(runs=drawn_kernel()[1]["runs"][:1])
    unsized = drawn_kernel(runs=[("Run", dict(profile={"compute_time_ns": 5}))] * 2)
    graphs = read_tile_pb(file(drawn_tile_file(lonely, drawn_kernel(), unsized)))
    assert [graph.graph_id for graph in graphs] == ["drawn_-ff"]
    with pytest.raises(DataError, match="modules holds no kernel with two runs and tile sizes"):
        read_tile_pb(file(drawn_tile_file(lonely, unsized)))


def test_two_computations_may_use_the_same_instruction_ids():
    module = drawn_module()
    renamed = {70: 5, 71: 6}
    body = [dict(i, id=renamed[i["id"]], operand_ids=[renamed[o] for o in i.get("operand_ids", [])])
            for i in module["computations"][0]["instructions"]]
    module["computations"][0].update(instructions=body, root_id=6)
    arrays = program_arrays(message("Module", module), "drawn")
    for own, expected in zip(arrays, program_arrays(message("Module", drawn_module()), "drawn")):
        np.testing.assert_array_equal(own, expected)


def changed(place, number, **fields):
    """The drawn module with other fields in one instruction."""
    module = drawn_module()
    module["computations"][place]["instructions"][number].update(fields)
    return module


@pytest.mark.parametrize("changes, words", [
    (dict(module={}), "the module has no instruction"),
    (dict(module=changed(1, 3, operand_ids=[8, 99])), r"operand_ids of instruction '' name \[8, 99\]"),
    (dict(module=changed(1, 3, id=8)), "two instructions of computation 'main' have one id"),
    (dict(module=changed(1, 3, called_computation_ids=[7])), "called_computation_ids name computation 7"),
    (dict(node_config_ids=[4, 4, 5]), "config_index_to_node names a node twice"),
    (dict(node_config_ids=[4, 14, 5]), "config_index_to_node names node 14, but there are 14 nodes"),
    (dict(node_config_ids=[4, 5]), "layout_config has 3 nodes, config_index_to_node 2"),
    (dict(runs=[("Run", dict(module_config=config(([6],), (), ())))]), r"layout_config holds the digits \[6\]"),
    (dict(runs=[("Run", dict(module_config=config(([],) * 4, (), ())))]), "layout_config gives 4 tensors of a node"),
    (dict(runs=[("Run", dict(module_config=config((), (), ()), profile={}))]), "a run has compute_time_ns 0"),
    (dict(runs=[b"\xff"]), r"runs\[0\]: no protobuf of the kind Run"),
    (dict(runs=[("Run", dict(module_config=b"\xff"))]), "no protobuf of the kind ModuleConfig"),
])
def test_a_layout_file_with_a_fault_is_refused_by_name(file, changes, words):
    path = file(drawn_layout_file(**changes))
    with pytest.raises(DataError, match=words) as error:
        read_layout_pb(path)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("changes, words", [
    (dict(module={}), "the module has no instruction"),
    (dict(runs=[("Run", dict(op_config={"tile_sizes": {}}, profile={"compute_time_ns": 9}))] * 2),
     "no run of the default configuration was measured"),
])
def test_a_tile_file_with_a_fault_is_refused_by_name(file, changes, words):
    path = file(drawn_tile_file(drawn_kernel(**changes)))
    with pytest.raises(DataError, match=words) as error:
        read_tile_pb(path)
    assert str(error.value).startswith(f"{path}: modules[0]: ")


@pytest.mark.parametrize("read", [read_layout_pb, read_tile_pb])
def test_what_is_no_such_file_is_refused_by_name(file, tmp_path, read):
    other = drawn_tile_file() if read is read_layout_pb else drawn_layout_file()
    for path in (tmp_path, tmp_path / "missing.pb", file(b""), file(b"PK\x03\x04 no protobuf"), file(other)):
        with pytest.raises(DataError) as error:
            read(path)
        assert str(error.value).startswith(str(path))


def mutated(data, rng):
    """The bytes truncated, or with bits flipped, a piece cut out or repeated."""
    kind, (a, b) = rng.integers(4), np.sort(rng.integers(0, len(data), 2))
    if kind == 0:
        return data[:a]
    if kind == 1:
        flipped = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            flipped[place] ^= 1 << rng.integers(8)
        return bytes(flipped)
    return data[:a] + data[b:] if kind == 2 else data[:b] + data[a:]


@pytest.mark.parametrize("read, data", [(read_layout_pb, drawn_layout_file()), (read_tile_pb, drawn_tile_file())])
def test_mutated_files_are_refused_by_name_or_give_consistent_arrays(file, read, data):
    rng, refused = np.random.default_rng(0), 0
    for _ in range(500):
        path = file(mutated(data, rng))
        try:
            graphs = read(path)
        except DataError as error:
            assert str(error).startswith(f"{path}: ")
            refused += 1
            continue
        for graph in [graphs] if read is read_layout_pb else graphs:
            n, c = len(graph.node_feat), len(graph.config_runtime)
            assert n and graph.node_opcode.shape == (n,) and graph.node_feat.shape == (n, 140)
            assert graph.edge_index.size == 0 or 0 <= graph.edge_index.min() <= graph.edge_index.max() < n
            if read is read_layout_pb:
                assert dense_configs(graph, range(c)).shape == (c, len(graph.node_config_ids), 18)
            else:
                assert graph.config_feat.shape == (c, 24) and (graph.config_runtime > 1).all()
    assert 100 < refused < 500
