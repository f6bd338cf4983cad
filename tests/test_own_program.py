"""One's own program: the rules hold on the real files, the layouts against brute force, and a model can score it."""
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from importlib.util import find_spec
from itertools import permutations, product

import numpy as np
import pytest
from drawn import costs, ready

from kit.data import OPCODE_NAMES, DataError, dense_configs, npz_paths, read_layout
from kit.hlo import hlo_messages, parse_hlo
from kit.models.config_token import ConfigTokenModel
from kit.programs.options import bitcast_layouts, dot_axes, least_padded
from kit.programs.own import LIKE, layout_words, program_from_hlo, with_configs

UNET = "layout/xla/default/valid/unet_3d.4x4.bf16"
CONV, DOT, RESHAPE, FUSION = (OPCODE_NAMES.index(name) for name in ("convolution", "dot", "reshape", "fusion"))
F32 = 11                         # of XLA's PrimitiveType
FORWARD = dict(input_batch=0, input_feature=3, input_spatial=[1, 2], kernel_in=2, kernel_out=3, kernel_spatial=[0, 1],
               output_batch=0, output_feature=3, output_spatial=[1, 2])
WEIGHT_GRADIENT = dict(input_batch=3, input_feature=0, input_spatial=[1, 2], kernel_in=0, kernel_out=3,
                       kernel_spatial=[1, 2], output_batch=2, output_feature=3, output_spatial=[0, 1])


class Program:
    """Writes an HLO module, instruction by instruction."""

    def __init__(self, name):
        self.message = hlo_messages()["Module"](name=name)
        self.ids = iter(range(1, 1000))
        self.shapes = {}

    def computation(self, name):
        self.last = self.message.computations.add(name=name, id=next(self.ids))
        return self.last.id

    def add(self, opcode, shape, *operands, **fields):
        number = next(self.ids)
        layout = {"minor_to_major": range(len(shape))[::-1]}
        self.last.instructions.add(
            name=f"{opcode}.{number}", opcode=opcode, id=number, operand_ids=operands,
            shape={"element_type": F32, "dimensions": shape, "layout": layout}, **fields)
        self.last.root_id, self.shapes[number] = number, shape
        return number

    def parameters(self, *shapes):
        return [self.add("parameter", shape, parameter_number=i) for i, shape in enumerate(shapes)]


def window(*sizes, stride=1, pad=(0, 0)):
    return {"dimensions": [dict(size=size, stride=stride, padding_low=pad[0], padding_high=pad[1], window_dilation=1,
                                base_dilation=1) for size in sizes]}


