"""Docstrings of kit and lab name exactly the parameters of the code.

The public names of tests/test_public.py are documented in full, and so is every docstring that has sections.
"""
import ast
import re
from pathlib import Path

import pytest
from test_public import HOMES

PROJECT = Path(__file__).resolve().parents[1]
TREE = {".".join(path.relative_to(folder).with_suffix("").parts): ast.parse(path.read_text())
        for folder in (PROJECT / "kit", PROJECT / "notebooks") for path in sorted(folder.rglob("*.py"))
        if path.stem != "__init__" and (folder.name == "kit" or "lab" in path.relative_to(folder).parts)}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
FULL = {name for names in HOMES.values() for name in names.split()}
SECTIONS = ("Parameters", "Returns", "Yields", "Raises", "Notes", "References", "Examples", "Attributes", "See Also",
            "Warns")
each_module = pytest.mark.parametrize("module", TREE)


def public(node, kind=(*FUNCTION, ast.ClassDef)):
    """Public functions and classes of a module, or public methods of a class."""
    return [inner for inner in node.body if isinstance(inner, kind) and inner.name[0] != "_"]


def methods(module):
    """(class, method) of a module's public classes."""
    return [(owner, method) for owner in public(TREE[module], ast.ClassDef) for method in public(owner, FUNCTION)]


def in_full(module, kind):
    """Public functions or classes of a module that are documented in full."""
    return [node for node in public(TREE[module], kind) if node.name in FULL or len(sections(node)) > 1]


def sections(node):
    """{title: lines} of a numpy-style docstring; the text before the first title under ''."""
    found, title = {"": []}, ""
    lines = (ast.get_docstring(node) or "").splitlines()
    for line, below in zip(lines, [*lines[1:], ""]):
        if re.fullmatch("-{3,}", below) and len(below) == len(line):
            assert line in SECTIONS, f"{node.name}: unknown section {line}"
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


@each_module
def test_parameters_are_exactly_those_of_the_code(module):
    for node in in_full(module, FUNCTION):
        assert named(sections(node).get("Parameters", [])) == parameters(node), node.name


@each_module
def test_parameters_of_a_class_or_method_are_exact_where_they_are_named(module):
    for node in public(TREE[module], ast.ClassDef):
        documented = sections(node).get("Parameters")
        starts = [n for n in node.body if isinstance(n, FUNCTION) and n.name == "__init__"]
        fields = [n.target.id for n in node.body if isinstance(n, ast.AnnAssign)]
        if documented is not None or (starts and node.name in FULL):
            assert named(documented or []) == (parameters(starts[0]) if starts else fields), node.name
    for owner, method in methods(module):
        documented = sections(method).get("Parameters")
        assert documented is None or named(documented) == parameters(method), f"{owner.name}.{method.name}"
