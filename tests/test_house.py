"""The shape of `kit/`: a short listing, imports that run one way, wings with a face."""
import ast
import importlib
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from kit import data, metrics, submit

KIT = Path(__file__).resolve().parents[1] / "kit"
TREE = {path.relative_to(KIT): ast.parse(path.read_text()) for path in sorted(KIT.rglob("*.py"))}
WINGS = sorted(path.name for path in KIT.iterdir() if (path / "__init__.py").is_file())


def unit(parts):
    """The core file or the wing that a module below `kit` belongs to."""
    return parts[0].removesuffix(".py")


def kit_imports(tree):
    """Modules of the kit that a file imports, wherever in the file, as parts below `kit`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "kit":
            yield from ([alias.name] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kit."):
            yield node.module.split(".")[1:]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1:] for alias in node.names if alias.name.startswith("kit."))


def test_the_listing_is_short():
    files = [path.name for path in KIT.glob("*.py")]
    assert len(files) <= 19 and len(WINGS) <= 10, f"{len(files)} files, {len(WINGS)} wings"


def test_no_import_runs_in_a_circle_between_core_files_and_wings():
    below = {}
    for path, tree in TREE.items():
        own = unit(path.parts)
        below.setdefault(own, set()).update(unit(parts) for parts in kit_imports(tree))
        below[own].discard(own)
    TopologicalSorter(below).prepare()              # raises CycleError, which names the circle


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_says_in_a_sentence_what_it_is_for_and_names_what_others_may_import(wing):
    module = importlib.import_module(f"kit.{wing}")
    sentence, blank = ((module.__doc__ or "").splitlines() + ["", ""])[:2]
    assert re.search(r"[.:]$", sentence) and not blank, sentence
    assert module.__all__ and all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("path", TREE, ids=str)
def test_a_file_takes_from_another_wing_only_what_that_wing_names(path):
    for node in ast.walk(TREE[path]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kit."):
            wing, *inner = node.module.split(".")[1:]
            if wing in WINGS and wing != unit(path.parts):
                named = set(importlib.import_module(f"kit.{wing}").__all__)
                strangers = {alias.name for alias in node.names} - named
                assert not inner and not strangers, f"line {node.lineno}: {node.module}: {', '.join(strangers)}"
        if isinstance(node, ast.ImportFrom) and node.module == "kit":          # from kit import training
            for wing in {alias.name for alias in node.names} & {*WINGS}:
                used = {inner.attr for inner in ast.walk(TREE[path]) if isinstance(inner, ast.Attribute)
                        and isinstance(inner.value, ast.Name) and inner.value.id == wing}
                assert used <= {*importlib.import_module(f"kit.{wing}").__all__} or wing == unit(path.parts)


def test_files_that_paste_alone_repeat_the_collections_as_they_are():
    assert data.COLLECTIONS == metrics.COLLECTIONS == submit.COLLECTIONS
