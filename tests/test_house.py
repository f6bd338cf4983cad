"""The shape of the house: a short listing, imports that run one way and never upwards, wings with a face.

Three storeys: `kit`, above it `lab` (notebooks/lab), above both the commands in notebooks/.
"""
import ast
import importlib
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from kit import data, metrics, submit

PROJECT = Path(__file__).resolve().parents[1]
KIT, LAB = PROJECT / "kit", PROJECT / "notebooks" / "lab"
TREE = {path.relative_to(home.parent): ast.parse(path.read_text()) for home in (KIT, LAB)
        for path in sorted(home.rglob("*.py"))}
COMMANDS = {path.stem: ast.parse(path.read_text()) for path in sorted((PROJECT / "notebooks").glob("*.py"))}
STUDIES = "lab.studies"                  # no face: imported file by file, and may look into every wing
WINGS = sorted(f"{home.name}.{path.name}" for home in (KIT, LAB) for path in home.iterdir()
               if (path / "__init__.py").is_file() and f"{home.name}.{path.name}" != STUDIES)
def unit(parts):
    """The core file or the wing that a module belongs to, such as kit.data or lab.run."""
    return ".".join(parts[:2]).removesuffix(".py").removesuffix(".__init__")


def own_imports(tree):
    """Modules of kit and lab that a file imports, wherever in the file, as lists of names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("kit", "lab"):
            yield from ([node.module, alias.name] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and re.match(r"(kit|lab)\.", node.module or ""):
            yield node.module.split(".")
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names if re.match(r"(kit|lab)(\.|$)", alias.name))


def test_no_import_runs_in_a_circle_between_core_files_and_wings():
    below = {}
    for path, tree in TREE.items():
        own = unit(path.parts)
        below.setdefault(own, set()).update(unit(parts) for parts in own_imports(tree) if parts[1:])
        below[own].discard(own)
    TopologicalSorter(below).prepare()              # raises CycleError, which names the circle


def test_no_import_runs_upwards():
    for path, tree in TREE.items():
        above = [".".join(parts) for parts in own_imports(tree) if parts[0] == "lab"] if path.parts[0] == "kit" else []
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [
                node.module or ""] if isinstance(node, ast.ImportFrom) else []
            above += [name for name in names if name.partition(".")[0] in COMMANDS]
        assert not above, f"{path} imports {', '.join(above)}"


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_says_in_a_sentence_what_it_is_for_and_names_what_others_may_import(wing):
    module = importlib.import_module(wing)
    sentence, blank = ((module.__doc__ or "").splitlines() + ["", ""])[:2]
    assert re.search(r"[.:]$", sentence) and not blank, sentence
    assert module.__all__ and all(hasattr(module, name) for name in module.__all__)


def test_files_that_paste_alone_repeat_the_collections_as_they_are():
    assert data.COLLECTIONS == metrics.COLLECTIONS == submit.COLLECTIONS
