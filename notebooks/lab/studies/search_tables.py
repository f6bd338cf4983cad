"""Rows of tables about searches: how much slower than the best known configuration each search ends."""
import numpy as np

from kit.metrics import default_tile_score, slowdown
from kit.noise import bootstrap_interval
from lab.studies.search_study import WITH_MODEL, WITHOUT_MODEL, study_reasons, study_rows

MAIN = "model, explore then droplet"     # the search that the others are held against
COMPARED = 10, 300                       # budgets within which it is; with more, its Gaussian process is full
ROW_BUDGET = 100                         # measurements among the rows of a file, at most; and half of its rows


def slowdown_rows(spaces, budgets, found, best):
    """How much slower than the best known configuration the searches of whole spaces end.

    Parameters
    ----------
    spaces : sequence of SearchSpace
    budgets : sequence of int
    found : dict of str to ndarray, shape (3, seeds, spaces, budgets)
        As from `study_searches`.
    best : ndarray, shape (spaces,)
        ns of the best known configuration of each space.

    Returns
    -------
    dict of (str, str) to ndarray, shape (seeds, programs, budgets)
        {(collection, strategy): slowdown}; NaN where a search was not run.
    list of dict
        A row per collection, strategy and budget that was run for all programs and seeds.
    """
    slower, rows = {}, []
    for collection in dict.fromkeys(space.collection for space in spaces):
        own = [place for place, space in enumerate(spaces) if space.collection == collection]
        default = np.array([spaces[place].default for place in own])
        for name, numbers in found.items():
            costs, measured, asked = numbers[:, :, own]                     # (seeds, programs, budgets) each
            slower[collection, name] = costs / best[own, None] - 1
            for b, budget in enumerate(budgets):
                ends = slower[collection, name][:, :, b]
                if np.isfinite(ends).all():
                    low, high = bootstrap_interval(ends, draws=500)
                    rows.append({
                        "collection": collection, "strategy": name, "budget": budget,
                        "measured": measured[:, :, b].mean(), "queries": asked[:, :, b].mean(),
                        "median slowdown": np.median(ends), "slowdown": ends.mean(), "low": low, "high": high,
                        "speed-up over default": (default / costs[:, :, b]).mean(),
                        "programs": len(own), "seeds": len(ends)})
    return slower, rows


