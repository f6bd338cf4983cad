"""Compare ways of training on programs that no model has seen; differences with their intervals."""
from dataclasses import replace

import numpy as np

from kit.data import SPLITS, npz_paths, teaches
from kit.noise import bootstrap_interval
from kit.predict import predict
from kit.run import checkpoint_path, load_costs, read_split, save_costs
from kit.sample import write_sample
from kit.train import train


def unseen_programs(data_root, collection, is_sample, problems=None, k_hops=None, size="small", seed=2):
    """Programs to compare models on, with their runtimes; only programs that have an order to learn.

    Parameters
    ----------
    data_root, collection
        As for `read_split`.
    is_sample : bool
        True: all splits of a second sample, written beside the first one, two to four times as many programs as in the
        test split of the first. False: the validation split.
    problems, k_hops
        As for `read_split`.
    size : str
        Of the second sample.
    seed : int
        Of the second sample; not the seed of the first.

    Returns
    -------
    list of TileGraph or LayoutGraph
    """
    if not is_sample:
        graphs = read_split(data_root, collection, "valid", problems, k_hops)
    else:
        first = data_root.parent
        root = write_sample(first.with_name(f"{first.name}-seed{seed}"), seed=seed, size=size, progress=True)
        graphs = [g for split in SPLITS for g in read_split(root, collection, split, problems, k_hops)]
        truth = {p.stem: root.parent / "truth" / p.relative_to(root) for p in npz_paths(root, collection, "test")}
        graphs = [_with_truth(g, truth[g.graph_id]) if g.graph_id in truth else g for g in graphs]
    return [g for g in graphs if teaches(g)]


def _with_truth(graph, path):
    """A test graph of the sample data with its hidden runtimes."""
    with np.load(path, allow_pickle=False) as npz:
        return graph._replace(**{name: npz[name] for name in npz.files if name in graph._fields})


def rank_unseen(recipe, name, seed, graphs, unseen, out, passes=1, report=None):
    """Train by a recipe and rank unseen programs; a model that was trained before is not trained again.

    Parameters
    ----------
    recipe : Recipe
        The last weights are kept: the unseen programs choose nothing.
    name : str
        Of the recipe and its training data, for the name of the checkpoint.
    seed : int
        Of the initial weights and of the draws in training.
    graphs, unseen : sequence of TileGraph or LayoutGraph
    out : str or Path
        The folder of the run; the checkpoint and the costs go to its folder checkpoints/.
    passes, report
        As for `predict` and `train`.

    Returns
    -------
    dict of str to ndarray
        {graph_id: cost (c,)}.
    """
    model = recipe.network(replace(recipe.shape, seed=seed))
    settings = replace(recipe.settings, seed=seed, keep="last")
    costs = checkpoint_path(out, f"{name} {seed}", model, settings, graphs, unseen).with_suffix(f".{passes}.npz")
    if not costs.is_file():
        checkpoint = checkpoint_path(out, f"{name} {seed}", model, settings, graphs)      # whatever is ranked with it
        train(model, graphs, settings, recipe.loss, checkpoint=checkpoint, report=report)
        save_costs(costs, {g.graph_id: predict(model, g, passes=passes) for g in unseen})
    return load_costs(costs)


def differences(scores, reference):
    """How far each model is from the model `reference` on the same programs and seeds, as rows for a table.

    Parameters
    ----------
    scores : dict of str to ndarray, shape (seeds, graphs)
        {name: scores}; higher is better, graphs in the same order.
    reference : str
        One of the names.

    Returns
    -------
    list of dict
        "model", "score", "low" and "high" (95% interval); except for the reference also "difference", paired by seed
        and graph, with its interval "from" and "to". Intervals are over graphs and seeds; for one graph over seeds.
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
