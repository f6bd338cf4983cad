"""Digests of code: what code does decides them, and neither its words nor the place where it lies."""
import functools
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kit
from kit.losses import list_mle_loss, pairwise_hinge_loss
from lab.run.code import all_sources, code_digest, imports, plain_code, text_digest, things_digest

PROJECT = Path(__file__).resolve().parents[1]
CODE = 'def double(x):\n    """Twice x."""\n    return 2 * x\n'


# --- the text of modules


@pytest.mark.parametrize("text, same", [
    ("def double(x):\n    return 2 * x\n", True), ('"""A module."""\ndef double(x): return 2 * x\n', True),
    ("# why\ndef double(x):\n    return (2 *\n            x)   # here\n", True),
    ('from kit.data import target\n\n\ndef double(x):\n    """Other words."""\n    return 2*x\n', True),
    ("def double(x):\n    return 3 * x\n", False), ("def double(y):\n    return 2 * y\n", False),
    ("def double(x):\n    return '2 * x'\n", False), ("def double(x):\n    2 * x\n", False),
    ("@cache\ndef double(x):\n    return 2 * x\n", False), ("def double(x):\n    return 2.0 * x\n", False),
    ("import kit2\ndef double(x):\n    return 2 * x\n", False), ("def double(x):\n    return 2 *\n", False)])
def test_comments_docstrings_and_layout_are_no_code_and_all_else_is(text, same):
    assert (plain_code(text) == plain_code(CODE)) == same


def test_a_name_belongs_to_the_module_that_defines_it():
    assert imports("from kit.models import LayoutGNN, SparseMean\nimport numpy\nfrom kit import train_parts") == [
        "kit.models.layers", "kit.models.layout_gnn", "kit.train_parts"]
    assert imports("import kit.data\nfrom lab.run import read_kept") == ["kit.data", "lab.run.store"]
    # these packages load a file when one of its names is asked for
    assert imports("from kit.models import TileModel, explain\nfrom lab.training import Member, train_recipes") == [
        "kit.models.explanation", "kit.models.tile", "lab.training.members", "lab.training.plan"]


@pytest.fixture
def copy(tmp_path, project, monkeypatch):
    """A folder with a copy of the kit, which counts in place of the kit after `forget`."""
    shutil.copytree(project / "kit", tmp_path / "kit", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kit, "__file__", str(tmp_path / "kit" / "__init__.py"))
    forget()
    yield tmp_path / "kit"
    monkeypatch.undo()
    forget()


def forget():
    """As in a process that starts now."""
    code_digest.cache_clear()
    all_sources.cache_clear()


def test_a_change_of_the_kit_counts_where_it_is_used_and_only_there(copy):
    def digests():
        forget()
        return {name: code_digest(f"kit.{name}") for name in ("train", "submit", "programs", "models.tile")}
    before = digests()
    assert len({*before.values()}) == 4
    for name, add, expected in (
            ("train.py", "# a comment\n\n", []), ("programs/__init__.py", '"""More words."""\n', []),
            ("losses.py", "LATER = 1\n", ["train"]), ("submit.py", "X = 1\n", ["submit"]),
            ("hlo.py", "X = 1\n", ["programs"]), ("models/tile.py", "X = 1\n", ["models.tile"]),
            ("train_parts/sampling.py", "X = 1\n", ["train"])):
        (copy / name).write_text((copy / name).read_text() + add)
        after = digests()
        assert [one for one in before if before[one] != after[one]] == expected, name
        before = after


def test_code_that_changes_while_a_process_runs_counts_in_the_next_process(copy):
    before = code_digest("kit.train")
    (copy / "losses.py").write_text("LATER = 1\n")
    (copy / "later.py").symlink_to("nowhere")            # as editors leave them
    code_digest.cache_clear()
    assert code_digest("kit.train") == before
    forget()
    assert code_digest("kit.train") != before


@pytest.mark.parametrize("moves", [
    [("models/tile.py", "search/tile.py")],
    [(f"search/{path.name}", f"seek/{path.name}") for path in sorted((PROJECT / "kit" / "search").glob("*.py"))]])
