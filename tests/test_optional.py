"""A notebook goes on without a package that it can do without: one that is missing, and one that does not work."""
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from kit.programs import program_from_hlo
from lab.run import optional

BOOK = nbformat.read(Path(__file__).resolve().parents[1] / "notebooks" / "09_own_program.ipynb", nbformat.NO_CONVERT)
CELLS = [cell.source for cell in BOOK.cells if cell.cell_type == "code" and 'optional("jax"' in cell.source]
OUTDATED = """
class Lowered:
    lower = lambda self, *args: self
    compiler_ir = lambda self, kind: self
    as_serialized_hlo_module_proto = lambda self: b"HloModule of a later format"
jit = lambda function: Lowered()
grad = lambda function: function
"""
DEEP = "def jit(function):\n    return jit(function)\ngrad = lambda function: function\n"
AVX = "jaxlib was built using AVX instructions,\\nwhich your CPU does not have"
# what jax/__init__.py holds, and what the first cell says; jax/numpy.py has `ones`
ODD = {
    "built for another machine": (f"raise RuntimeError('{AVX}')",
                                  r"RuntimeError: jaxlib was built using AVX instructions, which your CPU does not ha"),
    "of another version of NumPy": ("import numpy\nnumpy.no_such_name", "AttributeError: module 'numpy' has no attrib"),
    "only partly there": ("from jax import core", "ImportError: cannot import name 'core'"),
    "without a name that is used": ("", "AttributeError: module 'jax' has no attribute 'jit'"),
    "with a class that has changed": (DEEP, "RecursionError: maximum recursion depth exceeded"),
    "of a later format": (OUTDATED, "DataError: the bytes: "),
}


@pytest.fixture
def install(monkeypatch, tmp_path):
    """A function that lets `import jax` find a package with this text; it is gone after the test."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "jax"}

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "jax"]:
            del sys.modules[name]

    def written(text):
        (tmp_path / "jax").mkdir()
        (tmp_path / "jax" / "__init__.py").write_text(text)
        (tmp_path / "jax" / "numpy.py").write_text("ones = tanh = list")
        monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield written
    forget()
    sys.modules.update(before)


def said_by(cells, capsys):
    names = {"optional": optional, "pd": pd, "program_from_hlo": program_from_hlo, "measurements": 2}
    for cell in cells:
        exec(compile(cell, "09", "exec"), names)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("kind", ODD)
def test_a_package_that_does_not_work_costs_one_sentence(install, capsys, kind):
    text, why = ODD[kind]
    install(text)
    first, second = said_by(CELLS, capsys)
    assert first.startswith("note  jax ") and f"does not work here ({why}" in first
    assert first.endswith("; the saved file does not need it")
    assert second.endswith('; nothing is measured: pip install ".[own]"')


@pytest.mark.parametrize("name", ["jax", "flatbuffers", "ml_dtypes"])
def test_a_package_that_is_missing_is_named(install, monkeypatch, capsys, name):
    install("import ml_dtypes")
    monkeypatch.setitem(sys.modules, "flatbuffers", sys)
    monkeypatch.setitem(sys.modules, name, None)
    assert f'{name} is not installed; nothing is measured: pip install ".[own]"' in said_by(CELLS[1:], capsys)


def test_an_interrupt_still_ends_the_notebook():
    with pytest.raises(KeyboardInterrupt), optional("jax", "nothing"):
        raise KeyboardInterrupt
