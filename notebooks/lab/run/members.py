"""Train the members of an ensemble, several at the same time, and let each predict.

Not imported by `lab.run` itself, because it loads PyTorch.
"""
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kit.ensemble import mean_zscore
from kit.files import file_sha256
from kit.metrics import kendall_tau
from kit.predict import predict
from kit.prune import hold_out_configs
from kit.recipes import Recipe
from kit.train import train, train_parallel
from kit.training import CheckpointError, default_workers, run_jobs
from lab.run.provenance import check_code, from_code, from_settings, own_code, set_aside
from lab.run.sessions import TRAINED, earlier_checkpoints, marking, note_unfinished, steps_trained, take_over
from lab.run.workflow import checkpoint_path, modules_of

FEW_GRAPHS = 5           # with fewer validation graphs, their mean score is mostly chance
VALID_CONFIGS = 200      # of each validation graph, while a model is trained; whole graphs are ranked at the end


class Material(NamedTuple):
    """What models are trained on, and what they rank."""
    graphs: list             # TileGraph or LayoutGraph, to train on
    valid: list              # to choose the best weights by
    score: Callable          # (cost, runtime) -> float, higher is better
    ranked: dict             # {name of a set of graphs: {ID: graph}}
    made_from: dict          # where `graphs` and `valid` come from, as from `from_data`
    folds: dict = {}         # {graph_id of `graphs`: number of its fold}, as from `kit.baselines.fold_numbers`


class Member(NamedTuple):
    """One model: what it is trained on, its kind, its seed, its recipe, the sets of graphs that it ranks."""
    trained_on: tuple        # collections; the key of its Material
    kind: str
    seed: int
    recipe: Recipe
    ranks: tuple
    correct: Callable = None  # (graph, training graphs, model as a function) -> Specialist or None; for "valid", "test"
    fold: int = None         # is left out of training, and ranked as "train"; None: nothing is left out


class Trained(NamedTuple):
    """The result of training and ranking with one member, or with the models of all folds in its place."""
    history: dict            # as `train` returns it; of several models: mean curves, and sums of seconds and counts
    costs: dict              # {name of a set of graphs: {ID: cost (c,)}}
    made_from: dict          # where the weights come from: data, code, settings
    corrected: dict          # {name of a set of graphs: {ID: Specialist}}; graphs without a Specialist are not in it


def adapted(recipe, device="cpu", precision=None, processes=1, **settings):
    """A recipe with other settings of its training; a setting that is None stays as it is.

    `settings`: fields of `TrainSettings`. Validation comes four times in a training. `processes`: a step has at least
    as many graphs, one per process.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    given |= {} if precision is None else {"precision": precision}
    changed = replace(recipe.settings, **given)
    return recipe._replace(settings=replace(
        changed, validate_every=max(changed.steps // 4, 1), device=device,
        graphs_per_step=max(changed.graphs_per_step, processes)))


def layout_material(graphs, valid, held_out, ranked=None, made_from=None):
    """What layout models are trained on, without a share `held_out` of each graph's configurations.

    Parameters
    ----------
    graphs : sequence of LayoutGraph
        To train on, each with different configurations.
    valid : sequence of LayoutGraph
        Of each, `VALID_CONFIGS` configurations choose the best weights.
    held_out : float
        From 0 to below 1. Equal shares of equal graphs hold out equal configurations.
    ranked, made_from : dict, optional
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
    return Material(seen, chosen_by, kendall_tau, ranked or {}, made_from or {}), list(held)


