"""Fixtures that several test files share."""
import importlib.util
import os
import shutil
from pathlib import Path

import matplotlib
import pytest
from kaggle_server import SECRETS, TOKEN, running

os.environ.setdefault("OMP_NUM_THREADS", "1")      # PyTorch's waiting threads spin, ten times slower on busy cores
matplotlib.use("Agg")      # no display in a test


# files that take long come first: xdist begins with files of many tests, and would end with a long one on one core
FIRST = ("test_whole_season", "test_run_folder", "test_notebooks", "test_faults", "test_bundle")


@pytest.fixture(scope="session")
def project():
    """The project's root."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def real_data(project):
    """Folder of real TpuGraphs files, which are not part of the project: npz/, pb/, eval_indices/."""
    folder = project.parent / "shared" / "tpugraphs"
    if not folder.is_dir():
        pytest.skip("no real TpuGraphs files at ../shared/tpugraphs")
    return folder


@pytest.fixture(scope="session")
def tiny_sample(tmp_path_factory):
    """Folder of tiny generated data whose test runtimes are known, and what is prepared from it; never write to it."""
    return _written(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="session")
def tiny_hidden(tmp_path_factory):
    """The same as the competition would give it: test runtimes are hidden."""
    return _written(tmp_path_factory.mktemp("hidden"), hidden=True)


def _written(root, **options):
    from sample import write_sample

    from kit.prepare import prepare
    write_sample(root, **options)
    prepare(root, root / "prepared", progress=False)             # as other tests do at any moment
    if not options:
        shutil.copy(root / "measured.csv", root / "prepared")
    return root


@pytest.fixture
def kaggle(tmp_path, monkeypatch, capfd):
    """The server, as this process's internet; at the end no secret may have been printed or written."""
    for name in list(os.environ):
        if name.upper().startswith("KAGGLE_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    with running() as server:
        for name, value in server.environment(home, KAGGLE_API_TOKEN=TOKEN).items():
            monkeypatch.setenv(name, value)
        heard = []

        def said():
            heard.extend(capfd.readouterr())
            return heard[-2]
        server.home, server.said = home, said
        yield server
    said()
    written = [path for path in tmp_path.rglob("*") if path.is_file() and home not in path.parents
               and any(secret.encode() in path.read_bytes() for secret in SECRETS)]
    assert written == [] and not any(secret in text for text in heard for secret in SECRETS)


def pytest_sessionfinish(session):
    """What runs have prepared in the clone's data/ from data of tests goes when all tests are done."""
    made = getattr(getattr(session.config, "_tmp_path_factory", None), "_basetemp", None)
    if made is None or hasattr(session.config, "workerinput"):
        return
    from lab.data import locate_data
    kept = Path(__file__).resolve().parents[1] / "data"
    for folder, names, _ in os.walk(made):
        if {"tile", "layout"} & {*names}:
            names.clear()
            if (place := locate_data(folder, kept)[1]).parent == kept:
                shutil.rmtree(place, ignore_errors=True)


def pytest_configure(config):
    """xdist takes the files in the order of the next function."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Long files first. Tests marked `scatter` need what is no requirement, because it compiles for minutes."""
    items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST))
    if importlib.util.find_spec("torch_scatter") is None:
        lacks = pytest.mark.skip(reason="no torch_scatter: pip install --no-build-isolation torch-scatter")
        for item in [item for item in items if "scatter" in item.keywords]:
            item.add_marker(lacks)
