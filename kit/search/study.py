"""Searches compared over programs and seeds; what each has found is kept, so that a study goes on where it was."""
import hashlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kit.data import DataError
from kit.prune import config_ids, prune
from kit.run import load_costs, save_costs
from kit.search.descent import MOST_REMEMBERED
from kit.search.gradient import gradient_search, on_codes, relaxed_token_cost
from kit.search.oracle import default_codes, search_rows, search_space, simulated_runtime
from kit.search.strategies import annealing, droplet, explore_then_droplet, genetic, guided, random_search
from kit.training import versions

WITHOUT_MODEL = ("random", "annealing", "genetic", "droplet", "explore then droplet")
WITH_MODEL = ("model's best rows", "model, genetic", "model, gradient", "model, explore then droplet")
ROW_SEARCHES = ("searched", "searched with model")
ASKED_WHOLE = 100_000      # points of a space; the simulator answers them in seconds
SEARCH_FORM = 2            # raised where a search or the simulator changes: what was kept before is searched again
SEARCH_LINE_EVERY = 60            # seconds; a line for each seed would fill a stored notebook


class SearchSpace(NamedTuple):
    """A program of the sample data whose whole space can be searched: g groups of nodes, r different rows."""
    collection: str
    graph_id: str
    dims: np.ndarray       # (g,) int64
    truth: Callable        # (k, g) int64 codes -> (k,) ns, without noise
    relaxed: Callable      # (k, g, v) weights -> (k,) costs of the model
    ranked: np.ndarray     # (r,) ns of the different rows of its file, the model's best first
    default: float         # ns of the compiler's default; NaN if the file does not tell
    device: str            # of the model
    program: str           # fingerprint of what decides over `truth` and `dims`
    model: str             # fingerprint of what decides over `relaxed` and `ranked`


def open_space(collection, graph, model, k_hops=1, device="cpu"):
    """Prepare a program of the sample data for searches of its whole space.

    Parameters
    ----------
    collection : str
    graph : LayoutGraph
        Whole, as it was read.
    model : ConfigTokenModel
    k_hops : int
        What the model sees of the graph.
    device : str or torch.device
        Of the model.

    Returns
    -------
    SearchSpace
    """
    truth, dims, default = simulated_runtime(graph), search_space(graph), default_codes(graph)
    relaxed = relaxed_token_cost(model, model.prepare(prune(graph, k_hops)))
    rows = graph.config_codes[np.sort(np.unique(config_ids(graph), return_index=True)[1])].astype(np.int64)
    ranked = truth(rows[np.argsort(on_codes(relaxed, dims, device)(rows), kind="stable")])
    program = fingerprint([graph.node_feat, graph.node_opcode, graph.edge_index, graph.node_config_ids,
                           graph.node_group, graph.code_rows, dims, SEARCH_FORM, versions()])
    return SearchSpace(collection, graph.graph_id, dims, truth, relaxed, ranked,
                       np.nan if default is None else float(truth(default[None])[0]), str(device), program,
                       fingerprint([program, tuple(graph), model, k_hops, str(device), torch.get_num_threads()]))


def best_known(space, questions=10_000):
    """The fastest configuration that many questions to the simulator find; all of a space of up to 100,000 are asked.

    Parameters
    ----------
    space : SearchSpace
    questions : int
        Of a larger space: asked by a genetic search, and at most as many by Droplet from where that ends.

    Returns
    -------
    float
        ns.
    """
    whole = np.prod(space.dims.astype(float)) <= ASKED_WHOLE
    search, asked = (random_search, ASKED_WHOLE) if whole else (genetic, questions)
    start = search(space.truth, space.dims, asked, np.random.default_rng(0)).best
    return droplet(space.truth, space.dims, questions, np.random.default_rng(0), start=start).best_cost


def study_searches(spaces, budgets, seeds, queries, out, report=print):
    """Search every space in every way with every budget and seed; what an earlier call has found is read.

    Parameters
    ----------
    spaces : sequence of SearchSpace
    budgets : sequence of int
        Measurements, ascending. Explore then droplet is run up to 300, beyond which its Gaussian process forgets.
    seeds : int
        Searches of each space, seeded 0, 1, 2...
    queries : int
        Of the model, for one search of a whole space.
    out : str or Path
        The folder of the run. Each space's searches of a seed go to its checkpoints/searches/ when they are finished:
        those without a model, which all models share, in one file, the others in another. Other programs, weights,
        settings or versions of what computes give other files.
    report : callable
        Called with one line of text for each space, and once a minute.

    Returns
    -------
    dict of str to ndarray, shape (3, seeds, spaces, budgets)
        {strategy: ns of the best measured, measurements, queries}; NaN where it was not run.
    """
    found = {name: np.full((3, seeds, len(spaces), len(budgets)), np.nan) for name in (*WITHOUT_MODEL, *WITH_MODEL)}
    shown = -np.inf
    for place, space in enumerate(spaces):
        for seed in range(seeds):
            if seed == 0 or time.monotonic() - shown > SEARCH_LINE_EVERY:
                shown = time.monotonic()
                report(f"{place + 1} of {len(spaces)}  {space.collection}, seed {seed + 1} of {seeds}: "
                       f"{space.graph_id}")
            kept = _kept(out, "free", WITHOUT_MODEL, 3 * len(budgets), [space.program, budgets, seed],
                         partial(_search_free, space, budgets, seed), report)
            kept |= _kept(out, "guided", WITH_MODEL, 3 * len(budgets), [space.model, budgets, seed, queries],
                          partial(_search_guided, space, budgets, seed, queries), report)
            for name, numbers in kept.items():
                found[name][:, seed, place] = numbers.reshape(3, -1)
    return found