def test_a_file_that_is_moved_with_the_imports_that_follow_is_the_same_code(copy, moves):
    text = "from kit.recipes import recipes_for\nfrom kit.losses import list_mle_loss as mine\nimport numpy as np\n"
    asked, renamed = ["kit.train", "kit.recipes", "kit.losses", "kit.models.tile", "kit.search"], {}

    def digests():
        forget()
        return {name: code_digest(renamed.get(name, name)) for name in asked} | {"cell": text_digest(text)}
    before = digests()
    for old, new in moves:
        (copy / new).parent.mkdir(exist_ok=True)
        (copy / old).rename(copy / new)
        names = [f"kit.{name.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__") for name in (old, new)]
        renamed[names[0]] = names[1]
    for path in copy.rglob("*.py"):
        path.write_text(functools.reduce(_rename, renamed.items(), path.read_text()))
    text = functools.reduce(_rename, renamed.items(), text)
    assert digests() == before and len({*before.values()}) == len(before)
    changed = copy / moves[-1][1]
    changed.write_text(changed.read_text() + "\nX = 1\n")
    assert digests() != before


def _rename(text, names):
    return re.sub(rf"\b{re.escape(names[0])}\b", names[1], text)


# --- functions, classes and objects from cells

CELLS = ["""
import dataclasses, functools, types
import numpy as np
import torch
from kit import losses
from kit.losses import list_mle_loss

SCALE, MARGINS, SHARES, NAMES = 2, [1, {"low": 2}], np.arange(5000.0), {"a", "b", "c", "d"}

def helper(cost):
    return SCALE * cost

@functools.lru_cache
def cached(cost):
    return 7 * cost

def twice(function):
    @functools.wraps(function)
    def wrapper(*args):
        return 2 * function(*args)
    return wrapper
""", """
@dataclasses.dataclass
class Settings:
    margin: float = 1.0

GIVEN, SPACE, CRITERION = Settings(5.0), types.SimpleNamespace(margin=6), torch.nn.MarginRankingLoss(margin=4)

def mine(cost, runtime, names=NAMES):
    \"\"\"A loss.\"\"\"
    return [helper(c) for c in cost if c not in {"x", "y", "z"}]

class Own:
    power = 3
    def __init__(self, margin):
        self.margin, self.inner, self.me = margin, [cached], self
    def __call__(self, cost, runtime):
        return self.margin * self.inner[0](cost) + self.scaled(cost)
    def loss(self, cost, runtime):
        return self(cost, runtime)
    @staticmethod
    def scaled(cost):
        return cost ** 2
    @property
    def half(self):
        return self.margin / 2

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("shares", torch.arange(5000.0))

def shifted(by):
    def loss(cost, runtime):
        return cost - by
    return loss

@twice
def decorated(cost, runtime):
    return losses.list_mle_loss(cost, runtime)

def of_values(cost, runtime):
    return CRITERION(cost * SHARES, GIVEN.margin * SPACE.margin, MARGINS[1]["low"]) + cost.power

power = object()                             # an attribute of this name is no global name
LAMBDAS = [lambda cost, runtime: cost, lambda cost, runtime: -cost]
things = {"mine": mine, "own": Own(2), "class": Own, "method": Own(2).loss, "network": Network(),
          "closure": shifted(1), "decorated": decorated, "lambda": LAMBDAS[0], "values": of_values,
          "partial": functools.partial(list_mle_loss, of=[mine, np.arange(5000.0)])}
"""]
# (before, after, the things that do something else then)
CHANGES = [
    ("SCALE * cost", "SCALE + cost", "mine partial"), ("SCALE, MARGINS", "MARGINS, SCALE", "mine partial values"),
    ("= 2, [1", "= 3, [1", "mine partial"), ('"d"}', '"e"}', "mine partial"), ('"z"}', '"w"}', "mine partial"),
    ('"low": 2', '"low": 3', "values"), ("(5.0)", "(5.5)", "values"), ("margin=6", "margin=7", "values"),
    ("margin=4", "margin=5", "values"),
    ("SHARES, NAMES = 2", "NAMES, SHARES = 2", "mine partial values"),
    ("np.arange(5000.0), {", "np.arange(5000.0) * (np.arange(5000) != 2500), {", "values"),
    ("7 * cost", "8 * cost", "own class method"), ("return 2 * function", "return 3 * function", "decorated"),
    ("power = 3", "power = 4", "own class method"), ("cost ** 2", "cost ** 3", "own class method"),
    ("self.margin / 2", "self.margin / 3", "own class method"), ("self(cost", "-self(cost", "own class method"),
    ("Own(2),", "Own(3),", "own"), ("Own(2).loss", "Own(3).loss", "method"),
    ("torch.arange(5000.0))", "torch.arange(5000.0).flip(0))", "network"), ("shifted(1)", "shifted(2)", "closure"),
    ("cost - by", "cost + by", "closure"), ("LAMBDAS[0]", "LAMBDAS[1]", "lambda"),
    ("[mine, np.arange(5000.0)]", "[mine, np.arange(5000.0)[::-1]]", "partial"),
    ("losses.list_mle_loss(", "losses.pairwise_hinge_loss(", "decorated"),
    ("SCALE * cost", "SCALE * cost    # scaled", ""), ("return [", "return  [  # all\n", ""),
    ("power = object()", "power = [object()]", ""), ("def helper", "\n\n# words\ndef helper", "")]
