"""What each result of a run was made from, and whether that still holds.

Beside a result NAME lies NAME.made.json. It holds the SHA-256 of the result, the step that made it, the folder of the
run, what the result was made from (a digest per source), and a digest of all this. So a result can be copied to another
folder or machine together with this file. `unfit` tells whether a result is whole, and was made from what is there now.
The sources are:

- "data COLLECTION SPLIT": the content of the graphs, as the catalogue of the prepared data has it
- "code MODULE": this module of the kit, and what it imports from the kit; see `code_digest`. The name is for readers:
  a file of the kit that is moved or renamed stays the same code
- "file NAME": another result in the folder of the run
- "outside PATH": a file elsewhere that a setting named; compared while it is there
- any other name: a setting, which only the step that made the result can compare
"""
import ast
import dis
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import is_dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType, SimpleNamespace

from kit.data import COLLECTIONS, SPLITS
from kit.files import file_sha256, replace_file, unwritable_named, write_json
from kit.prepare import content_digests

MARK = ".made.json"
ASIDE = "aside"                          # in the folder of a run: results that made room for others
_NAMED = type, FunctionType, BuiltinFunctionType, ModuleType         # what they do counts by itself
_KINDS = ("file", "data", "code", "outside")
# the packages whose modules are the code of the kit: kit, and the one with this file
OURS = tuple(import_module(name) for name in sorted({"kit", __name__.partition(".")[0]}))
_ROOTS = "|".join(package.__name__ for package in OURS)
_MODULES = re.compile(rf"code (?:{_ROOTS})[\w.]*(?: (?:{_ROOTS})[\w.]*)*")
_A_MODULE = re.compile(rf"(?:{_ROOTS})(?:\.\w+)+")
_PLACES = re.compile(rf" at 0x[0-9a-f]+|\b(?:{_ROOTS})(?:\.\w+)*\.(?=\w)")          # in a repr


def from_data(data_root, collections, *splits):
    """What a result was made from: all graphs of some splits.

    Parameters
    ----------
    data_root : str or Path
        A prepared folder.
    collections : sequence of str
    *splits : str

    Returns
    -------
    dict of str to str
    """
    return {f"data {c} {split}": _data_digest(data_root, c, split) for c in collections for split in splits}


def from_code(*modules):
    """What a result was made from: modules of the kit, and what they import from the kit.

    Parameters
    ----------
    *modules : str
        Names such as "kit.train". Modules outside the kit do not count.

    Returns
    -------
    dict of str to str
    """
    return {f"code {name}": code_digest(name) for name in sorted({*modules}) if _is_own(name)}


def check_code(made_from):
    """RuntimeError if this process has loaded other code of the kit than `made_from` says, see `from_code`.

    A process that starts later than the one that wrote `made_from` may have loaded files that changed in between.
    """
    for source, digest in made_from.items():
        if source.startswith("code ") and not _is_code_of(source.split()[1:], digest):
            raise RuntimeError("files of the kit changed after this run started; run it again")


def from_files(out, paths):
    """What a result was made from: other results of the same run.

    Parameters
    ----------
    out : str or Path
        The folder of the run.
    paths : sequence of str or Path
        In that folder.

    Returns
    -------
    dict of str to str
    """
    return {f"file {Path(path).relative_to(out).as_posix()}": file_sha256(path) for path in paths}


def from_outside(path):
    """What a result was made from: a file that is no result of the run, such as the weights of an earlier run.

    Parameters
    ----------
    path : str or Path
        May start with a tilde.

    Returns
    -------
    dict of str to str
    """
    place = os.path.abspath(Path(path).expanduser())
    return {f"outside {place}": file_sha256(place)}


def from_settings(**settings):
    """What a result was made from: settings by name.

    Parameters
    ----------
    **settings
        Any values that their repr tells apart.

    Returns
    -------
    dict of str to str
    """
    return {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in settings.items()}


def unfit(path, out, data_root, kinds=_KINDS):
    """Why a result cannot be used.

    Parameters
    ----------
    path : str or Path
        The result, in the folder `out` of a run.
    out, data_root : str or Path
        Folder of the run; prepared folder.
    kinds : sequence of str
        The kinds of sources to compare.

    Returns
    -------
    str or None
        None if the result is whole and was made from the data, the code and the files that are there now.
    """
    return _unfit(path, out, data_root, kinds, {os.path.abspath(path)})


