"""Six files of the kit paste alone into an empty notebook, where the kit is not installed, and work."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sample import write_sample

KIT = Path(__file__).resolve().parents[1] / "kit"
# what a user would do with each file; the answers are checked below
USES = {
    "data": """
graph = read_layout(npz_paths("npz", "layout:xla:random", "train")[0])
with np.load(npz_paths("npz", "layout:xla:random", "train")[0]) as npz:
    answer = bool((dense_configs(graph, [0, 1]) == npz["node_config_feat"][:2]).all())""",
    "pad": """
node_feat = np.zeros((1, 140))
node_feat[0, 21:23], node_feat[0, 134:136] = (8, 128), (1, 0)
answer = repad_layout(node_feat)[0][0, 134:140].tolist()""",
    "prune": """
from typing import NamedTuple
class Graph(NamedTuple):
    node_feat: np.ndarray
    node_opcode: np.ndarray
    edge_index: np.ndarray
    node_config_ids: np.ndarray
    node_splits: np.ndarray
    meetings: tuple = None
edges = np.array([[0, 1], [1, 2], [2, 3], [4, 2], [5, 6]])
pruned = prune(Graph(np.zeros((7, 140)), np.arange(7), edges, np.array([2]), np.array([0])))
answer = [pruned.node_opcode.tolist(), pruned.edge_index.tolist()]""",
    "metrics": """
answer = [kendall_tau([1.0, 2.0, 3.0], [10, 30, 20]), tile_score([3.0, 1.0, 2.0], [1.0, 4.0, 1.25], k=2)]""",
    "losses": """
answer = float(pairwise_hinge_loss(torch.tensor([0.0, 0.5]), torch.tensor([10, 20])))""",
    "submit": """
write_submission({"layout:xla:random:a": np.array([3.0, 1.0, 2.0])}, "out/submission.csv")
answer = [check_submission("out/submission.csv"), open("out/submission.csv").read()]""",
}
ANSWERS = {"data": True, "pad": [1, 0, -1, -1, -1, -1], "prune": [[1, 2, 3, 4], [[0, 1], [1, 2], [3, 1]]],
           "metrics": [1 / 3, 0.75], "losses": 0.5,
           "submit": [[], "ID,TopConfigs\nlayout:xla:random:a,1;2;0\n"]}


# what Python raises where the kit is not installed
HIDE = """
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "kit":
            raise ModuleNotFoundError("No module named 'kit'", name="kit")
sys.meta_path.insert(0, Hidden())"""
# one process, because each start imports NumPy, pandas, SciPy and PyTorch anew; one namespace per file
NOTEBOOK = """
import json, sys, traceback, warnings
HIDE
answers = {}
for name, cell in json.load(sys.stdin).items():
    names = {"__name__": "__main__"}
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            exec(cell, names)
        answers[name] = names["answer"]
        answers[name + " warns"] = [str(one.message) for one in warned]
    except Exception:
        answers[name] = traceback.format_exc()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    write_sample(folder)
    cells = {name: f"{(KIT / f'{name}.py').read_text()}\n{use}" for name, use in USES.items()}
    code = NOTEBOOK.replace("HIDE", HIDE)
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=folder, text=True, capture_output=True,
                          input=json.dumps(cells))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", USES)
def test_a_core_file_pastes_alone_into_an_empty_notebook(answers, name):
    answer, expected = answers[name], ANSWERS[name]
    assert answer == pytest.approx(expected) if name == "metrics" else answer == expected, answer


def test_prune_alone_says_that_it_notes_no_meetings_and_the_others_say_nothing(answers):
    warned = {name: answers[f"{name} warns"] for name in USES}
    said, = warned.pop("prune")
    assert said.startswith("the kit is not installed, so prune does not note where layouts meet") and not any(
        warned.values())


def test_an_error_inside_the_kit_does_not_pass_for_a_kit_that_is_not_there(tmp_path):
    shutil.copytree(KIT, tmp_path / "kit", ignore=shutil.ignore_patterns("__pycache__"))
    for file, broken in (("prune", "checks"), ("submit", "files")):
        path = tmp_path / "kit" / f"{broken}.py"
        text = path.read_text()
        for fault in ("import no_such_package", "from math import no_such_name"):
            path.write_text(f"{fault}\n{text}")
            done = subprocess.run([sys.executable, "-c", f"import kit.{file}"], cwd=tmp_path, text=True,
                                  capture_output=True, env={"PYTHONPATH": str(tmp_path), "PATH": ""})
            assert done.returncode and "no_such" in done.stderr.splitlines()[-1]
        path.write_text(text)


# all files in one notebook, in every order: a fallback must not take the place of what another cell has defined
ORDERS = """
import itertools, json, sys, warnings
warnings.simplefilter("ignore")
HIDE
cells, use = json.load(sys.stdin)
codes = {name: compile(cell, name, "exec") for name, cell in cells.items()}
wrong, own = [], {}
for name, code in codes.items():
    names = {"__name__": "__main__"}
    exec(code, names)
    own[name] = {key for key, value in names.items() if getattr(value, "__module__", "") == "__main__"
                 and not key.startswith("__") and getattr(getattr(value, "__code__", None), "co_name", key) == key}
use = compile(use, "use", "exec")
for number, order in enumerate(itertools.permutations(codes)):
    names = {"__name__": "__main__"}
    try:
        for name in order:
            exec(codes[name], names)
        for name in order:
            for key in own[name]:
                code = getattr(names[key], "__code__", None)
                assert names[key].__module__ == "__main__" and (code is None or code.co_filename == name), key
        exec(use, names)
        assert names["answer"] == [1, 1, [], "DataError", 2 / 3, True, ["a"]], names["answer"]
    except Exception as fault:
        wrong.append([order, repr(fault)])
print(json.dumps([number + 1, len(wrong), wrong[:3]]))
"""
TOGETHER = """
root = find_data_root("own")
graph, csv = read_layout(npz_paths(root, "layout:xla:random", "test")[0]), "out/submission.csv"
write_submission({"layout:xla:random:a": np.arange(len(graph.config_runtime))}, csv)
try:
    read_submission("missing.csv")
except DataError as fault:
    said = type(fault).__name__
loss = float(pairwise_hinge_loss(torch.tensor([0.0, 0.5]), torch.tensor([10, 20])))
answer = [len(graph.graph_id), repad_layout(graph.node_feat)[1], check_submission(csv, root), said,
          kendall_tau([1.0, 2.0, 3.0, 4.0], [10, 20, 40, 30]), loss == 0.5,
          [prune(graph).graph_id]]
"""


def test_all_core_files_paste_into_one_notebook_in_every_order(tmp_path):
    folder = tmp_path / "own/layout/xla/random/test"
    folder.mkdir(parents=True)
    node_feat = np.zeros((2, 140), np.float32)
    np.savez(folder / "a.npz", node_feat=node_feat, node_opcode=np.ones(2, int), edge_index=np.array([[1, 0]]),
             node_config_ids=np.array([1]), node_config_feat=np.zeros((3, 1, 18), np.float32),
             config_runtime=np.zeros(3, int), node_splits=np.zeros((1, 1), int))
    cells = {name: (KIT / f"{name}.py").read_text() for name in USES}
    code = ORDERS.replace("HIDE", HIDE)
    done = subprocess.run([sys.executable, "-I", "-W", "error", "-c", code], cwd=tmp_path, text=True,
                          capture_output=True, input=json.dumps([cells, TOGETHER]))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
    assert json.loads(done.stdout) == [720, 0, []]
