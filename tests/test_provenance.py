"""What results were made from: every change of data, code, files or bytes is noticed, and nothing else is."""
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import rewrite
from training import TINY, drawn_layout

import kit
from kit.data import COLLECTIONS, SPLITS, DataError, content_digest, npz_paths, read_layout, read_tile
from kit.files import file_sha256
from kit.losses import list_mle_loss
from kit.models import LayoutGNN
from kit.prepare import content_digests, prepare
from kit.train import TrainSettings
from lab.run import (
    Results,
    checkpoint_path,
    from_code,
    from_data,
    from_files,
    from_settings,
    load_costs,
    made_otherwise,
    unfit,
    write_mark,
)
from lab.run.provenance import (
    MARK,
    all_sources,
    code_digest,
    imports,
    is_own,
    loaded_sources,
    own_code,
    own_results,
    plain_code,
    read_mark,
    set_aside,
    text_digest,
)

NAME = "predictions/tile_xla/tile_seed0.test.npz"
COSTS = {"tile:xla:a": np.arange(3.0)}
CODE = 'def double(x):\n    """Twice x."""\n    return 2 * x\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny_sample):
    """A copy of the sample data, prepared."""
    folder = tmp_path_factory.mktemp("data") / "data"
    shutil.copytree(tiny_sample, folder)
    prepare(folder / "npz", folder / "prepared", progress=False)
    return folder


@pytest.fixture
def data(tmp_path, made):
    """The prepared folder of a copy that a test may change; its sources lie beside it."""
    shutil.copytree(made, tmp_path / "data")
    return tmp_path / "data" / "prepared"


# --- the content of data


def test_the_content_of_a_graph_is_all_its_arrays_and_not_its_file(data, tiny_sample):
    for collection in COLLECTIONS:
        read = read_tile if collection == "tile:xla" else read_layout
        for split in SPLITS:
            found = [(p.stem, content_digest(read(p))) for p in npz_paths(tiny_sample / "npz", collection, split)]
            assert found == content_digests(data, collection, split) and found
            assert found == content_digests(tiny_sample / "npz", collection, split)
    path = npz_paths(data.parent / "npz", "layout:xla:random", "train")[0]
    before, bytes_before = content_digest(read_layout(path)), path.read_bytes()
    rewrite(path)                                                        # the same arrays, without compression
    assert content_digest(read_layout(path)) == before and path.read_bytes() != bytes_before
    graph = read_layout(path)
    digests = {before}
    for name in ("node_feat", "node_opcode", "edge_index", "config_codes", "code_rows", "config_runtime"):
        array = getattr(graph, name).copy()
        array.flat[0] += 1
        digests.add(content_digest(graph._replace(**{name: array})))
    digests |= {content_digest(graph._replace(graph_id="other")),
                content_digest(graph._replace(config_runtime=graph.config_runtime[::-1])),
                content_digest(graph._replace(config_runtime=graph.config_runtime.astype(np.int32)))}
    assert len(digests) == 10


def test_data_that_changed_in_content_alone_are_other_data(data):
    before = {(c, s): from_data(data, [c], s) for c in COLLECTIONS for s in SPLITS}
    path = npz_paths(data.parent / "npz", "layout:nlp:random", "train")[0]
    with np.load(path) as npz:
        runtime = npz["config_runtime"]
    rewrite(path, config_runtime=runtime.max() + runtime.min() - runtime)
    prepare(data.parent / "npz", data, progress=False)
    after = {(c, s): from_data(data, [c], s) for c in COLLECTIONS for s in SPLITS}
    assert [key for key in before if before[key] != after[key]] == [("layout:nlp:random", "train")]
    rewrite(path, config_runtime=runtime)                                # restored, in another file
    prepare(data.parent / "npz", data, progress=False)
    assert before == {(c, s): from_data(data, [c], s) for c in COLLECTIONS for s in SPLITS}


# --- the code of the kit


@pytest.mark.parametrize("text", [
    "def double(x):\n    return 2 * x\n", "# why\ndef double(x):\n    return (2 *\n            x)   # here\n",
    'def double(x):\n    """Other words."""\n\n    return 2*x\n', '"""A module."""\ndef double(x): return 2 * x\n'])
