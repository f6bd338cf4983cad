"""Rows of tables about searches among the rows of files, and about tiles."""
from dataclasses import replace

import numpy as np

from kit.data import target
from kit.metrics import default_tile_score, slowdown
from kit.noise import bootstrap_interval
from kit.search import search_rows
from kit.train_parts import versions
from lab.run.code import code_digest
from lab.training import rank_unseen, train_recipes

ROW_BUDGET = 100           # measurements among the rows of a file, at most; and half of its rows
FEW_KERNELS, PARTS = 5, 4  # with fewer unseen kernels, all kernels are ranked, in this many parts


def search_space(graph):
    """The number of codes of each group of a layout file (g,), int64: the `dims` of a search."""
    return graph.config_codes.max(axis=0).astype(np.int64) + 1


def file_rows(graph, cost, budgets, seeds, store):
    """How much slower than the best row of a file the searches among its rows end.

    Parameters
    ----------
    graph : LayoutGraph
        With each configuration once.
    cost : ndarray, shape (c,)
        Predicted by the model.
    budgets : sequence of int
        Those above `ROW_BUDGET` or half of the rows are left out.
    seeds : int
    store : Store
        Keeps what is finished.

    Returns
    -------
    list of dict
        A row per budget: means over seeds, and the worst seed.
    """
    runtime, rows = graph.config_runtime, []
    few = [budget for budget in budgets if budget <= min(ROW_BUDGET, len(runtime) / 2)]
    searched = _searched(graph, cost, few, seeds, store)
    for b, budget in enumerate(few):
        costs = {"random": [np.random.default_rng(s).permutation(runtime)[:budget].min() for s in range(20)],
                 "searched": searched["searched"][:, b],
                 "model's best": [runtime[np.argsort(cost, kind="stable")[:budget]].min()],
                 "searched with model": searched["searched with model"][:, b]}
        slower = {name: np.array(found) / runtime.min() - 1 for name, found in costs.items()}
        rows.append({"rows": len(runtime), "budget": budget, **{name: s.mean() for name, s in slower.items()},
                     **{f"{name}, worst": s.max() for name, s in slower.items() if len(s) > 1}})
    return rows


def _searched(graph, cost, budgets, seeds, store):
    """{"searched" or "searched with model": (seeds, budgets)}: the runtime of the best row that was measured."""
    key, found = [graph.config_runtime, graph.config_codes, cost, versions()], []
    for seed in range(seeds):
        name = store.name("rows", [key, budgets, seed, code_digest(__name__)])
        found.append(store.made(name, lambda seed=seed: {
            words: np.array([search_rows(graph.config_runtime, graph.config_codes, budget, np.random.default_rng(seed),
                                         cost=by).best_cost for budget in budgets], float)
            for words, by in (("searched", None), ("searched with model", cost))}))
    return {name: np.array([one[name] for one in found]) for name in ("searched", "searched with model")}


def tile_predictions(run, data, recipes, device="cpu"):
    """What the tile model, seed 0, says of kernels that it has not seen -> ({ID: cost (c,)}, {ID: runtime (c,)}).

    They are the kernels that scores are of, and 03's model is read if it was trained. With fewer than five of them, all
    kernels are split into four parts, and each is ranked by a model that was trained on the other three.
    """
    costs, runtimes = {}, {}
    for c, own in recipes.items():
        known = data.runtimes(c, data.scored)
        if data.scored == "test" or len(known) >= FEW_KERNELS:
            ranked = train_recipes(run, data, {c: own}, seeds=1, device=device).seeds(c, data.scored)
            costs |= {i: cost for i, cost in ranked["tile"][0].items() if i in known} if ranked else {}
            runtimes |= known
            continue
        every = [g._replace(graph_id=f"{number} {g.graph_id}")           # two splits may use one name
                 for number, g in enumerate([*data.train[c], *data.valid[c]])]
        one = own["tile"]._replace(settings=replace(own["tile"].settings, device=device))
        for part in range(PARTS):
            print(f"{part + 1} of {PARTS}  {c} tile part {part}")
            taught = [g for number, g in enumerate(every) if number % PARTS != part]
            costs |= rank_unseen(one, f"{c} tile part {part}", 0, taught, every[part::PARTS], run.store)
        runtimes |= {g.graph_id: target(g) for g in every}
    return costs, {i: runtime for i, runtime in runtimes.items() if i in costs}


