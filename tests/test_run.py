"""notebooks/run.py on small notebooks made here: what it runs, skips, refuses, and how it ends."""
import argparse
import ast
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import numpy as np
import psutil
import pytest
import torch

from lab.run import Folder

# a shell starts background jobs deaf to SIGINT, and so would be what the tests start in one
HEARS_INTERRUPTS = """import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")"""
PARAMETERS = "data_root = None\nout_dir = None\ncollections = None\nsize = 'small'\nsteps = 3"
NOTE = """
from pathlib import Path
from kit.data import npz_paths
out = Path(out_dir)
with open(out.parent / "ran.txt", "a") as file:
    print("NAME", steps, file=file)
print("NAME saw", len(npz_paths(data_root, "tile:xla", "train")), "kernels")
"""
SUBMISSION = NOTE + """
from lab.run import Run
row = "collection,model,score,low,high,graphs,seeds,split\\ntile:xla,one,0.5,,,1,1,test\\n"
Run("06_submit", data_root, out_dir).save("submission.csv", lambda path: path.write_text("ID,TopConfigs\\n"))
run = Run("05_ensemble", data_root, out_dir)
run.save("scores.csv", lambda path: path.write_text(row))
print("NAME wrote")
"""
PROBLEM = NOTE + """
(out / "problems").mkdir(exist_ok=True)
with open(out / "problems" / "NAME.jsonl", "a") as file:
    for _ in range(2):
        print('{"path": "a.npz", "reason": "a.npz: edge_index refers to node 9"}', file=file)
"""


def write_kernel(path):
    """A tile file of one node and two configurations."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, node_feat=np.zeros((1, 140), np.float32), node_opcode=np.ones(1, np.uint8),
             edge_index=np.zeros((0, 2), int), config_feat=np.eye(2, 24, dtype=np.float32),
             config_runtime=np.array([5, 6]), config_runtime_normalizers=np.array([7, 7]))


def write_notebook(path, *cells):
    """A notebook of code cells, the first of them tagged parameters."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c.replace("NAME", path.stem)) for c in cells])
    book.cells[0].metadata["tags"] = ["parameters"]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, path)