def test_comments_docstrings_and_layout_are_no_code(text):
    assert plain_code(text) == plain_code(CODE)


@pytest.mark.parametrize("text", [
    "def double(x):\n    return 3 * x\n", "def double(y):\n    return 2 * y\n", "def double(x):\n    return x * 2\n",
    "def double(x, y=None):\n    return 2 * x\n", "def double(x):\n    return '2 * x'\n", "def double(x):\n    2 * x\n",
    "@cache\ndef double(x):\n    return 2 * x\n", "def double(x):\n    return 2.0 * x\n",
    "def double(x):\n    return None\n", "def double(x):\n    return\n", "double = lambda x: 2 * x\n"])
def test_everything_else_is_code(text):
    assert plain_code(text) != plain_code(CODE)


def test_a_name_belongs_to_the_module_that_defines_it():
    assert imports("from kit.models import LayoutGNN, SparseMean\nimport numpy\nfrom kit import training") == [
        "kit.models.layers", "kit.models.layout_gnn", "kit.training"]
    assert imports("import kit.data\nfrom lab.run import load_costs") == ["kit.data", "lab.run.workflow"]


def test_prepared_files_that_are_exchanged_are_other_data(data):
    before = from_data(data, ["layout:xla:random"], *SPLITS)
    some = npz_paths(data, "layout:xla:random", "train")
    for path in some:
        shutil.copy2(path, f"{path}.old")
    for path, other in zip(some, some[1:] + some[:1]):
        shutil.copy2(f"{other}.old", path)
    clear()
    after = from_data(data, ["layout:xla:random"], *SPLITS)
    assert [name for name in before if before[name] != after[name]] == ["data layout:xla:random train"]
    for path in some:
        shutil.copy2(f"{path}.old", path)
    clear()
    assert from_data(data, ["layout:xla:random"], *SPLITS) == before
    shutil.copy2(some[0], some[0].with_name("one_more.npz"))
    clear()
    assert from_data(data, ["layout:xla:random"], *SPLITS) != before


def clear():
    """As in another process."""
    kit.prepare._content_digests.cache_clear()


def test_data_that_change_while_a_step_runs_are_not_what_its_results_were_made_from(data, tmp_path):
    results = Results(tmp_path / "out", "04_train_layout", data)
    path = npz_paths(data.parent / "npz", "layout:nlp:random", "test")[0]
    with np.load(path) as npz:
        codes = npz["node_config_feat"]
    rewrite(path, node_config_feat=codes[::-1])
    prepare(data.parent / "npz", data, progress=False)                   # what another run does meanwhile
    name = "predictions/layout_nlp_random/a_seed0.test.npz"
    with pytest.raises(DataError, match="data layout:nlp:random test changed while 04_train_layout ran; run it again"):
        results.save_costs(name, COSTS, from_data(data, ["layout:nlp:random"], "train", "test"))
    assert results.unfit(tmp_path / "out" / name)
    results.save_costs(NAME, COSTS, from_data(data, ["tile:xla"], "train", "test"))


def test_a_prepared_file_that_changes_while_a_step_runs_is_not_what_its_results_were_made_from(data, tmp_path):
    results = Results(tmp_path / "out", "04_train_layout", data)
    path = npz_paths(data, "layout:nlp:random", "test")[0]
    with np.load(path) as npz:
        codes = npz["config_codes"]
    rewrite(path, config_codes=codes[::-1])                              # the catalogue stays as it is
    with pytest.raises(DataError, match="data layout:nlp:random test changed while 04_train_layout ran; run it again"):
        results.save_costs("predictions/layout_nlp_random/a_seed0.test.npz", COSTS,
                           from_data(data, ["layout:nlp:random"], "train", "test"))


def test_code_that_changes_while_a_step_runs_is_not_what_its_results_were_made_from(tmp_path, project, monkeypatch):
    shutil.copytree(project / "kit", tmp_path / "kit", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kit, "__file__", str(tmp_path / "kit" / "__init__.py"))
    all_sources()                                                        # as at the import
    (tmp_path / "kit" / "losses.py").write_text("LATER = 1\n")
    (tmp_path / "kit" / "later.py").symlink_to("nowhere")
    code_digest.cache_clear()
    during = from_code("kit.train", "kit.losses")
    code_digest.cache_clear()
    loaded_sources.cache_clear()
    assert during != from_code("kit.train", "kit.losses")
    monkeypatch.undo()
    code_digest.cache_clear()
    assert during == from_code("kit.train", "kit.losses")