def _unfit(path, out, data_root, kinds, above):
    """As `unfit`; `above` has the absolute paths of this result and of those that were made from it and ask."""
    if why := _not_whole(path):
        return why
    for source, digest in read_mark(path)["made_from"].items():
        kind, _, name = source.partition(" ")
        if kind not in kinds:
            continue
        place = Path(os.path.abspath(Path(out, name)))
        if kind == "file" and place.is_relative_to(os.path.abspath(out)):
            why = _not_whole(place)
            # compared first, because a result may be made from an earlier one of its name
            if why is None and file_sha256(place) != digest:
                why = f"{place}: another one now"
            if why is None and str(place) in above:
                why = f"{place}: made from itself"
            why = why or _unfit(place, out, data_root, _KINDS, {*above, str(place)})
            if why:
                return f"{path}: made from a result that cannot be used: {why}"
        elif kind == "data" and name in _DATA and _data_digest(data_root, *name.split()) != digest:
            return f"{path}: made from other data: {name} has changed since"
        elif kind == "outside" and os.path.isfile(name) and file_sha256(name) != digest:
            return f"{path}: made from {name}, which has changed since"
        elif kind == "code" and _MODULES.fullmatch(source) and not _is_code_of(name.split(), digest):
            return f"{path}: made by other code of {name}, or of what that imports"
    return None


def _not_whole(path):
    """Why a file is not there as it was written, or None."""
    if not os.path.isfile(path):
        return f"{path}: not there"
    mark = read_mark(path)
    if mark is None:
        return f"{path}: without a readable {Path(path).name}{MARK}, which says what it was made from"
    return None if file_sha256(path) == mark["sha256"] else f"{path}: changed after {mark['by']} wrote it"


_DATA = {f"{collection} {split}" for collection in COLLECTIONS for split in SPLITS}


def _data_digest(data_root, collection, split):
    """A digest of the content of all prepared graphs of a split, with their names."""
    return _digest(content_digests(data_root, collection, split))


