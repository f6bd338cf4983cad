"""Layouts of JAX programs: read back from the compiler, equal to constraints written by hand, the same results."""
import re
from itertools import product

import numpy as np
import pytest

from kit.data import DataError
from kit.programs import configured, layout_words, program_from_jax, save_layouts, with_configs, with_layouts
from kit.programs.layouts import _rewritten, minor_to_major
from kit.programs.options import MAX_RANK

jax = pytest.importorskip("jax", reason="no JAX: pip install '.[own]'")
jnp, lax = jax.numpy, jax.lax

A = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32) / 3


def tanh_dot(x, y):
    return jnp.tanh(x @ y)


@jax.custom_jvp
def with_own_jvp(x):
    return tanh_dot(x, x)


@with_own_jvp.defjvp
def _jvp(primals, tangents):
    return with_own_jvp(*primals), tangents[0] @ primals[0]


@jax.custom_vjp
def with_own_vjp(x):
    return tanh_dot(x, x)


with_own_vjp.defvjp(lambda x: (with_own_vjp(x), x), lambda x, g: (g @ x,))


def weighted(x, f):
    return (f(x) * x).sum()


def mean_of_rows(x):
    return lax.map(lambda row: row @ x, x).mean(0)


# name: a function of a (6, 6) matrix, and how many dots it holds
FUNCTIONS = {
    "plain": (lambda x: tanh_dot(x, x.T), 1),
    "jit": (lambda x: jax.jit(tanh_dot)(x, jax.jit(tanh_dot)(x, x)), 2),
    "scan": (lambda x: lax.scan(lambda c, row: (tanh_dot(c, x), row @ x), x, x), 2),
    "while": (lambda x: lax.while_loop(lambda c: jnp.vdot(c[1] @ x, c[1]) + 9 > c[0], lambda c: (c[0] + 4, c[1] @ x),
                                       (0.0, x)), 3),
    "cond": (lambda x: lax.cond(x[0, 0] > 9, lambda x: x @ x, lambda x: x @ x.T @ x, x), 3),
    "remat": (jax.grad(lambda x: weighted(x, jax.checkpoint(lambda x: tanh_dot(tanh_dot(x, x), x)))), 8),
    "vmap": (lambda x: jax.vmap(tanh_dot, (0, None))(jnp.stack([x, 2 * x]), x), 1),
    "grad": (jax.grad(lambda x: weighted(x, lambda x: tanh_dot(x, x))), 3),
    "hessian": (jax.jacfwd(jax.grad(lambda v: weighted(v, lambda v: A @ v))), None),
    "custom jvp": (lambda x: jax.jvp(with_own_jvp, (x,), (x,)), 2),
    "custom vjp": (jax.grad(lambda x: weighted(x, with_own_vjp)), 2),
    "custom, not differentiated": (lambda x: with_own_vjp(with_own_jvp(x)), 2),
    "map": (mean_of_rows, 1),
    "unused": (lambda x: (x @ x, (x.T @ x).shape[0] * x @ x)[1], 1),
    "containers": (lambda x: {"sum": x.sum(), "both": [x @ x, (x, None)]}, 1),
}
GIVEN = {"hessian": A[0]}


