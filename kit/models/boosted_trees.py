"""Boosted trees on `kit.features`: no GPU, seconds instead of minutes, another kind of member for an ensemble.

LightGBM fits trees to pairs of configurations of the same program: the faster one should have the lower cost (logistic
loss, as RankNet: Burges et al., Learning to rank using gradient descent, ICML 2005). Where more of a feature can only
cost time, such as a copy, the cost never falls with it. The 11th place of the competition used such trees alone.
"""
from dataclasses import dataclass

import numpy as np
import torch

from kit.checks import check_number, check_whole
from kit.data import LayoutGraph
from kit.features import config_features, rising
from kit.precision import own_precision
from kit.prune import fewer_configs


@dataclass(frozen=True)
class BoostedTreesSettings:
    """Settings of `BoostedTrees`; fewer leaves and more rows per leaf suit few programs."""
    rounds: int = 150            # trees
    leaves: int = 8              # per tree
    rows_per_leaf: int = 50      # at least
    rate: float = 0.1            # how much each tree counts
    pairs: int = 16              # drawn per configuration
    rows: int = 200_000          # configurations in all, the same number per program
    seed: int = 0

    def __post_init__(self):
        check_whole(vars(self), rounds=1, leaves=2, rows_per_leaf=1, pairs=1, rows=2, seed=0)
        check_number(vars(self), "a number above 0", "rate")


class Trees(torch.nn.Module):
    """What models of LightGBM share: the trees are a buffer, so they are saved and read as the weights of a network.

    The one weight scales the costs, which changes no order; training it is only a formality.
    """
    transductive = False         # the same costs, whichever configurations `forward` is asked for together

    @own_precision()
    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.log_scale = torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("fitted", torch.tensor(False))
        self.register_buffer("trees", torch.zeros(0, dtype=torch.uint8))         # LightGBM's texts, "\0" between them

    def keep(self, boosters):
        """Hold the trees of these boosters."""
        texts = "\0".join(one.model_to_string() for one in boosters)
        self.trees = torch.frombuffer(bytearray(texts, "utf-8"), dtype=torch.uint8)

    def boosters(self):
        """The boosters whose trees are held; [] if nothing was learned."""
        texts = bytes(self.trees.cpu().numpy()).decode("utf-8")
        return [load_lightgbm().Booster(model_str=text) for text in texts.split("\0")] if texts else []

    def _load_from_state_dict(self, state, prefix, *rest):
        self.trees = state.get(f"{prefix}trees", self.trees)                     # of any length
        super()._load_from_state_dict(state, prefix, *rest)


class BoostedTrees(Trees):
    """Trees as a model of `kit.models`: `fit_scale` fits them, and `forward` looks up what they say.

    Each column of the features is standardised within the file, so a cost depends on the other configurations there.
    """

    def __init__(self, settings=None):
        super().__init__(settings or BoostedTreesSettings())

    @own_precision()
    def fit_scale(self, graphs):
        """Fit the trees to layout graphs."""
        s = self.settings
        most = max(s.rows // len(graphs), 2)
        graphs = [fewer_configs(graph, most) for graph in graphs]
        tables = [config_features(graph) for graph in graphs]
        rows = np.concatenate([_standardised(table) for table in tables])
        self.fitted.fill_(True)
        if not rows.any():                       # no feature differs: nothing can be learned
            return
        objective = PairLoss([graph.config_runtime for graph in graphs], s.pairs, np.random.default_rng(s.seed))
        trees = load_lightgbm().train(
            {"objective": objective, "num_leaves": s.leaves, "min_data_in_leaf": min(s.rows_per_leaf, len(rows) // 4),
             "learning_rate": s.rate, "feature_fraction": 0.5, "monotone_constraints": rising(tables[0].columns),
             "seed": s.seed, "num_threads": 1, "deterministic": True, "force_col_wise": True, "verbose": -1},
            load_lightgbm().Dataset(rows), s.rounds)
        self.keep([trees])

    def prepare(self, graph):
        """A graph whose costs are computed when `forward` first asks: the one step of a training asks one graph."""
        return _Costs(graph)

    def configs_within(self, tensors, budget):
        """All: what is held are the costs alone."""
        return len(tensors.graph.config_codes)

    def forward(self, tensors, index):
        """Costs of the configurations `index`, (k,)."""
        if tensors.costs is None:
            tensors.costs = torch.tensor(self._ask(tensors.graph), dtype=torch.float32, device=self.log_scale.device)
        return self.log_scale.exp() * tensors.costs[index]

    def _ask(self, graph):
        """What the trees say of each configuration, (c,)."""
        if boosters := self.boosters():
            return boosters[0].predict(_standardised(config_features(graph)), num_threads=1)
        return np.zeros(len(graph.config_codes))


@dataclass
class _Costs:
    """A graph, and the costs of its configurations, (c,), once they are known."""
    graph: LayoutGraph
    costs: torch.Tensor | None = None


class PairLoss:
    """Gradient of the logistic loss over pairs of rows of the same program, drawn once; every program counts the same.

    `runtimes`: of the rows, one array per program.
    """

    def __init__(self, runtimes, pairs, rng):
        faster, slower, weights, start = [], [], [], 0
        for runtime in runtimes:
            one, other = rng.integers(0, len(runtime), (2, pairs * len(runtime)))
            right = runtime[one] < runtime[other]
            faster.append(start + one[right])
            slower.append(start + other[right])
            weights.append(np.full(right.sum(), 1000 / max(right.sum(), 1)))
            start += len(runtime)
        self.faster, self.slower, self.weights = map(np.concatenate, (faster, slower, weights))
        self.rows = start

    def __call__(self, cost, _):
        """First and second derivative by the cost of each row."""
        wrong = 1 / (1 + np.exp(np.clip(cost[self.slower] - cost[self.faster], -50, 50)))
        first, second = self.weights * wrong, self.weights * np.maximum(wrong * (1 - wrong), 1e-3)
        up, down = (np.bincount(rows, first, self.rows) for rows in (self.faster, self.slower))
        return up - down, sum(np.bincount(rows, second, self.rows) for rows in (self.faster, self.slower))


def _standardised(table):
    """The columns with mean 0 and deviation 1, (c, f) float32; a column of one value becomes 0."""
    values = table.to_numpy().astype(np.float64)
    deviation = values.std(axis=0)
    deviation[deviation < 1e-6 * np.abs(values).max(axis=0, initial=1)] = np.inf         # rounding alone
    return ((values - values.mean(axis=0)) / deviation).astype(np.float32)


def load_lightgbm():
    """LightGBM, which is loaded only where trees are used."""
    import lightgbm
    return lightgbm
