"""Stored kernels as files of tile:xla: what a file says is what was stored, in the official form."""
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kit.data import OPCODE_NAMES, SPLITS, npz_paths, read_tile
from lab.data import MEASURED
from lab.kernels import schedule_choices
from lab.kernels.definitions import kernel_axes
from lab.measured import tiles

LAYERS = tiles.measured_layers()
SHIPPED = [path for split in SPLITS for path in npz_paths(MEASURED, "tile:xla", split)]


def layer_of(path):
    """The row of the catalogue and the layer of a shipped file."""
    table = pd.read_csv(MEASURED.parent / "measured.csv")
    row = table[(table["collection"] == "tile:xla") & (table["program"] == path.stem)].iloc[0]
    return row, next(layer for layer in LAYERS if layer[2].name == row["layer"])


def test_layers_of_a_network_are_in_one_split_and_no_layer_is_in_two():
    assert len(LAYERS) > 60 and {split for split, *_ in LAYERS} == set(SPLITS)
    assert len({kernel.name for _, _, kernel, _, _ in LAYERS}) == len(LAYERS)
    assert all(network in tiles.NETWORKS[split] for split, network, *_ in LAYERS)


@pytest.mark.parametrize("split, network, kernel, codes, runtime", LAYERS[::6],
                         ids=lambda value: getattr(value, "name", ""))
def test_numbers_of_a_tile_are_its_loops(split, network, kernel, codes, runtime):
    spatial, reduced = kernel_axes(kernel)
    table = tiles.tile_numbers(kernel, codes)
    for row, code in zip(table[::40], codes[::40]):
        choices = schedule_choices(kernel, code)
        for i, n in enumerate(spatial):
            assert row[i] == choices[f"tile {i}"] and n % row[8 + i] == 0 and row[8 + i] % row[i] == 0
            assert row[8 + i] <= row[i] * choices[f"tiles {i}"]
        assert row[len(spatial):len(spatial) + len(reduced)].tolist() == [
            choices[f"terms {i}"] for i in range(len(reduced))]
        for first, count in ((0, len(spatial) + len(reduced)), (8, len(spatial)), (16, len(tiles.OTHERS))):
            assert row[first + 6] == row[first:first + count].sum()
            assert row[first + 7] == row[first:first + count].prod() and not row[first + count:first + 6].any()
    assert runtime.max() <= tiles.SLOWEST * runtime.min() and runtime.min() > 0


def test_shipped_files_hold_what_is_stored():
    assert len(SHIPPED) == len(LAYERS)
    for path in SHIPPED[::5]:
        row, (split, network, kernel, codes, runtime) = layer_of(path)
        graph = read_tile(path)
        assert row["split"] == path.parent.name == split and row["family"] == network
        np.testing.assert_array_equal(graph.config_feat, tiles.tile_numbers(kernel, codes))
        np.testing.assert_array_equal(graph.config_runtime, runtime)
        assert set(graph.config_runtime_normalizers) == {int(np.median(runtime))}
        operation = "dot" if kernel.kind == "matmul" else "convolution"
        assert operation in {OPCODE_NAMES[opcode] for opcode in graph.node_opcode}


def test_layers_as_jax_writes_them(tmp_path, monkeypatch):
    pytest.importorskip("jax", reason="no JAX: pip install '.[own]'")
    monkeypatch.setattr(tiles, "measured_layers", lambda: LAYERS[::12])
    for path in tiles.write_tiles(tmp_path):
        shipped = next(one for one in SHIPPED if one.name == path.name)
        new, old = (np.load(one, allow_pickle=False) for one in (path, shipped))
        assert all(np.array_equal(new[name], old[name]) for name in old.files) and new.files == old.files
        assert Path(tmp_path, "rows", path.stem, "tiles.json").is_file()
