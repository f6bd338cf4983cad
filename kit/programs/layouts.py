"""A configuration applied to a JAX program: the layouts of its dots and convolutions, fixed one by one.

JAX traces a function into a jaxpr, a list of equations. Each `dot_general` and `conv_general_dilated` in it gets a
number. The number is written into the scope of the equation, and the scope reaches the HLO module as `op_name`. So an
HLO node is matched with its equation by name, and not by order: code that is never used, or that the compiler clones,
confuses nothing.

The options of a node are those of kit/programs/own.py, and one more: "nothing" leaves the choice to the compiler. It is
always code 0, so the compiler's default is the configuration of zeros. The other options name up to two dimensions of
each tensor. The first one becomes the innermost (minor) dimension; all others stay row-major.
"""
import hashlib
import json
import re
from itertools import count
from typing import NamedTuple

import numpy as np

from kit.checks import as_path
from kit.data import DIGITS, DataError, LayoutGraph
from kit.files import whole_file
from kit.hlo import program_arrays
from kit.pad import whole_layouts
from kit.programs.options import MAX_RANK
from kit.programs.own import checked_module, configurable_nodes, group_keys, grouped, with_configs

INSTALL = 'pip install "jax>=0.10" flatbuffers'
CONFIGURABLE = ("dot_general", "conv_general_dilated")       # equations with layouts to choose
# equations whose inner jaxprs become part of the program; a kernel in Pallas, for example, is none of them
CONTAINERS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "scan", "while", "cond",
              "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "shard_map")
SCOPE = "kit_equation_"                                      # + number


class JaxProgram(NamedTuple):
    """A JAX function, traced for its arguments, and the grid of its configurations, with g groups."""
    graph: LayoutGraph           # without configurations, as in OwnProgram
    dims: np.ndarray             # (g,) int64; number of options per group
    written: np.ndarray          # (g,) int64; all 0: the compiler's default
    equations: np.ndarray        # (nc,) int64; the number of each configurable node's equation
    traced: object               # the closed jaxpr
    given: object                # the structure of the arguments, as jax.tree describes it
    returned: object             # the structure of the results
    tie: object                  # which nodes form a group, as in `program_from_jax`


def program_from_jax(function, *args, tie="shapes"):
    """Trace a JAX function as a program whose dots and convolutions are configurable.

    Parameters
    ----------
    function : callable
        Whatever `jax.jit` takes; without static arguments, which a lambda can hold instead.
    *args : arrays or jax.ShapeDtypeStruct, in any containers
        Only shapes and types count.
    tie : bool or str
        Which nodes form a group, as in `program_from_hlo`. "shapes": those of the same operation, options and sizes.

    Returns
    -------
    JaxProgram

    Raises
    ------
    DataError
        If the program has no dot and no convolution, or has one that comes from no equation that can be constrained,
        or if `program_from_hlo` would refuse it.
    ValueError
        If `tie` has another value.
    """
    jax, _ = _jax()
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    label = getattr(function, "__name__", "the function")
    numbered = _rewritten(traced, lambda number, equation: [_scoped(equation, f"{SCOPE}{number}")])
    lowered = jax.jit(jax.extend.core.jaxpr_as_fun(numbered)).lower(*traced.in_avals)
    module = checked_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(), label)
    arrays, nodes, equations = program_arrays(module, label), {}, []
    for node, one in configurable_nodes(module, label).items():
        if one.opcode != "reshape":
            found = re.findall(rf"{SCOPE}(\d+)", one.op_name)
            if not found:
                raise DataError(f"{label}: {one.opcode} {one.name!r} (scope {one.op_name!r}) comes from no equation "
                                "whose layouts can be set; write it with jax.numpy or jax.lax, outside of Pallas "
                                "kernels and custom calls")
            nodes[node] = one._replace(rows=((-1,) * DIGITS, *one.rows))
            equations.append(int(found[-1]))                 # the innermost scope
    if not nodes:
        raise DataError(f"{label}: no dot and no convolution, so no layout can be set")
    owners = dict(zip(nodes, equations))                     # the compiler may have cloned an equation
    keys = [owners[key] if tie is False else key for key in group_keys(nodes, tie)]
    graph, dims, written = grouped(label, arrays, nodes, keys)
    return JaxProgram(graph, dims, 0 * written, np.array(equations), traced, jax.tree.structure(args),
                      jax.tree.structure(shapes), tie)