def test_a_change_of_the_kit_counts_where_it_is_used_and_only_there(tmp_path, project, monkeypatch):
    shutil.copytree(project / "kit", tmp_path / "kit", ignore=shutil.ignore_patterns("__pycache__"))

    def change(name, add):
        path = tmp_path / "kit" / name
        path.write_text(path.read_text() + add)
        code_digest.cache_clear()
        loaded_sources.cache_clear()
        return {name: code_digest(name) for name in ("kit.train", "kit.submit", "kit.programs", "kit.models.tile")}
    before = change("train.py", "")
    monkeypatch.setattr(kit, "__file__", str(tmp_path / "kit" / "__init__.py"))
    assert change("train.py", "") == before and len({*before.values()}) == 4
    for name, add, expected in (("train.py", "# a comment\n\n", []),
                                ("programs/__init__.py", '"""More words."""\n', []),
                                ("losses.py", "LATER = 1\n", ["kit.train"]), ("submit.py", "X = 1\n", ["kit.submit"]),
                                ("programs/hlo.py", "X = 1\n", ["kit.programs"]), ("models/tile.py", "X = 1\n", [
                                    "kit.models.tile"]), ("training/sampling.py", "X = 1\n", ["kit.train"])):
        after = change(name, add)
        assert [one for one in before if before[one] != after[one]] == expected, name
        before = after
    monkeypatch.undo()
    code_digest.cache_clear()


MOVES = {
    "to another wing": [("models/tile.py", "search/tile.py")], "to another name": [("scale.py", "scaling.py")],
    "into a new wing": [("losses.py", "new/losses.py"), ("recipes.py", "new/recipes.py")],
    "a whole wing": [(f"programs/{name}.py", f"own/{name}.py") for name in ("__init__", "hlo", "options", "own")]}


@pytest.mark.parametrize("moves", MOVES.values(), ids=[*MOVES])
def test_a_file_that_is_moved_with_the_imports_that_follow_is_the_same_code(tmp_path, project, monkeypatch, moves):
    place = tmp_path / "kit"
    shutil.copytree(project / "kit", place, ignore=shutil.ignore_patterns("__pycache__"))
    text = "from kit.recipes import recipes_for\nfrom kit.losses import list_mle_loss as mine\nimport numpy as np\n"
    monkeypatch.setattr(kit, "__file__", str(place / "__init__.py"))

    def digests(names):
        code_digest.cache_clear()
        loaded_sources.cache_clear()
        return {name: code_digest(names.get(name, name)) for name in asked} | {"cell": text_digest(text)}
    asked = ["kit.train", "kit.recipes", "kit.losses", "kit.models.tile", "kit.models.explain"]
    before, renamed, mark = digests({}), {}, from_code("kit.recipes", "kit.losses", "kit.models.tile")
    for old, new in moves:
        (place / new).parent.mkdir(exist_ok=True)
        (place / old).rename(place / new)
        names = [f"kit.{name.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__") for name in (old, new)]
        renamed[names[0]] = names[1]
    texts = {path: path.read_text() for path in place.rglob("*.py")}
    for old, new in renamed.items():
        texts = {path: re.sub(rf"\b{re.escape(old)}\b", new, some) for path, some in texts.items()}
        text = re.sub(rf"\b{re.escape(old)}\b", new, text)
    for path, some in texts.items():
        path.write_text(some)
    assert digests(renamed) == before and len({*before.values()}) == len(before)
    assert unfit_code(mark, tmp_path) is None
    changed = place / moves[-1][1]
    changed.write_text(changed.read_text() + "\nX = 1\n")
    assert digests(renamed) != before
    monkeypatch.undo()
    code_digest.cache_clear()
    loaded_sources.cache_clear()