def small_network():
    """A training step of a small image classifier: two convolutions, two dense layers, and most of its gradients.

    notebooks/own_program.hlo.pb is this message: `path.write_bytes(small_network().SerializeToString())`.
    """
    p = Program("small_network")
    reducers = {}
    for opcode in ("maximum", "add"):
        reducers[opcode] = p.computation(f"reduce_{opcode}")
        p.add(opcode, (), *p.parameters((), ()))
    larger = p.computation("larger")
    p.add("compare", (), *p.parameters((), ()))
    p.computation("main")
    image, kernel1, kernel2, dense1, dense2, bias, wanted = p.parameters(
        (32, 32, 32, 3), (5, 5, 3, 32), (3, 3, 32, 64), (4096, 256), (256, 10), (10,), (32, 10))
    zero, rate = p.add("constant", ()), p.add("constant", ())

    def relu(x):
        zeros = p.add("broadcast", p.shapes[x], zero)
        return p.add("maximum", p.shapes[x], x, zeros), p.add("compare", p.shapes[x], x, zeros), zeros

    def pooled(x):
        n, h, w, c = p.shapes[x]
        return p.add("reduce-window", (n, h // 2, w // 2, c), x, zero, window=window(1, 2, 2, 1, stride=2),
                     called_computation_ids=[reducers["maximum"]])

    def dot(shape, lhs, rhs, lhs_axis, rhs_axis):
        return p.add("dot", shape, lhs, rhs, dot=dict(lhs_contracting=[lhs_axis], rhs_contracting=[rhs_axis]))

    def updated(weights, gradient):
        step = p.add("multiply", p.shapes[weights], gradient, p.add("broadcast", p.shapes[weights], rate))
        return p.add("subtract", p.shapes[weights], weights, step)

    conv1 = p.add("convolution", (32, 32, 32, 32), image, kernel1, window=window(5, 5, pad=(2, 2)),
                  convolution=FORWARD, feature_group_count=1, batch_group_count=1)
    pool1 = pooled(relu(conv1)[0])
    conv2 = p.add("convolution", (32, 16, 16, 64), pool1, kernel2, window=window(3, 3, pad=(1, 1)),
                  convolution=FORWARD, feature_group_count=1, batch_group_count=1)
    active2, _, _ = relu(conv2)
    flat = p.add("reshape", (32, 4096), pooled(active2))
    hidden, on, zeros = relu(dot((32, 256), flat, dense1, 1, 0))
    logits = p.add("add", (32, 10), dot((32, 10), hidden, dense2, 1, 0),
                   p.add("broadcast", (32, 10), bias, dimensions=[1]))
    error = p.add("subtract", (32, 10), p.add("logistic", (32, 10), logits), wanted)
    bias_gradient = p.add("reduce", (10,), error, zero, dimensions=[0], called_computation_ids=[reducers["add"]])
    dense2_gradient = dot((256, 10), hidden, error, 0, 0)
    hidden_error = p.add("select", (32, 256), on, dot((32, 256), error, dense2, 1, 1), zeros)
    dense1_gradient = dot((4096, 256), flat, hidden_error, 0, 0)
    pool_error = p.add("reshape", (32, 8, 8, 64), dot((32, 4096), hidden_error, dense1, 1, 1))
    conv2_error = p.add("select-and-scatter", (32, 16, 16, 64), active2, pool_error, zero,
                        window=window(1, 2, 2, 1, stride=2), called_computation_ids=[larger, reducers["add"]])
    kernel2_gradient = p.add("convolution", (3, 3, 32, 64), pool1, conv2_error, window=window(16, 16, pad=(1, 1)),
                             convolution=WEIGHT_GRADIENT, feature_group_count=1, batch_group_count=1)
    new = [updated(*pair) for pair in ((kernel2, kernel2_gradient), (dense1, dense1_gradient),
                                       (dense2, dense2_gradient), (bias, bias_gradient))]
    p.add("tuple", (), *new)
    del p.last.instructions[-1].shape.layout.minor_to_major[:]
    p.last.instructions[-1].shape.element_type = 13
    p.last.instructions[-1].shape.tuple_shapes.extend([b""] * len(new))
    p.message.entry_computation_id = p.last.id
    return p.message


@pytest.fixture(scope="module")
def real_layouts(real_data):
    return [read_layout(path) for source in ("xla", "nlp") for kind in ("random", "default")
            for split in ("train", "valid", "test")
            for path in npz_paths(real_data / "npz", f"layout:{source}:{kind}", split)]


def sizes(graph, node):
    return tuple(graph.node_feat[node, 21:27][graph.node_feat[node, 21:27] != 0].astype(int).tolist())


def operands(graph, node):
    return [sizes(graph, v) for v in graph.edge_index[graph.edge_index[:, 0] == node, 1]]


def seen_choices(graph, place):
    """The rows that a configurable node has in a file, as a set of (output, input, kernel) without padding."""
    used = np.unique(graph.config_codes[:, graph.node_group[place]])
    return {tuple(tuple(digit for digit in row[first:first + 6].tolist() if digit >= 0) for first in (0, 6, 12))
            for row in graph.code_rows[place, used]}


def nodes_of(graphs, opcode):
    return [(graph, place, node) for graph in graphs for place, node in enumerate(graph.node_config_ids)
            if graph.node_opcode[node] == opcode]


def searched(graph):
    """Whether a file holds several configurations; one repeats a single one."""
    return (graph.config_codes != graph.config_codes[0]).any()


def fused_nodes(graph):
    """Nodes of computations that a fusion calls: what the called root is made of."""
    todo = [v for u, v in graph.edge_index if graph.node_opcode[u] == FUSION and graph.node_feat[v, 0] == 1]
    found = set()
    while todo:
        node = int(todo.pop())
        if node not in found:
            found.add(node)
            todo += graph.edge_index[graph.edge_index[:, 0] == node, 1].tolist()
    return found


def test_configurable_are_convolutions_dots_and_reshapes_outside_fusions(real_layouts):
    counts = defaultdict(int)
    for graph in real_layouts:
        configurable, fused = set(graph.node_config_ids.tolist()), fused_nodes(graph)
        for node in np.flatnonzero(np.isin(graph.node_opcode, (CONV, DOT, RESHAPE))):
            assert (node in configurable) == (node not in fused), (graph.graph_id, node)
            counts[int(graph.node_opcode[node]), node in fused] += 1
        assert np.isin(graph.node_opcode[graph.node_config_ids], (CONV, DOT, RESHAPE)).all()
    assert dict(counts) == {(CONV, False): 240, (DOT, False): 933, (RESHAPE, False): 163, (RESHAPE, True): 14}


def test_convolutions_order_batch_and_feature_of_each_tensor(real_layouts):
    nodes, complete = nodes_of(real_layouts, CONV), 0
    for graph, place, node in nodes:
        a = graph.node_feat[node].astype(int)
        every = set(product(*[permutations(a[[batch, batch + 1]].tolist()) for batch in (105, 93, 99)]))
        seen = seen_choices(graph, place)
        assert seen <= every
        complete += seen == every
    assert (len(nodes), complete) == (240, 100)


@cache
def possible_dots(output, lhs, rhs):
    """The axes that `dot_axes` gives for each way of pairing the dimensions of these shapes in order."""
    found = set()
    for kinds in product(product("bfc", repeat=len(lhs)), product("bfc", repeat=len(rhs))):
        if sum(side.count("f") for side in kinds) + kinds[0].count("b") != len(output):
            continue
        left, right = ({kind: [axis for axis, k in enumerate(side) if k == kind] for kind in "bfc"} for side in kinds)
        if any([lhs[i] for i in left[k]] != [rhs[i] for i in right[k]] for k in "bc"):
            continue
        if (*[lhs[i] for i in left["b"] + left["f"]], *[rhs[i] for i in right["f"]]) == output:
            numbers = hlo_messages()["Dot"](lhs_contracting=left["c"], rhs_contracting=right["c"],
                                            lhs_batch=left["b"], rhs_batch=right["b"])
            found.add(tuple(tuple(sorted(axes)) for axes in dot_axes(numbers, len(lhs), len(rhs))))
    return found


def test_dots_order_the_last_free_and_the_last_contracting_axis(real_layouts):
    complete, counts = 0, defaultdict(int)
    for graph, place, node in nodes_of(real_layouts, DOT):
        seen = {choice for choice in seen_choices(graph, place) if choice[1]}
        axes = {tuple(tuple(sorted(digits)) for digits in choice) for choice in seen}
        first, second = (operands(graph, node) * 2)[:2]               # one operand twice has one edge
        possible = possible_dots(sizes(graph, node), first, second) | possible_dots(sizes(graph, node), second, first)
        counts[searched(graph), len(axes), axes <= possible] += 1
        complete += len(seen) == 8
    # the program with one configuration has the compiler's own choice only: 3 give the output alone, 4 are others
    assert dict(counts) == {(True, 1, True): 899, (False, 1, True): 27, (False, 1, False): 4, (False, 0, True): 3}
    assert complete == 827


def test_products_of_matrices_alone_have_a_ninth_option(real_layouts):
    ninth, orders = 0, [0, 0]
    for graph, place, node in nodes_of(real_layouts, DOT):
        matrices = all(len(shape) == 2 for shape in (sizes(graph, node), *operands(graph, node)))
        alone = [choice for choice in seen_choices(graph, place) if not choice[1]]
        assert len(alone) == matrices
        ninth += matrices
        for output, _, kernel in alone:
            assert kernel == ()
            orders[least_padded(sizes(graph, node)) == output] += 1
    assert (ninth, orders) == (72, [3, 69])


def test_reshapes_have_exactly_the_layouts_that_move_no_data(real_layouts):
    nothing, counts = ((), (), ()), defaultdict(int)
    for graph, place, node in nodes_of(real_layouts, RESHAPE):
        own = {(output, given, ()) for output, given in bitcast_layouts(sizes(graph, node), operands(graph, node)[0])}
        seen = seen_choices(graph, place)
        assert seen <= own | {nothing} and (own <= seen or not searched(graph))
        counts[searched(graph), nothing in seen] += 1
    assert dict(counts) == {(True, True): 100, (True, False): 35, (False, True): 26, (False, False): 2}


def test_nodes_of_one_real_group_have_one_operation_and_one_set_of_options(real_layouts):
    mixed, groups = 0, 0
    for graph in real_layouts:
        for group in range(graph.config_codes.shape[1]):
            places = np.flatnonzero(graph.node_group == group)
            if len(np.unique(graph.config_codes[:, group])) > 1:     # what never changes may be anything
                kinds = {(int(graph.node_opcode[graph.node_config_ids[i]]), frozenset(seen_choices(graph, i)))
                         for i in places}
                mixed, groups = mixed + (len(kinds) > 1), groups + 1
    assert (mixed, groups) == (0, 118)


def test_a_raw_program_has_the_nodes_and_all_the_options_of_its_official_files(real_data):
    program = program_from_hlo(real_data / "pb" / f"{UNET}.pb")
    assert program.dims.tolist() == [2, 8, 8, 7]
    for kind in ("default", "random"):
        official = read_layout(real_data / "npz" / f"{UNET.replace('default', kind)}.npz")
        np.testing.assert_array_equal(program.graph.node_config_ids, official.node_config_ids)
        np.testing.assert_array_equal(program.graph.node_feat, official.node_feat)
        ours = defaultdict(set)
        for place, (own, theirs) in enumerate(zip(program.graph.node_group, official.node_group)):
            assert seen_choices(official, place) <= seen_choices(every_option(program), place)
            ours[theirs].add(own)
        assert all(len(groups) == 1 for groups in ours.values())


def test_the_compiler_splits_our_groups_by_its_own_layouts_and_drops_what_fails(real_data):
    path = real_data / "pb" / f"{UNET}.pb"
    tuned = parse_hlo(path.read_bytes(), "Tuned", path)
    program, official = program_from_hlo(path), read_layout(real_data / "npz" / f"{UNET}.npz")
    default, rows = defaultdict(set), {True: set(), False: set()}
    for data in tuned.runs:
        run = parse_hlo(data, "Run", path)
        nodes = parse_hlo(run.module_config, "ModuleConfig", path).layout.nodes
        rows[run.error] |= set(zip(program.graph.node_group.tolist(), nodes))
        if run.is_default:
            for own, row, theirs in zip(program.graph.node_group, nodes, official.node_group):
                default[int(own), row].add(int(theirs))
    assert sorted(map(sorted, default.values())) == [[group] for group in range(8)]
    failed = [parse_hlo(row, "NodeConfig", path).tensors for group, row in rows[True] - rows[False]]
    assert {tuple(tensors[0].dims) for tensors in failed} == {(0, 4)}    # batches of 2 along the 128 lanes
    assert len(failed) == 4 and len([run for run in tuned.runs if parse_hlo(run, "Run", path).error]) == 10


def every_option(program):
    """The program with configurations that use each option of each group."""
    codes = np.minimum(np.arange(program.dims.max())[:, None], program.dims - 1)
    return with_configs(program, codes)


def stored_order(shape, layout):
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).transpose(layout[::-1]).ravel().tolist()


