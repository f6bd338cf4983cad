"""The notebooks obey their rules, run in order on tiny data, and survive a damaged file."""
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from run_folder import FULL, run_clone
from sample import write_sample

from kit.agreement import agreement_tables
from kit.data import COLLECTIONS, target
from kit.prepare import open_prepared, prepare
from kit.relatives import structural_relatives
from kit.submit import check_submission, read_submission
from lab.run import Folder
from lab.run.folder import COMBINES, step_of

PROJECT = Path(__file__).resolve().parents[1]
PATHS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
BOOKS = {path.stem: nbformat.read(path, nbformat.NO_CONVERT) for path in PATHS}
MAIN = [path for path in PATHS if path.stem < "10"]              # the others only run when asked for
each_notebook = pytest.mark.parametrize("name", BOOKS)
def published(out, member, collection="layout:nlp:random", split="test"):
    """The costs {ID: cost} that a member published in the folder of a run."""
    folder = Folder(out)
    sections = folder.record(COMBINES if member == "ensemble" else step_of(collection))["sections"]
    one, = (one for one in sections[collection]["costs"] if (one["member"], one["split"]) == (member, split))
    return folder.store.read(one["file"])


def code(name):
    return [cell for cell in BOOKS[name].cells if cell.cell_type == "code"]


@each_notebook
def test_a_notebook_is_committed_as_it_was_written(name):
    book = BOOKS[name]
    nbformat.validate(book)
    assert book.nbformat == 4
    assert book.metadata.kernelspec.name == "python3"
    assert "papermill" not in book.metadata and "widgets" not in book.metadata
    for cell in book.cells:
        assert not {"papermill", "execution"} & set(cell.metadata)
    if name.startswith("20") or "outputs_of" not in book.metadata:        # else of .ci/outputs.py
        assert not any(cell.outputs or cell.execution_count is not None for cell in code(name))


@each_notebook
def test_all_settings_are_in_the_parameters_cell(name):
    tagged = [cell for cell in BOOKS[name].cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    for cell in code(name)[:code(name).index(tagged[0])]:
        assert all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.parse(cell.source).body)
    body = ast.parse(tagged[0].source).body
    for node in body:
        assert isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name), ast.unparse(node)
        ast.literal_eval(node.value)
    settings = {node.targets[0].id for node in body}
    assert {"data_root", "out_dir"} & settings
    words = " ".join(cell.source for cell in code(name) if cell is not tagged[0])
    unused = [setting for setting in settings if not re.search(rf"\b{setting}\b", words)]
    assert not unused, f"no cell uses {unused}"


@each_notebook
def test_no_cell_holds_what_belongs_elsewhere(name):
    for cell in code(name):
        for line in cell.source.splitlines():
            assert not re.match(r"\s*[!%]", line), line         # a failing !command goes unnoticed
        tree = ast.parse(cell.source)
        inner = [part for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for part in text.values[1:]]
        for node in ast.walk(tree):
            where = f"{name}: {ast.unparse(node)[:80]}"
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                assert node.end_lineno - node.lineno < 15, f"{where}: only what is small and teaches"
            assert not (isinstance(node, ast.ImportFrom) and node.names[0].name == "*"), where
            assert not (isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.path", "os.chdir")), where
            assert not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("exit", "quit", "sys.exit")), where
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
                assert not re.match(r"/\w|~/|[A-Za-z]:[\\/]", node.value), f"{where}: absolute path"


@pytest.mark.long
@pytest.mark.parametrize("name", ["08_kernels", "09_own_program"])
def test_a_notebook_finds_its_files_from_any_folder(tmp_path, tiny_sample, name):
    given = {"data_root": tiny_sample, "out_dir": tmp_path / "out", "size": "tiny"}
    done = subprocess.run([sys.executable, "-m", "papermill", "-k", "python3", PROJECT / "notebooks" / f"{name}.ipynb",
                           tmp_path / "done.ipynb", *(w for pair in given.items() for w in ("-p", *map(str, pair)))],
                          cwd=tmp_path, env=environment() | {"PYTHONPATH": f"{PROJECT}{os.pathsep}{PATHS[0].parent}"},
                          text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]