def unfit_code(mark, folder):
    """Why a result with these sources cannot be used, in a folder of its own."""
    path = folder / "a.npz"
    path.write_bytes(b"x")
    write_mark(path, folder, "step", mark)
    return unfit(path, folder, folder)


def test_a_name_that_comes_from_another_module_is_other_code(tmp_path, project, monkeypatch):
    place = tmp_path / "kit"
    shutil.copytree(project / "kit", place, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kit, "__file__", str(place / "__init__.py"))
    (place / "one.py").write_text("def f():\n    return 1\n")
    (place / "two.py").write_text("def f():\n    return 2\n")
    (place / "same.py").write_text("def f():\n    return 1\n")
    found = {}
    one, two, from_two = "from kit.one import f", "from kit.two import f", "from kit.two import f as g"
    for lines in (f"{one}\n{from_two}", f"{two}\n{one} as g", f"from kit.same import f\n{from_two}",
                  f"{from_two}\n{one}", f"from kit import one\n{from_two}", f"{one}\n{two}"):
        (place / "user.py").write_text(f"{lines}\n\nX = f() + g()\n")
        code_digest.cache_clear()
        loaded_sources.cache_clear()
        found[lines] = code_digest("kit.user")
    first, other, copied, ordered, whole, twice = found.values()
    assert first == copied == ordered and len({first, other, whole, twice}) == 4
    monkeypatch.undo()
    code_digest.cache_clear()
    loaded_sources.cache_clear()


# --- results


def test_a_result_is_fit_until_something_changes(data, tmp_path):
    out = tmp_path / "out"
    results = Results(out, "03_train_tile", data, {"steps": 3})
    sources = from_data(data, ["tile:xla"], "train", "test") | from_code("kit.train") | from_settings(steps=3)
    path = results.save_costs(NAME, COSTS, sources)
    assert path == out / NAME and results.unfit(path) is None and results.load_costs(path).keys() == COSTS.keys()
    both = results.save_costs("ensemble/tile_xla.test.npz", COSTS, results.from_read())
    assert results.unfit(both) is None and from_files(out, [path]).items() <= read_mark(both)["made_from"].items()
    whole = path.read_bytes()
    for damage in (whole[:100], whole[:-1] + b"x", b""):
        path.write_bytes(damage)
        assert "changed after 03_train_tile wrote it" in results.unfit(path)
        assert results.unfit(both).startswith(f"{both}: made from a result that cannot be used: {path}: changed")
        with pytest.raises(DataError, match="changed after 03_train_tile wrote it; run the step again that makes it"):
            results.load_costs(path)
    path.unlink()
    assert results.unfit(path) == f"{path}: not there" and "not there" in results.unfit(both)
    path.write_bytes(whole)
    assert results.unfit(both) is None
    results.save_costs(NAME, {"tile:xla:a": np.zeros(3)}, sources)
    assert results.unfit(path) is None and "another one now" in results.unfit(both)
    train, *_ = npz_paths(data.parent / "npz", "tile:xla", "train")
    rewrite(train, config_runtime=np.load(train)["config_runtime"][::-1])
    prepare(data.parent / "npz", data, progress=False)
    assert unfit(path, out, data) == f"{path}: made from other data: tile:xla train has changed since"
    assert unfit(path, out, data, kinds=("code",)) is None


def test_a_result_may_be_made_from_an_earlier_file_of_its_own_name(data, tmp_path):
    results = Results(tmp_path, "my model", data)
    path = results.save_costs(NAME, COSTS, {})
    results.save_costs(NAME, {name: -cost for name, cost in results.load_costs(path).items()}, results.from_read())
    assert results.unfit(path) == f"{path}: made from a result that cannot be used: {path}: another one now"


def test_a_result_is_made_from_what_was_read_and_not_from_what_came_later(data, tmp_path):
    results = Results(tmp_path, "05_ensemble", data)
    path = results.save_costs(NAME, COSTS, {})
    costs = results.load_costs(path)
    Results(tmp_path, "03_train_tile", data).save_costs(NAME, {"tile:xla:a": np.ones(3)}, {})    # in another notebook
    both = results.save_costs("ensemble/tile_xla.test.npz", costs, results.from_read())
    assert results.unfit(both) == f"{both}: made from a result that cannot be used: {path}: another one now"


