"""What the public functions say about arguments that they cannot use: which one, what it was, what was expected.

`SAYS` holds sentences. `calls` holds one call per public function that works, and the kind of each argument. The test
replaces one argument at a time by everything that an argument of this kind cannot be. A new public function has to join
both tables, with all of its arguments.
"""
import importlib
import inspect
import re
import signal
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from test_public import HOMES
from training import drawn_layout, drawn_tile

from kit.data import COLLECTIONS
from kit.losses import pairwise_hinge_loss
from kit.models import ConfigTokenSettings, LayoutGNNSettings, TileModelSettings

# those of kit.programs need JAX or a saved program; their own tests ask for their sentences
PUBLIC = {name: getattr(importlib.import_module(home), name) for home, names in HOMES.items()
          if home != "kit.programs" for name in names.split()}
api = SimpleNamespace(**PUBLIC)
NO_FUNCTION = {"COLLECTIONS", "DataError", "TileGraph", "LayoutGraph", "Prepared", "KaggleError"}
METHODS = {"LayoutGNN.fit_scale", "LayoutGNN.prepare", "ConfigTokenModel.fit_scale", "ConfigTokenModel.prepare",
           "TileModel.fit_scale", "TileModel.prepare"}
TINY = {"LayoutGNN": LayoutGNNSettings(width=8, opcode_width=3, digit_width=2, squeeze=2),
        "ConfigTokenModel": ConfigTokenSettings(width=8, token_width=8, opcode_width=3, digit_width=2),
        "TileModel": TileModelSettings(width=8, opcode_width=3, digit_width=2)}


class Arg(NamedTuple):
    """An argument of a call that works, and what it cannot be: {what: value}."""
    value: object
    wrong: dict


def wrong(**more):
    """What no argument of any kind can be, unless `more` has another value for it; `...` leaves one out."""
    general = {"none": None, "text": "slow", "object": object(), "record": drawn_tile()} | more
    return {what: value for what, value in general.items() if value is not ...}


def numbers(value, **more):
    """An array or list of numbers."""
    array = np.asarray(value)
    holed = array.astype(float)
    holed.flat[:1] = np.nan
    kinds = dict(texts=["a", "b"], complex=array * 1j, objects=np.array([None, {}]))
    shapes = dict(number=3, deeper=array[None, None], empty=[], record=...)      # for a record NumPy has its own words
    return Arg(value, wrong(**kinds | shapes | dict(holed=holed) | more))


def whole(value, **more):
    odd = dict(half=1.5, nan=np.nan, negative=-1, listed=[1], huge=10**30, digit="3")
    return Arg(value, wrong(**odd | more))


def real(value, **more):
    odd = dict(nan=np.nan, negative=-1.0, listed=[1.0], infinite=np.inf, digit="3")
    return Arg(value, wrong(**odd | more))


def path(value, **more):
    return Arg(value, wrong(text=..., number=3, listed=[], cut="a\0b", **more))


def choice(value, **more):
    return Arg(value, wrong(**dict(listed=[], number=7) | more))


def function(value, **more):
    return Arg(value, wrong(number=3, listed=[], **more))


def mapping(value, **more):
    return Arg(value, wrong(**dict(empty={}, listed=[1.0], array=np.zeros(2)) | more))


def generator(**more):
    return Arg(np.random.default_rng(0), wrong(seed=0, old=np.random.RandomState(0), **more))


def free(value):
    """Nothing is wrong, or Python says what it is."""
    return Arg(value, {})


# arrays of which any length is right, or any number
HARMLESS = {"edge_index": {"shorter"}, "node_splits": {"shorter"}, "node_feat": {"outside"}, "config_feat": {"outside"},
            "config_runtime": {"outside"}, "config_runtime_normalizers": {"outside"}}


def graph(value, **more):
    """A graph: the other kind, and the same one with each array replaced by what it cannot be."""
    broken = {}
    for field, array in value._asdict().items():
        if isinstance(array, np.ndarray):
            bad = numbers(array).wrong | {"shorter": array[1:], "outside": np.maximum(array, 121)}
            for what in bad.keys() - HARMLESS.get(field, set()):
                broken[f"{field} {what}"] = value._replace(**{field: bad[what]})
    nothing = {name: array[:0] for name, array in value._asdict().items() if name.startswith("config_")}
    other = drawn_tile() if hasattr(value, "config_codes") else drawn_layout()
    return Arg(value, wrong(**dict(record=other, empty=value._replace(**nothing)) | broken | more))


