"""The benchmarks run: a case in a process of its own, the rehearsal and the script for a GPU in small."""
import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.data import SPLITS, read_tile
from kit.kaggle.downloads import FILES

RUN = Path(__file__).resolve().parent / "benchmarks" / "run.py"
REHEARSAL = RUN.with_name("rehearsal.py")


def loaded(path):
    spec = importlib.util.spec_from_file_location(f"benchmarks_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rehearsal():
    sys.path.insert(0, str(RUN.parent))                  # as where it runs as a script
    try:
        return loaded(REHEARSAL)
    finally:
        del sys.path[0]


@pytest.mark.parametrize("name", ["bench_baselines", "bench_gnn", "bench_gst", "bench_recipes", "explain_study",
                                  "token_study"])
def test_a_script_finds_all_that_it_imports(name, monkeypatch):
    monkeypatch.syspath_prepend(RUN.parent)
    assert loaded(RUN.with_name(f"{name}.py")).__doc__


@pytest.mark.long
def test_a_case_runs_in_a_process_of_its_own():
    command = [sys.executable, str(RUN), "--case", "baselines", "TileModel (tile)", "--steps", "2", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["seconds"]) == 2 and min(found["seconds"]) > 0
    assert found["configs"] > 1 and found["peak"] > 0


def test_both_commands_are_those_of_the_readme_and_the_table_has_their_medians(project):
    sys.path.insert(0, str(RUN.parent))
    try:
        page = loaded(RUN.with_name("commands.py"))
    finally:
        del sys.path[0]
    install, found = page.commands((project / "README.md").read_text())
    assert install == "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt"
    assert found == [".venv/bin/python notebooks/run.py", ".venv/bin/python -m pytest"]
    with pytest.raises(SystemExit, match="expected two commands"):
        page.commands("no commands")
    assert page.table({"a": [3.0, 1.4, 2.0]})[2:] == ["| a | 2 s | 3, 1, 2 s |"]


@pytest.fixture(scope="module")
def evening():
    sys.path.insert(0, str(RUN.parent))
    try:
        return loaded(RUN.with_name("evening.py"))
    finally:
        del sys.path[0]


def test_the_rehearsal_has_the_official_counts_and_the_largest_sizes(rehearsal):
    files = rehearsal.plan(rehearsal.SIZES["full"])
    assert [sum(file["split"] == split for file in files) for split in ("train", "valid", "test")] == [69, 7, 8]
    most = {name: max(file[name] for file in files) for name in ("nodes", "configurable", "configs")}
    assert most == {"nodes": 43_615, "configurable": 3143, "configs": 100_040}
    assert max(72 * file["configurable"] * file["configs"] for file in files) <= 100_040 * 364 * 72
    assert {file["configs"] for file in files if file["split"] == "test"} == {1000}


@pytest.mark.long
def test_a_rehearsal_in_small_goes_through_every_step(rehearsal, tmp_path):
    # in one process, because each start takes longer than a step; its rows are then the highest memory so far
    code = f"""import sys; sys.path.insert(0, {str(REHEARSAL.parent)!r}); import rehearsal
found = {{name: rehearsal.one_step(name, {str(tmp_path)!r}, "tiny", 1) for name in rehearsal.STEPS}}
print(*rehearsal.tables(found, "tiny", 1), sep=chr(10))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    steps = {row[0][2:]: row for row in rows if len(row) == 5}
    assert list(steps)[1:] == list(rehearsal.STEPS) and all(0 < float(row[4][:-2]) < 8 for row in rows[1:10])
    assert steps["generate the data"][1].startswith("6 files")
    assert steps["write and check the submission"][1] == "2 rows written and checked, no problem"
    assert len(rows) - len(steps) == 6
    planned = rehearsal.plan(rehearsal.SIZES["tiny"])
    for number, path in enumerate(rehearsal.sources(tmp_path)):
        graph, file = rehearsal.read_layout(path), planned[number]
        assert (len(graph.node_feat), len(graph.node_config_ids), len(graph.config_runtime)) == (
            file["nodes"], file["configurable"], file["configs"])
        assert graph.config_runtime.any() == (file["split"] != "test") and path.parent.name == file["split"]


def test_the_evening_has_the_official_counts_and_sizes_and_readable_kernels(evening, tmp_path):
    files = evening.files_of(1.0)
    for collection, counts in FILES.items():
        assert [sum(path.parts[:-1] == (*collection.split(":"), split) for path, *_ in files) for split in SPLITS] == [
            *counts]
    layouts = [what for *_, what in files if isinstance(what, dict)]
    rows, digits = (sum(row) for row in zip(*((w["configs"], w["configs"] * w["configurable"]) for w in layouts)))
    assert 25e6 < rows < 35e6 and 380 < 72 * digits / 2 ** 30 < 420       # the data set has 31 million, 396 GiB
    few = evening.files_of(0.25)
    assert sum("test" in path.parts for path, *_ in few) == 894 and len(few) < 894 + 0.26 * len(files)
    path, seed, split = files[-1]
    assert evening.write_one(tmp_path, path, seed, split) == (tmp_path / path).stat().st_size
    assert split == "test" and not read_tile(tmp_path / path).config_runtime.any()


@pytest.mark.long
def test_a_step_that_takes_more_than_the_limit_ends_the_rehearsal(rehearsal, tmp_path):
    code = f"""import sys; sys.path.insert(0, {str(REHEARSAL.parent)!r}); import rehearsal
rehearsal.STEPS["greedy"] = lambda root, size: (len(bytearray(rehearsal.LIMIT)), {{}})
rehearsal.one_step("greedy", ".", "tiny", 1)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "MemoryError"


def test_the_gpu_script_needs_only_what_its_head_has_carried_to_the_machine(tmp_path):
    project = RUN.parents[2]
    for name in ("kit", "tests/sample", "tests/benchmarks"):
        shutil.copytree(project / name, tmp_path / name)
    script = tmp_path / "tests" / "benchmarks" / "gpu.py"
    code = f"""import runpy, sys
runpy.run_path({str(script)!r})
from kit import models, train_parts
loaded = [getattr(one, name) for one in (models, train_parts) for name in one.__all__]     # each name loads its file
print(*(one.__file__ for one in sys.modules.values() if getattr(one, "__file__", None)))"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = set()
    for path in [script, *(path for path in done.stdout.split() if path.startswith(str(tmp_path)))]:
        for node in ast.parse(Path(path).read_text()).body:
            found |= {one.name for one in node.names} if isinstance(node, ast.Import) else set()
            found |= {node.module} if isinstance(node, ast.ImportFrom) else set()
    local = {"kit", "sample", *(path.stem for path in script.parent.glob("*.py"))}
    listed = re.search("pip install --no-index --find-links wheels (.*)", script.read_text())[1]
    assert {name.partition(".")[0] for name in found} - local - {*sys.stdlib_module_names} == {
        "torch", "numpy", *listed.replace("scikit-learn", "sklearn").split()}


@pytest.fixture(scope="module")
def gpu():
    sys.path.insert(0, str(RUN.parent))
    try:
        return loaded(RUN.with_name("gpu.py"))
    finally:
        del sys.path[0]


def few_models(gpu, monkeypatch):
    """Only the two fastest models, without processes of their own."""
    monkeypatch.setattr(gpu, "MODELS", {name: gpu.MODELS[name] for name in ("token model", "tile model")})
    whole = gpu.planned
    monkeypatch.setattr(gpu, "planned", lambda programs, kernels, has_pair: whole(programs, kernels, False))


@pytest.mark.long
def test_the_gpu_script_notices_a_broken_ranking_a_crash_and_the_end_of_its_time(gpu, tmp_path, monkeypatch, capsys):
    few_models(gpu, monkeypatch)
    right, whole, begun = gpu.predict, gpu.run_case, []

    def broken(model, graph, precision="float32", **options):
        cost = right(model, graph, precision=precision, **options)
        return cost if precision == "float32" else cost[::-1].copy()         # the CPU ranks in float32

    def tile_crashes(case, *rest):
        begun.append(case["model"])
        if begun[-1] == "tile model":
            raise RuntimeError("no kernel image")
        if len(begun) == 3:
            monkeypatch.setattr(gpu.Clock, "left", lambda clock: 0)
        return whole(case, *rest)
    monkeypatch.setattr(gpu, "predict", broken)
    monkeypatch.setattr(gpu, "run_case", tile_crashes)
    assert gpu.main(["--device", "cpu", "--size", "tiny", "--out", str(tmp_path / "gpu.json")]) == 1
    found = json.loads((tmp_path / "gpu.json").read_text())
    float32, crash, bfloat16 = found["cases"]
    assert float32["failures"] == [] and crash["failures"] == ["RuntimeError: no kernel image"]
    for words, times in (("differs from the CPU's", 2), ("tau with the CPU's order", 2), ("tau on held-out", 1)):
        assert sum(words in fault for fault in bfloat16["failures"]) == times
    assert len(found["not_tried"]) == 3
    assert "NOT TRIED: token model, float16: no time was left" in capsys.readouterr().out


@pytest.mark.long
def test_the_gpu_script_in_small_goes_through_every_model_and_two_side_by_side(tmp_path):
    # in float32 alone; the test above has the other precisions
    code = f"""import sys; sys.path.insert(0, {str(RUN.parent)!r}); import gpu
gpu.PRECISIONS = gpu.PRECISIONS[:1]
sys.exit(gpu.main(["--device", "cpu", "--size", "tiny", "--out", {str(tmp_path / "gpu.json")!r}]))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    cases = json.loads((tmp_path / "gpu.json").read_text())["cases"]
    assert len(cases) == 6 and not any("not_judged" in case for case in cases)