def study_rows(graph, cost, budgets, seeds, out, report=print):
    """Search the rows of a file with every budget and seed, with a model and without; as `study_searches`.

    Parameters
    ----------
    graph : LayoutGraph
        Each configuration once.
    cost : ndarray, shape (c,)
        The model's.
    budgets : sequence of int
    seeds : int
    out : str or Path
        The folder of the run; each seed's searches are kept in its checkpoints/searches/.
    report : callable
        Called with one line of text where a file of them was damaged.

    Returns
    -------
    dict of str to ndarray, shape (seeds, budgets)
        {"searched" or "searched with model": runtime of the best measured}.

    Raises
    ------
    ValueError
        If a configuration stands in two rows.
    """
    key = fingerprint([graph.config_runtime, graph.config_codes, cost, SEARCH_FORM, versions()])
    found = [_kept(out, "rows", ROW_SEARCHES, len(budgets), [key, budgets, seed],
                   partial(_search_rows, graph, cost, budgets, seed), report) for seed in range(seeds)]
    return {name: np.array([one[name] for one in found]) for name in ROW_SEARCHES}


def fingerprint(value):
    """Hex digest of plain values, arrays, tensors, models, and lists, tuples and dicts of them: equal if all is equal.

    Parameters
    ----------
    value : object
        Of a model, its class, settings and weights count.

    Returns
    -------
    str

    Examples
    --------
    >>> one, same, other = (fingerprint({"codes": np.arange(3), "k": k}) for k in (1, 1, 2))
    >>> one == same, one == other
    (True, False)
    """
    if isinstance(value, torch.nn.Module):
        value = [type(value).__name__, repr(value.settings), dict(value.state_dict())]
    if isinstance(value, dict):
        value = [list(value), list(value.values())]
    if isinstance(value, torch.Tensor):
        value = value.numpy(force=True)
    if isinstance(value, np.ndarray):
        return hashlib.sha256(f"{value.dtype} {value.shape} ".encode() + value.tobytes()).hexdigest()
    if isinstance(value, (list, tuple)):
        value = [fingerprint(one) for one in value]
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _kept(out, kind, names, size, about, search, report):
    """{strategy: (size,) float64}: read where it was kept, else searched and kept."""
    path = Path(out, "checkpoints", "searches", f"{kind}-{fingerprint(about)[:16]}.npz")
    try:
        found = load_costs(path)
    except FileNotFoundError:
        found = None
    except DataError:
        found = {}
    if found is not None:
        if {name: (len(c), c.dtype) for name, c in found.items()} == dict.fromkeys(names, (size, np.float64)):
            return found
        report(f"note  {path} was half-written or damaged; it is searched again")
    found = {name: np.array(numbers, np.float64).ravel() for name, numbers in search().items()}
    save_costs(path, found)
    return found


def _told(results):
    """Searches, one a budget, None if not run -> (3, budgets): best cost, measurements, queries."""
    return np.array([[np.nan] * 3 if r is None else [r.best_cost, r.measurements, r.queries] for r in results]).T


def _search_free(space, budgets, seed):
    """Every search without a model."""
    searches = random_search, annealing, genetic, droplet, explore_then_droplet
    return {name: _told([search(space.truth, space.dims, budget, np.random.default_rng([seed, 0]))
                         if search is not explore_then_droplet or budget <= MOST_REMEMBERED else None
                         for budget in budgets]) for name, search in zip(WITHOUT_MODEL, searches)}


def _search_rows(graph, cost, budgets, seed):
    """Rows of a file, without the model and with it."""
    runtime, codes = graph.config_runtime, graph.config_codes
    return {name: [search_rows(runtime, codes, budget, np.random.default_rng(seed), cost=by).best_cost
                   for budget in budgets] for name, by in zip(ROW_SEARCHES, (None, cost))}


def _search_guided(space, budgets, seed, queries):
    """Every search with the model; the whole space is searched once in two ways for all budgets."""
    truth, dims, cost = space.truth, space.dims, on_codes(space.relaxed, space.dims, space.device)
    bred = genetic(cost, dims, queries, np.random.default_rng([seed, 1]))
    # two thirds: as a strategy it asks for what it found once more, of the model, and at most half are found
    walked = gradient_search(cost, dims, queries, np.random.default_rng([seed, 2]), relaxed=space.relaxed,
                             queries=max(2 * queries // 3, 2), device=space.device)

    def run(search, proposed, most=np.inf):
        return _told([search(truth, dims, budget, np.random.default_rng([seed, 0]), model=cost, queries=queries,
                             strategy=lambda *_: proposed) if budget <= most else None for budget in budgets])

    def listed(ranked, asked):
        return np.array([[ranked[:budget].min(), len(ranked[:budget]), asked] for budget in budgets]).T
    return dict(zip(WITH_MODEL, (listed(space.ranked, len(space.ranked)), run(guided, bred), run(guided, walked),
                             run(explore_then_droplet, walked, MOST_REMEMBERED))))
