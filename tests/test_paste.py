"""Every kit module can be pasted into a notebook: all as one cell, and each with only what it imports."""
import ast
import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

FLOW = ("files", "archive", "data", "opcodes", "programs", "nets", "simulate", "tiles", "sample", "pad", "meet",
        "prune", "hlo", "proto", "options", "own_program", "agree", "scale", "references", "layers", "node_blocks",
        "fused", "layout_gnn", "tokens", "tile_model", "published", "model", "history", "segment_training", "losses",
        "checkpoint", "predict", "processes", "batch", "average", "record", "step", "train", "parallel", "noise",
        "metrics", "baselines", "trees", "ensemble", "submit", "ledger", "report", "kaggle_child", "kaggle_client",
        "unpack", "kaggle_notebooks", "kaggle_io", "measured", "descent", "search", "relaxed", "oracle", "plots",
        "plots_eda", "plots_search", "kernels", "schedules", "kernel_lab", "kernel_meta", "kernel_tiles",
        "kernel_study", "recipes", "workflow", "compare", "search_study", "fetched", "remote")
KIT = Path(__file__).resolve().parents[1] / "kit"
MODULES = [name for name in FLOW if (KIT / f"{name}.py").is_file()]
SOURCE = {name: (KIT / f"{name}.py").read_text() for name in MODULES}
TREE = {name: ast.parse(source) for name, source in SOURCE.items()}
each_module = pytest.mark.parametrize("name", MODULES)


def kit_imports(name):
    """{module: names} that `name` imports from the kit at its top level."""
    found = [n for n in TREE[name].body if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("kit.")]
    return {n.module[4:]: [alias.name for alias in n.names] for n in found}


def defined(name):
    """Names that a module's own top level binds."""
    names = set()
    for node in TREE[name].body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return names


def pasted(name):
    """A module's source without its kit imports."""
    lines = SOURCE[name].splitlines()
    for node in TREE[name].body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kit."):
            lines[node.lineno - 1:node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines) + "\n"


def needed(name):
    """The modules that `name` needs, itself last, in flow order."""
    names = {name}
    for other in kit_imports(name):
        names |= set(needed(other))
    return [m for m in MODULES if m in names]


def run_at_import(node):
    """What is evaluated at import below `node`: all but the bodies of functions."""
    yield node
    skip = node.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
    for child in [] if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node):
        if child not in skip:
            yield from run_at_import(child)


