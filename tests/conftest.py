"""Fixtures that several test files share."""
import importlib.util
import os
from pathlib import Path

import matplotlib
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")      # PyTorch's waiting threads spin, ten times slower on busy cores
matplotlib.use("Agg")      # no display in a test


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
    """Folder of tiny sample data; read it, never write to it."""
    from kit.sample import write_sample
    root = tmp_path_factory.mktemp("sample")
    write_sample(root, seed=0, size="tiny")
    return root


def pytest_collection_modifyitems(items):
    """Tests marked `scatter` need a library that compiles for minutes, so it is no requirement."""
    if importlib.util.find_spec("torch_scatter") is None:
        skip = pytest.mark.skip(reason="no torch_scatter: pip install --no-build-isolation torch-scatter")
        for item in items:
            if "scatter" in item.keywords:
                item.add_marker(skip)