@pytest.mark.parametrize("tie", [True, "shapes", False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_without_layouts(name, tie):
    function, count = FUNCTIONS[name]
    x = GIVEN.get(name, A)
    program = program_from_jax(function, x, tie=tie)
    assert count is None or len(program.equations) == count
    assert tie is not False or len(program.dims) == len(set(program.equations))
    expected, rng = jax.jit(function)(x), np.random.default_rng(1)
    for code in rng.integers(program.dims, size=(2, len(program.dims))):
        close(with_layouts(function, x, layouts=code, tie=tie)(x), expected)


def close(found, expected, rtol=1e-4):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for own, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert own.dtype == theirs.dtype
        wide = np.complex128 if own.dtype.kind == "c" else np.float64
        atol = rtol * float(abs(theirs).max())
        np.testing.assert_allclose(np.asarray(own, wide), np.asarray(theirs, wide), rtol, atol)


def compiled(function, *args):
    """The compiled module as text, without names and places in the source."""
    text = function.lower(*args).compile().as_text()
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    return re.sub(r"HloModule jit_[\w<>]*", "HloModule", text[:text.index("\n")] + text[text.index("\n\n%"):]
                  if "\n\n%" in text else text)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_default_everywhere_is_the_program_without_constraints(name):
    function, x = FUNCTIONS[name][0], GIVEN.get(name, A)
    program = program_from_jax(function, x)
    assert layout_words(program, program.written) == ["nothing"] * len(program.dims)
    own, plain = (f.lower(x).as_text() for f in (configured(program, program.written), jax.jit(function)))
    assert own.partition("\n")[2] == plain.partition("\n")[2]                 # the first line is its name
    changed = 1 - program.written                                            # every first option
    assert "LayoutConstraint" not in own and "LayoutConstraint" in configured(program, changed).lower(x).as_text()


class OneClass:
    """A jaxpr as JAX 0.11 and newer have it: the class of closed ones, too, whose inside is itself."""

    def __init__(self, jaxpr, eqns=None):
        self.whole, self.eqns = jaxpr, [self.inside(one) for one in jaxpr.eqns] if eqns is None else eqns

    @property
    def jaxpr(self):
        return self

    @staticmethod
    def inside(equation):
        def wrapped(value):
            if type(value) is tuple:
                return tuple(map(wrapped, value))
            return OneClass(value) if hasattr(value, "eqns") else value
        return equation.replace(params={name: wrapped(value) for name, value in equation.params.items()})

    def replace(self, eqns):
        return OneClass(self.whole, eqns)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equations_are_the_same_where_a_closed_jaxpr_is_its_own_inside(name):
    traced, seen = jax.make_jaxpr(FUNCTIONS[name][0])(GIVEN.get(name, A)), ([], [])
    for jaxpr, found in zip((traced, OneClass(traced)), seen):
        def note(number, equation, found=found):
            found.append((number, str(equation)))
            return [equation, equation]
        changed = _rewritten(jaxpr, note)
        assert changed is not jaxpr and _rewritten(changed, lambda _, equation: [equation]) is changed
    assert seen[0] == seen[1] and seen[0]


SIZES = (5, 7), (7, 11), (11, 3)


def chain(a, b, c):
    return jnp.tanh(jnp.tanh(a @ b) @ c)


def by_hand(orders):
    """`chain` with the layouts written into it: of output, lhs and rhs of each dot, major to minor or None."""
    from jax.experimental.layout import Layout, with_layout_constraint

    def fixed(x, order):
        return x if order is None else with_layout_constraint(x, Layout(order))

    def function(*args):                 # which names the parameters of the module, as in what is compared
        (a, b, c), (first, second) = args, orders
        ab = jnp.tanh(fixed(fixed(a, first[1]) @ fixed(b, first[2]), first[0]))
        return fixed(jnp.tanh(fixed(fixed(ab, second[1]) @ fixed(c, second[2]), second[0])), (0, 1))
    return function


def orders_of(program, code):
    """What a configuration asks for, said again: None or (major, minor) of output, lhs and rhs, per dot."""
    rows = [program.graph.code_rows[place, code[group]] for place, group in enumerate(program.graph.node_group)]
    return [[tuple(own[1::-1].tolist()) if own[1] >= 0 else None for own in row.reshape(3, MAX_RANK)] for row in rows]


def test_the_compiled_program_is_the_one_with_constraints_written_by_hand():
    given = [np.ones(shape, np.float32) for shape in SIZES]
    program, rng = program_from_jax(chain, *given, tie=False), np.random.default_rng(2)
    for code in rng.integers(1, program.dims, size=(10, 2)):
        hand = jax.jit(by_hand(orders_of(program, code)))
        assert compiled(configured(program, code), *given) == compiled(hand, *given)


def test_layouts_are_read_back_from_the_compiled_program():
    given = [np.ones(shape, np.float32) for shape in SIZES]
    program, rng = program_from_jax(chain, *given, tie=False), np.random.default_rng(3)
    sizes = ((5, 11), *SIZES[:2]), ((5, 3), (5, 11), SIZES[2])
    for code in rng.integers(program.dims, size=(20, 2)):
        asked = {size for orders, dot in zip(orders_of(program, code), sizes) for order, size in zip(orders, dot)
                 if order == (1, 0)}
        text = configured(program, code).lower(*given).compile().as_text()
        assert {tuple(map(int, found)) for found in re.findall(r"f32\[(\d+),(\d+)\]\{0,1\}", text)} == asked


@pytest.mark.parametrize("numbers", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NCHW", "HWIO", "NHWC")])
def test_convolutions_have_the_asked_dimension_innermost(numbers):
    sizes = [tuple({"N": 2, "H": 8, "W": 9, "C": 3}[d] for d in numbers[0]),
             tuple({"H": 3, "W": 3, "I": 3, "O": 5}[d] for d in numbers[1]),
             tuple({"N": 2, "H": 8, "W": 9, "C": 5}[d] for d in numbers[2])]
    given = [np.random.default_rng(4).normal(size=size).astype(np.float32) for size in sizes[:2]]

    def function(x, kernel):
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
    program, seen = program_from_jax(function, *given), set()
    assert program.dims.tolist() == [9]
    for option in range(9):
        own = configured(program, [option])
        close(own(*given), jax.jit(function)(*given))
        lines = own.lower(*given).compile().as_text()
        row = program.graph.code_rows[0, option].reshape(3, MAX_RANK)
        for size, digits in zip((sizes[2], *sizes[:2]), row):
            if layout := minor_to_major(digits, 4):
                assert f"f32[{','.join(map(str, size))}]{{{','.join(map(str, layout))}}}" in lines
                seen.add((size, layout[0]))
    assert len(seen) == 6


def test_whole_layouts_are_the_first_digit_and_then_row_major():
    for rank in range(1, 7):
        for first, second in product(range(rank), repeat=2):
            layout = minor_to_major([first, second, -1, -1, -1, -1], rank)
            assert layout[0] == first and sorted(layout) == list(range(rank))
            assert sorted(layout[1:], reverse=True) == list(layout[1:])
    assert minor_to_major([-1] * 6, 4) == ()


def drawn_function(rng):
    """A random program of dots, convolutions and what stands between them, of a (4, 8, 8, 6) tensor."""
    steps = [(int(rng.integers(5)), rng.integers(1 << 30)) for _ in range(rng.integers(3, 7))]

    def function(x):
        for kind, seed in steps:
            r = np.random.default_rng(seed)
            if kind == 0:
                axes = r.permutation(4)
                w = r.normal(size=(x.shape[axes[0]], r.integers(3, 9))).astype(np.float32) / 3
                x = jnp.tanh(jnp.moveaxis(jnp.tensordot(x, w, ([axes[0]], [0])), -1, axes[0]))
            elif kind == 1:
                kernel = r.normal(size=(3, 3, x.shape[3], 5)).astype(np.float32) / 5
                x = jnp.tanh(lax.conv_general_dilated(x, kernel, (1, 1), "SAME",
                                                      dimension_numbers=("NHWC", "HWIO", "NHWC")))
            elif kind == 2:
                x = jnp.transpose(x, r.permutation(4))
            elif kind == 3:
                x = jnp.tanh(jnp.einsum("abcd,aecd->abed", x, x[:, :3]))
            else:
                x = lax.scan(lambda c, _: (jnp.tanh(jnp.einsum("abcd,ed->abce", c, A[:1, :1] * jnp.eye(c.shape[3]))),
                                           None), x, length=2)[0]
        return (x ** 2).sum()
    return jax.grad(function) if rng.random() < 0.5 else function


@pytest.mark.parametrize("seed", range(12))
def test_drawn_programs_have_the_same_results(seed):
    rng = np.random.default_rng(seed)
    function, x = drawn_function(rng), rng.normal(size=(4, 8, 8, 6)).astype(np.float32)
    tie = [True, "shapes", False][seed % 3]
    try:
        program = program_from_jax(function, x, tie=tie)
    except DataError as error:
        assert "no dot and no convolution" in str(error)
        return
    close(configured(program, rng.integers(program.dims))(x), jax.jit(function)(x))


def test_groups_are_as_fine_as_is_asked():
    def function(x, y):
        return (x @ x + x @ x.T, y @ y, jax.jit(lambda x: x @ x)(x))
    x, y = np.ones((6, 6), np.float32), np.ones((9, 9), np.float32)
    counts = [len(program_from_jax(function, x, y, tie=tie).dims) for tie in (True, "shapes", False)]
    assert counts == [1, 2, 4]


@pytest.mark.parametrize("code", [[0, 0], [5, 7], [1, 1], [3, 8]])
def test_a_function_with_layouts_can_be_differentiated_and_mapped(code):
    def function(x):
        return weighted(x, lambda x: jnp.tanh(x @ A) @ x.T)
    own, x = with_layouts(function, A, layouts=code, tie=False), jnp.array(A)
    close(jax.grad(own)(x), jax.grad(function)(x))
    close(jax.jit(jax.grad(own))(x), jax.grad(function)(x))
    close(jax.jacfwd(own)(x), jax.jacfwd(function)(x))
    both = jnp.stack([x, 2 * x])
    close(jax.vmap(own)(both), jax.vmap(function)(both))


@pytest.mark.parametrize("option", range(10))
def test_results_have_the_usual_layout(option):
    result = with_layouts(lambda x: x @ x, A, layouts=[option])(A)
    assert result.format.layout.major_to_minor == (0, 1)
    close(jax.jit(lambda x: x @ A)(result), A @ A @ A)


def test_layouts_set_twice_are_those_set_last():
    own = with_layouts(lambda x: jnp.tanh(x @ A), A, layouts=[3])
    program = program_from_jax(own, A)
    assert program.dims.tolist() == [10]
    close(configured(program, [8])(A), own(A))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int32", "complex64"])
def test_other_types_keep_their_type_and_value(dtype):
    x = jnp.asarray(np.round(9 * A), dtype)
    close(with_layouts(lambda x: x @ x, x, layouts=[1])(x), jax.jit(lambda x: x @ x)(x), rtol=1e-2)


def test_shapes_alone_are_enough_to_set_layouts():
    x = jax.ShapeDtypeStruct((6, 6), "float32")
    close(with_layouts(lambda x: x @ x, x, layouts=[2])(A), A @ A)


def test_what_has_no_dot_is_refused():
    with pytest.raises(DataError, match="^relu: no dot and no convolution, so no layout can be set$"):
        program_from_jax(jax.nn.relu, A)


def test_a_dot_that_comes_from_no_equation_is_named():
    def solved(x):
        return lax.custom_linear_solve(lambda v: x @ v, x[0], lambda matvec, b: matvec(b), symmetric=True)
    with pytest.raises(DataError, match=r"^solved: dot '.*' \(scope '.*dot_general'\) comes from no equation whose"):
        program_from_jax(solved, A)


@pytest.mark.parametrize("args", [(A[:5],), (A, A), ({"x": A},), (A.astype(np.float16),)])
def test_other_arguments_are_refused(args):
    own = with_layouts(tanh_dot, A, A, layouts=[1]) if len(args) == 1 else with_layouts(lambda x: x @ x, A, layouts=[1])
    with pytest.raises(ValueError, match=r"its layouts are set for arguments \(float32\[6, 6\].* not for \("):
        own(*args)


def test_layouts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="tie is 'shape'; expected True, \"shapes\" or False"):
        program_from_jax(tanh_dot, A, A, tie="shape")
    for code in ([10], [0, 0]):
        with pytest.raises(ValueError, match="codes"):
            with_layouts(tanh_dot, A, A, layouts=code)


def test_a_saved_configuration_is_applied_again_and_refused_where_the_program_has_changed(tmp_path):
    path, given = tmp_path / "fast.json", [np.ones(shape, np.float32) for shape in SIZES]
    program = program_from_jax(chain, *given, tie=False)
    save_layouts(path, program, [4, 8])
    again = with_layouts(chain, *given, layouts=path)
    assert compiled(again, *given) == compiled(configured(program, [4, 8]), *given)
    for other in (lambda a, b, c: jnp.tanh(a @ b) @ c, lambda a, b, c: chain(a, b, c) @ c.T):
        with pytest.raises(DataError, match="fast.json: was saved for another program than <lambda> is now"):
            with_layouts(other, *given, layouts=path)
    with pytest.raises(DataError, match="was saved for another program"):
        with_layouts(chain, given[0][:3], *given[1:], layouts=str(path))
    for text in ("", "[]", "{}", '{"layouts": [0, 0]}'):
        path.write_text(text)
        with pytest.raises(DataError, match=r"fast.json: is? ?no saved configuration"):
            with_layouts(chain, *given, layouts=path)
    with pytest.raises(DataError, match="no saved configuration"):
        with_layouts(chain, *given, layouts=tmp_path / "none.json")


def test_the_graph_has_the_options_that_a_model_scores():
    program = program_from_jax(chain, *[np.ones(shape, np.float32) for shape in SIZES])
    graph = with_configs(program, np.random.default_rng(0).integers(program.dims, size=(20, 2)))
    assert graph.graph_id == "chain" and graph.config_codes.shape == (20, 2)
    assert (program.graph.code_rows[:, 0] == -1).all() and (program.graph.code_rows[:, 1:] >= 0).any(axis=2).all()