# code without a source, such as that of exec, counts as it was compiled, with its docstrings
WORDS = [("A loss.", "My loss.", ""), ("SCALE * cost", "(SCALE\n            * cost)", "")]
IN_A_SHELL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from lab.run.code import things_digest
shell = InteractiveShell.instance()
for cells in json.loads(sys.argv[1]):
    shell.reset()
    for cell in cells:
        shell.run_cell(cell, store_history=True).raise_error()
    print(json.dumps({name: things_digest(one) for name, one in shell.user_ns["things"].items()}))
"""


def changed(old, new):
    """The cells with a change."""
    assert sum(cell.count(old) for cell in CELLS) == 1 or old == "SCALE, MARGINS", old
    return [cell.replace(old, new) for cell in CELLS]


def executed(cells):
    """The digests of the things that cells define, without IPython."""
    names = {"__name__": "__main__"}
    for cell in cells:
        exec(cell, names)
    return {name: things_digest(one) for name, one in names["things"].items()}


def in_shells(many, **environment):
    """The digests of the things in many notebooks that IPython runs."""
    done = subprocess.run([sys.executable, "-c", IN_A_SHELL, json.dumps(many)], capture_output=True, text=True,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check(first, others, changes):
    """Whether the things are other ones where they do something else, and only there."""
    assert len({*first.values()}) == len(first)
    for (old, new, other), found in zip(changes, others, strict=True):
        assert {name for name in first if first[name] != found[name]} == {*other.split()}, f"{old} -> {new}"


def test_what_a_cell_defines_is_told_apart_by_what_it_does():
    check(executed(CELLS), [executed(changed(old, new)) for old, new, _ in CHANGES], CHANGES)
    every = CHANGES + WORDS
    first, *others = in_shells([CELLS, *(changed(old, new) for old, new, _ in every)], PYTHONHASHSEED="1")
    check(first, others, every)
    assert in_shells([CELLS], PYTHONHASHSEED="2") == [first]


def test_things_of_the_kit_count_by_their_module_and_what_they_hold():
    assert things_digest(list_mle_loss) != things_digest(pairwise_hinge_loss)
    margins = [things_digest(functools.partial(pairwise_hinge_loss, margin=margin)) for margin in (1, 1, 2)]
    assert margins[0] == margins[1] != margins[2]


def test_a_module_of_ones_own_counts_with_those_that_it_imports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for deep, near in ((1, 1), (1, 1), (2, 1), (2, 2)):
        (tmp_path / "deep_mine.py").write_text(f"MARGIN = 10 + {deep}\n")
        (tmp_path / "near_mine.py").write_text(f"import deep_mine\n\ndef loss(cost):\n    return cost - {near}\n")
        for name in ("deep_mine", "near_mine"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            names = {"__name__": "__main__"}
            exec("import near_mine\n\ndef mine(cost, runtime):\n    return near_mine.loss(cost)\n", names)
        finally:
            sys.dont_write_bytecode = before
        found.append(things_digest(names["mine"]))
    assert found[0] == found[1] and len({*found}) == 3
    for name in ("deep_mine", "near_mine"):
        del sys.modules[name]