def test_results_of_other_settings_than_those_that_are_noted_are_named(data, tmp_path):
    """For the ledger, which names the settings of the last run of each step."""
    def run(settings, *names, step="03_train_tile"):
        results = Results(tmp_path, step, data, settings)
        return [results.save_costs(name, COSTS, {}) for name in names]
    other = NAME.replace("tile_xla", "layout_nlp_random")
    paths = run({"steps": 3, "seeds": 1}, NAME, other)
    both = Results(tmp_path, "05_ensemble", data, {"how": "mean_rank"})
    both = [both.save_costs(f"ensemble/{n}.npz", COSTS, from_files(tmp_path, [path])) for n, path in enumerate(paths)]
    assert made_otherwise(tmp_path, both) == []
    run({"steps": 4, "seeds": 1}, NAME)
    assert made_otherwise(tmp_path, both) == [other] and made_otherwise(tmp_path, both[:1]) == []
    run({"steps": 3, "seeds": 2}, NAME)
    assert made_otherwise(tmp_path, both) == []                  # the name of a result says its seed
    Results(tmp_path, "05_ensemble", data, {"how": "mean_zscore"}).save_costs("ensemble/1.npz", COSTS, {})
    assert made_otherwise(tmp_path, both) == ["ensemble/0.npz"]
    escaping = tmp_path / "odd.npz"
    escaping.write_bytes(b"x")
    write_mark(escaping, tmp_path, "step", {"file /etc/passwd": "x", "file ../x": "x", "file gone.npz": "x"})
    assert made_otherwise(tmp_path, [escaping]) == []


def test_results_that_say_they_are_made_from_one_another_are_refused(data, tmp_path):
    results, other = Results(tmp_path, "my model", data), NAME.replace("test", "valid")
    path = results.save_costs(NAME, COSTS, {})
    other = results.save_costs(other, COSTS, from_files(tmp_path, [path]))
    results.mark(path, from_files(tmp_path, [other]))
    assert results.unfit(path).endswith(f"{path}: made from itself")
    results.mark(path, from_files(tmp_path, [path]))
    assert results.unfit(path) == f"{path}: made from a result that cannot be used: {path}: made from itself"


def test_other_code_is_named(data, tmp_path):
    results = Results(tmp_path, "03_train_tile", data)
    first, second = from_code("kit.train", "kit.models.tile")
    for source, module in ((first, "kit.models.tile"), (second, "kit.train")):
        path = results.save_costs(NAME, COSTS, from_code("kit.submit") | {source: "of yesterday"})
        assert results.unfit(path) == f"{path}: made by other code of {module}, or of what that imports"


@pytest.mark.parametrize("module", ["kit.models.gat2", "kit.models.GAT", "kit.models.grüße_2"])
def test_code_counts_whatever_a_module_is_called(data, tmp_path, module):
    results = Results(tmp_path, "03_train_tile", data)
    path = results.save_costs(NAME, COSTS, {f"code kit.train {module}": "of yesterday"})
    assert results.unfit(path) == f"{path}: made by other code of kit.train {module}, or of what that imports"


@pytest.mark.parametrize("mark", [None, b"", b"{", b"[]", b"[" * 10 ** 5, b"{}", b'{"sha256": 3}', b"\xff"])
def test_without_a_readable_mark_a_result_is_not_used(tmp_path, data, mark):
    results = Results(tmp_path, "step", data)
    path = results.save_costs(NAME, COSTS, {})
    Path(f"{path}{MARK}").unlink() if mark is None else Path(f"{path}{MARK}").write_bytes(mark)
    assert read_mark(path) is None and "says what it was made from" in results.unfit(path)


def test_a_mark_that_somebody_changed_is_no_mark(tmp_path, data):
    results = Results(tmp_path, "step", data)
    path = results.save_costs(NAME, COSTS, {"steps": "3"})
    mark = Path(f"{path}{MARK}")
    for before, after in (('"steps"', '"width"'), ('"3"', '"4"'), ('"by": "step"', '"by": "x"'), (NAME, f"x{NAME}")):
        whole = mark.read_text()
        mark.write_text(whole.replace(before, after))
        assert mark.read_text() != whole and not is_own(path, tmp_path)
        assert "without a readable tile_seed0.test.npz.made.json" in results.unfit(path)
        mark.write_text(whole.replace("\n", "\r\n"))                                # as some programs copy texts
        assert results.unfit(path) is None
        mark.write_text(whole)


