"""A prepared folder holds what the reader reads, in less space, and nothing stale."""
import numpy as np
import polars as pl
import pytest

from kit.agreement import find_meetings
from kit.data import COLLECTIONS, OPCODES, SPLITS, dense_configs, npz_paths, read_layout, read_tile, target
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


def test_a_query_that_asks_only_for_runtimes_finds_those_of_the_whole_files(prepared, monkeypatch):
    whole = prepared.configurations().collect()
    monkeypatch.setattr(prepared, "graph", None)                 # no graph is read
    columns = ["collection", "split", "name", "config", "runtime"]
    assert prepared.configurations().select(columns).collect().equals(whole.select(columns))
    slow = prepared.configurations().filter(pl.col("runtime") > 2e6).select("name", "config").collect()
    assert slow.equals(whole.filter(pl.col("runtime") > 2e6).select("name", "config")) and 0 < len(slow) < len(whole)


def test_the_catalogue_compares_the_first_row_with_the_others(prepared):
    for row in prepared.catalogue.filter(pl.col("first_beats").is_not_null()).iter_rows(named=True):
        first, *others = target(prepared.graph(row["collection"], row["split"], row["name"])).tolist()
        beaten = [1 if first < other else 0.5 if first == other else 0 for other in others]
        assert row["first_beats"] == pytest.approx(sum(beaten) / len(beaten), abs=1e-12)
    measured = prepared.catalogue.filter(pl.col("split") != "test")
    assert measured["first_beats"].null_count() == 0 and measured["first_beats"].is_between(0, 1).all()


def test_the_catalogue_counts_the_nodes_of_each_group_and_the_configurable_operations(prepared):
    for row in prepared.catalogue.filter(pl.col("collection") != "tile:xla").iter_rows(named=True):
        graph = prepared.graph(row["collection"], row["split"], row["name"])
        assert row["group_nodes"] == [(graph.node_group == group).sum() for group in range(row["groups"])]
        chosen = [int(graph.node_opcode[node]) for node in graph.node_config_ids]
        assert row["configurable_opcodes"] == [chosen.count(opcode) for opcode in range(OPCODES)]