@pytest.mark.parametrize("output, given", [
    ((6,), (2, 3)), ((2, 3), (6,)), ((2, 3), (2, 3)), ((4, 3), (2, 6)), ((2, 3, 4), (6, 4)), ((2, 12), (2, 3, 4)),
    ((2, 3, 2, 5), (6, 10)), ((2, 3), (1, 2, 3)), ((2, 1, 3), (3, 1, 2)), ((1,), ()), ((), (1,)), ((1, 1), (1,)),
    ((4, 2, 3), (2, 2, 2, 3)), ((2, 3, 5), (2, 3, 5)), ((6, 1), (6,)), ((8, 3), (2, 4, 3)), ((5,), (6,)),
    ((0, 2), (0,))])
def test_bitcast_layouts_are_those_that_brute_force_finds(output, given):
    def kernel(shape, layout):
        return tuple(d for d in layout if shape[d] != 1)
    found = bitcast_layouts(output, given)
    expected = {(kernel(output, a), kernel(given, b)) for a in permutations(range(len(output)))
                for b in permutations(range(len(given)))
                if np.prod(output) == np.prod(given) != 0 and stored_order(output, a) == stored_order(given, b)}
    assert {(kernel(output, a), kernel(given, b)) for a, b in found} == expected and len(found) == len(expected)
    for shape, layout in [pair for a, b in found for pair in ((output, a), (given, b))]:
        ones = [d for d in layout if shape[d] == 1]
        assert sorted(layout) == list(range(len(shape))) and list(layout[len(layout) - len(ones):]) == ones
        assert ones == sorted(ones, reverse=True)