@pytest.mark.parametrize("source", ["file ../../etc/passwd", "file /etc/passwd", "data ../x train", "code ../../x",
                                    "code kit.none", "data", "file", "", "anything"])
def test_a_mark_from_elsewhere_reads_no_other_files(tmp_path, data, source):
    results = Results(tmp_path, "step", data)
    path = results.save_costs(NAME, COSTS, {source: "x"})
    assert (results.unfit(path) is None) == (source in ("file ../../etc/passwd", "file /etc/passwd", "data ../x train",
                                                        "code ../../x", "data", "", "anything"))


def test_what_the_run_did_not_make_is_moved_aside_and_named_before_it_is_written(tmp_path, data, capsys):
    results, path = Results(tmp_path, "step", data), tmp_path / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    results.save_costs(NAME, COSTS, {})
    kept, = tmp_path.glob(f"aside/*/{NAME}")
    assert kept.read_bytes() == b"mine" and str(kept) in capsys.readouterr().out
    results.save_costs(NAME, {"tile:xla:b": np.zeros(2)}, {})                        # its own: replaced in place
    assert capsys.readouterr().out == "" and load_costs(path).keys() == {"tile:xla:b"}
    path.write_bytes(b"edited")
    results.save_costs(NAME, COSTS, {})
    there = Results(tmp_path / "elsewhere", "step", data).save_costs(NAME, {"tile:xla:c": np.ones(1)}, {})
    for suffix in ("", MARK):
        shutil.copy(f"{there}{suffix}", f"{path}{suffix}")                           # of another machine
    assert not is_own(path, tmp_path) and results.unfit(path) is None
    results.save_costs(NAME, COSTS, {})
    kept = {p.read_bytes() for p in tmp_path.glob(f"aside/*/{NAME}")}
    assert kept == {b"mine", b"edited", there.read_bytes()} and len([*tmp_path.glob(f"aside/*/{NAME}{MARK}")]) == 2


def test_only_what_this_step_of_this_run_made_is_retired(tmp_path, data, capsys):
    first = Results(tmp_path, "04_train_layout", data)
    names = [f"predictions/layout_xla_random/token_seed{seed}.test.npz" for seed in range(3)]
    other = "predictions/layout_nlp_random/token_seed2.test.npz"
    for name in (*names, other, "checkpoints/layout_xla_random-token-0-01234567.npz"):
        first.save_costs(name, COSTS, {})
    Results(tmp_path, "03_train_tile", data).save_costs("predictions/layout_xla_random/x_seed9.test.npz", COSTS, {})
    brought = Results(tmp_path / "far", "04_train_layout", data).save_costs(names[0].replace("0", "7"), COSTS, {})
    copies = [tmp_path / "predictions/layout_xla_random/token_seed7.test.npz",
              tmp_path / "my-best/layout_xla_random/token_seed1.test.npz",
              tmp_path / "predictions/layout_xla_random/b.npz"]
    copies[1].parent.mkdir(parents=True)
    for copy, source in zip(copies, (brought, tmp_path / names[1], tmp_path / names[1])):
        for suffix in ("", MARK):
            shutil.copy(f"{source}{suffix}", f"{copy}{suffix}")
    edited = tmp_path / names[1]
    edited.write_bytes(b"edited")
    second = Results(tmp_path, "04_train_layout", data)
    second.save_costs(names[0], COSTS, {})
    before = {p for p in tmp_path.rglob("*") if p.is_file()}
    capsys.readouterr()
    second.retire(["layout:xla:random"])
    gone = before - {p for p in tmp_path.rglob("*") if p.is_file()}
    assert gone == {tmp_path / names[2], Path(f"{tmp_path / names[2]}{MARK}")}
    assert "token_seed2.test.npz is of an earlier run of this step; it is kept as" in capsys.readouterr().out
    assert set(own_results(tmp_path, "04_train_layout")) == {
        tmp_path / names[0], tmp_path / other, tmp_path / "checkpoints/layout_xla_random-token-0-01234567.npz"}