def called(node):
    """Dotted name of what a Call calls."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def immutable(value):
    if isinstance(value, (tuple, frozenset)):
        return all(map(immutable, value))
    if isinstance(value, MappingProxyType):
        return all(map(immutable, value.values()))
    if isinstance(value, np.ndarray):
        return not value.flags.writeable
    if dataclasses.is_dataclass(value):
        return value.__dataclass_params__.frozen
    return isinstance(value, (bool, int, float, complex, str, bytes, range, type, type(None), slice, re.Pattern,
                              np.dtype, np.generic))


def test_every_module_has_its_place_in_the_flow():
    on_disk = {path.stem for path in KIT.glob("*.py")} - {"__init__"}
    assert on_disk <= set(FLOW), "add it to FLOW, where its imports stand before it"


@each_module
def test_a_top_level_holds_docstring_imports_constants_functions_and_classes(name):
    body = TREE[name].body
    assert ast.get_docstring(TREE[name]), "no docstring"
    for node in body[1:]:
        allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef)
        assert isinstance(node, allowed), f"line {node.lineno}: {ast.unparse(node)[:80]}"
        if isinstance(node, ast.ImportFrom):
            assert node.module != "__future__" and node.level == 0
            assert [a.name for a in node.names] != ["*"]
    module = importlib.import_module(f"kit.{name}")
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for n in ast.walk(target):
                    if isinstance(n, ast.Name):
                        assert re.fullmatch(r"_?[A-Z][A-Z0-9_]*", n.id), f"line {n.lineno}: {n.id}"
                        assert immutable(getattr(module, n.id)), f"line {n.lineno}: {n.id} can be changed"


@each_module
def test_a_module_imports_only_earlier_modules_by_name(name):
    for node in ast.walk(TREE[name]):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "kit" for alias in node.names), f"line {node.lineno}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kit":
            assert node in TREE[name].body, f"line {node.lineno}: not at the top level"
            assert not any(alias.asname for alias in node.names), f"line {node.lineno}: renamed"
    for other, names in kit_imports(name).items():
        assert FLOW.index(other) < FLOW.index(name)
        reexported = [n for ns in kit_imports(other).values() for n in ns]
        assert set(names) <= defined(other) | set(reexported)


@each_module
def test_a_name_means_the_same_in_all_modules(name):
    def imported(module):
        bound = {}
        for node in TREE[module].body:
            if isinstance(node, (ast.Import, ast.ImportFrom)) and module not in getattr(node, "module", ""):
                if not (getattr(node, "module", "") or "").startswith("kit."):
                    bound.update({a.asname or a.name.split(".")[0]: (getattr(node, "module", ""), a.name.split(".")[0]
                                  if not a.asname else a.name) for a in node.names})
        return bound

    for other in MODULES[:MODULES.index(name)]:
        assert not defined(name) & defined(other), f"also defined in {other}"
        assert not defined(name) & set(imported(other)), f"also imported by {other}"
        assert not defined(other) & set(imported(name)), f"defined in {other}"
        mine, theirs = imported(name), imported(other)
        differ = {n for n in set(mine) & set(theirs) if mine[n] != theirs[n]}
        assert not differ, f"something else in {other}"


@each_module
def test_a_module_asks_nothing_of_its_surroundings_at_import(name):
    places = {"environ", "getenv", "getcwd", "cwd", "home", "expanduser", "argv", "stdin"}
    for node in ast.walk(TREE[name]):
        assert not (isinstance(node, ast.Name) and node.id == "__file__"), f"line {node.lineno}: __file__"
    for top in TREE[name].body:
        for node in run_at_import(top):
            word = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
            assert word not in places, f"line {node.lineno}: {word} at import"
            assert not (isinstance(node, ast.Call) and "seed" in called(node)), f"line {node.lineno}: seeds"


@each_module
def test_no_function_touches_a_global_random_state(name):
    sealed = {id(inner) for node in ast.walk(TREE[name]) if isinstance(node, ast.With)
              and any(called(item.context_expr) == "torch.random.fork_rng" for item in node.items)
              for inner in ast.walk(node)}
    for node in ast.walk(TREE[name]):
        if re.fullmatch(r"(np\.random|random)\.seed|torch(\.cuda)?\.(manual_)?seed(_all)?", called(node)):
            assert id(node) in sealed, f"line {node.lineno}: {called(node)} outside torch.random.fork_rng"


@each_module
def test_no_check_depends_on_the_identity_of_a_kit_class(name):
    classes = {n.name for tree in TREE.values() for n in tree.body if isinstance(n, ast.ClassDef)}
    for node in ast.walk(TREE[name]):
        if called(node) in ("isinstance", "issubclass"):
            named = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            assert not named & classes, f"line {node.lineno}: a re-run cell defines {named & classes} anew"
        if isinstance(node, ast.MatchClass):
            assert ast.unparse(node.cls) not in classes, f"line {node.lineno}"


@each_module
def test_a_module_is_read_in_one_sitting(name):
    size = len(SOURCE[name].encode())
    assert size <= 14 * 1024, f"{size} bytes"


ALONE = """
import builtins, dis, json, sys
sys.modules["kit"] = None          # importing it would fail
def unknown(code, namespace):
    loads = [i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"]
    inner = [unknown(c, namespace) for c in code.co_consts if hasattr(c, "co_code")]
    return sorted({n for n in loads if n not in namespace and not hasattr(builtins, n)}.union(*inner))
for name, source in json.load(sys.stdin).items():
    namespace = {"__name__": "__main__"}
    code = compile(source, name, "exec")
    exec(code, namespace)
    if unknown(code, namespace):
        print(name, "does not know", *unknown(code, namespace))
"""


def test_each_module_stands_alone_with_only_what_it_imports(tmp_path):
    cells = {name: "\n".join(map(pasted, needed(name))) for name in MODULES}
    done = subprocess.run([sys.executable, "-I", "-c", ALONE], input=json.dumps(cells), cwd=tmp_path, text=True,
                          capture_output=True)
    assert (done.returncode, done.stdout, done.stderr[-2000:]) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


PIPELINE = """
costs = {}
root = write_sample("data", seed=0, size="tiny")
for collection in COLLECTIONS:
    tile = collection == "tile:xla"
    graphs = {split: [(read_tile if tile else read_layout)(path) for path in npz_paths(root, collection, split)]
              for split in ("train", "test")}
    if not tile:
        graphs = {split: [prune(graph) for graph in graphs[split]] for split in graphs}
        graphs["train"] = [drop_duplicate_configs(graph)[0] for graph in graphs["train"]]
    model = TileModel() if tile else LayoutGNN()
    train(model, graphs["train"], TrainSettings(steps=2, configs_per_step=8))
    costs.update({f"{collection}:{graph.graph_id}": predict(model, graph) for graph in graphs["test"]})
write_submission(costs, "submission.csv")
import json
print(json.dumps([check_submission("submission.csv", root), open("submission.csv").read(),
                  {name: [x.hex() for x in cost.tolist()] for name, cost in costs.items()}]))
"""


def test_all_modules_as_one_cell_give_the_answers_of_the_package(tmp_path):
    answers = {}
    imported = "\n".join(f"from kit.{name} import *" for name in MODULES)
    cell = "import sys; sys.modules['kit'] = None\n" + "\n".join(map(pasted, MODULES))
    for way, program in (("imported", f"import sys; sys.path.append({str(KIT.parent)!r})\n{imported}"),
                         ("pasted", cell)):
        (tmp_path / way).mkdir()
        done = subprocess.run([sys.executable, "-I", "-"], input=program + PIPELINE, cwd=tmp_path / way, text=True,
                              capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr[-3000:]
        answers[way] = json.loads(done.stdout.splitlines()[-1])
        assert sorted(p.name for p in (tmp_path / way).iterdir()) == ["data", "submission.csv"]
    problems, submission, costs = answers["pasted"]
    assert problems == [] and len(costs) == len(submission.splitlines()) - 1 >= 5
    assert answers["pasted"] == answers["imported"]