def _digest(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def write_mark(path, out, by, made_from):
    """Write down what a result was made from; `by` is the step."""
    name = Path(path).relative_to(out).as_posix()
    mark = {"name": name, "sha256": file_sha256(path), "by": by, "run": run_id(out), "made_from": made_from}
    write_json(Path(f"{path}{MARK}"), {**mark, "digest": _digest(mark)})


def read_mark(path):
    """What is written down about a result; None if there is nothing, or something else, or somebody changed it."""
    try:
        mark = json.loads(Path(f"{path}{MARK}").read_bytes()[:1 << 20])
        whole = mark.pop("digest") == _digest(mark)
        texts = [mark[name] for name in ("name", "sha256", "by", "run")]
        texts += [text for pair in mark["made_from"].items() for text in pair]
        return mark if whole and all(isinstance(text, str) for text in texts) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def run_id(out):
    """A random name of the folder of a run, which tells its own results from those of other machines."""
    place = Path(out, ".run", "id")
    if not place.is_file():
        replace_file(place, secrets.token_hex(8))
    return place.read_text("utf-8", "replace")[:40]


def is_own(path, out):
    """Whether a file is a result that this run made, unchanged, at its place."""
    mark = read_mark(path)
    return (mark is not None and mark["run"] == run_id(out) and Path(out, mark["name"]) == Path(path)
            and Path(path).is_file() and file_sha256(path) == mark["sha256"])


def set_aside(path, out):
    """Move a file, with what is written down about it, to `out`/aside/TIME/ -> its new path, or None without a file."""
    if not os.path.lexists(path):
        return None
    number, name = 0, Path(path).relative_to(out)
    stamp = time.strftime("%Y-%m-%d_%H%M%S")
    while os.path.lexists(place := Path(out, ASIDE, stamp + f"-{number}" * bool(number), name)):
        number += 1
    with unwritable_named(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, place)                                 # a part of the folder may lie on another disk
        if os.path.lexists(f"{path}{MARK}"):
            shutil.move(f"{path}{MARK}", f"{place}{MARK}")
    return place


def make_room(path, out):
    """Before a result is written to `path`: move away a file that this run did not make, and say so."""
    if os.path.lexists(path) and not is_own(path, out):
        print(f"note  {path} was not made by this run, or changed since; it is kept as {set_aside(path, out)}")


def own_results(out, *steps):
    """Paths of the results of these steps of this run that are there, unchanged."""
    found = [Path(str(mark).removesuffix(MARK)) for mark in sorted(_marks(out))]
    return [path for path in found if (read_mark(path) or {"by": None})["by"] in steps and is_own(path, out)]


def _marks(out, above=()):
    """Yield the marks in the folder of a run, but for aside/; folders may be links, because they grow large."""
    here = os.path.realpath(out)
    if here in above:                                    # a link to a folder that holds it
        return
    with suppress(OSError), os.scandir(out) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir() and (above or entry.name != ASIDE):
                yield from _marks(entry.path, (*above, here))
            elif entry.name.endswith(MARK):
                yield Path(entry.path)


# --- the code of the kit


@lru_cache(1024)
def code_digest(*modules):
    """A digest of modules of the kit, and of the modules that they take names from.

    Comments, docstrings and the layout of the code do not count, and neither does where a module lies: what it imports
    counts by the text of the module that defines it. A name that a module only passes on counts as a name of the
    module that defines it. So a change of a picture does not change the digest of a training. The code is that of the
    files when this process loaded them: a change while a training runs does not count for its results.

    >>> code_digest("kit.losses") == code_digest("kit.losses"), code_digest("kit.losses") == code_digest("kit.pad")
    (True, False)
    """
    found, todo = {}, [*modules]
    while todo:
        module = todo.pop()
        if module not in found and _source(module) is not None:
            try:
                found[module] = _linked(_source(module))
                todo += imports(_source(module))
            except (SyntaxError, ValueError):            # somebody edits it; its import will say what is wrong
                found[module] = [_own_text(_source(module)), []]
    return _digest(sorted(found.values()))


def text_digest(*texts):
    """A digest of code that is no module of the kit, such as the cells of a notebook, with what it takes from the kit.

    Parameters
    ----------
    *texts : str
        SyntaxError if one is no Python.

    Returns
    -------
    str
    """
    return _digest([[_linked(text) for text in texts],
                    code_digest(*sorted({module for text in texts for module in imports(text)}))])


def module_digest(module):
    """A digest of one module of the kit alone, without what it imports from the kit.

    Parameters
    ----------
    module : str

    Returns
    -------
    str
    """
    return _own_text(_source(module))


def _is_code_of(modules, digest):
    """Whether a digest is that of modules as they are now; one that is not at its place any more may lie elsewhere."""
    if len(modules) == 1 and _source(modules[0]) is None:
        return any(code_digest(name.removesuffix(".__init__")) == digest for name in sorted(all_sources()))
    return code_digest(*modules) == digest


def _is_own(name):
    """Whether a name is that of a module of the kit."""
    return f"{name}".partition(".")[0] in [package.__name__ for package in OURS]


def _linked(text):
    """[digest of some code without its imports of the kit, [what it imports by which name, by text of the module]]."""
    taken = [[name, own, _own_text(_source(home) or home)] for home, name, own in _taken(text)]
    return [_own_text(text), sorted(taken) + [_own_text(_source(one) or one) for one in _modules_named(text)]]


def own_code(*things):
    """What a result was made from: functions, classes and objects that are defined outside the kit, as in a notebook.

    The compiled code counts, so that comments and layout do not. What such code takes from its own module counts, too:
    functions, classes, and values. Modules of the kit that it takes names from count as a whole. What it takes from
    other modules counts by its name alone. Of an object, its class and its attributes count; of an object of another
    module, its attributes only if it is a network or a dataclass, and else its repr.

    Parameters
    ----------
    *things : callable
        Functions and classes that a module of the kit defines do not count; the attributes of its objects do.

    Returns
    -------
    dict of str to str
        {} if there is nothing that counts.
    """
    found, seen, modules = [], {}, set()
    homes = {getattr(one, "__module__", None) for one in _flat(things) if not _of_kit(one)}
    todo = [one for one in _flat(things, homes) if not _of_kit(one)]
    states = [_value_text(one, homes) for one in things if not _is_named(one)]
    while todo:
        one = todo.pop()
        home, name = getattr(one, "__module__", None), getattr(one, "__qualname__", "")
        if _of_kit(one):
            modules.add(home or one.__name__)
        elif id(one) not in seen:
            seen[id(one)] = one                          # held, so that no other object gets its id
            text, more = _compiled(one, homes) if home in homes else ("", [])
            found.append((str(home), name, text))
            todo += more
    return {"own code": _digest([sorted(found), code_digest(*sorted(modules)), states])} if found or states else {}


def _flat(things, homes=(), above=()):
    """The functions and classes in things, also those that partials, methods, properties and containers hold."""
    found = []
    for thing in things:
        inner = () if isinstance(thing, _NAMED) or id(thing) in above else _parts(thing, homes)
        if isinstance(thing, ModuleType):
            found += [thing] * _of_kit(thing)
        elif inner:
            found += _flat(inner, homes, (*above, id(thing)))
        elif callable(thing):
            found.append(thing if hasattr(thing, "__qualname__") else type(thing))
    return found


def _parts(thing, homes):
    """What a thing consists of; () if it is taken as it is."""
    if isinstance(thing, dict):
        return [*thing.keys(), *thing.values()]
    if isinstance(thing, (tuple, list, set, frozenset)):
        return [*thing]
    for names in (("__func__", "__self__"), ("func", "args", "keywords"), ("fget",), ("__wrapped__",)):
        if callable(getattr(thing, names[0], None)):
            return [getattr(thing, name) for name in names if hasattr(thing, name)]
    kind = type(thing)
    counts = kind.__module__ in homes or _of_kit(kind) or hasattr(kind, "state_dict") or is_dataclass(kind)
    return [kind, vars(thing)] if hasattr(thing, "__dict__") and (counts or kind is SimpleNamespace) else ()


def _is_named(thing):
    """Whether the name of a thing says which one it is; of a partial, the names and numbers that it holds."""
    return isinstance(thing, _NAMED) or isinstance(thing, partial) and all(
        isinstance(one, (*_NAMED, int, float, str)) for one in (thing.func, *thing.args, *thing.keywords.values()))


def _of_kit(thing):
    return _is_own(thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", ""))


def _compiled(thing, homes):
    """A function or a class of Python as text that says what it does, and what else it takes from its module."""
    if isinstance(thing, type):
        inside = {name: value for name, value in vars(thing).items() if callable(value) or not name.startswith("__")}
        values = [(name, _value_text(value, homes)) for name, value in inside.items() if not callable(value)]
        return repr(sorted(values)), _flat([*inside.values(), *thing.__bases__], homes)
    code = getattr(thing, "__code__", None)
    if code is None:                                     # not of Python: its name counts
        return "", []
    cells = [cell.cell_contents for cell in thing.__closure__ or () if cell != CellType()]
    given = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), *cells]
    taken = [*given, *(thing.__globals__[name] for name in _names(code) if name in thing.__globals__)]
    return repr((_code_text(code, thing.__doc__), [_value_text(one, homes) for one in taken])), _flat(taken, homes)


