"""Recipes: for each collection the networks to train, their sizes, optimisers and losses.

"short" is what the notebooks train by default on sample data, minutes on two CPU cores; the GNN, which the validation
graphs give little weight there, is trained least. "quick" is their default on real files, and what the studies were
made with. "full" is for the whole data set on a GPU;
notebooks/recipes.md has its times, memory and what to expect, and says which of these numbers are estimates.
"""
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kit.losses import list_mle_loss, pairwise_hinge_loss
from kit.models import ConfigTokenModel, ConfigTokenSettings, LayoutGNN, LayoutGNNSettings, TileModel, TileModelSettings
from kit.train import TrainSettings

SCALES = ("short", "quick", "full")
FEW_PROGRAMS = 4                 # learning from 2 real programs, the short form ranks a third at tau .7, the long at .4


class Recipe(NamedTuple):
    """One model to train: `network(shape)` by `settings` on `loss`."""
    network: type
    shape: object                # the network's settings
    settings: TrainSettings
    loss: Callable = pairwise_hinge_loss
    seeds: int = 2               # models to train that differ in their seed alone


def recipes_for(collection, scale="quick", programs=None):
    """The members of a collection's ensemble.

    Parameters
    ----------
    collection : str
    scale : str
        "short", "quick" or "full".
    programs : int, optional
        How many there are to train on. Below `FEW_PROGRAMS` the token model reads nothing of a node but its opcode
        and what agreement tells: of two real programs it learned the rest by heart.

    Returns
    -------
    dict of str to Recipe
        {name of the member: recipe}; seeds and device are the caller's.

    Raises
    ------
    ValueError
        If there is no such scale.

    Examples
    --------
    >>> list(recipes_for("layout:xla:random"))
    ['token', 'gnn']
    """
    if scale not in SCALES:
        raise ValueError(f"no recipe {scale!r}; there are {', '.join(SCALES)}")
    full, short = scale == "full", scale == "short"
    if collection == "tile:xla":
        shape = TileModelSettings(width=128 if full else 64)
        settings = TrainSettings(30_000, 128, 8) if full else TrainSettings(500 if short else 1000, 64, 4)
        return {"tile": Recipe(TileModel, shape, settings, list_mle_loss, seeds=2 if short else 3)}
    few = programs is not None and programs < FEW_PROGRAMS
    shape = ConfigTokenSettings(features=False, digits=False, graph_blocks=0) if few else ConfigTokenSettings()
    token = TrainSettings(1000 if short else 1200, 256, learning_rate=5e-3)
    gnn = LayoutGNNSettings(256 if full else 64, config_attention=False, both_directions=True, agreement=True)
    steps = TrainSettings(250 if short else 400, 32)
    if full:
        token = TrainSettings(20_000, 1024)
        # as the first place: attention over 64 configurations for `default`, 128 without it for `random`
        random = collection.endswith("random")
        gnn = replace(gnn, config_attention=not random)
        steps = TrainSettings(50_000, 128 if random else 64, memory_budget=10 << 30, average="swa")
    return {"token": Recipe(ConfigTokenModel, shape, token),
            "gnn": Recipe(LayoutGNN, gnn, steps, seeds=1 if short else 2)}