def graphs(value, **more):
    broken = {f"broken {what}": [bad] for what, bad in graph(drawn_layout() if not value else value[0]).wrong.items()}
    return Arg(value, wrong(**dict(listed=[None], texts=["a"], empty=[], number=3) | broken | more))


@contextmanager
def no_hang(seconds=20):
    def stop(*_):
        raise AssertionError("hangs")
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def w(tiny_sample, tmp_path_factory):
    """What calls need: graphs, models that are ready, the sample data, a submission."""
    folder = tmp_path_factory.mktemp("edges")
    layout, tile = drawn_layout(), drawn_tile()
    models = {name: PUBLIC[name](settings) for name, settings in TINY.items()}
    for name, model in models.items():
        model.fit_scale([tile if name == "TileModel" else layout])
    root = tiny_sample / "npz"
    csv = api.write_submission({"layout:xla:random:a": [2.0, 1.0]}, folder / "submission.csv")
    api.prepare(root, folder / "ready", ["tile:xla"], progress=False)
    return SimpleNamespace(folder=folder, layout=layout, tile=tile, models=models, gnn=models["LayoutGNN"],
                           token=models["ConfigTokenModel"], tiles=models["TileModel"], root=root, csv=csv,
                           tile_file=api.npz_paths(root, "tile:xla", "train")[0],
                           layout_file=api.npz_paths(root, "layout:xla:random", "train")[0])


def summed(points):
    """An objective of a search."""
    return points.sum(axis=1)