def test_the_committed_network_is_the_one_written_here(project):
    path = project / "notebooks" / "own_program.hlo.pb"
    assert hlo_messages()["Module"].FromString(path.read_bytes()) == small_network()
    assert path.stat().st_size < 8192


def test_known_networks_are_written_by_the_frameworks_that_are_here_and_the_others_are_named(project, tmp_path):
    command = [sys.executable, project / "notebooks" / "lab" / "studies" / "known_networks.py", tmp_path]
    done = subprocess.run([*command, "bert"], capture_output=True, text=True)
    if find_spec("jax") is None:
        assert done.returncode == 1 and "bert: left out; ModuleNotFoundError: No module named 'jax'" in done.stdout
        assert done.stderr == "nothing was written: no framework is installed in a version that fits\n"
        assert not [*tmp_path.iterdir()]
    else:
        assert done.returncode == 0 and [path.name for path in tmp_path.iterdir()] == ["bert.hlo.pb"]
        graph = program_from_hlo(tmp_path / "bert.hlo.pb").graph
        names = Counter(OPCODE_NAMES[graph.node_opcode[node]] for node in graph.node_config_ids)
        # in each of 12 layers: query, key, value, their products, the output, and the two of the network behind
        assert names["dot"] == 12 * (3 + 2 + 1 + 2) and names["convolution"] == 0
    unknown = subprocess.run([*command, "lenet"], capture_output=True, text=True)
    assert unknown.returncode == 2 and "lenet: no such network; there are bert, mobilenet, alexnet" in unknown.stderr


