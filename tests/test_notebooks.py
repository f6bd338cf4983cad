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
from scipy import stats

import kit.recipes
from kit.agreement import agreement_tables
from kit.baselines import structural_relatives
from kit.data import CATALOGUE, COLLECTIONS, npz_paths, read_layout, target
from kit.prepare import open_prepared, prepare
from kit.submit import check_submission, read_submission
from lab.run import Folder
from lab.run.folder import COMBINES, step_of
from lab.sample.write import write_sample

PROJECT = Path(__file__).resolve().parents[1]
PATHS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
BOOKS = {path.stem: nbformat.read(path, nbformat.NO_CONVERT) for path in PATHS}
MAIN = [path for path in PATHS if path.stem < "10"]              # the others only run when asked for
each_notebook = pytest.mark.parametrize("name", BOOKS)
MAX_LINES, MAX_CELLS = 30, 25                                   # of a code cell, of code in a notebook


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
def test_a_notebook_is_short_and_says_what_it_is(name):
    first = BOOKS[name].cells[0]
    assert first.cell_type == "markdown"
    assert re.match(rf"# {name[:2]} \S", first.source), first.source.split("\n")[0]
    assert 0 < len(code(name)) <= MAX_CELLS
    for cell in code(name):
        lines = cell.source.splitlines()
        assert 0 < len(lines) <= MAX_LINES, f"{len(lines)} lines from {lines[:1]}"


@pytest.mark.parametrize("name", [name for name in BOOKS if name < "10"])
def test_half_of_the_cells_have_ten_lines_at_most_and_the_end_says_what_follows(name):
    lengths = [len([line for line in cell.source.splitlines() if line.strip() and not line.lstrip().startswith("#")])
               for cell in code(name)]
    assert np.median(lengths) <= 10, sorted(lengths)
    texts = [cell.source for cell in BOOKS[name].cells if cell.cell_type == "markdown"]
    assert sum(text.startswith("## ") for text in texts) >= 2, "headings make a table of contents"
    assert re.match(r"(\*\*)?What follows", texts[-1]) and BOOKS[name].cells[-1].cell_type == "markdown"


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


@pytest.mark.parametrize("name", [name for name in BOOKS if name < "20"])      # 20 makes a clone where it stands
def test_no_path_of_a_notebook_depends_on_the_working_folder(name):
    for cell in code(name):
        for call in [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]:
            assert not ast.unparse(call.func).endswith((".cwd", "getcwd")), cell.source
            if re.search(r"^Path$|^open$|\.read_\w+$|_from_hlo$", ast.unparse(call.func)):
                first = [ast.unparse(given) for given in call.args[:1]]
                assert first and not re.match("f?['\"]", first[0]), ast.unparse(call)