def join_together(kinds, materials):
    """Where recipes say `together`, one model takes the place of one model per collection -> (kinds, materials).

    `kinds`: {collections that are trained on: {name: Recipe}}; `materials`: {the same keys: Material}. The new model
    trains on all graphs that the models in its place would train on, ranks all graphs that they would rank, and takes
    as many steps as all of them. If there would be only one such model, nothing changes.
    """
    keys = [key for key, recipes in kinds.items() if any(one.together for one in recipes.values())]
    if len(keys) < 2:
        return kinds, materials
    # where two models share a collection, it is named twice, as its graphs are there twice: no key of `kinds` is equal
    everything, joint = tuple(c for key in keys for c in key), {}
    for name, one in kinds[keys[0]].items():
        if one.together:
            each = [kinds[key][name].settings for key in keys]
            joint[name] = one._replace(settings=replace(one.settings, steps=sum(s.steps for s in each),
                                                        validate_every=sum(s.validate_every for s in each)))
    alone = {key: {name: one for name, one in recipes.items() if not one.together} for key, recipes in kinds.items()}
    parts = [materials[key] for key in keys]
    whole = Material([g for m in parts for g in m.graphs], [g for m in parts for g in m.valid], parts[0].score,
                     {name: {i: g for m in parts for i, g in m.ranked[name].items()} for name in parts[0].ranked},
                     {source: digest for m in parts for source, digest in m.made_from.items()})
    return {**alone, everything: joint}, {**materials, everything: whole}


def in_folds(materials, numbers, report=print):
    """Materials whose members with "train" among their ranks are trained once per fold, without the fold's programs.

    `numbers`: {a key of `materials`: {graph_id: number of the fold}}, from `kit.baselines.fold_numbers` of its graphs;
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


def train_members(members, materials, results, workers=None, processes=1, report=print, deadline=None):
    """Train models, several at the same time; each then ranks the graphs that it is asked for.

    `materials`: {collections that are trained on: Material}. `results`: the Results of the step. `workers`: models that
    are trained at the same time; None: one per CPU core, or one per GPU. With `processes` above 1, models are trained
    one after another, each by this number of processes. A member with `correct`, such as
    `kit.baselines.rank_by_relatives`, also gives the Specialists of validation and test graphs. A member that ranks
    "train" is trained once per fold of its Material (`in_folds`); its costs are means of the z-scores of these models,
    and each program of "train" is ranked by the model that was trained without its fold. Returns one Trained per
    member, in the order of `members`; the costs do not depend on `workers`. A model with a checkpoint in the folder of
    the run resumes from it, or from its checkpoint in an earlier session's output. RuntimeError if training fails in
    another process.

    `deadline`: from `kit.training.find_deadline`. A member that is unfinished then has a checkpoint, and None in place
    of its Trained; a record in the folder of the run names these members, and one line says so.
    """
    if not members:
        note_unfinished(results.out, results.step, {})
        return []
    folds = [sorted({*materials[one.trained_on].folds.values()}) if "train" in one.ranks and one.fold is None else []
             for one in members]
    each = [one._replace(fold=fold) for one, own in zip(members, folds) for fold in own or [one.fold]]
    earlier = earlier_checkpoints()
    jobs = [(member.trained_on, _job(member, materials, results, processes, deadline, earlier)) for member in each]
    if workers is None:
        workers = default_workers(members[0].recipe.settings.device)
    trained = run_jobs(_train_member, jobs, materials, 1 if processes > 1 else workers, report)
    left = {}
    for (_, (member, path, *_)), result in zip(jobs, trained):
        steps = member.recipe.settings.steps
        if result is None:
            left[_title(member)] = steps_trained(path) or 0, steps
        else:
            results.mark(path, result.made_from | {TRAINED: f"{steps} of {steps}"})
            results.mark(path.with_suffix(".json"), result.made_from)
    note_unfinished(results.out, results.step, left)
    found = iter(trained)
    return [_together([next(found) for _ in own], materials[member.trained_on]) if own else next(found)
            for member, own in zip(members, folds)]


def _job(member, materials, results, processes, deadline, earlier):
    """What a process needs to train one member, beside its Material; its settings and its checkpoint are fixed here."""
    material, recipe = without_fold(materials[member.trained_on], member.fold), member.recipe
    keep = "best" if len(material.valid) >= FEW_GRAPHS else "last"
    recipe = recipe._replace(shape=replace(recipe.shape, seed=member.seed),
                             settings=replace(recipe.settings, seed=member.seed, keep=keep))
    name = f"{'+'.join(member.trained_on)} {member.kind} {member.seed}{_fold_name(member)}"
    model = recipe.network(recipe.shape)
    functions = [recipe.loss, *[material.score] * (keep == "best")]          # scores choose weights
    path = checkpoint_path(results.out, name, model, recipe.settings, material.graphs, material.valid, functions)
    take_over(path, results.out, results.step, results.data_root, earlier)
    made_from = (material.made_from
                 | from_code("kit.train", "kit.predict", type(model).__module__, *modules_of(functions))
                 | own_code(type(model), *functions) | from_settings(settings=recipe.settings, shape=model.settings))
    save = partial(marking, path, results.out, results.step, made_from, recipe.settings.steps)
    return member._replace(recipe=recipe), path, processes, results.out, made_from, deadline, save


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
    made_from = {name: digest for part in parts for name, digest in part.made_from.items() if name != "weights"}
    made_from |= {f"weights, fold {fold}": part.made_from["weights"] for fold, part in enumerate(parts)}
    made_from |= from_code("kit.ensemble") | from_settings(folds=sorted(material.folds.items()))
    return Trained(history, costs, made_from, corrected)


def _one_specialist(found, costs):
    """The mean of what the specialists of all folds say of a program; a fold without a relative has None, and its cost.

    If a fold has other configurations of the same program, only such folds count.
    """
    there = [one for one in found if one is not None]
    same = [one for one in there if one.same]
    said = [one.cost for one in same] or [cost if one is None else one.cost for one, cost in zip(found, costs)]
    counted = same or there
    names = dict.fromkeys(name for one in counted for name in one.weights)
    return counted[0]._replace(
        cost=mean_zscore(said), relatives=list(dict.fromkeys(name for one in counted for name in one.relatives)),
        weights={name: float(np.mean([one.weights.get(name, 0) for one in counted])) for name in names})


def finished(members, trained):
    """Leave out the members that are unfinished -> (members, trained), two lists."""
    return [m for m, result in zip(members, trained) if result], [result for result in trained if result]


def _title(member):
    """The member's name in lines of progress."""
    return f"{' + '.join(member.trained_on)}, {member.kind}, seed {member.seed}{_fold_name(member)}"