def test_nodes_groups_and_options_of_the_small_network(project):
    program = program_from_hlo(project / "notebooks" / "own_program.hlo.pb")
    graph = program.graph
    names = [OPCODE_NAMES[graph.node_opcode[node]] for node in graph.node_config_ids]
    assert names == ["convolution"] * 2 + ["reshape"] + ["dot"] * 6 + ["reshape", "convolution"]
    assert graph.node_group.tolist() == [0, 0, 1, 2, 3, 3, 2, 2, 2, 4, 5]
    assert program.dims.tolist() == [8, 3, 9, 9, 3, 8]
    assert (graph.graph_id, graph.config_codes.shape, graph.config_runtime.shape) == ("small_network", (0, 6), (0,))
    assert graph.config_codes.dtype == np.uint8 and graph.code_rows.dtype == np.int8
    chosen = seen_choices(every_option(program), 2)
    assert chosen == {((), (), ()), ((0, 1), (0, 3, 2, 1), ()), ((1, 0), (3, 2, 1, 0), ())}
    weights = seen_choices(every_option(program), 10)
    assert weights == set(product(permutations((2, 3)), permutations((3, 0)), permutations((0, 3))))
    narrow = seen_choices(every_option(program), 4)
    assert narrow == {((0, 1), (), ()), *product([(0, 1), (1, 0)], repeat=3)}


def test_untied_nodes_are_groups_of_their_own():
    program = program_from_hlo(small_network().SerializeToString(), tie=False)
    assert program.dims.tolist() == [8, 8, 3, 9, 9, 9, 9, 9, 9, 3, 8]
    assert program.graph.node_group.tolist() == list(range(11))


def wrapped(kind, **fields):
    return hlo_messages()[kind](module=small_network(), **fields).SerializeToString()


def test_a_wrapped_module_is_the_same_program(tmp_path):
    expected = program_from_hlo(small_network().SerializeToString())
    (tmp_path / "saved.pb").write_bytes(wrapped("HloFile"))
    for source in (wrapped("HloFile"), wrapped("Tuned", fingerprint=3, runs=[b"x"]), tmp_path / "saved.pb",
                   str(tmp_path / "saved.pb")):
        same_program(program_from_hlo(source), expected)


def same_program(program, expected):
    assert program.dims.tolist() == expected.dims.tolist()
    for own, theirs in zip(program.graph[1:10], expected.graph[1:10]):
        np.testing.assert_array_equal(own, theirs)


def test_layouts_that_a_module_does_not_give_are_row_major():
    module = small_network()
    for computation in module.computations:
        for instruction in computation.instructions:
            instruction.shape.ClearField("layout")
    same_program(program_from_hlo(module.SerializeToString()), program_from_hlo(small_network().SerializeToString()))


def test_what_a_fusion_calls_is_not_configurable():
    p = Program("fused")
    called = p.computation("fused_computation")
    p.add("reshape", (6,), *p.parameters((2, 3)))
    p.computation("main")
    given = p.parameters((2, 3))
    p.add("reshape", (2, 3), p.add("fusion", (6,), *given, called_computation_ids=[called]))
    program = program_from_hlo(p.message.SerializeToString())
    assert program.graph.node_config_ids.tolist() == [4] and program.dims.tolist() == [2]


def test_a_program_without_anything_to_configure_is_refused():
    p = Program("plain")
    p.computation("main")
    p.add("negate", (3,), *p.parameters((3,)))
    with pytest.raises(DataError, match="the bytes: no convolution, dot or reshape outside a fusion"):
        program_from_hlo(p.message.SerializeToString())


@pytest.mark.parametrize("opcode, axes, words", [
    ("dot", dict(dot=dict(lhs_contracting=[2], rhs_contracting=[0])), r"dot 'dot.4' names the dimensions \[1, 2\] of a"
     " tensor of 2"),
    ("convolution", dict(convolution=dict(output_feature=1)), r"convolution 'convolution.4' names the dimensions"
     r" \[0, 0\] of a tensor of 2")])
def test_axes_that_a_tensor_lacks_are_refused_by_name(opcode, axes, words):
    p = Program("broken")
    p.computation("main")
    p.add(opcode, (3, 5), *p.parameters((3, 4), (4, 5)), **axes)
    with pytest.raises(DataError, match=words):
        program_from_hlo(p.message.SerializeToString())


def test_tensors_of_more_than_six_dimensions_are_not_configurable():
    p = Program("large")
    p.computation("main")
    p.add("reshape", (1, 128), p.add("reshape", (128,), *p.parameters((2,) * 7)))
    assert program_from_hlo(p.message.SerializeToString()).graph.node_config_ids.tolist() == [2]


def test_chosen_options_are_the_rows_of_the_configuration():
    program = program_from_hlo(small_network().SerializeToString())
    codes = np.random.default_rng(1).integers(program.dims, size=(50, 6))
    graph = with_configs(program, codes)
    rows = dense_configs(graph, range(50))
    for i, code in enumerate(codes):
        for place, group in enumerate(graph.node_group):
            np.testing.assert_array_equal(rows[i, place], program.graph.code_rows[place, code[group]])
    assert graph.config_runtime.tolist() == [0] * 50 and graph.config_codes.dtype == np.uint8