def with_layouts(function, *args, layouts, tie="shapes"):
    """Fix the layouts of a JAX function's dots and convolutions -> a function with the same results.

    Parameters
    ----------
    function, *args
        As in `program_from_jax`.
    layouts : sequence of int, shape (g,), or path
        A configuration: one option per group, 0 for the compiler's choice. Or a file of `save_layouts`, which knows
        its own `tie`.
    tie : bool or str
        As in `program_from_jax`.

    Returns
    -------
    callable
        A function under `jax.jit`, for arguments of the same shapes and types. Its results have the usual layout. Its
        derivatives have no layouts set: to set them there, pass the derivative as the function.

    Raises
    ------
    DataError
        As `program_from_jax`; and if a file is no saved configuration, or one of another program.
    ValueError
        If `layouts` do not fit the groups, or the returned function is called with arguments of another kind.
    """
    if not isinstance(layouts, (str, bytes)) and not hasattr(layouts, "__fspath__"):
        return configured(program_from_jax(function, *args, tie=tie), layouts)
    path, saved = as_path(layouts), None
    try:
        saved = json.loads(path.read_text())
        code, digest, tie = saved["layouts"], saved["program"], saved["tie"]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise DataError(f"{path}: is no saved configuration ({fault}); kit.programs.save_layouts saves one") from fault
    program = program_from_jax(function, *args, tie=tie)
    if program_digest(program) != digest:
        raise DataError(f"{path}: was saved for another program than {program.graph.graph_id} is now with these "
                        "arguments; search again")
    return configured(program, code)


def save_layouts(path, program, code):
    """Save a configuration `code` (g,) of a JaxProgram as a JSON file that `with_layouts` takes."""
    with_configs(program, [code])                            # refuses what does not fit
    with whole_file(path) as part:
        part.write_text(json.dumps({"layouts": [int(option) for option in code], "tie": program.tie,
                                    "program": program_digest(program)}) + "\n")


def program_digest(program):
    """Text that tells programs apart by their nodes, edges, groups and options."""
    found = hashlib.sha256()
    for array in (*program.graph[1:6], program.graph.node_group, program.graph.code_rows):
        found.update(repr((array.shape, array.dtype.str)).encode() + array.tobytes())
    return found.hexdigest()[:16]


def configured(program, code):
    """Fix the layouts that a configuration `code` (g,) gives to a JaxProgram -> a function; see `with_layouts`."""
    jax, layout = _jax()
    with_configs(program, [code])
    orders = {}
    for place, number in enumerate(program.equations.tolist()):
        row = program.graph.code_rows[place, code[program.graph.node_group[place]]]
        if (row >= 0).any():
            orders[number] = row.reshape(-1, MAX_RANK)
    changed = _rewritten(program.traced, lambda number, equation: _constrained(equation, orders[number])
                         if number in orders else [equation])
    call = jax.extend.core.jaxpr_as_fun(changed)
    expected = [(aval.shape, aval.dtype) for aval in program.traced.in_avals]

    def function(*args):
        given, structure = jax.tree.flatten(args)
        found = [(jax.numpy.shape(one), jax.dtypes.result_type(one)) for one in given]
        if structure != program.given or found != expected:
            raise ValueError(f"{program.graph.graph_id}: its layouts are set for arguments "
                             f"{_words(program.given, expected)}, not for {_words(structure, found)}")
        results = call(*given)
        if orders:
            # Else whoever reads the result would pay for the copy. JAX 0.10.2 even reads wrong values where one
            # compiled function gets what another has left in an unusual layout.
            results = [layout(x, range(x.ndim)) for x in results]
        return jax.tree.unflatten(program.returned, results)
    function.__name__ = program.graph.graph_id
    if not orders:
        return jax.jit(function)
    own, plain = jax.custom_jvp(function), configured(program, 0 * np.asarray(code))
    own.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))      # a derivative has results, too
    return jax.jit(own)