def execute(name, **given):
    """Run the cells of a notebook in this process with the parameters `given` that it declares -> its names."""
    names = {}
    for cell in code(name):
        exec(compile(cell.source, name, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            names |= {key: value for key, value in given.items() if key in names}
    plt.close("all")
    return names


def environment():
    """Warnings of the kit and of the cells are errors in the kernel."""
    modules = ["__main__", *(".".join(path.relative_to(place).with_suffix("").parts).removesuffix(".__init__")
                             for place, name in ((PROJECT, "kit"), (PROJECT / "notebooks", "lab"))
                             for path in (place / name).rglob("*.py"))]
    hidden = ("TPUGRAPHS_ROOT", "JUPYTER_PATH", "PYTHONPATH")
    return {**{k: v for k, v in os.environ.items() if k not in hidden},
            "PYTHONWARNINGS": ",".join(f"error:::{module}" for module in modules)}


# in every process of a run: note each data file that is opened
WATCH = """import os, sys
note = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def watch(event, args):
    if event == "open" and isinstance(args[0], (str, os.PathLike)) and str(args[0]).endswith(".npz"):
        os.write(note, os.path.abspath(args[0]).encode() + b"\\n")
sys.addaudithook(watch)
"""


def run(folder, *args, **more):
    """notebooks/run.py on the data in `folder` -> (exit status, lines of stdout, stderr)."""
    done = subprocess.run([sys.executable, PROJECT / "notebooks" / "run.py", "--data-root", "data", "--out", "out",
                           "--size", "tiny", *args], cwd=folder, text=True, capture_output=True,
                          env=environment() | more)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with tiny sample data and what all notebooks made of it: (folder, exit status, lines, stderr)."""
    if not PATHS:
        pytest.skip("there are no notebooks yet")
    folder = tmp_path_factory.mktemp("run")
    write_sample(folder / "data")
    (folder / "watch").mkdir()
    (folder / "watch" / "sitecustomize.py").write_text(WATCH.format(log=str(folder / "opened.txt")))
    return folder, *run(folder, PYTHONPATH=str(folder / "watch"))


def test_a_source_file_is_opened_once_in_a_whole_run(finished):
    folder, *_ = finished
    opened = Counter((folder / "opened.txt").read_text().splitlines())
    sources = {str(path.resolve()) for path in (folder / "data" / "npz").rglob("*.npz")}
    assert sources and {path: opened[path] for path in sources} == dict.fromkeys(sources, 1)
    assert any("/prepared-" in path for path in opened)            # what the notebooks read


def test_all_notebooks_run_in_order_to_a_valid_submission(finished):
    folder, status, lines, errors = finished
    assert (status, errors) == (0, ""), "\n".join(lines[-30:])
    assert lines[-1] == os.path.join("out", "submission.csv")
    assert check_submission(folder / "out" / "submission.csv", folder / "data") == []
    assert (folder / "out" / "scores.csv").is_file()
    assert lines[-2] == f"report: {os.path.join('out', 'report.html')}"
    page = (folder / "out" / "report.html").read_text()
    for words in ("ensemble", "What was trained on what", "layout_nlp_random-token-0", "data:image/png", "No file was"):
        assert words in page, words
    assert sorted(p.name for p in (folder / "out" / "notebooks").iterdir()) == [p.name for p in MAIN]


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """What 10 and 11 made of two collections: their tables; and the folder."""
    folder = tmp_path_factory.mktemp("studies")
    write_sample(folder / "data")
    status, lines, errors = run(folder, "--only", "10,11", "--collections", "tile:xla,layout:xla:random", "-p",
                                "steps=3")
    assert (status, errors, lines[-1]) == (0, "", "out"), "\n".join(lines[-30:])
    tables = {name: pd.read_csv(folder / "out" / f"{name}.csv") for name in ("baselines", "what_matters")}
    return {"folder": folder} | tables


@pytest.mark.long
def test_the_recipe_is_held_against_every_published_baseline(studied):
    table = studied["baselines"]
    assert set(table["programs"]) == {"tile:xla", "layout:random"} and set(table["data"]) == {"measured programs"}
    for programs, least in (("tile:xla", 4), ("layout:random", 5)):
        rows = table[table["programs"] == programs].set_index("model")
        assert len(rows) >= least + 2 and rows["score"].notna().all()
        for name, row in rows.drop("recipe").iterrows():
            assert row["lead"] == pytest.approx(rows.loc["recipe", "score"] - row["score"], abs=2e-4), name
            assert row["from"] <= row["lead"] <= row["to"], name


def test_searches_use_the_token_model_of_04_and_keep_within_their_budgets(finished):
    out = finished[0] / "out"
    for stem in ("layout_xla_default", "layout_nlp_random", "layout_nlp_default"):
        assert len(list((out / "store").glob(f"{stem}-token-0-*.pt"))) == 1, "07 trained another one"
    rows = pd.read_csv(out / "searches_rows.csv")
    assert set(rows["data"]) == {"measured programs"} and rows["collection"].nunique() == 4
    assert (rows["budget"] <= rows["rows"] / 2).all() and (rows[["random", "searched with model"]] >= 0).all(axis=None)


@pytest.mark.long
def test_the_token_model_by_hand_finds_the_groups_of_the_kit_and_learns(tiny_sample, capsys):
    names = execute("13_token_model", data_root=tiny_sample, size="tiny", steps=150)
    assert "our groups are those of the kit" in capsys.readouterr().out
    tau = {name: np.mean([*own.values()]) for name, own in names["taus"].items()}
    assert tau["by hand"] > 0.3 and tau.keys() == {"by hand", "ConfigTokenModel", "GNN"}
    one, graph = names["model"], names["g"]
    with torch.no_grad():
        tables = one(names["tensors"][graph.graph_id])
        cost = names["cost_of"](tables, names["tensors"][graph.graph_id], np.arange(len(graph.config_codes)))
    slow = []
    meetings = agreement_tables(graph)
    for code in graph.config_codes[:5].astype(int):
        own = sum(tables[0][v, code[group]] for v, group in enumerate(graph.node_group))
        met = sum(tables[1][meetings.pair[p, code[graph.node_group[v]], code[graph.node_group[u]]]]
                  for p, (v, u) in enumerate(meetings.pairs))
        slow.append(float(own + met))
    assert cost[:5].tolist() == pytest.approx(slow, rel=1e-4, abs=1e-4)


def assert_no_cell_warns(folder):
    for path in (folder / "out" / "notebooks").glob("*.ipynb"):
        for cell in nbformat.read(path, 4).cells:
            for output in cell.get("outputs", []):
                assert output.get("name") != "stderr", f"{path.name}: {output.text}"


def test_no_cell_warns(finished):
    assert_no_cell_warns(finished[0])


@pytest.mark.long
@pytest.mark.parametrize("whole, least", [("the GNN", 18), ("the token model", 20)])
def test_every_part_of_a_model_is_compared_with_the_whole(studied, whole, least):
    table = studied["what_matters"].set_index("model").loc[whole].set_index("variant")
    assert len(table) >= least and table["score"].notna().all()
    others = table.drop(whole)
    assert others["difference"].to_numpy() == pytest.approx(others["score"] - table.loc[whole, "score"], abs=2e-4)
    assert (others["difference"] != 0).mean() > 0.8              # a switch that changes nothing is not connected


@pytest.mark.long
def test_no_cell_of_a_study_warns(studied):
    assert_no_cell_warns(studied["folder"])


def test_a_second_run_executes_nothing_again(finished):
    folder, submission = finished[0], finished[0] / "out" / "submission.csv"
    before = submission.stat().st_mtime_ns
    status, lines, _ = run_clone(PROJECT, "--data-root", "data", "--out", "out", "--size", "tiny", within=folder)
    assert status == 0
    assert sum("finished before" in line for line in lines) == len(MAIN)
    assert lines[-1] == os.path.join("out", "submission.csv") and submission.stat().st_mtime_ns == before


@pytest.mark.long
def test_damaged_files_are_named_and_the_others_go_through(tiny_sample, tmp_path):
    shutil.copytree(tiny_sample, tmp_path / "data")
    files = sorted((tmp_path / "data").rglob("npz/layout/xla/random/train/*.npz"))
    kernels = sorted((tmp_path / "data").rglob("npz/tile/xla/train/*.npz"))
    cut, without = files[0], kernels[0]
    cut.write_bytes(cut.read_bytes()[:-100])
    with zipfile.ZipFile(without) as old, zipfile.ZipFile(tmp_path / "new.npz", "w") as new:
        for member in old.namelist():
            if member != "edge_index.npy":
                new.writestr(member, old.read(member))
    os.replace(tmp_path / "new.npz", without)
    status, lines, errors = run_clone(PROJECT, "--data-root", tmp_path / "data", "--out", tmp_path / "out", "--size",
                                      "tiny", *FULL, "--collections", "tile:xla,layout:xla:random")
    assert status == 3, errors or "\n".join(lines[-30:])
    named = [line for line in lines if line.startswith("not used: ")]
    assert len(named) == 2
    assert any(cut.name in line and "not a readable npz file" in line for line in named)
    assert any(without.name in line and "edge_index is missing" in line for line in named)
    expected = {f"tile:xla:{p.stem}" for p in (tmp_path / "data" / "npz").glob("tile/xla/test/*.npz")}
    expected |= {f"layout:xla:random:{p.stem}" for p in (tmp_path / "data" / "npz").glob("layout/xla/random/test/*")}
    assert set(read_submission(tmp_path / "out" / "submission.csv")) == expected
    assert lines[-1] == str(tmp_path / "out" / "submission.csv")
    written = [json.loads(line)["path"] for line in (tmp_path / "out" / "problems.jsonl").read_text().splitlines()]
    assert sorted(Path(path).name for path in written) == sorted([cut.name, without.name])


@pytest.fixture(scope="module")
def prepared(tiny_sample, tmp_path_factory):
    """A prepared folder whose sources are gone."""
    sources = tmp_path_factory.mktemp("sources") / "data"
    shutil.copytree(tiny_sample, sources)
    folder = prepare(sources, tmp_path_factory.mktemp("prepared") / "here", progress=False).folder
    shutil.rmtree(sources)
    return folder


def test_the_tables_of_01_are_those_of_the_catalogue_and_of_the_graphs(prepared):
    names = execute("01_eda", data_root=prepared)
    for (collection, _), shares in names["shares"].items():
        slower = [target(g) / target(g).min() - 1 for s in ("train", "valid")
                  for g in open_prepared(prepared).graphs(collection, s)]
        expected = [np.mean([(one <= limit).mean() for one in slower]) for limit in names["limits"]]
        assert shares == pytest.approx(expected, abs=1e-12)
    assert {collection for collection, _ in names["shares"]} == {*COLLECTIONS}
    pairs = {(c, family) for c, family in names["graphs"].filter(split="train").select("collection", "family").rows()}
    found = structural_relatives(names["catalogue"]).rows()
    layouts = names["held"].filter(pl.col("collection") != "tile:xla")
    assert layouts.select("collection", "split", "name", "similarity", "relative").rows() == found and found
    same_family = names["held"].filter(pl.col("same_family").is_not_null())
    assert {*same_family["name"]} == {name for c, name, family in names["graphs"].filter(pl.col("split") != "train")
                                         .select("collection", "name", "family").rows() if (c, family) in pairs}


PARTS = {
    "only kernels": lambda collection, split: collection == "tile/xla",
    "one collection without training data": lambda collection, split: (collection, split) in [
        ("layout/nlp/random", "valid"), ("layout/nlp/random", "test")],
    "only test files": lambda collection, split: split == "test",
}


@pytest.mark.parametrize("name", ["01_eda", "02_prune_and_pad"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_data_is_enough_to_explore(name, part, prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "part")
    for path in (tmp_path / "part").rglob("*.npz"):
        collection, split = path.parents[1].relative_to(tmp_path / "part").as_posix(), path.parent.name
        if not PARTS[part](collection, split):
            path.unlink()
    execute(name, data_root=tmp_path / "part")
