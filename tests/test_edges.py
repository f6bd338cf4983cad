"""What the public functions say about arguments that they cannot use: which one, what it was, what was expected."""
import re
from types import SimpleNamespace

import numpy as np
import pytest
from training import drawn_layout, drawn_tile

from kit.data import COLLECTIONS, DataError, dense_configs, find_data_root, npz_paths, read_layout, read_tile
from kit.ensemble import combine, mean_rank
from kit.hlo import read_layout_pb
from kit.kaggle import download, push_dataset, submit
from kit.metrics import collection_score, competition_score, kendall_tau, score_for, slowdown
from kit.models import (
    ConfigTokenModel,
    ConfigTokenSettings,
    LayoutGNN,
    LayoutGNNSettings,
    TileModel,
    TileModelSettings,
)
from kit.noise import bootstrap_interval, noise_ceiling
from kit.pad import pad_batch, repad_layout, tensor_rank
from kit.prepare import open_prepared, prepare
from kit.prune import drop_duplicate_configs, k_hop_nodes, prune
from kit.recipes import recipes_for
from kit.search import random_search
from kit.submit import check_submission, read_submission, top_configs, write_submission
from kit.train import TrainSettings, predict, train
from lab.predictions import load_costs


@pytest.fixture(scope="module")
def w(tmp_path_factory):
    """Graphs, models that are ready, an empty data root."""
    layout, tile, folder = drawn_layout(), drawn_tile(), tmp_path_factory.mktemp("edges")
    (folder / "tile").mkdir()
    gnn = LayoutGNN(LayoutGNNSettings(width=8, opcode_width=3, digit_width=2, squeeze=2))
    token = ConfigTokenModel(ConfigTokenSettings(width=8, token_width=8, opcode_width=3, digit_width=2))
    tiles = TileModel(TileModelSettings(width=8, opcode_width=3, digit_width=2))
    for model in (gnn, token, tiles):
        model.fit_scale([tile if model is tiles else layout])
    holed = layout.node_feat.copy()
    holed[3, 40] = np.nan
    return SimpleNamespace(folder=folder, layout=layout, tile=tile, gnn=gnn, token=token, tiles=tiles,
                           holed=layout._replace(node_feat=holed),
                           empty=layout._replace(config_codes=layout.config_codes[:0],
                                                 config_runtime=layout.config_runtime[:0]))