def minor_to_major(digits, rank):
    """The whole layout that digits of a configuration ask for, minor dimension first; () if they ask for none.

    [0, 3, -1, -1, -1, -1] of a tensor of rank 4 gives (0, 3, 2, 1).
    """
    return tuple(int(digit) for digit in whole_layouts(digits, rank) if digit >= 0)


def _jax():
    """JAX, and a function that fixes the layout of a value: dimensions from major to minor."""
    try:
        import jax
        import jax.extend.core
        from jax.experimental.layout import Layout, with_layout_constraint
    except ImportError as fault:
        raise ImportError(f"layouts are set in JAX 0.10 or newer, which the kit does not install: {INSTALL}") from fault

    def fixed(x, order):
        return with_layout_constraint(x, Layout(tuple(order))) if len(order) > 1 else x
    return jax, fixed


def _rewritten(jaxpr, change, numbers=None):
    """A jaxpr, closed or not, in which `change(number, equation)` gives the equations that replace a configurable one.

    Equations are numbered in the order of the text. What is inside an equation that occurs twice has two numbers.
    """
    numbers, plain = count() if numbers is None else numbers, _opened(jaxpr)
    if plain is not jaxpr:
        inner = _rewritten(plain, change, numbers)
        return jaxpr if inner is plain else jaxpr.replace(jaxpr=inner)
    equations = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in CONFIGURABLE:
            equations += change(next(numbers), equation)
        elif equation.primitive.name in CONTAINERS:
            params = {name: _inside(value, change, numbers) for name, value in equation.params.items()}
            same = all(params[name] is value for name, value in equation.params.items())
            equations.append(equation if same else equation.replace(params=params))
        else:
            equations.append(equation)
    same = len(equations) == len(jaxpr.eqns) and all(new is old for new, old in zip(equations, jaxpr.eqns))
    return jaxpr if same else jaxpr.replace(eqns=equations)


def _opened(jaxpr):
    """The jaxpr inside a closed one; since JAX 0.11 both are one class, and a jaxpr is its own inside."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def _inside(value, change, numbers):
    """A parameter of an equation, rewritten if it is a jaxpr or several."""
    if isinstance(value, tuple) and any(hasattr(one, "eqns") for one in value):
        new = tuple(_inside(one, change, numbers) for one in value)
        return value if all(a is b for a, b in zip(new, value)) else new
    return _rewritten(value, change, numbers) if hasattr(value, "eqns") else value


def _scoped(equation, scope):
    """An equation that says in the metadata of its HLO nodes in which scope it is."""
    info = equation.source_info
    return equation.replace(source_info=info.replace(name_stack=info.name_stack.extend(scope)))


def _constrained(equation, digits):
    """The equations that compute what `equation` does, with its output and operands in the layouts of digits (3, 6)."""
    jax, layout = _jax()

    def fixed(x, own):
        return layout(x, minor_to_major(own, x.ndim)[::-1])

    def call(*operands):
        operands = [fixed(x, own) for x, own in zip(operands, digits[1:])]
        return fixed(equation.primitive.bind(*operands, **equation.params), digits[0])
    inner = _opened(jax.make_jaxpr(call)(*[jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]))
    known = dict(zip(inner.invars, equation.invars)) | dict(zip(inner.outvars, equation.outvars))
    return [one.replace(invars=[known.get(var, var) for var in one.invars], source_info=equation.source_info,
                        outvars=[known.get(var, var) for var in one.outvars], ctx=equation.ctx)
            for one in inner.eqns]


def _words(structure, kinds):
    """Arguments in short: their types and sizes."""
    named = [f"{dtype}{list(shape)}" for shape, dtype in kinds]
    return f"({', '.join(named)})" if len(named) < 9 else f"of the structure {structure}"[:300]