def test_a_narrower_submission_keeps_the_wider_one_and_says_so(tmp_path, data, capsys):
    results = Results(tmp_path, "06_submit", data)
    wide = {"tile:xla:a": np.arange(6.0), "layout:xla:random:b": np.arange(3.0), "layout:nlp:random:c": np.arange(2.0)}
    csv = results.save_submission(wide, {})
    text = csv.read_text()
    results.save_submission(wide, {})
    assert capsys.readouterr().out == "" and not (tmp_path / "aside").exists()
    results.save_submission({"tile:xla:a": wide["tile:xla:a"]}, {})
    said, (kept,) = capsys.readouterr().out, tmp_path.glob("aside/*/submission.csv")
    assert kept.read_text() == text
    assert "2 rows, of layout:nlp:random, layout:xla:random, that the new one lacks" in said
    results.save_submission(wide, {})
    assert csv.read_text() == text and capsys.readouterr().out == ""                 # a wider one replaces it
    csv.write_text("not a submission")
    results.save_submission(wide, {})
    assert {p.read_text() for p in tmp_path.glob("aside/*/submission.csv")} == {text, "not a submission"}


def test_links_in_the_folder_of_a_run_hide_nothing(tmp_path, data):
    (tmp_path / "disk").mkdir()
    (tmp_path / "predictions").symlink_to("disk")
    path = Results(tmp_path, "03_train_tile", data).save_costs(NAME, COSTS, {})
    for name, target in (("a-link", "predictions"), ("z-link", "predictions/tile_xla"), ("loop", ".")):
        (tmp_path / name).symlink_to(target)
    assert own_results(tmp_path, "03_train_tile") == [path]


def test_moving_aside_never_overwrites(tmp_path):
    for number in range(4):
        (tmp_path / "a.txt").write_text(str(number))
        set_aside(tmp_path / "a.txt", tmp_path)
    assert sorted(p.read_text() for p in tmp_path.glob("aside/*/a.txt")) == ["0", "1", "2", "3"]
    assert set_aside(tmp_path / "a.txt", tmp_path) is None


def test_a_digest_of_a_file_is_that_of_its_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * (3 << 20))
    expected = subprocess.run(["sha256sum", str(tmp_path / "a")], capture_output=True, text=True).stdout.split()[0]
    assert file_sha256(tmp_path / "a") == expected


CELL = """
import functools
SCALE = 2
ODD = {"a", "b", "c", "d"}

def helper(cost):
    return SCALE * cost

def mine(cost, runtime, names=ODD):
    \"\"\"A loss.\"\"\"
    return [helper(c) for c in cost if c not in {"x", "y", "z"}]

class Own:
    power = 3
    def __call__(self, cost, runtime):
        return self.inner(cost)
    @staticmethod
    def inner(cost):
        return helper(cost)
"""