@pytest.mark.parametrize("codes, words", [
    ([[0, 0]], r"codes has shape \(1, 2\) and dtype int64, expected integers of shape \(c, 6\)"),
    ([[0.0] * 6], "dtype float64"),
    ([[0, 0, 0, 9, 0, 0]], r"the groups have \[8, 3, 9, 9, 3, 8\] options"),
    ([[0, 0, 0, 0, 0, -1]], "an option that its group lacks")])
def test_codes_that_do_not_fit_are_refused(codes, words):
    with pytest.raises(ValueError, match=words):
        with_configs(program_from_hlo(small_network().SerializeToString()), codes)


def test_the_program_as_written_is_row_major_throughout():
    program = program_from_hlo(small_network().SerializeToString())
    assert layout_words(program, program.written) == [
        "output {3,0} input {3,0} kernel {3,2}", "output {1,0} input {3,2,1,0}", "output {1,0} lhs {1,0} rhs {1,0}",
        "output {1,0} lhs {1,0} rhs {1,0}", "output {3,2,1,0} input {1,0}", "output {3,2} input {3,0} kernel {3,0}"]


def test_saved_layouts_choose_the_option_that_agrees_with_most_of_them():
    p = Program("turned")
    p.computation("main")
    lhs, rhs = p.parameters((8, 4, 16), (8, 16, 4))
    p.add("dot", (8, 4, 4), lhs, rhs, dot=dict(lhs_contracting=[2], rhs_contracting=[1], lhs_batch=[0], rhs_batch=[0]))
    for instruction, layout in zip(p.last.instructions, ([1, 2, 0], [2, 0, 1], [1, 0, 2])):
        instruction.shape.layout.minor_to_major[:] = layout
    program = program_from_hlo(p.message.SerializeToString())
    assert layout_words(program, program.written) == ["output {1,2} lhs {1,2} rhs {2,1}"]


def test_words_name_what_is_given_and_what_is_not():
    program = program_from_hlo(small_network().SerializeToString())
    options = [layout_words(program, [0, option, 0, option, 0, 0]) for option in range(3)]
    assert options[0][1] == options[0][4] == "nothing" and options[0][3] == "output {0,1}"
    assert len({tuple(words) for words in options}) == 3


@pytest.mark.parametrize("layout", [[1], [1, 1], [2, 0], [-1, 0], [1, 0, 2]])
def test_a_layout_that_is_no_order_of_the_dimensions_is_refused_by_name(layout):
    p = Program("broken")
    p.computation("main")
    p.add("reshape", (6,), *p.parameters((2, 3)))
    p.last.instructions[0].shape.layout.minor_to_major[:] = layout
    with pytest.raises(DataError, match=r"reshape 'reshape.3' has the layout \[.*\] of a tensor of 2 dimensions"):
        program_from_hlo(p.message.SerializeToString())


def test_a_model_scores_configurations_of_the_small_network():
    program = program_from_hlo(small_network().SerializeToString())
    graph = with_configs(program, np.random.default_rng(0).integers(program.dims, size=(30, 6)))
    cost = costs(ready(ConfigTokenModel(), graph), graph).numpy()
    assert cost.shape == (30,) and np.isfinite(cost).all() and len(np.unique(cost)) > 20