def rival_rows(slower, budgets, speed_up):
    """The search with the model against the best search without one, paired by program and seed.

    Parameters
    ----------
    slower : dict of (str, str) to ndarray, shape (seeds, programs, budgets)
        As from `slowdown_rows`.
    budgets : sequence of int
    speed_up : mapping of (str, str, int) to float
        {(collection, strategy, budget): speed-up over the default}.

    Returns
    -------
    list of dict
        A row per collection and budget within `COMPARED`. A difference below 0: the model helps.
    """
    rows = []
    for collection in dict.fromkeys(collection for collection, _ in slower):
        for b, budget in enumerate(budgets):
            if not COMPARED[0] <= budget <= COMPARED[1]:
                continue
            ours, free = slower[collection, MAIN][:, :, b], {n: slower[collection, n][:, :, b] for n in WITHOUT_MODEL}
            rival = min((n for n in free if np.isfinite(free[n]).all()), key=lambda n: free[n].mean())
            low, high = bootstrap_interval(ours - free[rival])
            first = min(WITH_MODEL, key=lambda n: slower[collection, n][:, :, b].mean())
            rows.append({"collection": collection, "budget": budget, MAIN: ours.mean(), "best without model": rival,
                         "its slowdown": free[rival].mean(), "difference": (ours - free[rival]).mean(), "low": low,
                         "high": high, "speed-up over default": speed_up[collection, MAIN, budget],
                         "best with model": first})
    return rows


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
        Keeps what is finished, as for `study_rows`.

    Returns
    -------
    list of dict
        A row per budget: means over seeds, and the worst seed.
    """
    runtime, rows = graph.config_runtime, []
    few = [budget for budget in budgets if budget <= min(ROW_BUDGET, len(runtime) / 2)]
    searched = study_rows(graph, cost, few, seeds, store)
    for b, budget in enumerate(few):
        costs = {"random": [np.random.default_rng(s).permutation(runtime)[:budget].min() for s in range(20)],
                 "searched": searched["searched"][:, b],
                 "model's best": [runtime[np.argsort(cost, kind="stable")[:budget]].min()],
                 "searched with model": searched["searched with model"][:, b]}
        slower = {name: np.array(found) / runtime.min() - 1 for name, found in costs.items()}
        rows.append({"rows": len(runtime), "budget": budget, **{name: s.mean() for name, s in slower.items()},
                     **{f"{name}, worst": s.max() for name, s in slower.items() if len(s) > 1}})
    return rows


def reason_rows(graphs, model, defaults, k_hops=1):
    """Whether undoing the largest term of an explanation makes programs of the sample data faster.

    Parameters
    ----------
    graphs : sequence of LayoutGraph
        Whole programs of the sample data.
    model : ConfigTokenModel
    defaults : sequence of ndarray or None
        The compiler's default of each graph; without one, the graph is left out.
    k_hops : int

    Returns
    -------
    list of dict
        The change of the runtime if the named groups, or groups at random, are undone, and the difference; none for
        fewer than two programs.
    """
    each = [study_reasons(graph, model, code, np.random.default_rng(0), k_hops)
            for graph, code in zip(graphs, defaults) if code is not None]
    each = [one | {"difference": one["named"] - one["at random"]} for one in each
            if np.isfinite([*one.values()]).all()]
    rows = []
    for name in ("named", "at random", "difference") if len(each) > 1 else ():
        changes = np.array([one[name] for one in each])
        low, high = bootstrap_interval(changes)
        rows.append({"undone": name, "change of the runtime": changes.mean(), "low": low, "high": high,
                     "correlation": np.mean([one["correlation"] for one in each]), "programs": len(each)})
    return rows


def tile_rows(costs, runtimes):
    """The model's five first tile sizes against five at random and the compiler's default.

    Parameters
    ----------
    costs : dict of str to ndarray, shape (c,)
        {kernel: predicted cost}.
    runtimes : dict of str to ndarray, shape (c,)
        {kernel: runtime / runtime of the default}, of the same kernels.

    Returns
    -------
    list of dict
        A row per way to choose; none for fewer than two kernels. A difference below 0: better than random.
    """
    rng, rows = np.random.default_rng(0), []
    ways = {"model's top 5": [slowdown(costs[i], known) for i, known in runtimes.items()],
            "5 at random": [np.mean([slowdown(rng.random(len(t)), t) for _ in range(100)]) for t in runtimes.values()],
            "compiler's default": [1 - default_tile_score(t) for t in runtimes.values()]}
    for name, slower in ways.items() if len(runtimes) > 1 else ():
        apart = np.subtract(slower, ways["5 at random"])
        rows.append({"measured": name, "slowdown": np.mean(slower),
                     **dict(zip(("low", "high"), bootstrap_interval(slower))), "difference to random": apart.mean(),
                     **dict(zip(("from", "to"), bootstrap_interval(apart))), "kernels": len(runtimes)})
    return rows


def space_speed_ups(spaces, budgets, found):
    """How much faster than the compiler's default the searches of whole spaces end.

    Parameters
    ----------
    spaces, budgets, found
        As for `slowdown_rows`.

    Returns
    -------
    dict of (str, str, str, int) to ndarray, shape (programs,)
        {(collection, "whole space", "with model" or "random", budget): speed-ups}, means over seeds. Programs without a
        known default are left out, and so are budgets with which a search was not run.
    """
    ups = {}
    for collection in dict.fromkeys(space.collection for space in spaces):
        own = [i for i, space in enumerate(spaces) if space.collection == collection and np.isfinite(space.default)]
        default = np.array([spaces[i].default for i in own])
        for search, name in (("with model", MAIN), ("random", "random")):
            faster = (default[:, None] / found[name][0][:, own]).mean(axis=0)                   # (programs, budgets)
            ups |= {(collection, "whole space", search, budget): one for budget, one in zip(budgets, faster.T)
                    if len(own) and np.isfinite(one).all()}
    return ups


def row_speed_ups(rows):
    """How much faster than the compiler's default the searches among rows of files end.

    Parameters
    ----------
    rows : sequence of dict
        As from `file_rows`, and "collection", "rows of a", and "default", the slowdown of the default.

    Returns
    -------
    dict of (str, str, str, int) to ndarray, shape (programs,)
        As from `space_speed_ups`, with "rows of a" in the place of "whole space".
    """
    ups = {}
    for row in rows:
        for search, name in (("with model", "searched with model"), ("random", "random")):
            key = row["collection"], f"rows: {row['rows of a']}", search, row["budget"]
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
        As from `space_speed_ups`, with "tile sizes" in the place of "whole space".
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
        As from `space_speed_ups`.

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