@pytest.mark.long
@pytest.mark.parametrize("name", ["08_kernels", "09_own_program"])
@pytest.mark.parametrize("start", ["above the clone", "elsewhere"])
def test_a_notebook_finds_its_files_from_any_folder(tmp_path, tiny_sample, name, start):
    folder = PROJECT.parent if start == "above the clone" else tmp_path
    given = {"data_root": tiny_sample, "out_dir": tmp_path / "out", "size": "tiny"}
    done = subprocess.run([sys.executable, "-m", "papermill", "-k", "python3", PROJECT / "notebooks" / f"{name}.ipynb",
                           tmp_path / "done.ipynb", *(w for pair in given.items() for w in ("-p", *map(str, pair)))],
                          cwd=folder, env=environment(), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", [name for name in BOOKS if name[:2] in "03 04 05 07 10 11 12 13".split()])
def test_tables_of_scores_leave_the_interval_of_one_graph_empty(name):
    calls = [node for cell in code(name) for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
    tables = [call for call in calls if ast.unparse(call.func).endswith(".style.format")]
    assert tables and all("na_rep" in {keyword.arg for keyword in call.keywords} for call in tables)


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
    write_sample(folder / "data", seed=0, size="tiny")
    (folder / "watch").mkdir()
    (folder / "watch" / "sitecustomize.py").write_text(WATCH.format(log=str(folder / "opened.txt")))
    return folder, *run(folder, PYTHONPATH=str(folder / "watch"))


def test_a_source_file_is_opened_once_in_a_whole_run(finished):
    folder, *_ = finished
    opened = Counter((folder / "opened.txt").read_text().splitlines())
    sources = {str(path.resolve()) for path in (folder / "data" / "npz").rglob("*.npz")}
    assert sources and {path: opened[path] for path in sources} == dict.fromkeys(sources, 1)
    assert any("/prepared/" in path for path in opened)            # what the notebooks read


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


@pytest.mark.long
def test_validation_graphs_choose_what_a_kind_of_model_weighs(tmp_path):
    """Made-up models on six validation programs: a good kind, a poor one, one without seeds, one without test."""
    name, collection = "layout_xla_random", "layout:xla:random"
    for seed in range(3):
        part = write_sample(tmp_path / f"sample{seed}", seed=seed, size="tiny")
        if seed == 0:
            shutil.copytree(part.parent if part.name == "npz" else part, tmp_path / "data")
        for path in npz_paths(part, collection, "valid"):
            shutil.copy(path, npz_paths(tmp_path / "data", collection, "valid")[0].parent)
    rng, costs, brought = np.random.default_rng(0), {}, tmp_path / "brought" / name
    brought.mkdir(parents=True)
    for split in ("valid", "test"):
        graphs = [read_layout(path) for path in npz_paths(tmp_path / "data", collection, split)]
        assert len(graphs) >= 5 or split == "test"
        for member, share in (("good_seed0", .1), ("good_seed1", .2), ("poor_seed0", 9), ("mine", -9)):
            costs[member, split] = {f"{collection}:{g.graph_id}": rng.standard_normal(len(g.config_codes)) * abs(share)
                                    + np.sign(share) * (stats.zscore(g.config_runtime) if split == "valid" else 0)
                                    for g in graphs}
            np.savez(brought / f"{member}.{split}.npz", **costs[member, split])
    np.savez(brought / "late_seed0.valid.npz", **costs["mine", "valid"])
    given = "--only", "05", "--collections", collection, "-p", f"predictions_from={brought.parent}"
    status, lines, errors = run(tmp_path, *given)
    assert (status, errors) == (3, ""), errors
    book = nbformat.read(tmp_path / "out" / "notebooks" / "05_ensemble.ipynb", 4)
    said = "".join(o.get("text", "") for cell in book.cells for o in cell.get("outputs", []))
    assert "late_seed0: has predictions of valid, and not of other splits\n" in said
    assert f"{collection}: good_seed0, good_seed1, mine, poor_seed0\n" in said
    assert f"{collection}: chosen by 6 validation graphs\n    100.0% good, seeds: 2; alone 0." in said
    assert "      0.0% mine (left out), seeds: 1; alone -0." in said and "      0.0% poor (left out), seeds: 1" in said
    for split in ("valid", "test"):
        found = published(tmp_path / "out", "ensemble", collection, split)
        assert found.keys() == costs["mine", split].keys()
        for graph, cost in found.items():
            good = [stats.zscore(costs[member, split][graph]) for member in ("good_seed0", "good_seed1")]
            assert cost == pytest.approx(np.mean(good, axis=0), abs=1e-9)
    status, lines, errors = run(tmp_path, *given, "-p", "choose=False")
    book = nbformat.read(tmp_path / "out" / "notebooks" / "05_ensemble.ipynb", 4)
    said = "".join(o.get("text", "") for cell in book.cells for o in cell.get("outputs", []))
    assert f"{collection}: prior weights\n     33.3% good, seeds: 2; alone 0." in said
    assert published(tmp_path / "out", "ensemble", collection)[graph] == pytest.approx(np.mean(
        [np.mean(good, axis=0), *(stats.zscore(costs[other, "test"][graph]) for other in ("mine", "poor_seed0"))],
        axis=0), abs=1e-9)


@pytest.mark.long
def test_a_third_member_of_a_recipe_is_trained_and_combined_like_the_others(tiny_sample, tmp_path, monkeypatch):
    """Notebooks 04 and 05 name no member of a recipe but the two whose settings are parameters."""
    own = kit.recipes.recipes_for

    def with_a_third(collection, *scale):
        found = own(collection, *scale)
        return found | {"third": found["token"]._replace(seeds=3)}
    monkeypatch.setattr(kit.recipes, "recipes_for", with_a_third)
    for name in ("04_train_layout", "05_ensemble"):
        execute(name, data_root=tiny_sample, out_dir=tmp_path, collections="layout:nlp:random", size="tiny",
                token_steps=2, gnn_steps=2, workers=1)
    section = Folder(tmp_path).record("04_train_layout")["sections"]["layout:nlp:random"]
    assert {one["member"] for one in section["costs"] if not one["baseline"]} == {
        "token_seed0", "gnn_seed0", "third_seed0"}
    table = pd.read_csv(tmp_path / "scores.csv")
    assert set(table["model"]) == {"ensemble", "token", "gnn", "third", "node alone", "ridge"}


@pytest.mark.long
def test_a_program_of_ones_own_is_ranked_by_the_model_that_04_trained_on_several_collections(tiny_sample, tmp_path,
                                                                                             monkeypatch):
    own = kit.recipes.recipes_for
    monkeypatch.setattr(kit.recipes, "recipes_for", lambda *about: {
        name: one._replace(together=True) for name, one in own(*about).items() if name == "token"})
    of_both, given = ["layout:xla:random", "layout:xla:default"], {"data_root": tiny_sample, "out_dir": tmp_path}
    execute("04_train_layout", collections=",".join(of_both), size="tiny", token_steps=2, workers=1, **given)
    taken = execute("09_own_program", collections=of_both[1], size="tiny", **given)
    assert taken["about"]["steps"] == 4
    assert len(taken["trained_on"]) == 2 * len(npz_paths(tiny_sample, of_both[0], "train"))


@pytest.mark.long
def test_04_trains_the_gnn_on_segments_of_whole_programs_and_resumes(tiny_sample, tmp_path):
    given = dict(data_root=tiny_sample, out_dir=tmp_path, collections="layout:nlp:random", size="tiny", token_steps=2,
                 gnn_steps=3, workers=1)
    names = execute("04_train_layout", **given, segments=15, k_hops=1000)
    (records,) = (sorted((tmp_path / "store").glob("*-gnn-*.json")),)
    (record,) = [json.loads(path.read_text()) for path in records]
    assert record["model"] == "SegmentGNN" and record["model_settings"]["segment_nodes"] == 15
    assert record["model_settings"]["margin"] == 1 and record["model_settings"]["model"]["agreement"]
    assert min(len(g.node_feat) for graphs, _ in names["families"].values() for g in graphs) > 2 * 15
    cut = published(tmp_path, "gnn_seed0")
    for path in (tmp_path / "store").glob("*.npz"):
        path.unlink()
    execute("04_train_layout", **given, segments=15, k_hops=1000)
    again = published(tmp_path, "gnn_seed0")
    assert all(np.array_equal(cut[i], again[i]) for i in cut) and len(cut) == 2
    execute("04_train_layout", **given, k_hops=1000)
    whole = published(tmp_path, "gnn_seed0")
    assert not any(np.array_equal(cut[i], whole[i]) for i in cut), "whole graphs have a checkpoint of their own"


@pytest.mark.long
def test_programs_with_a_relative_in_training_are_corrected_and_the_same_program_has_a_specialist(tmp_path):
    """The relatives of one validation program are taken away, and another one gets half of a training program."""
    root = write_sample(tmp_path / "sample", size="tiny", relatives=1)
    folder, name = root / "layout" / "nlp" / "random", "layout:nlp:random"
    first, second = (path.stem for path in sorted((folder / "valid").glob("*.npz")))
    number = re.search(r"_valid_(\d)$", first)[1]
    next(folder.glob(f"train/*_valid_{number}_relative_1.npz")).unlink()
    taught = next(path for path in sorted((folder / "train").glob("*.npz")) if "relative" not in path.stem)
    with np.load(taught) as file:
        arrays = dict(file)
    for split, part in (("train", slice(0, None, 2)), ("valid", slice(1, None, 2))):
        np.savez(folder / split / taught.name, **arrays | {
            key: arrays[key][part] for key in ("node_config_feat", "config_runtime")})
    execute("04_train_layout", data_root=prepare(root, tmp_path / "prepared").folder, out_dir=tmp_path / "out",
            collections=name, size="tiny", token_steps=2, gnn_steps=2, workers=1)
    token, gnn, siblings = (published(tmp_path / "out", f"{kind}_seed0", split="valid")
                            for kind in ("token", "gnn", "siblings"))
    alone, related, same = (f"{name}:{stem}" for stem in (first, second, taught.stem))
    assert token.keys() == gnn.keys() == siblings.keys() == {alone, related, same}
    assert np.array_equal(siblings[alone], token[alone]) and not np.array_equal(gnn[alone], token[alone])
    assert not np.array_equal(siblings[related], token[related])
    assert np.array_equal(token[same], gnn[same]) and np.array_equal(token[same], siblings[same])
    assert published(tmp_path / "out", "siblings_seed0").keys() == published(tmp_path / "out", "token_seed0").keys()


@pytest.fixture(scope="module")
def studied(finished):
    """What 10, 11 and 12 made of two collections: their tables, after the run that they leave as it is."""
    folder = finished[0]
    status, lines, errors = run(folder, "--only", "10,11,12", "--collections", "tile:xla,layout:xla:random")
    assert (status, errors, lines[-1]) == (0, "", "out"), "\n".join(lines[-30:])
    return {name: pd.read_csv(folder / "out" / f"{name}.csv") for name in ("baselines", "ablation", "tokens")}


@pytest.mark.long
def test_the_recipe_is_held_against_every_published_baseline(studied):
    table = studied["baselines"]
    assert set(table["collection"]) == {"tile:xla", "layout:xla:random"} and set(table["data"]) == {"sample data"}
    for collection, least in (("tile:xla", 4), ("layout:xla:random", 5)):
        rows = table[table["collection"] == collection].set_index("model")
        assert len(rows) >= least + 2 and rows["score"].notna().all()
        for name, row in rows.drop("recipe").iterrows():
            assert row["lead"] == pytest.approx(rows.loc["recipe", "score"] - row["score"], abs=2e-4), name
            assert row["from"] <= row["lead"] <= row["to"], name


@pytest.mark.long
def test_every_technique_is_compared_with_the_gnn_as_it_is(studied):
    table = studied["ablation"].set_index("model")
    assert len(table) >= 20 and table["score"].notna().all() and (table["programs"] == table["programs"].iloc[0]).all()
    others = table.drop("the GNN")
    assert others["difference"].to_numpy() == pytest.approx(others["score"] - table.loc["the GNN", "score"], abs=2e-4)
    assert (others["difference"] != 0).mean() > 0.8              # a switch that changes nothing is not connected


@pytest.mark.long
def test_every_part_of_the_token_model_is_compared_with_the_whole(studied):
    table = studied["tokens"].set_index("model")
    assert len(table) >= 28 and table["score"].notna().all()
    others = table.drop("the token model")
    assert others["difference"].to_numpy() == pytest.approx(others["score"] - table.loc["the token model", "score"],
                                                            abs=2e-4)
    assert (others["difference"] != 0).mean() > 0.8


def test_searches_use_the_token_model_of_04_and_keep_within_their_budgets(finished):
    out = finished[0] / "out"
    for stem in ("layout_xla_default", "layout_nlp_random", "layout_nlp_default"):
        assert len(list((out / "store").glob(f"{stem}-token-0-*.pt"))) == 1, "07 trained another one"
    table, rows = pd.read_csv(out / "searches.csv"), pd.read_csv(out / "searches_rows.csv")
    assert set(table["data"]) == set(rows["data"]) == {"sample data"}
    assert table["collection"].nunique() == rows["collection"].nunique() == 4 and table["strategy"].nunique() == 9
    assert (table["measured"] <= table["budget"]).all() and (table["slowdown"] >= 0).all()
    guided = table["strategy"].str.startswith("model")
    assert ((table["queries"] > 0) == guided).all() and (rows[["random", "searched with model"]] >= 0).all(axis=None)


@pytest.mark.long
@pytest.mark.parametrize("collection", ["layout:xla:random", "layout:nlp:default"])
def test_the_token_model_by_hand_finds_the_groups_of_the_kit_and_learns(tiny_sample, tmp_path, capsys, collection):
    names = execute("13_token_model", data_root=tiny_sample, size="tiny", collection=collection, steps=150)
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


@pytest.mark.long
def test_searches_take_the_model_of_04_where_validation_files_are_cut_too(tiny_sample, tmp_path):
    status, _, errors = run(tmp_path, "--data-root", str(tiny_sample), "--only", "04,07", "--collections",
                            "layout:xla:random", "-p", "most_configs=20",
                            "-p", "programs=1", "-p", "budgets=[5]", "-p", "queries=50")
    assert status == 0, errors
    assert len(list((tmp_path / "out" / "store").glob("*-token-0-*.pt"))) == 1, "07 trained another one"


def test_a_study_of_searches_shows_where_it_is_and_keeps_each_program_and_seed(finished):
    out = finished[0] / "out"
    book = nbformat.read(out / "notebooks" / "07_search.ipynb", 4)
    lines = "".join(o.text for c in book.cells for o in c.get("outputs", []) if "text" in o).splitlines()
    shown = [line for line in lines if re.match(r"\d+ of \d+  ", line)]
    assert re.fullmatch(r"1 of 8  layout:xla:random, seed 1 of 2: \w+", shown[0])
    assert sum(" of 8  layout:" in line for line in shown) >= 8 and shown[-1] == "1 of 1  tile:xla tile"
    kept = [path.name.split("-")[0] for path in (out / "store").glob("*.npz")]
    tables = len(pd.read_csv(out / "searches_rows.csv")[["collection", "graph", "rows of a"]].drop_duplicates())
    assert (kept.count("guided"), kept.count("rows")) == (2 * 4 * 2, 2 * tables)
    assert 2 * 2 * 2 <= kept.count("free") < 2 * 4 * 2           # of both collections of a source, where spaces agree


def assert_no_cell_warns(folder):
    for path in (folder / "out" / "notebooks").glob("*.ipynb"):
        for cell in nbformat.read(path, 4).cells:
            for output in cell.get("outputs", []):
                assert output.get("name") != "stderr", f"{path.name}: {output.text}"


def test_no_cell_warns(finished):
    assert_no_cell_warns(finished[0])


@pytest.mark.long
def test_no_cell_of_a_study_warns(finished, studied):
    assert_no_cell_warns(finished[0])


@pytest.mark.long
def test_a_second_run_executes_nothing_again(finished):
    folder, submission = finished[0], finished[0] / "out" / "submission.csv"
    before = submission.stat().st_mtime_ns
    status, lines, _ = run(folder)
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
    status, lines, errors = run(tmp_path, "--only", "03,04,05,06", "--collections", "tile:xla,layout:xla:random")
    assert status == 3, errors or "\n".join(lines[-30:])
    named = [line for line in lines if line.startswith("unreadable, left out: ")]
    assert len(named) == 2
    assert any(cut.name in line and "not a readable npz file" in line for line in named)
    assert any(without.name in line and "edge_index is missing" in line for line in named)
    expected = {f"tile:xla:{p.stem}" for p in (tmp_path / "data" / "npz").glob("tile/xla/test/*.npz")}
    expected |= {f"layout:xla:random:{p.stem}" for p in (tmp_path / "data" / "npz").glob("layout/xla/random/test/*")}
    assert set(read_submission(tmp_path / "out" / "submission.csv")) == expected
    assert lines[-1] == os.path.join("out", "submission.csv")
    written = [json.loads(line)["path"] for line in (tmp_path / "out" / "problems.jsonl").read_text().splitlines()]
    assert sorted(Path(path).name for path in written) == sorted([cut.name, without.name])


@pytest.mark.long
def test_files_with_odd_names_are_left_out_or_shown_as_they_are(tiny_sample, tmp_path):
    shutil.copytree(tiny_sample, tmp_path / "data")
    odd = {"train": os.fsdecode(b"a\xff"), "valid": r"$\frac{a}{b$", "test": "a:b"}
    for split, name in odd.items():
        folder = tmp_path / "data" / "npz" / "layout" / "xla" / "random" / split
        path = sorted(folder.glob("*.npz"))[0]
        shutil.copy(path, folder / f"{name}.npz")
        truth = Path(str(path).replace("/npz/", "/truth/"))
        if truth.is_file():
            shutil.copy(truth, truth.with_name(f"{name}.npz"))
    status, lines, errors = run(tmp_path, "--only", "01,03,04,05,06", "--collections", "layout:xla:random")
    assert (status, errors) == (3, ""), errors or "\n".join(lines[-30:])
    assert [re.sub(".*/", "", line) for line in lines if line.startswith("unreadable, left out: ")] == [
        r"a\udcff.npz: its name is not UTF-8; rename the file",
        "a:b.npz: its name cannot stand in a submission; expected no space, comma, colon, semicolon or quote; if it is "
        "a copy, delete it"]
    assert any("layout:xla:random: 1 missing ID" in line and "layout:xla:random:a:b" in line for line in lines)
    assert f"layout:xla:random:{odd['valid']}" in published(
        tmp_path / "out", "token_seed0", "layout:xla:random", "valid")
    assert len(read_submission(tmp_path / "out" / "submission.csv")) == len(list(folder.glob("*.npz"))) - 1


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


def test_02_knows_the_memory_of_graphs_that_it_does_not_read(prepared):
    names = execute("02_prune_and_pad", data_root=prepared, most_graphs=2)
    assert all(len(graphs) == 2 for graphs in names["graphs"].values()) and len(names["memory"]) == 40
    layouts = names["memory"].filter(pl.col("collection") != "tile:xla")
    for *place, megabytes in layouts.select("collection", "split", "name", "in_memory").rows():
        graph = open_prepared(prepared).graph(*place)
        held = graph.config_codes.nbytes + graph.code_rows.nbytes + graph.node_group.nbytes
        assert megabytes == pytest.approx(held / 1e6)


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


@pytest.mark.parametrize("name", ["01_eda", "02_prune_and_pad"])
def test_files_that_are_all_damaged_are_only_listed(name, tiny_sample, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_sample, tmp_path / "sources")
    for path in (tmp_path / "sources" / "npz").rglob("*.npz"):
        path.write_bytes(b"no archive")
    names = execute(name, data_root=tmp_path / "sources")
    assert len(names["graphs"]) == 0
    if name == "01_eda":
        assert (names["suspicious"]["why"] == "left out").all() and len(names["suspicious"]) == 40


def test_suspicious_graphs_are_named_with_every_reason(prepared, tmp_path):
    """Rows of the catalogue are changed, not files: what is suspicious is read from the catalogue alone."""
    shutil.copytree(prepared, tmp_path / "changed")
    table = pl.read_parquet(prepared / CATALOGUE)
    train = (pl.col("collection") == "layout:xla:random") & (pl.col("split") == "train")
    test = (pl.col("collection") == "tile:xla") & (pl.col("split") == "test")
    odd = table.filter(test)["name"][0]
    table = table.with_columns(
        distinct=pl.when(train).then(1).otherwise("distinct"), noise=pl.when(train).then(1.0).otherwise("noise"),
        ceiling=pl.when(train).then(0.3).otherwise("ceiling"),
        name=pl.when(test & (pl.col("name") == odd)).then(pl.lit("a copy")).otherwise("name"))
    table.write_parquet(tmp_path / "changed" / CATALOGUE)
    folder = tmp_path / "changed" / "tile" / "xla" / "test"
    (folder / f"{odd}.npz").rename(folder / "a copy.npz")
    found = execute("01_eda", data_root=tmp_path / "changed")["suspicious"]
    assert found.filter(train)["why"].unique().to_list() == [
        "one distinct configuration; over 90% are repeats; noise is over half of the spread; ceiling below 0.5"]
    assert found.filter(test).select("name", "why").rows() == [("a copy", "name cannot stand in a submission")]
    assert len(found) == 1 + table.select(train.sum()).item()