SAYS = [
    (lambda w: find_data_root(3), "data_root is 3; expected a str or Path"),
    (lambda w: npz_paths(w.folder, "tile", "train"), "no collection 'tile'; there are tile:xla, layout:xla:"),
    (lambda w: read_tile(None), "path is None; expected a str or Path"),
    (lambda w: read_layout("a\0b"), "path is 'a\\x00b'; expected a str or Path"),
    (lambda w: dense_configs(w.layout, [20]), "index must be integers in 0..19, the configurations of this"),
    (lambda w: dense_configs(w.layout, [-1]), "index must be integers in 0..19, the configurations of this"),
    (lambda w: dense_configs(w.layout, [0.5]), "index must be integers in 0..19, the configurations of this"),
    (lambda w: dense_configs(w.tile, [0]), "graph is a TileGraph; expected a LayoutGraph"),
    (lambda w: prepare(w.folder, None), "folder is None; expected a str or Path"),
    (lambda w: prepare(w.folder, w.folder / "part", splits=3), "splits is 3; expected a sequence of train, valid"),
    (lambda w: open_prepared(None), "folder is None; expected a str or Path"),
    (lambda w: k_hop_nodes(w.layout.edge_index, np.array([0.5]), 1), "seeds has shape (1,) and dtype float64"),
    (lambda w: prune(w.tile), "graph is a TileGraph; expected a LayoutGraph"),
    (lambda w: prune(w.layout, 1.5), "k is 1.5; expected a whole number of at least 0 hops"),
    (lambda w: prune(w.layout._replace(node_group=w.layout.node_group[1:])), "node_group has shape"),
    (lambda w: drop_duplicate_configs(None), "graph is None; expected a LayoutGraph"),
    (lambda w: repad_layout(np.zeros((3, 139))), "node_feat has shape (3, 139) and dtype float64; expected numbers"),
    (lambda w: tensor_rank(np.full((1, 140), np.nan)), "node_feat has 6 NaN among the sizes of dimensions"),
    (lambda w: pad_batch(["ab"]), "arrays have dtype <U2 and 0 axes, fill is 0; expected numbers"),
    (lambda w: kendall_tau(None, [1]), "cost has shape (), runtime (1,); expected (c,) for both"),
    (lambda w: slowdown([1.0], [1.0], k=1.5), "k = 1.5 of 1 configurations; expected k >= 1"),
    (lambda w: score_for(None), "no collection None; there are tile:xla, layout:xla:random"),
    (lambda w: collection_score(None), "scores: expected one finite score per graph"),
    (lambda w: competition_score(dict.fromkeys(COLLECTIONS)), "no score for tile:xla, layout:xla:random"),
    (lambda w: bootstrap_interval([1.0, 2.0], draws=0), "draws is 0; expected a whole number of at least 1"),
    (lambda w: bootstrap_interval([1.0, 2.0], rng=0), "rng is 0; expected a numpy.random.Generator"),
    (lambda w: noise_ceiling([1, 2], [0, 0], sigma=-1.0), "sigma is -1.0; expected a number of at least 0"),
    (lambda w: train(w.gnn, [w.holed]), "drawn: node_feat has 1 NaN or infinite values"),
    (lambda w: train(w.gnn, w.layout), "graphs is a LayoutGraph; expected a sequence of graphs"),
    (lambda w: train(w.gnn, [w.layout], loss=None), "loss is None; expected a function"),
    (lambda w: predict(w.tiles, w.layout), "graph is a LayoutGraph; expected a TileGraph"),
    (lambda w: predict(w.gnn, w.empty), "drawn: the number of configurations is 0"),
    (lambda w: predict(w.token, w.holed), "drawn: node_feat has 1 NaN or infinite values"),
    (lambda w: TrainSettings(learning_rate="fast"), "learning_rate is 'fast'; expected a number above 0"),
    (lambda w: ConfigTokenModel(ConfigTokenSettings(width=0)), "width is 0; expected a whole number of at least 1"),
    (lambda w: recipes_for("layout:xla"), "collection is 'layout:xla'; expected 'tile:xla' or "),
    (lambda w: mean_rank([["a"]]), "costs have shapes (1,); expected numbers (c,), the same"),
    (lambda w: combine([None]), "no prediction to combine, predictions is [None]; expected one"),
    (lambda w: top_configs(None, "tile:xla"), "cost has shape () and dtype object; expected (c,)"),
    (lambda w: write_submission({"tile:xla:a": [1.0]}, 3), "path is 3; expected a str or Path"),
    (lambda w: read_submission(w.folder / "none.csv"), "cannot be read"),
    (lambda w: check_submission(None), "path is None; expected a str or Path"),
    (lambda w: download(None), "folder is None; expected a str or Path"),
    (lambda w: submit(None, ""), "path is None; expected a str or Path"),
    (lambda w: push_dataset(None, "a-dataset"), "folder is None; expected a str or Path"),
    (lambda w: random_search(None, [2], 3, np.random.default_rng(0)), "objective is None; expected a function"),
    (lambda w: random_search(lambda p: p.sum(axis=1), [2], 3, 0), "rng is 0; expected a numpy.random.Generator"),
    (lambda w: read_layout_pb(None), "path is None; expected a str or Path"),
]


@pytest.mark.parametrize("call, words", SAYS)
def test_what_is_wrong_is_said(w, call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call(w)


def test_any_number_of_hops_ends_when_nothing_new_is_reached(w):
    whole = prune(w.layout, len(w.layout.node_feat))
    assert all(np.array_equal(a, b) for a, b in zip(prune(w.layout, 10**30)[:-1], whole[:-1]))


@pytest.mark.parametrize("turned", [lambda a: a[::-1].copy()[::-1], lambda a: a.astype(a.dtype.newbyteorder(">"))],
                         ids=["negative strides", "other byte order"])
def test_arrays_of_any_strides_and_byte_order_give_the_same_costs(w, turned):
    for model, graph in ((w.gnn, w.layout), (w.token, w.layout), (w.tiles, w.tile)):
        changed = graph._replace(**{name: turned(array) for name, array in graph._asdict().items()
                                    if isinstance(array, np.ndarray)})
        assert np.array_equal(predict(model, changed), predict(model, graph))


def test_damaged_predictions_are_named(tmp_path):
    path = tmp_path / "token_seed0.valid.npz"
    path.write_bytes(b"PK\3\4 and no more")
    with pytest.raises(DataError, match=r"token_seed0\.valid\.npz: unreadable predictions \(BadZipFile"):
        load_costs(path)
    np.savez(path, **{"tile:xla:a": np.zeros((2, 2))})
    with pytest.raises(DataError, match=r"tile:xla:a has shape \(2, 2\) and dtype float64, expected one axis"):
        load_costs(path)
