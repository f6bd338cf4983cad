"""Digests of code: a result that other code made has another name.

Code counts by the text of modules, without comments, docstrings and layout. A module of the kit counts with those that
it imports from the kit, and it counts wherever it lies. Functions and classes from a cell, or from a module of your
own, count by their source, with what they use from there.
"""
import ast
import dis
import hashlib
import inspect
import json
import linecache
import re
import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from tokenize import TokenError
from types import CellType, CodeType, FunctionType, ModuleType

import numpy as np

from lab.run.store import digest_of

# the packages whose modules are the code of the kit: kit, and the one with this file
OURS = tuple(import_module(name) for name in sorted({"kit", __name__.partition(".")[0]}))
_NAMES = tuple(package.__name__ for package in OURS)
# what partials, methods, properties and decorated functions hold
_HOLDERS = (("func", "args", "keywords"), ("__func__", "__self__"), ("__func__",), ("fget", "fset"), ("__wrapped__",))
_OF_PYTHON = "__doc__ __dict__ __weakref__ __module__ __firstlineno__ __static_attributes__".split()      # of a class


@lru_cache(1)
def all_sources():
    """{module: text} of the kit, as its files were when this process loaded it; a package is PACKAGE.__init__."""
    found = {}
    for folder in (Path(package.__file__).parent for package in OURS):
        for path in sorted(folder.rglob("*.py")):
            name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
            if path.is_file():                           # not the broken link that an editor leaves
                found[name] = path.read_text("utf-8", "replace")
    return found


@lru_cache(1024)
def code_digest(*modules):
    """A digest of modules of the kit, and of all that they import from the kit.

    >>> code_digest("kit.losses") == code_digest("kit.losses"), code_digest("kit.losses") == code_digest("kit.pad")
    (True, False)
    """
    found, todo = {}, [*modules]
    while todo:
        module = todo.pop()
        text = _text_of(module)
        if text is not None and module not in found:
            found[module] = plain_code(text)
            todo += imports(text)
    return _digest(sorted(found.values()))


def module_digest(module):
    """A digest of one module of the kit alone, without what it imports from the kit."""
    return hashlib.sha256(plain_code(_text_of(module)).encode()).hexdigest()


def text_digest(*texts):
    """A digest of code that is no module, such as the cells of a notebook, with what it imports from the kit.

    If it has commands of IPython, such as %time, the whole kit counts.
    """
    modules = {module for text in texts for module in imports(text)} if all(map(_tree, texts)) else all_sources()
    return _digest([[plain_code(text) for text in texts], code_digest(*sorted(modules))])


def things_digest(*things):
    """A digest of functions, classes and objects, such as a model's class and a loss, wherever they are defined."""
    found = []
    _describe(things, found, {})
    return _digest(found)


def _describe(thing, found, seen):
    """Add what decides what a thing does to `found`."""
    if thing is None or isinstance(thing, (bool, int, float, str, bytes)):
        found.append(repr(thing))
    elif isinstance(thing, (tuple, frozenset, set)):
        for part in sorted(thing, key=repr) if isinstance(thing, (set, frozenset)) else thing:
            _describe(part, found, seen)
        found.append(f"{len(thing)} in a {type(thing).__name__}")
    elif id(thing) in seen:
        found.append("as above")
    else:
        seen[id(thing)] = thing                          # held, so that no other object gets its id
        _describe_new(thing, found, seen)


def _describe_new(thing, found, seen):
    """As `_describe`, of what may hold itself."""
    inner = next((names for names in _HOLDERS if all(hasattr(thing, name) for name in names)), ())
    if isinstance(thing, (list, dict)):
        _describe(tuple(thing.items() if isinstance(thing, dict) else thing), found, seen)
    elif isinstance(thing, ModuleType):
        _describe_module(thing, found, seen)
    elif isinstance(thing, (np.ndarray, np.generic)) or hasattr(thing, "detach") and not isinstance(thing, type):
        found.append(digest_of(thing))                   # the repr of a long array is shortened
    elif inner and not isinstance(thing, (type, FunctionType)):
        _describe(tuple(getattr(thing, name) for name in inner), found, seen)
    elif hasattr(thing, "__qualname__"):
        home = getattr(thing, "__module__", None) or ""
        found.append(thing.__qualname__)
        if home.partition(".")[0] in _NAMES:
            found.append(code_digest(home))
        elif _is_own(home):
            _describe_own(thing, found, seen)
    elif hasattr(thing, "__dict__"):
        _describe((type(thing), vars(thing)), found, seen)
    else:
        found.append(re.sub(" at 0x[0-9a-f]+", "", repr(thing)))


