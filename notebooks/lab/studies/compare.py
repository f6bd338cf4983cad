"""Compare ways of training by their scores on programs that no model was trained on; differences with intervals."""
from typing import NamedTuple

from kit.noise import bootstrap_interval


class Compared(NamedTuple):
    """What models are compared on."""
    train: list              # graphs to train on
    unseen: list             # graphs to rank: of the validation split, and of the test split where it has runtimes
    truth: dict              # {graph_id: runtime (c,)} of the unseen graphs, as `lab.data.Data.truth`
    score: object            # (cost (c,), runtime (c,)) -> float, as `lab.data.Data.score`
    families: list           # of each unseen graph
    once: bool               # each configuration of a graph counts once


def compared_programs(data):
    """What models are compared on -> {name: Compared}, where there are graphs to train on and graphs to rank.

    "tile:xla" stands alone. "layout:random" and "layout:default" are the programs of all collections of `data` with
    this search, so of both sources, because one model learns from all of them.
    """
    found = {}
    for c in data.collections:
        name = c if c == "tile:xla" else f"layout:{c.split(':')[-1]}"
        own = found.setdefault(name, Compared([], [], {}, data.score(c), [], data.counts_once(c)))
        own.train.extend(data.graphs([c]))
        for split in dict.fromkeys(("valid", data.scored)):
            truth, families = data.truth(c, split), data.families(c, split)
            graphs = data.named(c, split)
            own.unseen.extend(graphs[i] for i in truth)
            own.truth.update({graphs[i].graph_id: runtime for i, runtime in truth.items()})
            own.families.extend(families[i] for i in truth)
    return {name: own for name, own in found.items() if own.train and own.unseen}


def differences(scores, reference, families=None):
    """How far each model is from the model `reference` on the same programs and seeds, as rows for a table.

    `scores`: {name: (seeds, graphs)}; higher is better, graphs in the same order. A row has "model", "score", "low" and
    "high" (95% interval); except for the reference also "difference", paired by seed and graph, with its interval
    "from" and "to". Intervals are over `families` of graphs (None: over graphs) and seeds; for one graph over seeds.
    """
    rows = []
    for name, score in scores.items():
        rows.append(dict(zip(("model", "score", "low", "high"), (name, *_mean_and_interval(score, families)))))
        if name != reference:
            rows[-1] |= dict(zip(("difference", "from", "to"),
                                 _mean_and_interval(score - scores[reference], families)))
    return rows


def _mean_and_interval(score, families):
    """(seeds, graphs) -> mean, low, high."""
    return score.mean(), *(bootstrap_interval(score[:, 0]) if score.shape[1] == 1 else
                           bootstrap_interval(score, families=families))