def calls(w):
    """{public function or method: {argument: Arg}}."""
    cost, runtime = numbers([1.0, 2.0, 3.0]), numbers([10, 20, 40])
    search = dict(objective=function(summed), dims=numbers([3, 2]), budget=whole(6), rng=generator(none=...))
    searched = dict(ordered=choice(False, record=...), batch=whole(2))
    tiny = api.TrainSettings(steps=1, configs_per_step=4)
    training = dict(model=choice(w.gnn), graphs=graphs([w.layout]), settings=choice(tiny, none=...),
                    report=function(None, none=...))
    more = dict(loss=function(pairwise_hinge_loss), valid=graphs([], empty=...),
                score=function(api.kendall_tau, none=...), checkpoint=path(None, none=...),
                record=path(None, none=...), deadline=choice(None, none=...), saving=function(None, none=...))
    found = {
        "find_data_root": dict(explicit=path(w.root, none=...)),
        "npz_paths": dict(data_root=path(w.root, none=...), collection=choice("tile:xla"), split=choice("train")),
        "read_tile": dict(path=path(w.tile_file)),
        "read_layout": dict(path=path(w.layout_file)),
        "dense_configs": dict(graph=Arg(w.layout, wrong()), index=numbers([0, 1], empty=..., outside=[99])),
        "prepare": dict(data_root=path(w.root, none=...), folder=path(w.folder / "prepared"),
                        collections=choice(["tile:xla"], none=..., listed=...),
                        processes=whole(None, none=...), progress=free(False), splits=choice(["test"], listed=...)),
        "open_prepared": dict(folder=path(w.folder / "ready")),
        "k_hop_nodes": dict(edge_index=numbers(w.layout.edge_index), seeds=numbers(np.array([0])),
                            k=whole(2, huge=...)),
        "prune": dict(graph=graph(w.layout, empty=...), k=whole(1, huge=...)),
        "drop_duplicate_configs": dict(graph=graph(w.layout, empty=...)),
        "repad_layout": dict(node_feat=numbers(w.layout.node_feat, holed=...)),
        "tensor_rank": dict(node_feat=numbers(w.layout.node_feat, holed=...)),
        "pad_batch": dict(arrays=numbers([[1.0, 2.0]], holed=..., deeper=..., complex=...),
                          fill=choice(0, number=..., record=...)),
        "kendall_tau": dict(cost=cost, runtime=runtime, strict=free(False)),
        "opa": dict(cost=cost, runtime=runtime),
        "slowdown": dict(cost=cost, runtime=runtime, k=whole(1, huge=...)),
        "tile_score": dict(cost=cost, runtime=runtime, k=whole(1, huge=...)),
        "score_for": dict(collection=choice("tile:xla"), strict=free(False)),
        "collection_score": dict(scores=numbers([0.5, 0.25], number=..., holed=...)),
        "competition_score": dict(collection_scores=mapping(dict.fromkeys(COLLECTIONS, 0.5))),
        "bootstrap_interval": dict(values=numbers([0.5, 0.25]), confidence=real(0.9), draws=whole(9, huge=...),
                                   rng=generator(none=...)),
        "noise_ceiling": dict(runtime=numbers([10, 20, 11, 30]), config_id=numbers([0, 1, 0, 2]),
                              score=function(api.kendall_tau, none=...), draws=whole(3, huge=...),
                              rng=generator(none=...), sigma=real(0.1, none=...)),
        "train": training | more,
        "train_parallel": training | dict(processes=whole(1), as_for_train=free(None)),
        "predict": dict(model=choice(w.gnn), graph=graph(w.layout), budget=whole(1 << 20, none=...), seed=whole(0),
                        passes=whole(1), precision=choice("float32"), tensors=free(None)),
        "TrainSettings": {name: free(value) for name, value in vars(api.TrainSettings()).items()} | dict(
            steps=whole(1), configs_per_step=whole(4), graphs_per_step=whole(1), learning_rate=real(1e-3),
            warmup=real(0.1), weight_decay=real(0.0), clip=real(1.0), validate_every=whole(5), keep=choice("last"),
            seed=whole(0), precision=choice("float32"), average=choice("none"), memory_budget=whole(9, none=...)),
        "recipes_for": dict(collection=choice("tile:xla"), scale=choice("quick"), programs=whole(3, none=...),
                            segments=whole(9, none=...)),
        "mean_rank": dict(costs=numbers([[1.0, 2.0]]), weights=numbers([1.0], none=...)),
        "mean_zscore": dict(costs=numbers([[1.0, 2.0]]), weights=numbers([1.0], none=...)),
        "combine": dict(predictions=Arg([{"a": [1.0]}], wrong(empty=[], listed=[None], array=np.zeros(2))),
                        how=function(api.mean_rank), weights=numbers([1.0], none=...)),
        "choose_weights": dict(kinds=mapping({"a": {"g": [1.0, 2.0]}}), runtimes=mapping({"g": [1.0, 2.0]}, empty=...),
                               score=function(api.kendall_tau), rounds=whole(2),
                               prior=mapping({"a": 1.0}, none=..., empty=...),
                               strength=real(0.1)),
        "top_configs": dict(cost=cost, collection=choice("layout:xla:random")),
        "write_submission": dict(costs=mapping({"tile:xla:a": [1.0]}), path=path(w.folder / "written.csv")),
        "read_submission": dict(path=path(w.csv)),
        "check_submission": dict(path=path(w.csv), data_root=path(None, none=...), sample=path(None, none=...)),
        "download": dict(folder=path(w.folder), collections=choice(None, none=..., listed=...),
                         splits=choice(("train",), listed=...), source=choice("mirror"), mirror=free(""),
                         competition=free(""), timeout=free(1.0), files=free({}), client=free(None)),
        "submit": dict(path=path(w.folder / "none.csv"), message=free(""), competition=free(""),
                       data_root=free(None), sample=free(None), again=free(False), timeout=free(1.0),
                       client=free(None), partial=free(False)),
        "wait_for_score": dict(ref=whole(1), competition=free(""), timeout=real(0.0), every=real(1.0),
                               client=free(None)),
        "push_notebook": dict(notebook=path(w.folder / "none.ipynb"), metadata=free(None), timeout=free(1.0),
                              client=free(None)),
        "gpu_quota": dict(timeout=real(1.0), client=free(None)),
        "push_dataset": dict(folder=path(w.folder / "none"), dataset=choice("none-such"), title=free(None),
                             timeout=free(1.0), every=free(1.0), client=free(None)),
        "random_search": search,
        "annealing": search,
        "genetic": search,
        "droplet": search | searched | dict(start=numbers([0, 0], none=...)),
        "explore_then_droplet": search | searched | dict(
            model=function(None, none=...), strategy=free(None), queries=whole(9),
            doubt_model=free(False), confirm=whole(1), stamina=whole(None, none=...)),
        "read_layout_pb": dict(path=path(w.csv), padding=choice(0), extra=free(False)),
        "read_tile_pb": dict(path=path(w.csv), padding=choice(0), extra=free(False)),
        "write_sample": dict(root=path(w.folder / "sample"), seed=whole(0), size=choice("tiny"), progress=free(False),
                             relatives=whole(0)),
    }
    for name, settings in TINY.items():
        some = w.tile if name == "TileModel" else w.layout
        found |= {name: dict(settings=choice(settings, none=...)),
                  f"{name}.fit_scale": dict(graphs=graphs([some])), f"{name}.prepare": dict(graph=graph(some))}
    return found