def _names(code):
    """The global names that compiled code uses, with those of functions inside it."""
    own = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return sorted(own.union(*(_names(one) for one in code.co_consts if isinstance(one, CodeType))))


def _code_text(code, doc=None):
    """Compiled code as text, without line numbers and the docstring."""
    values = [_value_text(one) for one in code.co_consts if doc is None or one != doc]
    names = [name for name in code.co_names if not _is_own(name)]
    return repr((code.co_code, values, names, code.co_varnames, code.co_argcount, code.co_kwonlyargcount))


def _value_text(value, homes=(), above=()):
    """A value as text that is the same in each process: sets in order, and no addresses."""
    def text(one):
        return _value_text(one, homes, (*above, id(value)))
    if id(value) in above:
        return "as above"
    if isinstance(value, CodeType):
        return _code_text(value)
    if isinstance(value, _NAMED):                        # what it does counts elsewhere
        home = "" if _of_kit(value) else getattr(value, "__module__", "")
        return f"{home} {getattr(value, '__qualname__', value.__name__)}"
    if hasattr(value, "tolist") and hasattr(value, "dtype"):     # an array or a tensor; its repr is shortened
        value = [str(value.dtype), [*value.shape], repr(value.tolist())]
    elif isinstance(value, dict):
        value = [[text(one) for one in pair] for pair in value.items()]
    elif isinstance(value, (set, frozenset)):
        value = ["set", *sorted(map(text, value))]
    elif parts := _parts(value, homes):
        value = [type(value).__name__, *map(text, parts)]
    return without_places(value)