def _train_member(job, material, report):
    """Train one member from its checkpoint on, and rank -> Trained, or None if the deadline comes first."""
    member, path, processes, out, made_from, deadline, save = job
    if deadline is not None and deadline.passed():
        return None
    check_code(made_from)                                # of this process, which may be a later one
    recipe, title, material = member.recipe, _title(member), without_fold(material, member.fold)
    model = recipe.network(recipe.shape)
    fit = {"loss": recipe.loss, "valid": material.valid, "score": material.score, "checkpoint": path,
           "report": lambda line: report(f"{title}: {line}"), "record": Path(path).with_suffix(".json"),
           "deadline": deadline, "saving": save}
    run = train if processes == 1 else partial(train_parallel, processes=processes)
    try:
        history = run(model, material.graphs, recipe.settings, **fit)
    except CheckpointError as fault:
        report(f"note  {fault}; it is kept as {set_aside(path, out)}, and training starts anew")
        model = recipe.network(recipe.shape)
        history = run(model, material.graphs, recipe.settings, **fit)
    if history["unfinished"]:
        return None
    costs = {name: {i: predict(model, graph) for i, graph in material.ranked[name].items()} for name in member.ranks}
    corrected = {}
    for name in {"train", "valid", "test"}.intersection(member.ranks) if member.correct else ():
        # no relative of "train" was trained on: families are in one fold
        found = {i: member.correct(graph, material.graphs, partial(predict, model))
                 for i, graph in material.ranked[name].items() if name != "train"}
        corrected[name] = {i: specialist for i, specialist in found.items() if specialist is not None}
    return Trained(history, costs, made_from | {"weights": file_sha256(path)}, corrected)