def copy_programs(project, folder):
    """What notebooks/ holds beside notebooks and their data: run.py and its parts, and lab."""
    folder.mkdir(parents=True)
    for path in (project / "notebooks").glob("*.py"):
        shutil.copy(path, folder)
    shutil.copytree(project / "notebooks" / "lab", folder / "lab", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture
def clone(tmp_path, project):
    """A project with the real run.py and kit, its own two notebooks and data set of two files."""
    copy_programs(project, tmp_path / "notebooks")
    shutil.copytree(project / "kit", tmp_path / "kit")
    write_notebook(tmp_path / "notebooks" / "00_first.ipynb", PARAMETERS, NOTE)
    write_notebook(tmp_path / "notebooks" / "01_last.ipynb", PARAMETERS, SUBMISSION)
    for name in ("kernel", "other"):
        write_kernel(tmp_path / "root" / "tile" / "xla" / "train" / f"{name}.npz")
    return tmp_path


def environment(**more):
    hidden = ("PYTHONPATH", "TPUGRAPHS_ROOT", "JUPYTER_PATH", "PYTHONWARNINGS")
    return {**{k: v for k, v in os.environ.items() if k not in hidden}, **more}


def run(clone, *args, data=("--data-root", "root")):
    """Run it as a user would -> (exit status, lines of stdout, stderr)."""
    done = subprocess.run([sys.executable, "notebooks/run.py", *data, "--out", "out", *args], cwd=clone, text=True,
                          capture_output=True, env=environment(), timeout=300)
    return done.returncode, done.stdout.splitlines(), done.stderr


def run_here(clone, *args):
    """As `run`, but in this process and without Jupyter, whose kernels are most of the time of a run."""
    from run_folder import run_clone  # child processes of other tests import this file, and need nothing of it
    return run_clone(clone, "--data-root", "root", "--out", "out", *args)


def ran(clone):
    path = clone / "ran.txt"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def test_the_notebooks_run_in_order(clone):
    status, lines, errors = run(clone)
    assert (status, errors) == (0, "")
    assert ran(clone) == ["00_first 3", "01_last 3"]
    assert lines[0] == "data set: root" and lines[1].startswith("prepared: ") and lines[2] == "results: out"
    assert lines[-1] == os.path.join("out", "submission.csv")
    assert "no files, left out: layout:nlp:random" in lines
    assert any("done: 00_first saw 2 kernels" in line for line in lines)
    assert [line.split() for line in lines if "tile:xla" in line] == [
        ["tile:xla", "one", "0.5", "1"]]
    assert sorted(p.name for p in (clone / "out" / "notebooks").iterdir()) == ["00_first.ipynb", "01_last.ipynb"]


def test_finished_steps_do_not_run_again_and_others_do(clone):
    assert run_here(clone)[0] == 0 and len(ran(clone)) == 2
    assert run_here(clone, "--only", " ,")[0] == 0 and len(ran(clone)) == 2    # all, and nothing again
    assert run_here(clone, "-p", "steps=4", "--only", "01")[0] == 0
    assert ran(clone)[2:] == ["01_last 4"]                              # only what was asked for
    write_kernel(clone / "root" / "tile" / "xla" / "train" / "kernel2.npz")
    assert run_here(clone, "--only", "00")[0] == 0
    assert ran(clone)[3:] == ["00_first 3"]                             # the data changed
    (clone / "out" / "notebooks" / "00_first.ipynb").unlink()
    assert run_here(clone, "--only", "00")[0] == 0 and len(ran(clone)) == 5  # what it had written is gone


MEASURING = """
from pathlib import Path
from lab.run import note_unfinished
folder = Path(out_dir) / "kernels"
folder.mkdir(exist_ok=True)
left = [name for name in ("a", "b", "c") if not (folder / f"{name}.json").is_file()]
for name in left[:1]:
    (folder / f"{name}.json").write_text(name)
note_unfinished(out_dir, "NAME", {name: (0, 1) for name in left[1:]}, "kernel")
print("measured", *left[:1])
"""


def test_kernels_that_are_left_are_measured_by_the_same_command_and_block_no_study(clone):
    def measured():
        return sorted(path.stem for path in (clone / "out" / "kernels").glob("*.json"))
    write_notebook(clone / "notebooks" / "08_kernels.ipynb", PARAMETERS + "\nminutes = None", MEASURING)
    write_notebook(clone / "notebooks" / "10_study.ipynb", PARAMETERS, NOTE)
    command = "--only", "08", "-p", "minutes=0"
    status, lines, errors = run_here(clone, *command)
    assert (status, measured()) == (3, ["a"])
    assert errors == "to be continued: 08_kernels (b; c); run the same command again\n"
    assert lines.count("note  to be continued: the time is used up, and 2 kernels are unfinished (b; c); run the same "
                       "again to continue") == 1
    assert run_here(clone, "--only", "10")[0] == 0 and ran(clone) == ["10_study 3"]
    assert run_here(clone, *command)[0] == 3 and measured() == ["a", "b"]
    assert run_here(clone, "--only", "10")[0] == 0 and ran(clone) == ["10_study 3"]                # it reads no kernels
    (clone / "out" / "unfinished" / "08_kernels.json").write_text('{"unfinished": [{"model": "of an older kit"}]}')
    assert run_here(clone, *command)[::2] == (0, "") and measured() == ["a", "b", "c"]
    status, lines, _ = run_here(clone, "--only", "08", "-p", "minutes=60")            # the limit changes no result
    assert status == 0 and any(line.endswith("08_kernels         finished before") for line in lines)


def test_a_step_runs_again_when_the_package_that_it_measures_with_is_installed_or_updated(main, tmp_path, monkeypatch):
    steps, found = sys.modules["steps"], {"apache-tvm": None, "torch": "3"}

    def version(name):
        if found.get(name) is None:
            raise steps.PackageNotFoundError(name)
        return found[name]
    monkeypatch.setattr(steps, "version", version)
    packages = []
    for found["apache-tvm"] in (None, "1", "2"):
        packages.append([steps.Step(tmp_path / name, {}, Folder(tmp_path / "out", tmp_path)).packages() for name in (
            "08_kernels.ipynb", "09_own.ipynb", "03_train_tile.ipynb")])
    assert packages == [[{"torch": "3"}, {}, {}], [{"torch": "3", "apache-tvm": "1"}, {}, {}],
                        [{"torch": "3", "apache-tvm": "2"}, {}, {}]]


@pytest.mark.parametrize("args, sentence", [
    (["-p", "size=tiny"], "-p size: use --size"),
    (["-p", "step=4", "--only", "00"], "run.py: 00_quickstart: no parameter step; it declares "),
    (["--data-root", "~nobody at all/x"], "--data-root names the folder that holds tile/ and layout/"),
    (["--data-root", "README.md/x"], "README.md: is a file; --data-root names the folder that holds tile/ and layout/"),
    (["--only", "99"], "no notebook 99; there are 00_quickstart, 01_eda, "),
    (["--collections", "tile"], "no collection tile; there are tile:xla, layout"),
    (["--jobs", "0"], "--jobs 0: expected a whole number of at least 1"),
    (["--seed-groups", "0"], "--seed-groups 0: expected a whole number of at least 1"),
    (["--on", "kaggle", "--owner", "me", "--seed-groups", "-1"], "--seed-groups -1: expected a whole number of at "),
    (["--data-root", "nowhere"], "nowhere does not exist; expected a folder with tile/ or layout/ in it"),
    (["-p", "seeds=0"], "-p seeds=0: expected a whole number of at least 1"),
    (["-p", "models=tokens"], "-p models=tokens: expected one or more of token, lightgbm, additive, gnn, joined by "),
    (["-p", "predictions_from=mine"], "-p predictions_from=mine: expected a folder that is there"),
    (["-p", "tokens.steps=3"], "-p changes={'tokens': {'steps': 3}}: expected no tokens, but one or more of tile, "),
    (["-p", "gnn.height=3"], "changes={'gnn': {'height': 3}}: expected other settings: LayoutGNN has no setting heig"),
    (["-p", "token.steps=many"], "expected other settings: steps is 'many'; expected a whole number of at least "),
    (["-p", "token.precision=half"], "precision is 'half'; expected 'float32' or 'bfloat16' or 'float16'"),
    (["-p", "token.steps=3", "--only", "05"], "run.py: 05_ensemble: no parameter changes; it declares how, choose, "),
    (["-p", "changes=token"], "-p changes=token: expected {model: {setting: value}}, such as "),
    (["-p", "changes={3: {}}"], "-p changes={3: {}}: expected no 3, but one or more of tile, token, lightgbm, "),
    (["-p", "changes={'token': 3}", "-p", "token.steps=2"], "expected {model: {setting: value}}, such as "),
    (["-p", "device=meta"], f"-p device=meta: device is 'meta', and PyTorch {torch.__version__} cannot compute on it")])
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_read(main, capsys, tmp_path, args, sentence):
    assert main([*args, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.startswith("run.py: ") and sentence in said.err and said.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_settings_of_models_are_collected_into_one_parameter(arguments):
    words = "token.steps=2", "seeds=3", "changes={'token': {'steps': 1, 'width': 8}, 'tile': {}}", "gnn.node_norm=graph"
    expected = {"seeds": 3, "changes": {"token": {"steps": 2, "width": 8}, "tile": {}, "gnn": {"node_norm": "graph"}}}
    for order in (words, words[::-1]):
        assert arguments.collected(map(arguments.assignment, order)) == expected
    assert arguments.collected([]) == {} and arguments.collected([("token.a", 1)]) == {"changes": {"token": {"a": 1}}}
    given = arguments.share_out(arguments.select("03,04,05,07")[1], {}, expected)
    assert {n.stem[:2]: own.get("changes") for n, own in given.items()} == {
        "03": expected["changes"], "04": expected["changes"], "05": None, "07": expected["changes"]}
    for text in ("token.steps", "token.=2", ".steps=2", "a.b.c=2", "3.steps=2", "token.the steps=2"):
        with pytest.raises(argparse.ArgumentTypeError, match=re.escape(f"{text!r} is neither NAME=VALUE nor MODEL.")):
            arguments.assignment(text)


@pytest.mark.parametrize("change, sentence", [
    (lambda text: text[:3000], "04_train_layout.ipynb: no notebook, or a damaged one (NotJSONError); restore it"),
    (lambda text: text.replace('"parameters"', '"settings"'),
     "04_train_layout.ipynb: no cell is tagged parameters, so it would read other data and write elsewhere")])
def test_a_notebook_that_cannot_take_parameters_is_refused(arguments, project, tmp_path, change, sentence):
    book = tmp_path / "04_train_layout.ipynb"
    book.write_text(change((project / "notebooks" / book.name).read_text("utf-8")), "utf-8")
    with pytest.raises(arguments.RunError, match=re.escape(sentence)):
        arguments.share_out([book], {"data_root": "x"}, {})


@pytest.mark.parametrize("cell", ["%matplotlib inline\nfrom kit.prune import prune", "%%time\nimport kit.prune"])
def test_the_kit_counts_in_a_notebook_with_commands_of_ipython(main, tmp_path, monkeypatch, cell):
    steps, digests = sys.modules["steps"], []
    book = tmp_path / "04_train_layout.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)]), book)
    for code in ("of today", "of yesterday"):
        monkeypatch.setattr("lab.run.code.code_digest", lambda *modules, code=code: code * (
            "kit.prune" in modules))
        digests.append(steps.Step(book, {}, Folder(tmp_path / "out", tmp_path)).code())
    assert digests[0] != digests[1]


def test_a_table_beside_a_notebook_counts_if_the_notebook_names_it(main, tmp_path):
    steps, digests = sys.modules["steps"], []
    book = tmp_path / "08_kernels.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('pd.read_csv("kernels.csv")')]), book)
    for name, text in (("kernels.csv", "1"), ("other.csv", "1"), ("kernels.csv", "2")):
        (tmp_path / name).write_text(text)
        digests.append(steps.Step(book, {}, Folder(tmp_path / "out", tmp_path)).code())
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("line", [
    "import trick", "%time\nfrom trick import f", "import os, trick as t", "import ours.part"])
def test_a_module_of_ones_own_beside_the_kit_counts_if_a_notebook_imports_it(main, tmp_path, monkeypatch, line):
    steps, digests = sys.modules["steps"], []
    monkeypatch.setattr(steps, "PROJECT", tmp_path)
    book = tmp_path / "notebooks" / "03_train.ipynb"
    book.parent.mkdir()
    (tmp_path / "ours").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(line)]), book)
    for name, text in (("trick.py", "import inner"), ("ours/part.py", "from inner import x"), ("inner.py", "x = 1"),
                       ("other.py", "x = 1"), ("inner.py", "x = 1     # a comment"), ("inner.py", "x = 2")):
        (tmp_path / name).write_text(text)
        digests.append(steps.Step(book, {}, Folder(tmp_path / "out", tmp_path)).code())
    assert digests[2] == digests[3] == digests[4] != digests[5]


