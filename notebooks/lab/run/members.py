"""Train the members of an ensemble, several at the same time, and let each predict.

Not imported by `lab.run` itself, because it loads PyTorch.
"""
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from kit.data import content_digest
from kit.ensemble import mean_zscore
from kit.files import write_json
from kit.metrics import kendall_tau
from kit.predict import predict
from kit.prune import hold_out_configs
from kit.recipes import Recipe
from kit.train import train
from kit.training import CheckpointError, check_device, read_checkpoint
from kit.training.pool import default_workers, run_jobs
from lab.run.code import code_digest, things_digest
from lab.run.estimate import minutes_ahead
from lab.run.store import Store
from lab.run.unfinished import note_unfinished, steps_trained

FEW_GRAPHS = 5           # with fewer validation graphs, their mean score is mostly chance
VALID_CONFIGS = 200      # of each validation graph, while a model is trained; whole graphs are ranked at the end


class Material(NamedTuple):
    """What models are trained on, and what they rank."""
    graphs: list             # TileGraph or LayoutGraph, to train on
    valid: list              # to choose the best weights by
    score: Callable          # (cost, runtime) -> float, higher is better
    ranked: dict             # {name of a set of graphs: {ID: graph}}
    folds: dict = {}         # {graph_id of `graphs`: number of its fold}, as from `kit.relatives.fold_numbers`


class Member(NamedTuple):
    """One model: what it is trained on, its kind, its seed, its recipe, the sets of graphs that it ranks."""
    trained_on: tuple        # collections; the key of its Material
    kind: str
    seed: int
    recipe: Recipe
    ranks: tuple
    correct: Callable = None  # (graph, training graphs, model as a function) -> Specialist or None; for "valid", "test"
    fold: int = None         # is left out of training, and ranked as "train"; None: nothing is left out


class Corrected(NamedTuple):
    """What a Specialist says of a program; see `kit.relatives.specialists.Specialist`."""
    cost: np.ndarray         # (c,)
    same: bool               # it learned from other configurations of the same program


class Trained(NamedTuple):
    """The result of training and ranking with one member, or with the models of all folds in its place."""
    history: dict            # as `train` returns it; of several models: mean curves, and sums of seconds and counts
    costs: dict              # {name of a set of graphs: {ID: cost (c,)}}
    corrected: dict          # {name of a set of graphs: {ID: Corrected}}; graphs without relatives are not in it
    model: str               # name of the checkpoint in the store; "" for the models of all folds


