"""Additive trees: the cost of a configuration is the sum of what one set of trees says of each node's option.

`kit.option_features` describes each configurable node under each of its options by one row. LightGBM gives each row a
number, and these numbers add up over the nodes of the program. Runtimes are known for whole configurations alone, so
the loss, logistic over pairs of configurations as in `kit.models.boosted_trees`, is passed on through the sum. Because
a cost is a sum of one term per group, the terms explain it exactly, and the configuration of the lowest cost is the
best option of each group.
"""
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix

from kit.checks import check_graph, check_number, check_whole, expect
from kit.data import LayoutGraph
from kit.models.boosted_trees import PairLoss, Trees, load_lightgbm
from kit.option_features import option_features
from kit.precision import own_precision
from kit.prune import fewer_configs


@dataclass(frozen=True)
class AdditiveTreesSettings:
    """Settings of `AdditiveTrees`."""
    rounds: int = 100            # trees per bag
    leaves: int = 8              # per tree
    rows_per_leaf: int = 20      # at least; a row is an option of a node
    rate: float = 0.3            # how much each tree counts
    columns: float = 0.5         # share of the columns that each tree may read
    pairs: int = 16              # drawn per configuration
    bags: int = 3                # sets of trees that differ in their random draws alone; their mean counts
    rows: int = 200_000          # configurations in all, the same number per program
    seed: int = 0

    def __post_init__(self):
        check_whole(vars(self), rounds=1, leaves=2, rows_per_leaf=1, pairs=1, bags=1, rows=2, seed=0)
        check_number(vars(self), "a number above 0", "rate", "columns")
        check_number(vars(self), "a share, 0 to 1", "columns")