@pytest.fixture
def main(project, monkeypatch):
    """The real run.py, in this process."""
    monkeypatch.syspath_prepend(project / "notebooks")
    monkeypatch.chdir(project)
    monkeypatch.delitem(sys.modules, "run", raising=False)       # the benchmarks have a module of this name, too
    module = importlib.import_module("run")
    del sys.modules["run"]
    return module.main


def test_a_process_that_died_while_it_prepared_files_is_one_sentence(main, monkeypatch, tmp_path, capsys):
    def died(*args):
        raise RuntimeError("a process that prepared files died; out of memory?")
    monkeypatch.setitem(main.__globals__, "open_data", died)
    assert main(["--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == "run.py: a process that prepared files died; out of memory?\n"


@pytest.fixture
def arguments(project, monkeypatch):
    """The module notebooks/arguments.py."""
    monkeypatch.syspath_prepend(project / "notebooks")
    return importlib.import_module("arguments")


@pytest.mark.parametrize("only, value, expected", [
    ("04", "first_seed=-1", "a whole number of at least 0"), ("04", "seeds=many", "a whole number of at least 1"),
    ("04", "first_seed=None", "a whole number of at least 0"), ("04", "seeds=2.0", "a whole number of at least 1"),
    ("03", "seeds=True", "a whole number of at least 1"), ("04", "segments=0", "a whole number of at least 1"),
    ("04", "token.configs_per_step=1", "other settings: configs_per_step is 1; expected a whole number of at least 2"),
    ("04", "gnn.steps=0", "other settings: steps is 0; expected a whole number of at least 1"),
    ("03", "tile.width=0", "other settings: width is 0; expected a whole number of at least 1"),
    ("04", "lightgbm.leaves=1", "other settings: leaves is 1; expected a whole number of at least 2"),
    ("04", "gnn.precision=float64", "other settings: precision is 'float64'; expected 'float32' or 'bfloat16' or "),
    ("04", "gnn.aggregation=max", "other settings: aggregation is 'max'; expected 'sparse' or 'scatter'"),
    ("03", f"first_seed={2**64}", "a whole number of at least 0 and at most 1,000,000,000"),
    ("03", "recipe=banana", "tiny or short or quick or full"), ("03", "hours=-1", "a number of at least 0 and below"),
    ("05", "how=median", "mean_zscore or mean_rank"),
    ("06", "submit_to_kaggle=false", "True or False"), ("06", "score_within=soon", "a number of at least 0"),
    ("07", "budgets=[10,0]", "a list of whole numbers of at least 1, such as [10,30]"),
    ("08", "network=lenet", "alexnet or vgg16 or resnet18"), ("08", "minutes=-1", "a number of at least 0")])
def test_what_a_notebook_would_refuse_later_is_refused_at_once(arguments, only, value, expected):
    (name, given), = arguments.collected([arguments.assignment(value)]).items()
    with pytest.raises(arguments.RunError) as caught:
        arguments.check(arguments.select(only)[1], {name: given})
    assert str(caught.value).startswith(f"-p {name}={given}: expected {expected}") and caught.value.status == 2


def test_messages_are_added_up_by_a_package_only_where_it_is_installed(arguments, monkeypatch):
    notebooks, scatter = arguments.select("04")[1], {"changes": {"gnn": {"aggregation": "scatter"}}}
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(arguments.RunError, match="expected sparse, or scatter if torch-scatter is installed"):
        arguments.check(notebooks, scatter)
    arguments.check(notebooks, scatter, there=True)              # what Kaggle's machine has is not known here
    monkeypatch.setattr(arguments, "find_spec", lambda name: name)
    arguments.check(notebooks, scatter)


def test_what_the_notebooks_take_by_themselves_is_not_refused_and_no_row_is_of_a_parameter_that_none_has(arguments):
    notebooks, _ = arguments.select(None)
    for notebook, own in arguments.declared(notebooks).items():
        for name, default in own.items():
            arguments.check([notebook], {name: ast.literal_eval(default)})
    assert arguments.EXPECTED.keys() <= {name for own in arguments.declared(notebooks).values() for name in own}
    changes = {"gnn": {"aggregation": "sparse", "precision": "float16"}, "token": {"steps": 3}, "tile": {}}
    given = {"hours": 0, "budgets": [5, 10], "changes": changes, "how": "mean_rank", "network": "bert",
             "recipe": "full", "device": "cpu", "submit_to_kaggle": True}
    arguments.check(notebooks, given)


def test_files_that_parameters_name_are_there_before_anything_is_read(arguments, tmp_path):
    notebooks, _ = arguments.select("06,09")
    (tmp_path / "own.pb").write_bytes(b"")
    arguments.check(notebooks, {"hlo": str(tmp_path / "own.pb"), "ledger": str(tmp_path / "new"), "shown": 3})
    for name, value, expected in (("hlo", str(tmp_path / "none.pb"), "the path of a file"),
                                  ("sample_submission", 3, "the path of a file"), ("shown", 0, "a whole number"),
                                  ("ledger", str(tmp_path / "own.pb"), "a folder, which may be missing")):
        with pytest.raises(arguments.RunError, match=re.escape(f"-p {name}={value}: expected {expected}")):
            arguments.check(notebooks, {name: value})
    arguments.check(notebooks, {"hlo": "/somewhere/there.pb"}, there=True)


@pytest.mark.parametrize("name, sentence", [("05_nothing", "no predictions to combine; 03 and 04 make them"),
                                            ("06_nothing", "no notebook wrote submission.csv")])
def test_a_step_that_makes_nothing_of_nothing_is_no_success(clone, name, sentence):
    write_notebook(clone / "notebooks" / f"{name}.ipynb", PARAMETERS,
                   "import pandas as pd\nfrom lab.run import Run\nfrom lab.scores import SCORE_COLUMNS\n"
                   "table = pd.DataFrame(columns=SCORE_COLUMNS)\n"
                   "Run('05_ensemble', data_root, out_dir).save_table('scores.csv', table)")
    status, lines, errors = run_here(clone, "--only", name[:2])
    assert (status, errors) == (1, f"run.py: out: {sentence}\n")
    assert lines[lines.index("scores on real files") + 1] == "none: no predictions, or no runtimes to score them by"


@pytest.mark.long
def test_notes_are_shown_and_a_failing_notebook_is_named_and_the_next_run_goes_on_there(clone):
    last = clone / "notebooks" / "01_last.ipynb"
    write_notebook(clone / "notebooks" / "00_first.ipynb", PARAMETERS, NOTE,
                   "print('note  the wider', end='')\nprint(' file is kept')\nprint('2 rows')\nprint('no note  here')")
    write_notebook(last, PARAMETERS, "print('so far')", "raise ValueError('no such luck')")
    status, lines, errors = run(clone)
    assert status == 1 and lines.count("note  the wider file is kept") == 1
    assert not any(line.startswith("no note") for line in lines)
    assert "01_last failed after" in errors and "ValueError: no such luck" in errors
    partial = os.path.join("out", ".run", "01_last.ipynb")
    assert errors.rstrip().endswith(f"the partly executed notebook: {partial}")
    assert "so far" in (clone / partial).read_text()
    write_notebook(last, PARAMETERS, SUBMISSION)
    assert run_here(clone)[0] == 0
    assert ran(clone) == ["00_first 3", "01_last 3"]


def test_unreadable_files_are_named_once_each_time_although_the_submission_is_written(clone):
    write_notebook(clone / "notebooks" / "00_first.ipynb", PARAMETERS, PROBLEM)
    (clone / "root" / "tile" / "xla" / "train" / "link.npz").symlink_to(clone / "nowhere")
    for _ in range(2):                                                  # the second run finds all steps finished
        status, lines, _ = run_here(clone)
        assert status == 3
        assert [line for line in lines if line.startswith("not used: ")] == [
            "not used: tile/xla/train/link.npz: is not a file, or a link to nowhere",
            "not used: a.npz: edge_index refers to node 9"]
        assert lines[-1] == os.path.join("out", "submission.csv")
    assert json.loads((clone / "out" / "problems.jsonl").read_text().splitlines()[-1])["path"] == "a.npz"
    assert len(ran(clone)) == 2


@pytest.mark.parametrize("text, who", [("4711", " (process 4711)"), ("{", "")])
def test_two_runs_do_not_share_a_folder(arguments, tmp_path, monkeypatch, text, who):
    fcntl = pytest.importorskip("fcntl", reason="Windows locks files otherwise")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / ".run").mkdir(parents=True)
    (tmp_path / "out" / ".run" / "lock.pid").write_text(text)               # it may be half-written
    with open(tmp_path / "out" / ".run" / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(arguments.RunError) as caught, sys.modules["steps"].lock(tmp_path / "out"):
            pass
    assert str(caught.value) == f"out: another run{who} is writing here; wait for it or choose another --out"


@pytest.mark.long
def test_an_interrupted_run_leaves_no_process_behind_and_continues(clone):
    last, note = clone / "notebooks" / "01_last.ipynb", clone / "out" / "pid"
    write_notebook(last, PARAMETERS, "import os, pathlib, time",
                   "pathlib.Path(out_dir, 'pid').write_text(str(os.getpid()))\ntime.sleep(60)")
    for how, status, word in ((signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"),
                              (signal.SIGKILL, -9, None)):
        note.unlink(missing_ok=True)
        child = subprocess.Popen([sys.executable, "-c", HEARS_INTERRUPTS, "notebooks/run.py", "--data-root", "root",
                                  "--out", "out"], cwd=clone, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 text=True, env=environment())
        while not (note.exists() and note.read_text()):
            assert child.poll() is None, child.communicate()[1]
            time.sleep(.05)
        child.send_signal(how)
        errors, kernel = child.communicate(timeout=60)[1], int(note.read_text())
        assert child.returncode == status
        assert errors == f"\n{word}; run the same command again to continue\n" or how == signal.SIGKILL
        psutil.wait_procs([psutil.Process(kernel)] if psutil.pid_exists(kernel) else [], 30)
        assert not psutil.pid_exists(kernel)
    write_notebook(last, PARAMETERS, SUBMISSION)
    assert run_here(clone)[0] == 0
    assert ran(clone) == ["00_first 3", "01_last 3"]


def test_ctrl_c_while_it_imports_ends_it_without_a_traceback(project, tmp_path):
    first = f"import time; time.sleep(60)\n{(project / 'notebooks' / 'arguments.py').read_text()}"     # a slow import
    copy_programs(project, tmp_path / "notebooks")
    (tmp_path / "notebooks" / "arguments.py").write_text(f"print('imports', flush=True)\n{first}")
    with subprocess.Popen([sys.executable, "-c", HEARS_INTERRUPTS, "notebooks/run.py"], cwd=tmp_path, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as child:
        assert child.stdout.readline() == "imports\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=30) == ("", "") and child.returncode == -signal.SIGINT


@pytest.mark.long
def test_run_py_started_inside_notebooks_finds_the_data_of_the_clone_and_leaves_its_results_there(clone):
    (clone / "root").rename(clone / "data")
    done = subprocess.run([sys.executable, "run.py", "--only", "00"], cwd=clone / "notebooks", text=True,
                          capture_output=True, env=environment(HOME=str(clone)), timeout=300)
    assert (done.returncode, done.stderr) == (0, "") and f"data set: {clone / 'data'}" in done.stdout
    assert [p.parents[1] for p in clone.rglob(".run")] == [clone / "submissions"]
    assert not {"data", "submissions"} & {p.name for p in (clone / "notebooks").iterdir()}


@pytest.mark.long
def test_without_a_data_set_the_measured_programs_are_used_and_said_to_be_these(clone):
    where = os.path.join("lab", "measured", "cpu", "npz")
    status, lines, _ = run(clone, "--size", "tiny", data=())
    assert status == 0 and lines[0].startswith("measured programs: ") and lines[0].endswith(where)
    assert "scores on measured programs" in lines and len(ran(clone)) == 2


# --- a run is the same whoever runs it

PICTURE = """import matplotlib.pyplot as plt
plt.plot([1, 3, 2], label="a")
plt.legend()
plt.show()
print("shown with", len(plt.rcParams["axes.prop_cycle"]), "colours")
1
2"""
PERSONAL = {
    "matplotlibrc": "axes.prop_cycle: cycler('color', ['k'])\nfigure.facecolor: red\n",
    ".ipython/profile_default/startup/00-mine.py": "print('mine')\nimport matplotlib\nmatplotlib.use('svg')\n",
    "pythonstartup.py": "print('mine')\nimport matplotlib\nmatplotlib.use('agg')\n"}
SHELL = {"MPLBACKEND": "Agg", "MATPLOTLIBRC": "matplotlibrc", "PYTHONSTARTUP": "pythonstartup.py",
         "IPYTHONDIR": ".ipython"}


@pytest.mark.long
def test_what_a_run_shows_does_not_depend_on_personal_settings(clone, tmp_path):
    write_notebook(clone / "notebooks" / "00_first.ipynb", PARAMETERS, PICTURE)

    def shown(home, **shell):
        shutil.rmtree(clone / "out", ignore_errors=True)
        hidden = ("MPLBACKEND", "MPLCONFIGDIR", "MATPLOTLIBRC", "IPYTHONDIR", "PYTHONSTARTUP", "XDG_CONFIG_HOME")
        around = {k: v for k, v in environment().items() if k not in hidden} | {"HOME": str(home)}
        around |= {name: str(home / value) if name != "MPLBACKEND" else value for name, value in shell.items()}
        command = [sys.executable, "notebooks/run.py", "--data-root", "root", "--out", "out", "--only", "00"]
        done = subprocess.run(command, cwd=clone, text=True, capture_output=True, env=around, timeout=300)
        assert done.returncode == 0, done.stderr
        book = nbformat.read(clone / "out" / "notebooks" / "00_first.ipynb", 4)
        return [{key: output.get(key) for key in ("output_type", "name", "text", "data")}
                for output in book.cells[-1].outputs]

    for name, text in PERSONAL.items():
        (tmp_path / "personal" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "personal" / name).write_text(text)
    (tmp_path / "plain").mkdir()
    plain = shown(tmp_path / "plain")
    assert ["image/png" in (output["data"] or ()) for output in plain] == [True, False, False]
    assert shown(tmp_path / "personal", **SHELL) == plain