def tile_rows(costs, runtimes, has_default=True):
    """The model's five first tile sizes against five at random and the compiler's default.

    Parameters
    ----------
    costs : dict of str to ndarray, shape (c,)
        {kernel: predicted cost}.
    runtimes : dict of str to ndarray, shape (c,)
        {kernel: runtime / runtime of the default}, of the same kernels.
    has_default : bool
        Whether the files know the compiler's default.

    Returns
    -------
    list of dict
        A row per way to choose; none for fewer than two kernels. A difference below 0: better than random.
    """
    rng, rows = np.random.default_rng(0), []
    ways = {"model's top 5": [slowdown(costs[i], known) for i, known in runtimes.items()],
            "5 at random": [np.mean([slowdown(rng.random(len(t)), t) for _ in range(100)]) for t in runtimes.values()]}
    if has_default:
        ways["compiler's default"] = [1 - default_tile_score(t) for t in runtimes.values()]
    for name, slower in ways.items() if len(runtimes) > 1 else ():
        apart = np.subtract(slower, ways["5 at random"])
        rows.append({"measured": name, "slowdown": np.mean(slower),
                     **dict(zip(("low", "high"), bootstrap_interval(slower))), "difference to random": apart.mean(),
                     **dict(zip(("from", "to"), bootstrap_interval(apart))), "kernels": len(runtimes)})
    return rows


def row_speed_ups(rows):
    """How much faster than the compiler's default the searches among rows of files end.

    Parameters
    ----------
    rows : sequence of dict
        As from `file_rows`, and "collection" and "default", the slowdown of the default.

    Returns
    -------
    dict of (str, str, str, int) to ndarray, shape (programs,)
        {(collection, what was measured, "with model" or "random", budget): speed-ups}. Programs without a known default
        are left out.
    """
    ups = {}
    for row in rows:
        for search, name in (("with model", "searched with model"), ("random", "random")):
            key = row["collection"], "rows", search, row["budget"]
            if np.isfinite(row["default"]):
                ups.setdefault(key, []).append((1 + row["default"]) / (1 + row[name]))
    return {key: np.array(one) for key, one in ups.items()}


def tile_speed_ups(costs, runtimes, budgets, draws=100):
    """How much faster than the compiler's default the first tile sizes are.

    Parameters
    ----------
    costs, runtimes : dict
        As for `tile_rows`.
    budgets : sequence of int
        How many tile sizes of each kernel are measured, or all that the kernel has.
    draws : int
        Of random tile sizes.

    Returns
    -------
    dict of (str, str, str, int) to ndarray, shape (kernels,)
        As from `row_speed_ups`.
    """
    rng, ups = np.random.default_rng(0), {}
    for i, runtime in runtimes.items():
        ranked = runtime[np.argsort(costs[i], kind="stable")]
        drawn = np.array([rng.permutation(runtime) for _ in range(draws)])
        for budget in budgets:
            faster = {"with model": 1 / ranked[:budget].min(), "random": (1 / drawn[:, :budget].min(axis=1)).mean()}
            for search, one in faster.items():
                ups.setdefault(("tile:xla", "tile sizes", search, budget), []).append(one)
    return {key: np.array(one) for key, one in ups.items()}


def speed_up_rows(ups):
    """The gain of an autotuner: how much faster than the compiler's default the best measured configuration is.

    Parameters
    ----------
    ups : dict of (str, str, str, int) to ndarray, shape (programs,)
        As from `row_speed_ups`.

    Returns
    -------
    list of dict
        A row per key of `ups`: the mean and its 95% interval over programs; NaN for a single program.
    """
    rows = []
    for (collection, measured, search, budget), each in ups.items():
        low, high = bootstrap_interval(each) if len(each) > 1 else (np.nan, np.nan)
        rows.append({"collection": collection, "measured": measured, "search": search, "budget": budget,
                     "speed-up": each.mean(), "low": low, "high": high, "programs": len(each)})
    return rows