# These need Kaggle or a protobuf; a wrong argument is found before
NOT_RUN = {"download", "submit", "wait_for_score", "push_notebook", "push_dataset", "gpu_quota", "read_layout_pb",
           "read_tile_pb"}
# by what an argument may be named, too: the arrays of a graph
FIELDS = {*drawn_layout()._fields[1:-1], *drawn_tile()._fields[1:], "number of configurations"}
ALSO = {"explicit": ["data_root"], "collection_scores": ["no score for"], "graph": FIELDS, "graphs": FIELDS,
        "valid": {"graph", *FIELDS}}
TABLE = sorted({*PUBLIC} - NO_FUNCTION | METHODS)


@pytest.fixture(scope="module")
def table(w):
    """The table of `calls`."""
    return calls(w)


def called(w, table, name, **change):
    """Call a public function, or a method of a model, with the arguments of `calls` and these changes."""
    arguments = {argument: arg.value for argument, arg in table[name].items()} | change
    more = arguments.pop("as_for_train", None)
    owner, _, method = name.partition(".")
    function = getattr(w.models[owner], method) if method else PUBLIC[owner]
    with no_hang():
        return function(**arguments, **(more or {}))


def test_every_public_function_is_in_both_tables_with_all_of_its_arguments(table):
    assert sorted(table) == TABLE and {name for name, *_ in SAYS} == {*PUBLIC} - NO_FUNCTION
    for name in TABLE:
        owner, _, method = name.partition(".")
        function = getattr(PUBLIC[owner], method) if method else PUBLIC[owner]
        named = [argument for argument in inspect.signature(function).parameters if argument != "self"]
        assert {*named} - {"counted"} == {*table[name]}, name


@pytest.mark.parametrize("name", sorted({*TABLE} - NOT_RUN))
def test_the_calls_of_the_table_work(w, table, name):
    called(w, table, name)


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_argument_is_named(w, table, name):
    """A ValueError whose sentence has the argument's name, or the array's name within a graph; nothing else."""
    wrong = []
    for argument, arg in table[name].items():
        for what, value in arg.wrong.items():
            if what == "empty" and name in ("LayoutGNN.prepare", "ConfigTokenModel.prepare"):
                continue                             # a program of one's own has no configurations yet
            try:
                result = called(w, table, name, **{argument: value})
                if name == "check_submission" and result:
                    raise ValueError(result[0])
                wrong.append(f"{argument} {what}: gives {result!r:.60}")
            except (ValueError, api.KaggleError) as fault:
                named = {argument, argument.rstrip("s"), *ALSO.get(argument, [])}
                if not any(word in str(fault) for word in named):
                    wrong.append(f"{argument} {what}: {type(fault).__name__}: {fault}")
            except Exception as fault:
                wrong.append(f"{argument} {what}: {type(fault).__name__}: {fault}")
    assert not wrong, "\n" + "\n".join(line[:300] for line in wrong)


