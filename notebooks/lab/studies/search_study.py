"""Compare searches over programs and seeds; finished searches are kept on disk, so that a study can be resumed."""
from functools import partial

import numpy as np

from kit.models import explain
from kit.prune import prune
from kit.search import (
    MOST_REMEMBERED,
    annealing,
    droplet,
    explore_then_droplet,
    genetic,
    gradient_search,
    guided,
    on_codes,
    random_search,
    search_rows,
)
from kit.training import versions
from lab.run.code import code_digest
from lab.studies.search_spaces import simulated_runtime

WITHOUT_MODEL = ("random", "annealing", "genetic", "droplet", "explore then droplet")
WITH_MODEL = ("model's best rows", "model, genetic", "model, gradient", "model, explore then droplet")
ROW_SEARCHES = ("searched", "searched with model")


def study_searches(spaces, budgets, seeds, queries, store):
    """Search every space with every strategy, budget and seed (0, 1, 2...); earlier results are read from disk.

    `budgets` are ascending numbers of measurements; explore-then-droplet is run up to 300, because its Gaussian process
    remembers no more points. `queries` are those of the model, per search of a whole space. Finished searches go to the
    `store` (Store), two for each space and seed: with a model, and without one, which all models share.

    Returns {strategy: (3, seeds, spaces, budgets)}: ns of the best measured, measurements, queries; NaN: not run.
    """
    found = {name: np.full((3, seeds, len(spaces), len(budgets)), np.nan) for name in (*WITHOUT_MODEL, *WITH_MODEL)}
    for place, space in enumerate(spaces):
        print(f"{place + 1} of {len(spaces)}  {space.collection}: {space.graph_id}")
        for seed in range(seeds):
            free = _kept(store, "free", [space.program, budgets, seed], partial(_search_free, space, budgets, seed))
            guided_by_model = _kept(store, "guided", [space.model, budgets, seed, queries],
                                    partial(_search_guided, space, budgets, seed, queries))
            for name, numbers in (free | guided_by_model).items():
                found[name][:, seed, place] = numbers.reshape(3, -1)
    return found


def study_rows(graph, cost, budgets, seeds, store):
    """Search the rows of a file with every budget and seed, with a model and without; resumed as by `study_searches`.

    `graph` has each configuration once, else a ValueError; `cost` (c,) is predicted by the model. Returns {"searched"
    or "searched with model": (seeds, budgets)}: the runtime of the best measured.
    """
    key = [graph.config_runtime, graph.config_codes, cost, versions()]
    found = [_kept(store, "rows", [key, budgets, seed], partial(_search_rows, graph, cost, budgets, seed))
             for seed in range(seeds)]
    return {name: np.array([one[name] for one in found]) for name in ROW_SEARCHES}


def _kept(store, kind, about, search):
    """{strategy: numbers}: read where it was kept, else `search()`, which is then kept."""
    return store.made(store.name(kind, [about, code_digest(__name__)]), lambda: {
        name: np.array(numbers, np.float64).ravel() for name, numbers in search().items()})


def _told(results):
    """One search per budget, None if it was not run -> (3, budgets): best cost, measurements, queries."""
    return np.array([[np.nan] * 3 if r is None else [r.best_cost, r.measurements, r.queries] for r in results]).T


def study_reasons(graph, model, against, rng, k_hops=1, draws=20):
    """Undo the largest term of explanations, to see whether the true runtime falls as predicted -> dict of floats.

    `graph`: a whole program of the sample data. `draws` rows of its file are explained against the configuration
    `against` (g,), such as the compiler's default. The groups of the largest term above 0 get the codes of `against`.
    For comparison, as many groups get them at random, among those that differ.

    The keys are "named" and "at random", the mean change of the true runtime as a share; "correlation" of the
    predicted change of the cost with the change of the log runtime, over all changes. NaN if no row has such a term.
    """
    pruned, truth, changes = prune(graph, k_hops), simulated_runtime(graph), []
    tensors = model.prepare(pruned)
    for row in rng.choice(len(graph.config_codes), draws, replace=draws > len(graph.config_codes)):
        code = graph.config_codes[row].astype(np.int64)
        terms = explain(model, pruned, code, against, tensors).by_group(pruned)
        if terms.max(initial=0) > 0:
            named, differ = np.unique(np.unravel_index(terms.argmax(), terms.shape)), np.flatnonzero(code != against)
            drawn = rng.choice(differ, min(len(named), len(differ)), replace=False)
            undone = [np.where(np.isin(np.arange(len(code)), groups), against, code) for groups in (named, drawn)]
            before, *after = truth(np.stack([code, *undone]))
            changes.append([[explain(model, pruned, one, code, tensors).cost for one in undone],
                            np.log(np.array(after) / before)])
    if not changes:
        return {"named": np.nan, "at random": np.nan, "correlation": np.nan}
    predicted, true = np.array(changes).swapaxes(0, 1)                                                 # (rows, 2) each
    named, at_random = np.expm1(true).mean(axis=0)
    steady = predicted.std() == 0 or true.std() == 0
    return {"named": named, "at random": at_random,
            "correlation": np.nan if steady else np.corrcoef(predicted.ravel(), true.ravel())[0, 1]}


def _search_free(space, budgets, seed):
    """{strategy: (3, budgets)} of every search without a model."""
    searches = random_search, annealing, genetic, droplet, explore_then_droplet
    return {name: _told([search(space.truth, space.dims, budget, np.random.default_rng([seed, 0]))
                         if search is not explore_then_droplet or budget <= MOST_REMEMBERED else None
                         for budget in budgets]) for name, search in zip(WITHOUT_MODEL, searches)}


def _search_guided(space, budgets, seed, queries):
    """{strategy: (3, budgets)} of every search with the model, which is asked in two ways, once for all budgets."""
    truth, dims, cost = space.truth, space.dims, on_codes(space.relaxed, space.dims, space.device)
    bred = genetic(cost, dims, queries, np.random.default_rng([seed, 1]))
    # two thirds of the queries: as a strategy, the search asks the model again for what it found, at most half of it
    walked = gradient_search(cost, dims, queries, np.random.default_rng([seed, 2]), relaxed=space.relaxed,
                             queries=max(2 * queries // 3, 2), device=space.device)

    def run(search, proposed, most=np.inf):
        return _told([search(truth, dims, budget, np.random.default_rng([seed, 0]), model=cost, queries=queries,
                             strategy=lambda *_: proposed) if budget <= most else None for budget in budgets])
    rows = [[space.ranked[:budget].min(), min(budget, len(space.ranked)), len(space.ranked)] for budget in budgets]
    return dict(zip(WITH_MODEL, (np.transpose(rows), run(guided, bred), run(guided, walked),
                                 run(explore_then_droplet, walked, MOST_REMEMBERED))))


def _search_rows(graph, cost, budgets, seed):
    """{"searched" or "searched with model": the best runtime per budget} of searches among the rows of a file."""
    runtime, codes = graph.config_runtime, graph.config_codes
    return {name: [search_rows(runtime, codes, budget, np.random.default_rng(seed), cost=by).best_cost
                   for budget in budgets] for name, by in zip(ROW_SEARCHES, (None, cost))}
