"""Six files of the kit paste alone into an empty notebook, where the kit is not installed, and work."""
import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.sample import write_sample

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


# one process, because each start imports NumPy, pandas, SciPy and PyTorch anew; one namespace per file
NOTEBOOK = """
import json, sys, traceback
sys.modules["kit"] = None
answers = {}
for name, cell in json.load(sys.stdin).items():
    names = {"__name__": "__main__"}
    try:
        exec(cell, names)
        answers[name] = names["answer"]
    except Exception:
        answers[name] = traceback.format_exc()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    write_sample(folder, seed=0, size="tiny")
    cells = {name: f"{(KIT / f'{name}.py').read_text()}\n{use}" for name, use in USES.items()}
    done = subprocess.run([sys.executable, "-I", "-c", NOTEBOOK], cwd=folder, text=True, capture_output=True,
                          input=json.dumps(cells))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", USES)
def test_a_core_file_pastes_alone_into_an_empty_notebook(answers, name):
    answer, expected = answers[name], ANSWERS[name]
    assert answer == pytest.approx(expected) if name == "metrics" else answer == expected, answer


@pytest.mark.parametrize("path", sorted(KIT.rglob("*.py")), ids=lambda path: str(path.relative_to(KIT)))
def test_a_file_asks_nothing_of_its_surroundings_at_import_and_seeds_nothing(path):
    places = {"environ", "getenv", "getcwd", "cwd", "home", "expanduser", "argv", "stdin"}

    def run_at_import(node):
        yield node
        skip = node.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        for child in [] if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node):
            if child not in skip:
                yield from run_at_import(child)

    tree = ast.parse(path.read_text())
    for top in tree.body:
        guarded = isinstance(top, ast.If) and ast.unparse(top.test) == "__name__ == '__main__'"
        for node in [] if guarded else run_at_import(top):
            word = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
            assert word not in places, f"line {node.lineno}: {word} at import"
    sealed = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.With)
              and any("fork_rng" in ast.unparse(item.context_expr) for item in node.items) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if re.fullmatch(r"(np\.random|random)\.seed|torch(\.cuda)?\.(manual_)?seed(_all)?", called):
            assert id(node) in sealed, f"line {node.lineno}: {called} outside torch.random.fork_rng"