def adapted(recipe, device="cpu", precision=None, **settings):
    """A recipe with other settings; a setting that is None stays as it is.

    `settings`: fields of the network's settings, or of `TrainSettings`. Validation comes four times in a training.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    shape = {name: given.pop(name) for name in [*given] if hasattr(recipe.shape, name)}
    given |= {} if precision is None else {"precision": precision}
    changed = replace(recipe.settings, **given)
    return recipe._replace(shape=replace(recipe.shape, **shape), settings=replace(
        changed, validate_every=max(changed.steps // 4, 1), device=device))


def layout_material(graphs, valid, held_out, ranked=None):
    """What layout models are trained on, without a share `held_out` of each graph's configurations.

    Parameters
    ----------
    graphs : sequence of LayoutGraph
        To train on, each with different configurations.
    valid : sequence of LayoutGraph
        Of each, `VALID_CONFIGS` configurations choose the best weights.
    held_out : float
        From 0 to below 1. Equal shares of equal graphs hold out equal configurations.
    ranked : dict, optional
        As of `Material`.

    Returns
    -------
    Material
    list of LayoutGraph
        The same graphs with the configurations that were held out.
    """
    seen, held = zip(*[hold_out_configs(g, held_out, np.random.default_rng(0)) for g in graphs])
    chosen_by = [hold_out_configs(g, min(1, VALID_CONFIGS / len(g.config_runtime)), np.random.default_rng(0))[1]
                 for g in valid]
    return Material(seen, chosen_by, kendall_tau, ranked or {}), list(held)


def join_together(kinds, materials):
    """Where recipes say `together`, one model takes the place of one model per collection -> (kinds, materials).

    `kinds`: {collections that are trained on: {name: Recipe}}; `materials`: {the same keys: Material}. The new model
    trains on all graphs that the models in its place would train on, ranks all graphs that they would rank, and takes
    the steps of one of them. If there would be only one such model, nothing changes.
    """
    keys = [key for key, recipes in kinds.items() if any(one.together for one in recipes.values())]
    if len(keys) < 2:
        return kinds, materials
    # where two models share a collection, it is named twice, as its graphs are there twice: no key of `kinds` is equal
    everything = tuple(c for key in keys for c in key)
    joint = {name: one for name, one in kinds[keys[0]].items() if one.together}
    alone = {key: {name: one for name, one in recipes.items() if not one.together} for key, recipes in kinds.items()}
    parts = [materials[key] for key in keys]
    whole = Material([g for m in parts for g in m.graphs], [g for m in parts for g in m.valid], parts[0].score,
                     {name: {i: g for m in parts for i, g in m.ranked[name].items()} for name in parts[0].ranked})
    return {**alone, everything: joint}, {**materials, everything: whole}


def in_folds(materials, numbers, report=print):
    """Materials whose members with "train" among their ranks are trained once per fold, without the fold's programs.

    `numbers`: {a key of `materials`: {graph_id: number of the fold}}, from `kit.relatives.fold_numbers` of its graphs;
    {} if its graphs cannot be split: its models are trained on all of them, and rank nothing out of fold.
    `ranked["train"]` of a Material is {ID: graph}, the programs to rank out of fold. Programs without a fold are taken
    out, because nothing is trained on them.
    """
    found = {}
    for key, material in materials.items():
        folds, name = numbers[key], " + ".join(key)
        report(f"{name}: {len({*folds.values()})} folds of {len(folds)} training programs, families kept together"
               if folds else f"{name}: all training programs are of one family, so they are not split into folds")
        train = {i: g for i, g in material.ranked["train"].items() if g.graph_id in folds}
        found[key] = material._replace(folds=folds, ranked=material.ranked | {"train": train})
    return found


def without_fold(material, fold):
    """What a model is trained on and ranks if the programs of a fold are left out of its training.

    "train" are the programs of the fold, and "held out" configurations are of other programs. None: models are trained
    on everything, so "train" has no program.
    """
    if fold is None:
        return material._replace(ranked=material.ranked | {"train": {}})
    ranked = {name: {i: g for i, g in some.items() if name not in ("train", "held out")
                     or (material.folds[g.graph_id] == fold) == (name == "train")}
              for name, some in material.ranked.items()}
    return material._replace(graphs=[g for g in material.graphs if material.folds[g.graph_id] != fold], ranked=ranked)


def train_members(members, materials, run, workers=None, report=print, deadline=None, ahead=False):
    """Train models, several at the same time; each then ranks the graphs that it is asked for.

    `materials`: {collections that are trained on: Material}. `run`: the Run of the step. `workers`: models that are
    trained at the same time; None: one per CPU core, or one per GPU. A member with `correct`, such as
    `kit.relatives.rank_by_relatives`, also gives the Specialists of validation and test graphs. A member that ranks
    "train" is trained once per fold of its Material (`in_folds`); its costs are means of the z-scores of these models,
    and each program of "train" is ranked by the model that was trained without its fold. Returns one Trained per
    member, in the order of `members`; the costs do not depend on `workers`. What was trained or ranked before is read
    from the store, and an interrupted training goes on. RuntimeError if training fails in another process.

    `deadline`: from `kit.training.find_deadline`. A member that is unfinished then has a checkpoint, and None in place
    of its Trained; a record in the folder of the run names these members, and one line says so. `ahead`: first say how
    many minutes the training will take, by a few steps of each kind.
    """
    folds = [sorted({*materials[one.trained_on].folds.values()}) if "train" in one.ranks and one.fold is None else []
             for one in members]
    each = [one._replace(fold=fold) for one, own in zip(members, folds) for fold in own or [one.fold]]
    known = {}                                           # digests of graphs, which many members share
    jobs = [(member.trained_on, _job(member, materials, run, deadline, known)) for member in each]
    if workers is None and members:
        workers = default_workers(members[0].recipe.settings.device)
    if ahead:
        left = [job.member for _, job in jobs if steps_trained(run.store.path(job.trained, ".json")) <
                job.member.recipe.settings.steps]
        report(f"{len(jobs) - len(left)} of {len(jobs)} models are trained already"
               + "; timing a few steps of the others" * bool(left))
        if left:
            report(minutes_ahead(left, materials, workers))
    trained = run_jobs(_train_member, jobs, materials, workers, report) if jobs else []
    note_unfinished(run.out, run.step, {
        _title(job.member): (steps_trained(run.store.path(job.trained, ".json")), job.member.recipe.settings.steps)
        for (_, job), result in zip(jobs, trained) if result is None})
    found = iter(trained)
    return [_together([next(found) for _ in own], materials[member.trained_on]) if own else next(found)
            for member, own in zip(members, folds)]


class _Job(NamedTuple):
    """What a process needs to train one member, beside its Material."""
    member: Member           # with the settings of its seed
    trained: str             # name of the checkpoint in the store
    ranked: str              # name of the costs in the store
    code: str                # digest of the code that trains
    store: tuple             # folder of the store, and other stores
    deadline: object


def _job(member, materials, run, deadline, known):
    material, recipe = without_fold(materials[member.trained_on], member.fold), member.recipe
    recipe = with_seed(recipe, member.seed, material.valid)
    name = f"{'+'.join(member.trained_on)} {member.kind} {member.seed}{_fold_name(member)}"
    trained = training_name(run.store, name, recipe, material, known)
    ranked = {name: {i: _digest(graph, known) for i, graph in material.ranked[name].items()} for name in member.ranks}
    asked = [trained, ranked, ranking_code(), *[things_digest(member.correct)] * (member.correct is not None)]
    return _Job(member._replace(recipe=recipe), trained, run.store.name("ranked", asked), code_digest("kit.train"),
                (run.store.folder, run.store.others), deadline)


def ranking_code():
    """A digest of the code that ranks with a trained model."""
    return code_digest("kit.predict")


def with_seed(recipe, seed, valid=()):
    """A recipe for one seed; with enough validation graphs, they choose the weights."""
    return recipe._replace(shape=replace(recipe.shape, seed=seed), settings=replace(
        recipe.settings, seed=seed, keep="best" if len(valid) >= FEW_GRAPHS else "last"))


def training_name(store, name, recipe, material, known=None):
    """The name of a training in a store: other settings, graphs or code give another one.

    `name` is for readers. The digest is of the model's settings, the settings of the training but for the device, the
    content of the graphs, and the code of the training, the model, the loss, and the score where it chooses weights.
    """
    known = {} if known is None else known
    functions = [recipe.loss, *[material.score] * (recipe.settings.keep == "best" and len(material.valid) > 0)]
    about = [recipe.network(recipe.shape).settings, replace(recipe.settings, device=""), code_digest("kit.train"),
             things_digest(recipe.network, *functions),
             [[_digest(graph, known) for graph in some] for some in (material.graphs, material.valid)]]
    return store.name(re.sub(r"[^A-Za-z0-9+_-]+", "-", name.replace(":", "_")), about)


def _digest(graph, known):
    """The digest of the content of a graph; `known` {id of a graph: digest} saves to calculate it again."""
    if id(graph) not in known:
        known[id(graph)] = content_digest(graph)
    return known[id(graph)]


def train_or_read(store, name, recipe, material, report=print, deadline=None):
    """A trained model: read if its training is finished in the store, else trained on from its checkpoint.

    Returns the model, and its history as `train` returns it: with "unfinished" steps if the deadline came first.
    """
    path, record = store.path(name, ".pt"), store.path(name, ".json")
    model, saved = recipe.network(recipe.shape), _checkpoint(store, name)
    if saved and saved["step"] == recipe.settings.steps:
        model.load_state_dict(saved["best"])
        return model.to(check_device(recipe.settings.device)), {**saved["history"], "unfinished": 0}

    saving = partial(_note_steps, record, recipe.settings.steps)
    fit = {"loss": recipe.loss, "valid": material.valid, "score": material.score, "checkpoint": path, "report": report,
           "record": record, "deadline": deadline, "saving": saving}
    return model, train(model, material.graphs, recipe.settings, **fit)


@contextmanager
def _note_steps(record, steps, done):
    """Write how far a training is, once its checkpoint is written."""
    yield
    write_json(record, {"steps_done": done, "steps": steps})


def _fold_name(member):
    return "" if member.fold is None else f" fold {member.fold}"


def _together(parts, material):
    """One Trained in the place of those of all folds, in their order; None if one of them is unfinished."""
    if None in parts:
        return None
    histories = [part.history for part in parts]
    kept = min(len(history["step"]) for history in histories)
    history = {"step": histories[0]["step"][:kept], "record": None}
    history |= {name: np.mean([one[name][:kept] for one in histories], axis=0).tolist() for name in ("loss", "score")}
    history |= {name: sum(one[name] for one in histories) for name in ("seconds", "configs", "overflows")}
    history["best_step"] = histories[0]["best_step"] if len({one["best_step"] for one in histories}) == 1 else 0
    costs = {name: {i: mean_zscore([part.costs[name][i] for part in parts if i in part.costs[name]])
                    for i in material.ranked[name] if any(i in part.costs[name] for part in parts)}
             for name in parts[0].costs}
    corrected = {name: {i: _one_specialist([part.corrected[name].get(i) for part in parts],
                                           [part.costs[name][i] for part in parts])
                        for i in costs[name] if any(i in part.corrected[name] for part in parts)}
                 for name in parts[0].corrected}
    return Trained(history, costs, corrected, "")


def _one_specialist(found, costs):
    """The mean of what the specialists of all folds say of a program; a fold without a relative has None, and its cost.

    If a fold has other configurations of the same program, only such folds count.
    """
    same = [one for one in found if one is not None and one.same]
    said = [one.cost for one in same] or [cost if one is None else one.cost for one, cost in zip(found, costs)]
    return Corrected(mean_zscore(said), bool(same))


def finished(members, trained):
    """Leave out the members that are unfinished -> (members, trained), two lists."""
    return [m for m, result in zip(members, trained) if result], [result for result in trained if result]


def _title(member):
    """The member's name in lines of progress."""
    return f"{' + '.join(member.trained_on)}, {member.kind}, seed {member.seed}{_fold_name(member)}"