def test_mutated_programs_are_refused_by_name_or_are_consistent():
    data, rng, refused = small_network().SerializeToString(), np.random.default_rng(0), 0
    for _ in range(400):
        changed = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            changed[place] ^= 1 << rng.integers(8)
        changed = bytes(changed[:rng.integers(len(data) // 2, len(data))] if rng.random() < 0.3 else changed)
        try:
            program = program_from_hlo(changed)
        except DataError as error:
            assert str(error).startswith("the bytes: ")
            refused += 1
            continue
        graph = every_option(program)
        assert len(graph.node_group) == len(graph.node_config_ids) == len(graph.code_rows)
        assert dense_configs(graph, range(2)).max() < 6
    assert 50 < refused < 400


@pytest.mark.parametrize("missing", ["a folder", "no file"])
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path, missing):
    path = tmp_path if missing == "a folder" else tmp_path / "none.pb"
    with pytest.raises(DataError, match="cannot be read") as error:
        program_from_hlo(path)
    assert str(error.value).startswith(f"{path}: ")


# --- programs that the arrays could not hold, and files that are something else

SAVES = 'jax.jit(f).lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto()'


def refusal(module):
    with pytest.raises(DataError) as error:
        program_from_hlo(module if isinstance(module, (bytes, str)) else module.SerializeToString())
    assert len(str(error.value)) < 500
    return str(error.value)


def dots(p, count, shape=(8, 8)):
    """Dots one after another in the last computation -> number of the last one."""
    x, w = p.parameters(shape, shape)
    for _ in range(count):
        x = p.add("dot", shape, x, w, dot=dict(lhs_contracting=[1], rhs_contracting=[0]))
    return x


@pytest.mark.parametrize("outside", [0, 1, 3])
@pytest.mark.parametrize("how", ["fusion", "call within a fusion", "fusion within a call", "library"])
def test_dots_that_a_compiler_has_hidden_are_counted_and_the_program_refused(how, outside):
    p = Program("compiled")
    called = p.computation("inner")
    dots(p, 2)
    for middle in {"call within a fusion": ["call"], "fusion within a call": ["fusion"]}.get(how, []):
        inner, called = called, p.computation("middle")
        p.add(middle, (8, 8), *p.parameters((8, 8), (8, 8)), called_computation_ids=[inner])
    if how == "library":
        p = Program("compiled")
    p.computation("main")
    x, w = p.parameters((8, 8), (8, 8))
    if how == "library":
        for target in (b"__onednn$matmul", b"__cublas$gemm"):
            x = p.add("custom-call", (8, 8), x, w, custom_call_target=target)
    else:
        x = p.add("call" if how == "fusion within a call" else "fusion", (8, 8), x, w, called_computation_ids=[called])
    for _ in range(outside):
        x = p.add("dot", (8, 8), x, w, dot=dict(lhs_contracting=[1], rhs_contracting=[0]))
    said = refusal(p.message)
    assert f"2 of {2 + outside} convolutions and dots are inside fusions or library calls" in said
    assert SAVES in said


def test_calls_of_other_things_and_dots_that_are_only_called_are_no_sign_of_a_compiler():
    p = Program("calls")
    called = p.computation("inner")
    dots(p, 1)
    p.computation("main")
    x, w = p.parameters((8, 8), (8, 8))
    x = p.add("call", (8, 8), x, w, called_computation_ids=[called])
    p.add("custom-call", (8, 8), x, custom_call_target=b"ConvertToSharding")
    assert len(program_from_hlo(p.message.SerializeToString()).graph.node_config_ids) == 1


def with_shape(opcode="negate", **shape):
    """A program of a dot and one more instruction, whose shape differs."""
    p = Program("odd")
    p.computation("main")
    p.add(opcode, (8, 8), dots(p, 1))
    odd = p.last.instructions[-1]
    for name, value in shape.items():
        if isinstance(value, list):
            odd.shape.ClearField(name)
            getattr(odd.shape, name).extend(value)
        else:
            setattr(odd.shape, name, value)
    return p.message, odd.name


@pytest.mark.parametrize("shape, words", [
    (dict(dimensions=[-1 << 63, 8]), "has the sizes [?,8]"), (dict(dimensions=[8, -1]), "has the sizes [8,?]"),
    (dict(is_dynamic_dimension=[True, False]), "has the sizes [<=8,8]"),
    *[(dict(element_type=number), f"has the element type {name}, ") for number, name in
      [(19, "f8e5m2"), (20, "f8e4m3fn"), (21, "s4"), (22, "u4"), (26, "s2"), (28, "f8e4m3"), (33, "f8e8m0fnu"),
       (77, "number 77")]]])
def test_sizes_and_types_that_the_data_set_does_not_have_are_refused_by_name(shape, words):
    module, name = with_shape(**shape)
    assert refusal(module).startswith(f"the bytes: negate {name!r} {words}")


def test_static_sizes_that_say_so_are_fine():
    module, _ = with_shape(is_dynamic_dimension=[False, False])
    assert len(program_from_hlo(module.SerializeToString()).graph.node_config_ids) == 1


@pytest.mark.parametrize("opcode", ["ragged-dot", "scaled-dot", "scan", "operation-of-next-year"])
def test_operations_that_the_data_set_does_not_have_are_refused_by_name(opcode):
    module, name = with_shape(opcode)
    assert refusal(module).startswith(f"the bytes: {opcode} {name!r} is an operation that the data set does not have")


@pytest.mark.parametrize("opcode, like", LIKE.items())
def test_newer_operations_are_read_as_the_one_most_like_them(opcode, like):
    program, expected = (program_from_hlo(with_shape(name)[0].SerializeToString()) for name in (opcode, like))
    assert OPCODE_NAMES[program.graph.node_opcode[-1]] == like
    same_program(program, expected)


@pytest.mark.parametrize("large", ["output", "operand"])
def test_a_dot_of_more_than_six_dimensions_is_refused_by_name(large):
    p = Program("large")
    p.computation("main")
    shape, other = (2,) * 7, (2,) * 6
    x, w = p.parameters(shape if large == "operand" else other, other)
    p.add("dot", other if large == "operand" else shape, x, w)
    assert "dot 'dot.4' has a tensor of 7 dimensions; at most 6 can be configured" in refusal(p.message)


def test_a_reshape_of_more_than_six_dimensions_alone_is_named():
    p = Program("large")
    p.computation("main")
    p.add("reshape", (128,), *p.parameters((2,) * 7))
    said = refusal(p.message)
    assert "reshape 'reshape.3' has a tensor of more than 6 dimensions" in said and "fusion" not in said


HLO_TEXT = "HloModule jit_f, entry_computation_layout={(f32[8]{0})->f32[8]{0}}\n\nENTRY main {\n}\n"
OTHERS = {
    "HLO text": HLO_TEXT, "HLO text, spaced": "\n  " + HLO_TEXT, "long HLO text": HLO_TEXT * 300,
    "HLO text, commented": "// mine\n" + HLO_TEXT, "HLO text, marked": "\ufeff" + HLO_TEXT,
    "HLO text, wide": HLO_TEXT.encode("utf-16"), "StableHLO text, wide": "module @jit_f {\n}\n".encode("utf-16"),
    "StableHLO text": "module @jit_f attributes {mhlo.num_partitions = 1 : i32} {\n}\n",
    "StableHLO text with locations": "#loc = loc(unknown)\nmodule @jit_f {\n}\n",
    "StableHLO text of a function": "func.func @main(%a: tensor<8xf32>) {\n %0 = stablehlo.negate %a\n}\n",
    "StableHLO bytecode": b"ML\xefR\rMLIR23.0.0git\0" + bytes(range(256)),
    "jax.export": b"<\0\0\x008\0`\0" + bytes(200) + b"ML\xefR\x13StableHLO_v1.15.0\0" + bytes(range(256)),
    "a zip": b"PK\3\4" + bytes(range(256)), "a gzip": b"\x1f\x8b\x08" + bytes(range(256)),
    "text that begins with": '{"cells": []}', "is empty": b"",
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_that_is_something_else_is_said_to_be_that_with_the_line_that_saves_the_right_one(what, tmp_path):
    data = OTHERS[what] if isinstance(OTHERS[what], bytes) else OTHERS[what].encode()
    (tmp_path / "saved").write_bytes(data)
    for source in (data, tmp_path / "saved", *([OTHERS[what]] if "\n" in str(OTHERS[what]) else [])):
        with pytest.raises(DataError) as error:
            program_from_hlo(source)
        said = str(error.value)
        known = "is " + re.sub("is |long |,? (spaced|commented|marked|wide|with locations|of a function)", "", what)
        assert (known in said or what == "jax.export" and "is a program of jax.export" in said), said
        assert SAVES in said and len(said) < 300 + len(str(tmp_path)) and "fetch" not in said


def test_a_snapshot_is_named():
    data = hlo_messages()["Snapshot"](file=dict(module=small_network())).SerializeToString()
    assert "is an HLO snapshot, a compiled program with its inputs" in refusal(data)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("wrapper", [None, "HloFile"])
def test_a_part_of_a_file_is_named(share, wrapper):
    data = wrapped(wrapper) if wrapper else small_network().SerializeToString()
    said = refusal(data[:int(share * len(data))])
    assert re.search(r"is a part of a protobuf: ends after \d+ bytes, where at least \d+ are needed", said), said


# what JAX and XLA wrote: opcodes, types and fusions as they are
WRITTEN = {"opt_mlp_train.pb": "5 of 8", "opt_cnn_nhwc.pb": "2 of 5", "opt_flax_attention.pb": "13 of 14",
           "opt_flax_cnn.pb": "1 of 2", "unbounded.pb": "'Arg_0.1' has the sizes [?,32]", "bounded.pb": "[<=16,32]",
           "int4.pb": "element type s4", "f8.pb": "element type f8e4m3fn", "rank7.pb": "'reshape.1' has a tensor",
           "text.hlo.txt": "is HLO text", "stablehlo.mlir": "is StableHLO text", "half.pb": "is a part of a protobuf",
           "stablehlo.mlirbc": "is StableHLO bytecode", "exported.bin": "is a program of jax.export",
           "xladump_snapshot.pb": "is an HLO snapshot", "topk.pb": None, "erf.pb": None, "xladump_before.hlo.pb": None}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_jax_and_xla_write_is_read_or_named(project, name):
    path = project.parent / "shared/inputs/hlo" / name
    if not path.is_file():
        pytest.skip("no HLO files at ../shared/inputs/hlo")
    if WRITTEN[name] is None:
        assert program_from_hlo(path).graph.node_opcode.all()
    else:
        with pytest.raises(DataError, match=re.escape(WRITTEN[name])) as error:
            program_from_hlo(path)
        assert len(str(error.value)) < 400
