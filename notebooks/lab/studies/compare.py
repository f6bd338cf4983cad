"""Compare ways of training by their scores on programs that no model was trained on; differences with intervals."""
import numpy as np

from kit.data import SPLITS, content_digest, npz_paths, teaches
from kit.noise import bootstrap_interval
from kit.predict import predict
from kit.prepare import prepare
from lab.run import read_split
from lab.run.members import Material, ranking_code, train_or_read, training_name, with_seed
from lab.sample import write_sample


def unseen_programs(data_root, collection, is_sample, problems=None, k_hops=None, size="small", seed=2):
    """Programs to compare models on, with their runtimes; only programs that have an order to learn.

    With `is_sample`, they are all splits of a second sample of this `size` and `seed` (not the seed of the first). It
    is written beside the first one and has two to four times as many programs as the first one's test split. Without,
    they are the validation split. Other arguments are those of `read_split`. Returns TileGraphs or LayoutGraphs in a
    list.
    """
    if not is_sample:
        graphs = read_split(data_root, collection, "valid", problems, k_hops)
    else:
        first = data_root.parent
        root = write_sample(first.with_name(f"{first.name}-seed{seed}"), seed=seed, size=size, progress=True)
        root = prepare(root, root.parent / "prepared").folder
        graphs = [g for split in SPLITS for g in read_split(root, collection, split, problems, k_hops)]
        truth = {p.stem: root.parent / "truth" / p.relative_to(root) for p in npz_paths(root, collection, "test")}
        graphs = [_with_truth(g, truth[g.graph_id]) if g.graph_id in truth else g for g in graphs]
    return [g for g in graphs if teaches(g)]


def _with_truth(graph, path):
    """A test graph of the sample data with its hidden runtimes."""
    with np.load(path, allow_pickle=False) as npz:
        return graph._replace(**{name: npz[name] for name in npz.files if name in graph._fields})


def rank_unseen(recipe, name, seed, graphs, unseen, store, passes=1, report=print):
    """Train by a `recipe` and rank `unseen` programs -> {graph_id: cost (c,)}; what was made before is read.

    The last weights are kept, because the unseen programs must choose nothing. `name`, of the recipe and its training
    data, is for readers. `seed` is that of the initial weights and of the draws in training. `store`: a Store. `passes`
    is as for `predict`, `report` as for `train`.
    """
    material, one = Material(graphs, (), None, {}), with_seed(recipe, seed)
    trained = training_name(store, f"{name} {seed}", one, material)
    ranked = store.name("ranked", [trained, [content_digest(g) for g in unseen], ranking_code(), passes])

    def rank():
        model, _ = train_or_read(store, trained, one, material, report)
        return {g.graph_id: predict(model, g, passes=passes) for g in unseen}
    return store.made(ranked, rank)


def differences(scores, reference):
    """How far each model is from the model `reference` on the same programs and seeds, as rows for a table.

    `scores`: {name: (seeds, graphs)}; higher is better, graphs in the same order. A row has "model", "score", "low" and
    "high" (95% interval); except for the reference also "difference", paired by seed and graph, with its interval
    "from" and "to". Intervals are over graphs and seeds; for one graph over seeds.
    """
    rows = []
    for name, score in scores.items():
        rows.append(dict(zip(("model", "score", "low", "high"), (name, *_mean_and_interval(score)))))
        if name != reference:
            rows[-1] |= dict(zip(("difference", "from", "to"), _mean_and_interval(score - scores[reference])))
    return rows


def _mean_and_interval(score):
    """(seeds, graphs) -> mean, low, high."""
    return score.mean(), *bootstrap_interval(score[:, 0] if score.shape[1] == 1 else score)
