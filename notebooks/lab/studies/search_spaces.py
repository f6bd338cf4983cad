"""The space of a program's configurations, and for simulated data the true runtime of each configuration.

A configuration is one code per group of nodes. A group has the codes that the program's file shows.
"""
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from kit.data import content_digest
from kit.prune import config_ids, prune
from kit.search import droplet, genetic, on_codes, random_search, relaxed_token_cost
from kit.training import versions
from lab.run.store import digest_of
from lab.sample import LayoutSimulator

MEASURED_WHOLE = 100_000   # points of a space; the simulator answers them in seconds
REPEATED = 10              # the data set measures the default about 40 times per file; a part of a file may hold fewer


class SearchSpace(NamedTuple):
    """A program of the sample data whose whole space can be searched: g groups of nodes, r different rows."""
    collection: str
    graph_id: str
    dims: np.ndarray       # (g,) int64
    truth: Callable        # (k, g) int64 codes -> (k,) ns, without noise
    relaxed: Callable      # (k, g, v) weights -> (k,) costs of the model
    ranked: np.ndarray     # (r,) ns of the different rows of the file, the model's best first
    default: float         # ns of the compiler's default; NaN if the file does not tell
    device: str            # of the model
    program: str           # digest of everything that decides over `truth` and `dims`
    model: str             # digest of everything that decides over `relaxed` and `ranked`


def search_space(graph):
    """The number of codes of each group of a layout file (g,), int64: the `dims` of a search."""
    return graph.config_codes.max(axis=0).astype(np.int64) + 1


def default_codes(graph):
    """The compiler's default (g,), int64: the configuration that a file, with its repeats, measures most often.

    None if no configuration was measured ten times, because then the file does not tell.
    """
    label = config_ids(graph)
    repeats = np.bincount(label)
    if repeats.max() < REPEATED:
        return None
    return graph.config_codes[np.argmax(label == repeats.argmax())].astype(np.int64)


def simulated_runtime(graph):
    """The true runtimes of a whole graph of the sample data: (k, g) int codes -> (k,) ns, without noise."""
    run = LayoutSimulator(graph.node_feat, graph.node_opcode, graph.edge_index, graph.node_config_ids)
    nodes = np.arange(len(graph.node_group))
    return lambda points: 1e9 * run(graph.code_rows[nodes, np.asarray(points)[:, graph.node_group]])


def open_space(collection, graph, model, k_hops=1, device="cpu"):
    """Prepare a whole graph of the sample data, as it was read, for searches of its whole space -> SearchSpace.

    The ConfigTokenModel sees the neighbourhood within `k_hops` of the configurable nodes; `device` is the model's.
    """
    truth, dims, default = simulated_runtime(graph), search_space(graph), default_codes(graph)
    relaxed = relaxed_token_cost(model, model.prepare(prune(graph, k_hops)))
    rows = graph.config_codes[np.sort(np.unique(config_ids(graph), return_index=True)[1])].astype(np.int64)
    ranked = truth(rows[np.argsort(on_codes(relaxed, dims, device)(rows), kind="stable")])
    program = digest_of([graph.node_feat, graph.node_opcode, graph.edge_index, graph.node_config_ids,
                           graph.node_group, graph.code_rows, dims, versions()])
    return SearchSpace(collection, graph.graph_id, dims, truth, relaxed, ranked,
                       np.nan if default is None else float(truth(default[None])[0]), str(device), program,
                       digest_of([program, content_digest(graph), model, k_hops, str(device), torch.get_num_threads()]))


def best_known(space, questions=10_000):
    """The lowest runtime, in ns, that many questions to the simulator find; a space of up to 100,000 is asked whole.

    In a larger space, a genetic search asks `questions`, and Droplet at most as many from where it ends.
    """
    whole = np.prod(space.dims.astype(float)) <= MEASURED_WHOLE
    search, asked = (random_search, MEASURED_WHOLE) if whole else (genetic, questions)
    start = search(space.truth, space.dims, asked, np.random.default_rng(0)).best
    return droplet(space.truth, space.dims, questions, np.random.default_rng(0), start=start).best_cost
