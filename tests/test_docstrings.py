"""Docstrings of the kit name exactly the parameters and errors of the code, and show pure functions at work.

What the kit offers is documented in full: the public names and whatever a notebook imports. A helper that a module
keeps to itself and its neighbours may do with one line.
"""
import ast
import re
from pathlib import Path

import nbformat
import pytest
from test_public import HOMES

KIT = Path(__file__).resolve().parents[1] / "kit"
TREE = {".".join(path.relative_to(KIT).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted(KIT.rglob("*.py")) if path.stem != "__init__"}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
PURE = ("ensemble", "losses", "metrics", "noise", "pad", "prune", "search.strategies")
SECTIONS = ("Parameters", "Returns", "Yields", "Raises", "Notes", "References", "Examples", "Attributes", "See Also",
            "Warns")


def public(tree):
    return [node for node in tree.body if isinstance(node, (*FUNCTION, ast.ClassDef)) and node.name[0] != "_"]


def in_notebooks():
    """Names that the notebooks import from the kit."""
    cells = [cell.source for path in sorted((KIT.parent / "notebooks").glob("*.ipynb"))
             for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    return {alias.name for cell in cells for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("kit.") for alias in node.names}


FULL = in_notebooks().union(*(names.split() for names in HOMES.values()))


def cases(kind, full=False):
    """pytest parameters (module, node); `full` leaves out helpers whose docstring is one line."""
    return [pytest.param(module, node, id=f"{module}.{node.name}") for module, tree in TREE.items()
            for node in public(tree) if isinstance(node, kind)
            and (not full or node.name in FULL or "\n" in (ast.get_docstring(node) or ""))]


METHODS = [pytest.param(module, method, id=f"{module}.{node.name}.{method.name}") for module, tree in TREE.items()
           for node in public(tree) if isinstance(node, ast.ClassDef) for method in node.body
           if isinstance(method, FUNCTION) and method.name[0] != "_"]
SHOWN = [case for case in cases(FUNCTION, full=True) if case.values[0] in PURE
         and not {"graph", "graphs", "path"} & {arg.arg for arg in case.values[1].args.args}]


def sections(node):
    """{title: lines} of a numpy-style docstring; the text before the first title under ''."""
    found, title = {"": []}, ""
    lines = (ast.get_docstring(node) or "").splitlines()
    for line, below in zip(lines, [*lines[1:], ""]):
        if re.fullmatch("-{3,}", below) and len(below) == len(line):
            assert line in SECTIONS, f"unknown section {line}"
            title = line
            found[title] = []
        elif not re.fullmatch("-{3,}", line):
            found[title].append(line)
    return found


def named(lines):
    """Names at the start of a section's entries: `name : type` or `name, name : type`."""
    heads = [line.split(" : ")[0] for line in lines if line and not line.startswith(" ")]
    return [name.strip() for head in heads for name in head.split(",")]


def parameters(function):
    """Names in the order of the code, with their stars, without self."""
    a = function.args
    names = [arg.arg for arg in a.posonlyargs + a.args]
    names += [f"*{a.vararg.arg}"] if a.vararg else []
    names += [arg.arg for arg in a.kwonlyargs]
    names += [f"**{a.kwarg.arg}"] if a.kwarg else []
    return [name for name in names if name not in ("self", "cls")]


def own(function):
    """Nodes of a function's body that belong to it or to functions inside it."""
    return [node for statement in function.body for node in ast.walk(statement)]


def raised(function):
    """Names of the exception types that a body raises itself; not those made elsewhere and passed on."""
    types = [node.exc.func if isinstance(node.exc, ast.Call) else node.exc
             for node in own(function) if isinstance(node, ast.Raise) and node.exc is not None]
    return {name for name in map(ast.unparse, types) if name[0].isupper()}


def definitions():
    """{name: functions or methods called so, anywhere in the kit}; a class stands for what its methods do."""
    found = {}
    for tree in TREE.values():
        for node in ast.walk(tree):
            if isinstance(node, FUNCTION):
                found.setdefault(node.name, []).append(node)
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).extend(n for n in node.body if isinstance(n, FUNCTION))
    return found


DEFINITIONS = definitions()


def reachable(function):
    """What a function and the kit's code that it calls, by name, may raise."""
    errors, seen, todo = set(), set(), [function]
    while todo:
        node = todo.pop()
        errors |= raised(node)
        for inner in own(node):
            name = getattr(inner, "id", None) or getattr(inner, "attr", None)     # called, or passed on to be called
            if name in DEFINITIONS and name not in seen:
                seen.add(name)
                todo += DEFINITIONS[name]
    return errors


@pytest.mark.parametrize("module, node", cases((*FUNCTION, ast.ClassDef)) + METHODS)
def test_a_docstring_starts_with_one_sentence_on_one_line(module, node):
    lines = (ast.get_docstring(node) or "").splitlines()
    if not lines and node.name in ("forward", "backward"):
        return                                                  # torch says what they are, the class what they do
    assert lines, "no docstring"
    assert re.search(r"[.:;]$", lines[0]), lines[0]
    assert lines[1:2] in ([], [""]), lines[1]


@pytest.mark.parametrize("module, node", cases(FUNCTION, full=True))
def test_parameters_are_exactly_those_of_the_code(module, node):
    assert named(sections(node).get("Parameters", [])) == parameters(node)


@pytest.mark.parametrize("module, node", cases(ast.ClassDef) + METHODS)
def test_parameters_of_a_class_or_method_are_exact_where_they_are_named(module, node):
    documented = sections(node).get("Parameters")
    starts = [n for n in node.body if isinstance(n, FUNCTION) and n.name == "__init__"]
    fields = [n.target.id for n in node.body if isinstance(n, ast.AnnAssign)]
    if isinstance(node, ast.ClassDef):
        expected = parameters(starts[0]) if starts else fields
    else:
        expected = parameters(node)
    if documented is not None or (starts and node.name in FULL):
        assert named(documented or []) == expected


@pytest.mark.parametrize("module, node", cases(FUNCTION, full=True))
def test_a_function_that_returns_something_says_what(module, node):
    inner = {n for f in own(node) if isinstance(f, (*FUNCTION, ast.Lambda)) for n in ast.walk(f)}
    values = [n for n in own(node) if isinstance(n, (ast.Return, ast.Yield)) and n.value is not None]
    says = {"Returns", "Yields"} & set(sections(node))
    assert bool(says) == any(n not in inner for n in values)


@pytest.mark.parametrize("module, node", cases(FUNCTION, full=True))
def test_errors_are_those_of_the_code(module, node):
    documented = set(named(sections(node).get("Raises", [])))
    assert raised(node) <= documented, "raised but not documented"
    assert documented <= reachable(node), "documented, but raised neither here nor by what is called"


@pytest.mark.parametrize("module, node", SHOWN)
def test_a_pure_function_is_shown_at_work(module, node):
    assert any(">>>" in line for line in sections(node).get("Examples", []))