def in_a_cell(*changes):
    """The names that a cell of a notebook defines."""
    text, names = CELL, {"__name__": "__main__"}
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    exec(text, names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize("change, other", [
    (("SCALE * cost", "SCALE + cost"), "mine own"), (("SCALE = 2", "SCALE = 5"), "mine own"),
    (("helper(c) for", "-helper(c) for"), "mine"), (("power = 3", "power = 4"), "own"),
    (("return self.inner", "return -self.inner"), "own"), (('"z"}', '"w"}'), "mine"), (('"d"}', '"e"}'), "mine"),
    (("SCALE = 2", "# two\nSCALE = (2)"), ""), (("A loss.", "My loss."), ""), (("return [", "return  [  # all\n"), "")])
def test_own_code_is_told_apart_by_what_it_does(change, other):
    def all_of(cell):
        return {"mine": own_code(cell.mine), "own": own_code(cell.Own())}
    before, after = all_of(in_a_cell()), all_of(in_a_cell(change))
    assert {name for name in before if before[name] != after[name]} == {*other.split()}
    partial = [own_code(functools.partial(list_mle_loss, of=cell.mine)) for cell in (in_a_cell(), in_a_cell(change))]
    assert (partial[0] != partial[1]) == ("mine" in other) and own_code(list_mle_loss, LayoutGNN) == {}


OBJECTS = """
import dataclasses, functools, types
import numpy as np
import torch
from kit import losses

@dataclasses.dataclass
class Settings:
    margin: float = 1.0

class Hinge:
    def __init__(self, margin):
        self.margin, self.inner, self.me = margin, [helper], self
    def __call__(self, cost, runtime):
        return self.margin * self.inner[0](cost)
    def loss(self, cost, runtime):
        return self(cost, runtime)

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 3
        self.register_buffer("shares", torch.tensor([1.0, 2.0]))
    def forward(self, cost, runtime):
        return (cost * self.shares).sum() * self.scale

@functools.lru_cache
def helper(cost):
    return 7 * cost

CRITERION, SHARES, GIVEN = torch.nn.MarginRankingLoss(margin=4), np.arange(5000.0), Settings(5.0)
SPACE, ALL = types.SimpleNamespace(margin=6), {"a": helper}

def of_array(cost, runtime):
    return (cost * SHARES).sum()

def of_objects(cost, runtime):
    return ALL["a"](CRITERION(cost, runtime, GIVEN.margin * SPACE.margin)) + cost.power

power = object()                             # an attribute of this name is no global name
ours = {"Hinge": Hinge(2), "method": Hinge(2).loss, "Network": Network(), "of_array": of_array,
        "of_objects": of_objects, "partial": functools.partial(of_array, shares=[np.arange(5000.0)])}
"""


@pytest.mark.parametrize("old, new, other", [
    ("Hinge(2)", "Hinge(3)", "Hinge method"), ("self.scale = 3", "self.scale = 4", "Network"),
    ("[1.0, 2.0]", "[1.0, 2.5]", "Network"), ("margin=4", "margin=5", "of_objects"), ("(5.0)", "(5.5)", "of_objects"),
    ("margin=6", "margin=7", "of_objects"), ("7 * cost", "8 * cost", "Hinge method of_objects"),
    ("SHARES, GIVEN = torch.nn.MarginRankingLoss(margin=4), np.arange(5000.0)",
     "SHARES, GIVEN = torch.nn.MarginRankingLoss(margin=4), np.arange(5000.0) * (np.arange(5000) != 2500)",
     "of_array partial"),
    ("[np.arange(5000.0)]", "[np.arange(5000.0)[::-1]]", "partial"), ("object()", "[object(), 1]", "")])
def test_what_objects_of_ones_own_hold_counts(old, new, other):
    digests = []
    for text in (OBJECTS, OBJECTS.replace(old, new)):
        names = {"__name__": "__main__"}
        exec(text, names)
        digests.append({name: own_code(one) for name, one in names["ours"].items()})
    assert old in OBJECTS and all(digests[0].values())
    assert {name for name in digests[0] if digests[0][name] != digests[1][name]} == {*other.split()}


def test_an_object_of_the_kit_counts_by_what_it_holds():
    class Hinge:
        def __init__(self, margin):
            self.margin = margin

        def __call__(self, cost, runtime):
            return self.margin * cost
    Hinge.__module__ = "kit.losses"
    assert own_code(Hinge(1)) == own_code(Hinge(1)) != own_code(Hinge(2))
    assert own_code(Hinge) == own_code(functools.partial(list_mle_loss, of=2)) == {}


def test_own_code_has_the_same_digest_in_each_process():
    text = f"from lab.run.provenance import own_code\n{CELL}{OBJECTS}\nprint(own_code(mine, Own, *ours.values()))"
    said = {subprocess.run([sys.executable, "-c", text], env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
                           capture_output=True, text=True).stdout for seed in "123"}
    assert len(said) == 1 and len(said.pop()) == 65 + len("{'own code': ''}")


def test_a_loss_of_a_notebook_that_changes_has_another_checkpoint(tmp_path):
    losses = [in_a_cell(*change).mine for change in ([], [], [("SCALE * cost", "SCALE + cost")])]
    paths = [checkpoint_path(tmp_path, "mine 0", LayoutGNN(TINY), TrainSettings(), [drawn_layout()], (), [loss])
             for loss in losses]
    assert paths[0] == paths[1] != paths[2]