class AdditiveTrees(Trees):
    """Additive trees as a model of `kit.models`: `fit_scale` fits a booster per bag, and `forward` adds up a table."""

    def __init__(self, settings=None):
        super().__init__(settings or AdditiveTreesSettings())

    @own_precision()
    def fit_scale(self, graphs):
        """Fit the trees to layout graphs."""
        s = self.settings
        most = max(s.rows // len(graphs), 2)
        graphs = [fewer_configs(graph, most) for graph in graphs]
        sums, boosters = [_Sum(graph) for graph in graphs], []
        rows = np.concatenate([one.rows for one in sums])
        self.fitted.fill_(True)
        if not (len(rows) and np.ptp(rows, axis=0).any()):     # no feature differs: nothing can be learned
            return
        for bag in range(s.bags):
            rng = np.random.default_rng([s.seed, bag])
            loss = PairLoss([graph.config_runtime for graph in graphs], s.pairs, rng)
            boosters.append(load_lightgbm().train(
                {"objective": _SumLoss(loss, sums), "num_leaves": s.leaves, "learning_rate": s.rate,
                 "min_data_in_leaf": min(s.rows_per_leaf, len(rows) // 4), "feature_fraction": s.columns,
                 "seed": int(rng.integers(1 << 30)), "num_threads": 1, "deterministic": True, "force_col_wise": True,
                 "verbose": -1}, load_lightgbm().Dataset(rows), s.rounds))
        self.keep(boosters)

    def prepare(self, graph):
        """A graph whose tables are computed when `forward` first asks: the one step of a training asks one graph."""
        check_graph(graph, tile=False, least=0)
        return _Tables(graph)

    def configs_within(self, tensors, budget):
        """How many configurations one call may hold within `budget` bytes; at least 1."""
        return max(1, int(budget // (24 * max(tensors.graph.config_codes.shape[1], 1))))

    def forward(self, tensors, index):
        """Costs of the configurations `index`, (j,)."""
        if tensors.groups is None:
            tensors.groups = torch.tensor(_by_group(tensors.graph, self._ask(tensors)), dtype=torch.float32,
                                          device=self.log_scale.device)
        table = tensors.groups
        codes = torch.as_tensor(tensors.graph.config_codes[index.cpu().numpy()].astype(np.int64), device=table.device)
        return self.log_scale.exp() * table[torch.arange(len(table), device=table.device), codes].sum(dim=1)

    def terms(self, tensors):
        """What each code of each configurable node adds to the cost of a configuration, (nc, k) float64."""
        return self.log_scale.exp().item() * self._ask(tensors)

    def option_costs(self, graph):
        """What each code of each group adds to the cost of a configuration.

        Parameters
        ----------
        graph : LayoutGraph
            Pruned as in training. It need not have configurations.

        Returns
        -------
        ndarray, shape (g, k), float64
            The cost of a configuration is the sum over groups; it has no unit. Values for codes that a group does not
            have mean nothing.
        """
        return _by_group(graph, self.terms(self.prepare(graph)))

    def _ask(self, tensors):
        """What the trees say of each node and code, (nc, k)."""
        if tensors.nodes is None:
            tensors.nodes = np.zeros(tensors.graph.code_rows.shape[:2])
            if boosters := self.boosters():
                rows, place = _distinct_rows(tensors.graph, np.ones(tensors.nodes.shape, bool))
                tensors.nodes = np.mean([one.predict(rows, num_threads=1) for one in boosters], axis=0)[place]
        return tensors.nodes


@dataclass
class _Tables:
    """A graph, and what the codes of its nodes and of its groups cost, once it is known."""
    graph: LayoutGraph
    nodes: np.ndarray | None = None          # (nc, k) float64
    groups: torch.Tensor | None = None       # (g, k) float32


def best_configuration(model, graph):
    """The configuration of the lowest cost under additive trees: of each group, the option that costs least.

    Parameters
    ----------
    model : AdditiveTrees
        Trained.
    graph : LayoutGraph
        Pruned as in training. It need not have configurations.

    Returns
    -------
    ndarray, shape (g,), int64
        The code of each group, of those that the group has; of equal costs, the lowest code. It need not be one of the
        graph's configurations.

    Raises
    ------
    ValueError
        If an argument is of another kind.
    """
    expect(isinstance(model, AdditiveTrees), "model", model, "AdditiveTrees")
    costs = model.option_costs(graph)
    return np.where(np.arange(costs.shape[1]) < code_counts(graph)[:, None], costs, np.inf).argmin(axis=1)


def code_counts(graph):
    """How many codes each group has, (g,) int64: up to the last one that occurs or gives any layout."""
    counts = graph.config_codes.max(axis=0, initial=0) + np.int64(1)
    last = np.where((graph.code_rows >= 0).any(axis=2), np.arange(graph.code_rows.shape[1]) + 1, 1).max(axis=1)
    np.maximum.at(counts, graph.node_group, last)
    return counts


def _by_group(graph, costs):
    """Sum (nc, k) over the nodes of each group -> (g, k)."""
    table = np.zeros((graph.config_codes.shape[1], graph.code_rows.shape[1]))
    np.add.at(table, graph.node_group, costs)
    return table


def _distinct_rows(graph, read):
    """The distinct rows of features of the nodes and codes in `read` (nc, k), (r, f), and the row of each, (nc, k)."""
    rows, found = np.unique(option_features(graph)[1][read], axis=0, return_inverse=True)
    place = np.zeros(read.shape, np.int64)
    place[read] = found.reshape(-1)
    return rows, place


class _Sum:
    """The sum over nodes of a program as a matrix S, configurations x distinct rows, in two factors: codes @ members.

    The second factor says how many nodes of a group have each row under each code. So the first one, configurations x
    codes of all groups, has one entry per configuration and group, where S has one per configuration and node.
    """

    def __init__(self, graph):
        (c, groups), (nc, k) = graph.config_codes.shape, graph.code_rows.shape[:2]
        cells = graph.config_codes.astype(np.int64) + k * np.arange(groups)
        self.codes = csr_matrix((np.ones(c * groups), cells.ravel(), groups * np.arange(c + 1)), (c, groups * k))
        occurs = np.isin(np.arange(groups * k), cells).reshape(groups, k)[graph.node_group]
        self.rows, place = _distinct_rows(graph, occurs)
        cell = np.broadcast_to(graph.node_group[:, None] * k + np.arange(k), (nc, k))
        self.members = csr_matrix((np.ones(occurs.sum()), (cell[occurs], place[occurs])), (groups * k, len(self.rows)))
        self.nodes = nc

    def forward(self, values):
        """Sums of the values of rows, (r,) -> (c,)."""
        return self.codes @ (self.members @ values)

    def backward(self, values):
        """Sums over the configurations that a row is part of, (c,) -> (r,)."""
        return self.members.T @ (self.codes.T @ values)


class _SumLoss:
    """First and second derivative of a loss over configurations by what each row adds to their costs.

    The trees change all rows at once. By Cauchy-Schwarz, (sum of n changes)^2 <= n times the sum of their squares, so
    the second derivative is the loss's own, times the number of nodes; without the factor each step is too long, and
    training diverges.
    """

    def __init__(self, loss, sums):
        self.loss, self.sums = loss, sums
        self.rows = np.cumsum([0, *(one.members.shape[1] for one in sums)])
        self.configs = np.cumsum([0, *(one.codes.shape[0] for one in sums)])

    def __call__(self, values, _):
        cost = np.concatenate([one.forward(values[a:b]) for one, a, b in zip(self.sums, self.rows, self.rows[1:])])
        first, second = self.loss(cost, None)
        parts = list(zip(self.sums, self.configs, self.configs[1:]))
        return (np.concatenate([one.backward(first[a:b]) for one, a, b in parts]),
                np.concatenate([one.nodes * one.backward(second[a:b]) for one, a, b in parts]))
