"""Recipes: which networks are trained for each collection, with their sizes, optimisers and losses.

Each recipe has four scales:

- "tiny": a few steps, to try the cells.
- "short": the notebooks' default on measured programs, minutes on two CPU cores. The GNN is trained least, because its
  steps take the most time.
- "quick": the notebooks' default on real files; the studies used it, too.
- "full": for the whole data set on a GPU. notebooks/recipes.md has its times, its memory and what to expect, and says
  which of these numbers are estimates.
"""
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import NamedTuple

from kit import models
from kit.checks import check_choice, check_whole
from kit.data import COLLECTIONS
from kit.losses import list_mle_loss, pairwise_hinge_loss, standardised_hinge_loss
from kit.train import TrainSettings

SCALES = ("tiny", "short", "quick", "full")
FEW_PROGRAMS = 4         # with fewer, the token model has its short form: trained on 2 real programs, the short form
#                          ranked a third program at tau 0.7, the long form at 0.4
SEGMENT_STEPS = 2        # times as many steps on segments: a step takes less time, and at equal steps segments lose


class Recipe(NamedTuple):
    """One model to train: `network(shape)`, with `settings` and `loss`."""
    network: type
    shape: object                # the network's settings
    settings: TrainSettings
    loss: Callable = pairwise_hinge_loss
    seeds: int = 2               # how many models to train; only their seeds differ
    together: bool = False       # True: one model for all layout collections of a run, trained on all their programs

    def changed(self, **settings):
        """The recipe with other settings of its network or of its training.

        Parameters
        ----------
        **settings
            Fields of `shape` and of `settings`, such as width=128 and steps=2000; "seeds", the number of models.

        Returns
        -------
        Recipe

        Raises
        ------
        ValueError
            If the recipe has no such setting, or a value is out of range.

        Examples
        --------
        >>> recipes_for("tile:xla")["tile"].changed(steps=10, width=32).settings.steps
        10
        """
        network, training = ({field.name for field in fields(one)} for one in (self.shape, self.settings))
        unknown = settings.keys() - network - training - {"seeds"}
        if unknown:
            raise ValueError(f"{self.network.__name__} has no setting {', '.join(sorted(unknown))}; there are "
                             f"{', '.join(sorted({*network, *training, 'seeds'}))}")
        check_whole(settings, **{name: 1 for name in ("seeds", "steps") if name in settings})
        shape, steps = ({name: value for name, value in settings.items() if name in names}
                        for names in (network, training - network))
        return self._replace(shape=replace(self.shape, **shape), settings=replace(self.settings, **steps),
                             seeds=settings.get("seeds", self.seeds))


def recipes_for(collection, scale="quick", programs=None, segments=None):
    """The recipes for the ensemble of a collection.

    Parameters
    ----------
    collection : str
    scale : str
        "tiny", "short", "quick" or "full".
    programs : int, optional
        The number of training programs. Below `FEW_PROGRAMS`, the token model reads only the opcode of a node and the
        agreement of layouts, because with two real programs it overfitted to its other inputs, the bytes among them.
    segments : int, optional
        Train the GNN by Graph Segment Training, on segments of at most this many nodes: for graphs that are too large
        to train on whole, such as graphs that are not pruned. The GNN then takes twice as many steps. None: on whole
        graphs. Tiles and the token model do not need segments, so nothing changes for them.

    Returns
    -------
    dict of str to Recipe
        {name of the model: recipe}. The caller sets seeds and device.

    Raises
    ------
    ValueError
        If the collection or the scale is unknown, or `programs` or `segments` is not a whole number.

    Examples
    --------
    >>> list(recipes_for("layout:xla:random"))
    ['token', 'lightgbm', 'additive', 'gnn']
    """
    check_choice(locals(), collection=COLLECTIONS, scale=SCALES)
    given = {name: value for name, value in (("programs", programs), ("segments", segments)) if value is not None}
    check_whole(given, **{name: int(name == "segments") for name in given})
    full, tiny, short = scale == "full", scale == "tiny", scale in ("tiny", "short")
    if collection == "tile:xla":
        shape = models.TileModelSettings(width=128 if full else 64)
        settings = TrainSettings(30_000, 128, 8) if full else TrainSettings(320 if short else 1000, 64, 4)
        recipes = {"tile": Recipe(models.TileModel, shape, settings, list_mle_loss, seeds=2 if short else 3)}
        return _tried(recipes) if tiny else recipes
    few = programs is not None and programs < FEW_PROGRAMS
    together = short and not few
    shape = models.ConfigTokenSettings()
    if few:
        shape = models.ConfigTokenSettings(features=False, digits=False, bytes=False, graph_blocks=0)
    token = TrainSettings(850 if short else 1200, 256, learning_rate=5e-3)
    gnn = models.LayoutGNNSettings(256 if full else 64, config_attention=False, both_directions=True, agreement=True)
    steps = TrainSettings(125 if short else 400, 32)
    if full:
        token = TrainSettings(20_000, 1024, learning_rate=5e-3)      # rate: of up to 200 simulated programs
        # like the first place: 64 configurations with attention for `default`, 128 without attention for `random`
        random = collection.endswith("random")
        gnn = replace(gnn, config_attention=not random)
        steps = TrainSettings(50_000, 128 if random else 64, memory_budget=10 << 30, average="swa")
    # the standardised loss was not studied with few programs, nor on the whole data set
    loss = pairwise_hinge_loss if full or few else standardised_hinge_loss
    network = models.LayoutGNN
    if segments is not None:
        network, gnn = models.SegmentGNN, models.SegmentGNNSettings(**asdict(gnn), segment_nodes=segments)
        steps = replace(steps, steps=SEGMENT_STEPS * steps.steps)
    recipes = {"token": Recipe(models.ConfigTokenModel, shape, token, loss, together=together),
               "lightgbm": Recipe(models.BoostedTrees, models.BoostedTreesSettings(), TrainSettings(1),
                                  together=together),
               "additive": Recipe(models.AdditiveTrees, models.AdditiveTreesSettings(), TrainSettings(1),
                                  together=together),
               "gnn": Recipe(network, gnn, steps, seeds=1 if short else 2)}
    return _tried(recipes) if tiny else recipes


def _tried(recipes):
    """Recipes with one seed and a few steps."""
    return {name: one.changed(steps=min(one.settings.steps, 10 if name == "gnn" else 20), seeds=1)
            for name, one in recipes.items()}
