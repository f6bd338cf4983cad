"""Compare ways of training by their scores on programs that no model was trained on; differences with intervals."""
from kit.data import teaches
from kit.noise import bootstrap_interval
from lab.data import read_split, teaching_graphs


def compared_programs(data_root, collections, problems=None, k_hops=None):
    """What models are compared on -> {name: (graphs to train on, unseen programs to rank)}, where both have graphs.

    "tile:xla" stands alone. "layout:random" and "layout:default" are the programs of `collections` with this search,
    so of both sources, because one model learns from all of them. The unseen programs are those of the validation
    split, and of the test split where it has runtimes. Other arguments are those of `read_split`.
    """
    found = {}
    for collection in collections:
        name = collection if collection == "tile:xla" else f"layout:{collection.split(':')[-1]}"
        graphs, unseen = found.setdefault(name, ([], []))
        graphs += teaching_graphs(data_root, collection, "train", problems, k_hops)
        unseen += [graph for split in ("valid", "test")
                   for graph in read_split(data_root, collection, split, problems, k_hops) if teaches(graph)]
    return {name: both for name, both in found.items() if all(both)}


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