SAYS = [
    ("find_data_root", lambda w: api.find_data_root(3), "data_root is 3; expected a str or Path"),
    ("npz_paths", lambda w: api.npz_paths(w.root, "tile", "train"),
     "no collection 'tile'; there are tile:xla, layout:xla:"),
    ("read_tile", lambda w: api.read_tile(None), "path is None; expected a str or Path"),
    ("read_layout", lambda w: api.read_layout(3), "path is 3; expected a str or Path"),
    ("dense_configs", lambda w: api.dense_configs(w.layout, [20]),
     "index must be integers in 0..19, the configurations of this"),
    ("dense_configs", lambda w: api.dense_configs(w.layout, [-1]),
     "index must be integers in 0..19, the configurations of this"),
    ("dense_configs", lambda w: api.dense_configs(w.layout, [0.5]),
     "index must be integers in 0..19, the configurations of this"),
    ("dense_configs", lambda w: api.dense_configs(w.tile, [0]), "graph is a TileGraph; expected a LayoutGraph"),
    ("prepare", lambda w: api.prepare(w.root, None), "folder is None; expected a str or Path"),
    ("prepare", lambda w: api.prepare(w.root, w.folder / "part", splits=3),
     "splits is 3; expected a sequence of train, valid, test"),
    ("open_prepared", lambda w: api.open_prepared(None), "folder is None; expected a str or Path"),
    ("k_hop_nodes", lambda w: api.k_hop_nodes(w.layout.edge_index, np.array([0.5]), 1),
     "seeds has shape (1,) and dtype float64; expected numbers of nodes from 0, (s,)"),
    ("prune", lambda w: api.prune(w.tile), "graph is a TileGraph; expected a LayoutGraph"),
    ("prune", lambda w: api.prune(w.layout, 1.5), "k is 1.5; expected a whole number of at least 0 hops"),
    ("drop_duplicate_configs", lambda w: api.drop_duplicate_configs(None), "graph is None; expected a LayoutGraph"),
    ("repad_layout", lambda w: api.repad_layout(np.zeros((3, 139))),
     "node_feat has shape (3, 139) and dtype float64; expected numbers of shape (n, 140)"),
    ("tensor_rank", lambda w: api.tensor_rank(np.full((1, 140), np.nan)),
     "node_feat has 6 NaN among the sizes of dimensions"),
    ("pad_batch", lambda w: api.pad_batch(["ab"]), "arrays have dtype <U2 and 0 axes, fill is 0; expected numbers"),
    ("kendall_tau", lambda w: api.kendall_tau(None, [1]), "cost has shape (), runtime (1,); expected (c,) for both"),
    ("opa", lambda w: api.opa(["a"], [1]), "cost has dtype <U1; expected integers or floats"),
    ("slowdown", lambda w: api.slowdown([1.0], [1.0], k=1.5), "k = 1.5 of 1 configurations; expected k >= 1"),
    ("tile_score", lambda w: api.tile_score([1.0], [1.0], k=None), "k = None of 1 configurations; expected k >= 1"),
    ("score_for", lambda w: api.score_for(None), "no collection None; there are tile:xla, layout:xla:random"),
    ("collection_score", lambda w: api.collection_score(None), "scores: expected one finite score per graph"),
    ("competition_score", lambda w: api.competition_score(None),
     "collection_scores is None; expected {collection: score}"),
    ("competition_score", lambda w: api.competition_score(dict.fromkeys(COLLECTIONS)),
     "no score for tile:xla, layout:xla:random"),
    ("bootstrap_interval", lambda w: api.bootstrap_interval([1.0, 2.0], draws=0),
     "draws is 0; expected a whole number of at least 1"),
    ("bootstrap_interval", lambda w: api.bootstrap_interval([1.0, 2.0], rng=0),
     "rng is 0; expected a numpy.random.Generator"),
    ("noise_ceiling", lambda w: api.noise_ceiling([1, 2], [0, 0], draws=0), "draws is 0; expected a whole number"),
    ("train", lambda w: api.train(w.gnn, [with_nan(w.layout)]), "drawn: node_feat has 1 NaN or infinite values"),
    ("train", lambda w: api.train(w.gnn, w.layout), "graphs is a LayoutGraph; expected a sequence of graphs"),
    ("train", lambda w: api.train(w.gnn, [w.layout], settings={}), "settings is {}; expected TrainSettings"),
    ("train", lambda w: api.train(w.gnn, [w.layout], loss=None), "loss is None; expected a function"),
    ("train_parallel", lambda w: api.train_parallel(None, [w.layout]), "model is None; expected a model as"),
    ("predict", lambda w: api.predict(w.tiles, w.layout), "graph is a LayoutGraph; expected a TileGraph"),
    ("predict", lambda w: api.predict(w.gnn, w.tile), "graph is a TileGraph; expected a LayoutGraph"),
    ("predict", lambda w: api.predict(w.gnn, without_configs(w.layout)), "drawn: the number of configurations is 0"),
    ("predict", lambda w: api.predict(w.tiles, w.tile._replace(node_opcode=w.tile.node_opcode + 200)),
     "tile: node_opcode holds 3"),
    ("predict", lambda w: api.predict(w.token, with_nan(w.layout)), "drawn: node_feat has 1 NaN or infinite values"),
    ("predict", lambda w: api.predict(w.gnn, w.layout, precision="float8"),
     "precision is 'float8'; expected 'float32' or 'bfloat16' or 'float16'"),
    ("TrainSettings", lambda w: api.TrainSettings(learning_rate="fast"),
     "learning_rate is 'fast'; expected a number above 0"),
    ("LayoutGNN", lambda w: api.LayoutGNN(TINY["TileModel"]), "settings is TileModelSettings("),
    ("ConfigTokenModel", lambda w: api.ConfigTokenModel(ConfigTokenSettings(width=0)),
     "width is 0; expected a whole number of at least 1"),
    ("ConfigTokenModel", lambda w: api.ConfigTokenModel(ConfigTokenSettings(width=0)),
     "width is 0; expected a whole number of at least 1"),
    ("TileModel", lambda w: api.TileModel(TileModelSettings(width=0)),
     "width is 0; expected a whole number of at least 1"),
    ("recipes_for", lambda w: api.recipes_for("layout:xla"), "collection is 'layout:xla'; expected 'tile:xla' or "),
    ("mean_rank", lambda w: api.mean_rank([["a"]]), "costs have shapes (1,); expected numbers (c,), the same"),
    ("mean_zscore", lambda w: api.mean_zscore(None), "costs have shapes (); expected numbers (c,), the same"),
    ("combine", lambda w: api.combine([None]), "no prediction to combine, predictions is [None]; expected one"),
    ("choose_weights", lambda w: api.choose_weights({"a": {}}, {"g": [1.0]}, api.kendall_tau),
     "costs of a is {}; expected a dict"),
    ("top_configs", lambda w: api.top_configs(None, "tile:xla"), "cost has shape () and dtype object; expected (c,)"),
    ("write_submission", lambda w: api.write_submission({"tile:xla:a": [1.0]}, 3), "path is 3; expected a str or Path"),
    ("read_submission", lambda w: api.read_submission(written(w, "ID,TopConfigs\n")),
     "line 2: is missing; expected a row per"),
    ("check_submission", lambda w: api.check_submission(None), "path is None; expected a str or Path"),
    ("download", lambda w: api.download(None), "folder is None; expected a str or Path"),
    ("submit", lambda w: api.submit(None, ""), "path is None; expected a str or Path"),
    ("wait_for_score", lambda w: api.wait_for_score("one"), "ref is 'one'; expected a whole number of at least 0"),
    ("push_notebook", lambda w: api.push_notebook(None), "notebook is None; expected a str or Path"),
    ("gpu_quota", lambda w: api.gpu_quota(-1), "timeout is -1; expected a number of at least 0"),
    ("push_dataset", lambda w: api.push_dataset(None, "a-dataset"), "folder is None; expected a str or Path"),
    ("random_search", lambda w: api.random_search(None, [2], 3, np.random.default_rng(0)),
     "objective is None; expected a function"),
    ("random_search", lambda w: api.random_search(summed, [2], 3, 0), "rng is 0; expected a numpy.random.Generator"),
    ("annealing", lambda w: api.annealing(summed, [2], 0, np.random.default_rng(0)), "budget is 0; expected a whole"),
    ("genetic", lambda w: api.genetic(summed, [], 3, np.random.default_rng(0)), "dims has shape (0,)"),
    ("droplet", lambda w: api.droplet(summed, [10**18] * 2, 9, np.random.default_rng(0)),
     f"dims holds {10**18}; expected at "),
    ("explore_then_droplet", lambda w: api.explore_then_droplet(summed, [2], 3, None), "rng is None; expected a numpy"),
    ("read_layout_pb", lambda w: api.read_layout_pb(None), "path is None; expected a str or Path"),
    ("read_tile_pb", lambda w: api.read_tile_pb(w.csv, padding=1), "padding is 1; expected 0 or -1"),
    ("write_sample", lambda w: api.write_sample(w.folder, seed=-1),
     "seed is -1; expected a whole number of at least 0"),
]


