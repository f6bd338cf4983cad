"""A prepared folder holds what the reader reads, in less space, and nothing stale."""
import numpy as np
import pytest

from kit.agreement import find_meetings
from kit.data import COLLECTIONS, SPLITS, dense_configs, npz_paths, read_layout, read_tile
from kit.prepare import open_prepared, prepare
from kit.sample import write_sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return write_sample(tmp_path_factory.mktemp("sample"), size="tiny")


@pytest.fixture(scope="module")
def prepared(sample, tmp_path_factory):
    return prepare(sample, tmp_path_factory.mktemp("prepared") / "here", progress=False)


def roots(sample):
    return [sample]


def assert_equal_graphs(one, other):
    for name, value in one._asdict().items():
        if isinstance(value, np.ndarray):
            found = getattr(other, name)
            assert (found.dtype, found.shape) == (value.dtype, value.shape), name
            assert found.tobytes() == value.tobytes(), name


def test_prepared_arrays_are_those_of_the_reader_bit_for_bit(sample, prepared):
    for collection in COLLECTIONS:
        for split in SPLITS:
            paths = npz_paths(sample, collection, split)
            graphs = list(prepared.graphs(collection, split))
            assert [g.graph_id for g in graphs] == [p.stem for p in paths] and paths
            for path, graph in zip(paths, graphs):
                read = read_tile(path) if collection == "tile:xla" else read_layout(path)
                assert_equal_graphs(read, graph)
                if collection != "tile:xla":
                    index = np.arange(len(read.config_runtime))
                    assert (dense_configs(graph, index) == np.load(path)["node_config_feat"]).all()
                    for one, other in zip(find_meetings(read), graph.meetings):
                        assert one.dtype == other.dtype and np.array_equal(one, other)


def test_a_prepared_folder_is_a_data_root(sample, prepared):
    path = npz_paths(sample, "layout:xla:random", "valid")[0]
    again = npz_paths(prepared.folder, "layout:xla:random", "valid")[0]
    picked = [5, 3, 3, 0]
    assert_equal_graphs(read_layout(path, picked), read_layout(again, picked))
    assert open_prepared(prepared.folder).catalogue.equals(prepared.catalogue)