def _is_own(home):
    """Whether a module is the user's own, not that of an installed package."""
    file = getattr(sys.modules.get(home), "__file__", None)
    return home == "__main__" or file is not None and not {"site-packages", "dist-packages"} & {*Path(file).parts} and (
        Path(sys.base_prefix) not in Path(file).parents)


def _describe_module(module, found, seen):
    """Add a module of the kit with what it imports, or one of the user's own with those that it imports from there."""
    name = module.__name__
    if name.partition(".")[0] in _NAMES:
        found.append(code_digest(name))
    elif name != "__main__" and _is_own(name):
        found.append(plain_code(Path(module.__file__).read_text("utf-8", "replace")))
        homes = [one if isinstance(one, ModuleType) else sys.modules.get(getattr(one, "__module__", None))
                 for one in vars(module).values()]
        _describe(tuple(one for one in homes if one is not None and one is not module), found, seen)
    else:
        found.append(name)


def _describe_own(thing, found, seen):
    """Add the source of a function or class, and what it takes from its own module."""
    if isinstance(thing, type):
        _describe({name: value for name, value in sorted(vars(thing).items()) if name not in _OF_PYTHON}, found, seen)
        _describe(thing.__bases__, found, seen)
    elif code := getattr(thing, "__code__", None):
        _describe(_source_of(thing), found, seen)
        cells = [cell.cell_contents for cell in thing.__closure__ or () if cell != CellType()]
        _describe((thing.__defaults__, thing.__kwdefaults__, cells), found, seen)
        _describe([thing.__globals__[name] for name in _names(code) if name in thing.__globals__], found, seen)


def _source_of(function):
    """The source of a function; if it has none of its own, what it was compiled to."""
    code = function.__code__
    try:                                                 # inspect.getsource takes that of another one, if decorated
        source = dedent("".join(inspect.getblock(linecache.getlines(code.co_filename)[code.co_firstlineno - 1:])))
    except (SyntaxError, TokenError):                    # no Python
        source = ""
    # the source of a lambda is a whole line, with others in it
    return plain_code(source) if source and _tree(source) and function.__name__ != "<lambda>" else _compiled(code)


def _compiled(code):
    """What compiled code does, as plain values."""
    values = [_compiled(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return [code.co_code.hex(), values, code.co_names, code.co_varnames, code.co_freevars]


def _names(code):
    """The global names that compiled code uses, with those of functions inside it."""
    own = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return sorted(own.union(*(_names(one) for one in code.co_consts if isinstance(one, CodeType))))


def imports(text):
    """The modules of the kit that define the names which some code imports."""
    return sorted({_home(module, name) if name else module for module, name in _imported(text)})


@lru_cache(4096)
def _imported(text):
    """The imports of the kit in some code: ((module, name or ""), ...)."""
    found, tree = [], _tree(text)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ImportFrom) and _is_import(node):
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.partition(".")[0] in _NAMES]
    return tuple(found)


def _home(module, name):
    """The module that defines a name: a module of a package, one from which the package has the name, or it."""
    if _text_of(f"{module}.{name}") is not None:
        return f"{module}.{name}"
    package = all_sources().get(f"{module}.__init__")
    there = next((home for home, own in _imported(package) if own == name), None) if package else None
    return _home(there, name) if there and there != module else module


def _text_of(module):
    """The text of a module of the kit, or None."""
    return all_sources().get(module, all_sources().get(f"{module}.__init__"))


def _is_import(node):
    """Whether a statement imports from the kit."""
    if isinstance(node, ast.Import):
        return all(alias.name.partition(".")[0] in _NAMES for alias in node.names)
    return isinstance(node, ast.ImportFrom) and not node.level and node.module.partition(".")[0] in _NAMES


@lru_cache(4096)
def plain_code(text):
    """Python code as text that says what it does: without comments, docstrings, layout and imports of the kit.

    >>> plain_code("x = 1  # one") == plain_code("x=(1)") != plain_code("x = 2")
    True
    """
    tree = _tree(text)
    return text if tree is None else _plain(tree)


def _tree(text):
    """Some code as a syntax tree; None if somebody edits it just now, and its import will say what is wrong."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _plain(node):
    """A part of a syntax tree as text; what only some versions of Python note is left out."""
    if isinstance(node, list):
        return f"[{','.join(_plain(one) for one in node if not (_is_text(one) or _is_import(one)))}]"
    if isinstance(node, ast.AST):
        fields = [f"{name}={_plain(value)}" for name, value in ast.iter_fields(node) if value not in ([], None)]
        return f"{type(node).__name__}({','.join(fields)})"
    return repr(node)


def _is_text(node):
    """Whether a statement is nothing but a text, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _digest(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


all_sources()                                            # with this module, so before anything is trained