@pytest.mark.parametrize("name, call, words", SAYS)
def test_what_is_wrong_is_said(w, name, call, words):
    with pytest.raises(ValueError, match=re.escape(words)), no_hang():
        call(w)


def with_nan(graph):
    """A graph with one feature that is NaN."""
    node_feat = graph.node_feat.copy()
    node_feat[3, 40] = np.nan
    return graph._replace(node_feat=node_feat)


def without_configs(graph):
    """A layout graph without configurations."""
    return graph._replace(config_codes=graph.config_codes[:0], config_runtime=graph.config_runtime[:0])


def written(w, text):
    """The path of a file with this text."""
    path = w.folder / "written.txt"
    path.write_text(text)
    return path


def test_any_number_of_hops_ends_when_nothing_new_is_reached(w):
    whole = api.prune(w.layout, len(w.layout.node_feat))
    for hops in (10**7, 2**63, 10**30):
        with no_hang():
            assert all(np.array_equal(a, b) for a, b in zip(api.prune(w.layout, hops)[:-1], whole[:-1]))
            assert api.k_hop_nodes(w.layout.edge_index, w.layout.node_config_ids, hops).tolist() == api.k_hop_nodes(
                w.layout.edge_index, w.layout.node_config_ids, len(w.layout.node_feat)).tolist()