def _train_member(job, material, report):
    """Train one member from its checkpoint on, and rank -> Trained, or None if the deadline comes first."""
    if job.code != code_digest("kit.train"):             # of this process, which may be a later one
        raise RuntimeError("files of the kit changed after this run started; run it again")
    member, store, material = job.member, Store(*job.store, report), without_fold(material, job.member.fold)
    costs, saved = store.find(job.ranked), _checkpoint(store, job.trained)
    history = {**saved["history"], "unfinished": 0} if saved and saved["step"] == member.recipe.settings.steps else None
    if costs is None or history is None:
        if job.deadline is not None and job.deadline.passed():
            return None
        model, history = train_or_read(store, job.trained, member.recipe, material,
                                       lambda line: report(f"{_title(member)}: {line}"), job.deadline)
        if history["unfinished"]:
            return None
        costs = store.made(job.ranked, lambda: _rank(model, member, material))
    return _unpacked(costs, history, job)


def _checkpoint(store, name):
    """What the checkpoint of a training holds, or None; a damaged one, or that of another training, is moved away."""
    path = store.take(name, ".pt")
    if not path.exists():
        return None
    try:
        saved = read_checkpoint(path)
        if saved["name"] == path.name:
            return saved
    except (CheckpointError, KeyError):
        pass
    store.set_aside(path)


def _rank(model, member, material):
    """What a trained model says of graphs, as named arrays: costs, and those of Specialists."""
    found = {}
    for name in member.ranks:
        for i, graph in material.ranked[name].items():
            found[f"cost|{name}|{i}"] = predict(model, graph)
            # no relative of "train" was trained on: families are in one fold
            if member.correct and name in ("valid", "test"):
                one = member.correct(graph, material.graphs, partial(predict, model))
                if one is not None:
                    found[f"{'same' if one.same else 'relatives'}|{name}|{i}"] = one.cost
    return found


def _unpacked(arrays, history, job):
    """Named arrays of `_rank` -> Trained."""
    costs, corrected = {name: {} for name in job.member.ranks}, {name: {} for name in job.member.ranks}
    for key, cost in arrays.items():
        kind, name, i = key.split("|", 2)
        if kind == "cost":
            costs[name][i] = cost
        else:
            corrected[name][i] = Corrected(cost, kind == "same")
    return Trained(history, costs, corrected if job.member.correct else {}, job.trained)
