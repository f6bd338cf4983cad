"""Which models are trained, and which collections and programs each one learns from."""
from dataclasses import replace
from typing import NamedTuple

from kit.checks import check_whole
from kit.data import COLLECTIONS
from kit.prune import drop_duplicate_configs, fewer_configs
from kit.recipes import Recipe, recipes_for

FEW_GRAPHS = 10          # with fewer validation graphs, chance would choose among weights (notebooks/studies.md)
SET_BY_RUN = ("seed", "device", "keep", "validate_every")       # in `with_seed`
VALID_CONFIGS = 200      # of each validation graph, while a model is trained; whole graphs are ranked at the end


class Member(NamedTuple):
    """One model of an ensemble: its kind, its seed, its recipe, what it learns from and what it ranks."""
    kind: str                # such as "token"
    seed: int
    recipe: Recipe
    trains_on: tuple         # collections: it learns from their training graphs
    ranks: tuple             # collections: it ranks their validation and test graphs
    fold: int = None         # the training graphs of this fold are left out of its training, and ranked
    left_out: tuple = ()     # graph_id of each of them

    @property
    def name(self):
        """What lines of progress call it."""
        fold = "" if self.fold is None else f" fold {self.fold}"
        return f"{' + '.join(self.trains_on)}, {self.kind}, seed {self.seed}{fold}"

    def taught(self, data):
        """The graphs that it learns from."""
        return [graph for graph in data.graphs(self.trains_on) if graph.graph_id not in self.left_out]

    def judged_by(self, data):
        """The validation graphs that choose its weights; with few of them, the last weights are kept."""
        valid = [drop_duplicate_configs(graph)[0] if data.counts_once(c) else graph       # as `data.score` counts
                 for c in self.trains_on for graph in data.valid[c]]
        return [g if hasattr(g, "config_feat") else fewer_configs(g, VALID_CONFIGS) for g in valid]

    def asked(self, data):
        """{(collection, split): {ID: graph}} of what it ranks; "train": the graphs that were left out."""
        found = {(c, split): data.named(c, split) for c in self.ranks for split in ("valid", "test")}
        if self.fold is not None:
            found |= {(c, "train"): {i: g for i, g in data.named(c, "train").items() if g.graph_id in self.left_out}
                      for c in self.ranks if c in self.trains_on}
        return found


def choose_recipes(data, scale, models=None, changes=None, segments=None):
    """The recipes for each collection that has something to train on.

    Parameters
    ----------
    data : lab.data.Data
    scale : str
        As for `kit.recipes.recipes_for`.
    models : str or sequence of str, optional
        The kinds to train, such as "token,lightgbm"; None: all of the recipe.
    changes : dict of str to dict, optional
        {kind: {setting: value}}, as for `Recipe.changed`, such as {"token": {"steps": 2000}}.
    segments : int, optional
        As for `recipes_for`.

    Returns
    -------
    dict of str to dict
        {collection: {kind: Recipe}}

    Raises
    ------
    ValueError
        If a kind or a setting does not exist.
    """
    models = models.split(",") if isinstance(models, str) else models
    kinds = dict.fromkeys(kind for c in COLLECTIONS for kind in recipes_for(c))
    if unknown := {*(models or ()), *(changes or {})} - {*kinds}:
        raise ValueError(f"no model {', '.join(sorted(unknown))}; there are {', '.join(kinds)}")
    if taken := sorted({name for own in (changes or {}).values() for name in own} & {*SET_BY_RUN}):
        raise ValueError(f"changes: {', '.join(taken)} of a model cannot be changed; the run sets it")
    recipes = {c: recipes_for(c, scale, len(data.train[c]), segments) for c in data.taught}
    return {c: {kind: one.changed(**(changes or {}).get(kind, {})) for kind, one in own.items()
                if models is None or kind in models} for c, own in recipes.items()}


def plan_members(data, recipes, seeds=None, first_seed=0):
    """The models that recipes ask for.

    Parameters
    ----------
    data : lab.data.Data
    recipes : dict of str to dict
        {collection: {kind: Recipe}}. A model learns from the training graphs of its collection, or of the counterparts
        that stand in for them. Where equal recipes of several collections say `together`, one model learns from the
        graphs of all these collections, and ranks all of them.
    seeds : int, optional
        Models of each recipe; None: as the recipe says.
    first_seed : int
        Seeds count from here.

    Returns
    -------
    list of Member
    """
    check_whole({"seeds": 1 if seeds is None else seeds, "first_seed": first_seed}, seeds=1, first_seed=0)
    ranks = {}                                   # {(kind, recipe, what it learns from): collections that it ranks}
    for collection, own in recipes.items():
        for kind, recipe in own.items():
            alike = [c for c, others in recipes.items() if others.get(kind) == recipe]
            joined = alike if recipe.together else [collection]
            trains_on = tuple(dict.fromkeys(teacher for c in joined for teacher in data.teachers(c)))
            ranks.setdefault((kind, recipe, trains_on), []).append(collection)
    return [Member(kind, seed, recipe, trains_on, tuple(targets))
            for (kind, recipe, trains_on), targets in ranks.items()
            for seed in range(first_seed, first_seed + (seeds or recipe.seeds))]


def in_folds(members, data, folds, report=print):
    """Each member once per fold: without the training graphs of the fold, which it ranks. Families stay together.

    Members whose graphs are all of one family are not split: they learn from everything, and rank nothing out of fold.
    """
    from kit.relatives import fold_numbers  # few runs have folds
    found, numbers = [], {}
    for member in members:
        if member.trains_on not in numbers:
            numbers[member.trains_on] = own = fold_numbers(data.graphs(member.trains_on), folds)
            name = " + ".join(member.trains_on)
            report(f"{name}: {len({*own.values()})} folds of {len(own)} training programs, families kept together"
                   if own else f"{name}: all training programs are of one family, so they are not split into folds")
        own = numbers[member.trains_on]
        found += [member._replace(fold=fold, left_out=tuple(i for i, number in own.items() if number == fold))
                  for fold in sorted({*own.values()})] or [member]
    return found


def with_seed(recipe, seed, valid=(), device="cpu"):
    """A recipe for one seed and device; with enough validation graphs, they choose the weights, at four moments."""
    steps = recipe.settings.steps
    return recipe._replace(shape=replace(recipe.shape, seed=seed), settings=replace(
        recipe.settings, seed=seed, device=device, validate_every=max(steps // 4, 1),
        keep="best" if len(valid) >= FEW_GRAPHS else "last"))