@pytest.mark.parametrize("indices", ["-0;1", "0012;1", "1;00"])
def test_an_index_has_one_spelling(w, indices):
    rows = f"ID,TopConfigs\ntile:xla:a,{indices}\n"
    assert api.check_submission(written(w, rows)) == [
        f"line 2: tile:xla:a '{indices}' is not integers joined by ';', as in 0;12"]


def test_a_header_alone_is_no_submission(w):
    assert api.check_submission(written(w, "ID,TopConfigs\n")) == [
        "line 2: is missing; expected a row per graph after the header"]


@pytest.mark.parametrize("turned", [lambda a: a[::-1].copy()[::-1], lambda a: a.astype(a.dtype.newbyteorder(">"))],
                         ids=["negative strides", "other byte order"])
def test_arrays_of_any_strides_and_byte_order_give_the_same_costs(w, turned):
    for model in w.models.values():
        graph = w.tile if model is w.tiles else w.layout
        changed = graph._replace(**{name: turned(array) for name, array in graph._asdict().items()
                                    if isinstance(array, np.ndarray)})
        assert np.array_equal(api.predict(model, changed), api.predict(model, graph))


def test_a_configurable_node_that_is_named_twice_is_refused(w):
    ids = w.layout.node_config_ids.copy()
    ids[-1] = ids[0]
    for model in (w.gnn, w.token):
        with pytest.raises(ValueError, match="node_config_ids is .*; expected each configurable node once"):
            api.predict(model, w.layout._replace(node_config_ids=ids))


def test_meetings_of_a_program_with_more_nodes_are_refused(w):
    met = api.prune(w.layout).meetings
    ends = np.concatenate([met.ends, [[0, len(w.layout.node_config_ids)]]])
    for model in (w.gnn, w.token):
        with pytest.raises(ValueError, match="drawn.*: meetings.ends holds .*; expected at least 0 and at most"):
            api.predict(model, w.layout._replace(meetings=met._replace(ends=ends)))


def test_tensors_of_another_program_are_refused(w):
    other = api.prune(w.layout, 0)
    for model in (w.gnn, w.token):
        with pytest.raises(ValueError, match=r"^tensors is 'of a graph with \d+ nodes'; expected model.prep"):
            api.predict(model, w.layout, tensors=model.prepare(other))


def test_what_a_way_of_combining_gives_is_checked():
    for gives in (lambda costs, weights: costs[0][:1], lambda costs, weights: [np.nan, 1.0], lambda *_: "fast"):
        with pytest.raises(ValueError, match="^a: result of <lambda> has "):
            api.combine([{"a": [2.0, 1.0]}], gives)
    with pytest.raises(ValueError, match="^prediction 1 differs from prediction 0: it lacks 1 ID, the first a;"):
        api.combine([{"a": [1.0]}, {1: [1.0], "b": [2.0]}])
