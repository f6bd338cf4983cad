"""The simplest rules, which stand beside the models in every table of scores: what does a model know beyond them?"""
from functools import partial

import numpy as np
from sklearn.linear_model import RidgeCV

from kit.baselines import fit_digit_ridge
from kit.prune import config_ids, drop_duplicate_configs
from lab.data import default_codes, deviations

DEFAULT_FIRST, COUNT, RIDGE, OWN_HALF = "default first", "count of deviations", "ridge", "ridge on its own half"
PENALTIES = tuple(10.0 ** p for p in range(-3, 4))


def add_simple_rules(made):
    """Add to Predictions the ranks of four rules, as baselines, which are no members of an ensemble.

    - "default first": the compiler's default first, all other configurations tied
    - "count of deviations": by how many groups a configuration differs from the default
    - "ridge": `kit.baselines.fit_digit_ridge`, on the training graphs
    - "ridge on its own half": `own_half`; it reads runtimes of the program that it ranks

    The competition's files get the first ridge alone.
    """
    rules = [(RIDGE, fit_digit_ridge, 0)]
    if made.data.source == "measured programs":
        rules += [(COUNT, lambda graphs: deviations, 0), (DEFAULT_FIRST, lambda graphs: default_first, 0)]
        rules += [(OWN_HALF, lambda graphs, seed=seed: partial(own_half, seed=seed), seed) for seed in range(3)]
    for name, fit, seed in rules:
        made.add(name, fit, seed, search=("random", "default"), baseline=True, learns=name == RIDGE)


def default_first(graph):
    """Cost 0 of the compiler's default, 1 of all other configurations, (c,); all 0 if the file does not tell."""
    default = default_codes(graph)
    return np.zeros(len(graph.config_codes)) if default is None else (
        graph.config_codes != default).any(axis=1).astype(float)


def own_half(graph, seed=0):
    """Cost of each configuration by ridge regression on one-hot codes of the half of them that it is not in; (c,).

    The halves are drawn. No upper bound: a model that learned from other programs can rank better.
    """
    distinct = drop_duplicate_configs(graph)[0]
    one_hot = np.concatenate([codes[:, None] == np.arange(codes.max() + 1) for codes in distinct.config_codes.T],
                             axis=1).astype(float)
    target = np.log(distinct.config_runtime)
    half = np.random.default_rng(seed).permutation(len(target)) % 2 == 0
    cost = np.empty(len(target))
    for seen in (half, ~half):
        cost[~seen] = RidgeCV(PENALTIES).fit(one_hot[seen], target[seen]).predict(one_hot[~seen])
    return cost[config_ids(graph)]