def without_places(value):
    """The repr of a value without addresses, and without the modules of the kit that define functions and classes."""
    return _PLACES.sub("", repr(value))


def _source(module):
    """The text of a module of the kit, or None."""
    return all_sources().get(module, all_sources().get(f"{module}.__init__"))


def all_sources():
    """{module: text} of the kit that this process has loaded; see `loaded_sources`."""
    return loaded_sources(*(Path(package.__file__).parent for package in OURS))


@lru_cache(8)
def loaded_sources(*folders):
    """{module: text} of packages, as their files are at the first call; a package is called PACKAGE.__init__.

    Parameters
    ----------
    *folders : Path
        Called as their packages are.

    Returns
    -------
    dict of str to str
    """
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
            with suppress(OSError):                      # such as the broken link that an editor leaves
                found[name] = path.read_text("utf-8", "replace")
    return found


def imports(text):
    """The modules of the kit that define the names which some code imports."""
    return sorted({home for home, _, _ in _taken(text)})


def _taken(text):
    """What some code imports from the kit: (module that defines it, its name there or "", its name here)."""
    found = []
    for module, name, own in _imported(text):
        home = _home(module, name) if name else module
        found.append((home, "" if home == f"{module}.{name}" else name, own))
    return found


@lru_cache(4096)
def _imported(text, inside=True):
    """The imports of the kit in some code: (module, name or "", name here or ""); `inside`: also those in functions."""
    found, tree = [], ast.parse(text)
    for node in ast.walk(tree) if inside else tree.body:
        if _is_import(node) and isinstance(node, ast.ImportFrom):
            found += [(node.module, alias.name, alias.asname or alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "", alias.asname or "") for alias in node.names if _is_own(alias.name)]
    return found


def _is_import(node):
    """Whether a statement imports from the kit, and nothing else."""
    if isinstance(node, ast.Import):
        return all(_is_own(alias.name) for alias in node.names)
    return isinstance(node, ast.ImportFrom) and not node.level and _is_own(node.module)


def _home(module, name):
    """The module that defines a name: a module of a package, one from which a module has the name, or it."""
    if _source(f"{module}.{name}") is not None:
        return f"{module}.{name}"
    passed = {}
    with suppress(SyntaxError, ValueError):                  # somebody edits it
        passed = {own: (home, there) for home, there, own in _imported(_source(module) or "", inside=False) if there}
    return _home(*passed[name]) if name in passed else module


@lru_cache(4096)
def _modules_named(text):
    """The texts in some code that are names of modules of the kit, such as those for `from_code`, in their order."""
    return [node.value for node in ast.walk(ast.parse(text)) if _is_module_name(node)]


def _is_module_name(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_A_MODULE.fullmatch(node.value))


@lru_cache(4096)
def _own_text(text):
    """A digest of some code without its imports of the kit and names of modules; of a text if it is no code."""
    with suppress(SyntaxError, ValueError):
        text = _plain(ast.parse(text), placed=False)
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(4096)
def plain_code(text):
    """Python code as text that says what it does: without comments, docstrings and layout.

    >>> plain_code("x = 1  # one") == plain_code("x=(1)") != plain_code("x = 2")
    True
    """
    return _plain(ast.parse(text))


def _plain(node, placed=True):
    """A part of a syntax tree as text; what only some versions of Python note is left out.

    Unless it is `placed`, imports of the kit are left out, and all names of its modules are alike.
    """
    if isinstance(node, list):
        kept = [one for one in node if not (_is_text(one) or _is_import(one) and not placed)]
        return f"[{','.join(_plain(one, placed) for one in kept)}]"
    if _is_module_name(node) and not placed:
        return "a module"
    if isinstance(node, ast.AST):
        fields = [f"{name}={_plain(value, placed)}" for name, value in ast.iter_fields(node) if value not in ([], None)]
        return f"{type(node).__name__}({','.join(fields)})"
    return repr(node)


def _is_text(node):
    """Whether a statement is nothing but a text, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


all_sources()                                            # with this module, so before anything is trained
