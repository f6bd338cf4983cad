"""Train the members of an ensemble, several at the same time, and let each predict.

Not imported by `kit.run` itself, because it loads PyTorch.
"""
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kit.files import file_sha256
from kit.predict import predict
from kit.recipes import Recipe
from kit.run.provenance import from_code, from_settings, set_aside
from kit.run.workflow import checkpoint_path
from kit.train import train, train_parallel
from kit.training import CheckpointError, default_workers, run_jobs

FEW_GRAPHS = 5           # with fewer validation graphs, their mean score is mostly chance


class Material(NamedTuple):
    """What models are trained on, and what they rank."""
    graphs: list             # TileGraph or LayoutGraph, to train on
    valid: list              # to choose the best weights by
    score: Callable          # (cost, runtime) -> float, higher is better
    ranked: dict             # {name of a set of graphs: {ID: graph}}
    made_from: dict          # where `graphs` and `valid` come from, as from `from_data`


class Member(NamedTuple):
    """One model: what it is trained on, its kind, its seed, its recipe, the sets of graphs that it ranks."""
    trained_on: tuple        # collections; the key of its Material
    kind: str
    seed: int
    recipe: Recipe
    ranks: tuple
    correct: Callable = None  # (graph, training graphs, model as a function) -> Specialist or None; for "valid", "test"


class Trained(NamedTuple):
    """The result of training and ranking with one member."""
    history: dict            # as `train` returns it
    costs: dict              # {name of a set of graphs: {ID: cost (c,)}}
    made_from: dict          # where the weights come from: data, code, settings
    corrected: dict          # {name of a set of graphs: {ID: Specialist}}; graphs without a Specialist are not in it


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


def train_members(members, materials, results, workers=None, processes=1, report=print):
    """Train models, several at the same time; each then ranks the graphs that it is asked for.

    `materials`: {collections that are trained on: Material}. `results`: the Results of the step. `workers`: models that
    are trained at the same time; None: one per CPU core, or one per GPU. With `processes` above 1, models are trained
    one after another, each by this number of processes. A member with `correct`, such as
    `kit.baselines.rank_by_relatives`, also gives the Specialists of validation and test graphs. Returns one Trained per
    member, in the order of `members`; the costs do not depend on `workers`. A model with a checkpoint in the folder of
    the run resumes from it. RuntimeError if training fails in another process.
    """
    if not members:
        return []
    jobs = []
    for member in members:
        material, recipe = materials[member.trained_on], member.recipe
        keep = "best" if len(material.valid) >= FEW_GRAPHS else "last"
        recipe = recipe._replace(shape=replace(recipe.shape, seed=member.seed),
                                 settings=replace(recipe.settings, seed=member.seed, keep=keep))
        name = f"{'+'.join(member.trained_on)} {member.kind} {member.seed}"
        path = checkpoint_path(results.out, name, recipe.network(recipe.shape), recipe.settings, material.graphs,
                               material.valid)
        jobs.append((member.trained_on, (member._replace(recipe=recipe), path, processes, results.out)))
    if workers is None:
        workers = default_workers(members[0].recipe.settings.device)
    trained = run_jobs(_train_member, jobs, materials, 1 if processes > 1 else workers, report)
    for (_, (_, path, *_)), result in zip(jobs, trained):
        for file in (path, path.with_suffix(".json")):
            results.mark(file, result.made_from)
    return trained


def _train_member(job, material, report):
    """Train one member from its checkpoint on, and rank."""
    member, path, processes, out = job
    recipe, title = member.recipe, f"{' + '.join(member.trained_on)}, {member.kind}, seed {member.seed}"
    model = recipe.network(recipe.shape)
    fit = {"loss": recipe.loss, "valid": material.valid, "score": material.score, "checkpoint": path,
           "report": lambda line: report(f"{title}: {line}"), "record": Path(path).with_suffix(".json")}
    run = train if processes == 1 else partial(train_parallel, processes=processes)
    try:
        history = run(model, material.graphs, recipe.settings, **fit)
    except CheckpointError as fault:
        report(f"note  {fault}; it is kept as {set_aside(path, out)}, and training starts anew")
        model = recipe.network(recipe.shape)
        history = run(model, material.graphs, recipe.settings, **fit)
    costs = {name: {i: predict(model, graph) for i, graph in material.ranked[name].items()} for name in member.ranks}
    corrected = {}
    for name in {"valid", "test"}.intersection(member.ranks) if member.correct else ():
        found = {i: member.correct(graph, material.graphs, partial(predict, model))
                 for i, graph in material.ranked[name].items()}
        corrected[name] = {i: specialist for i, specialist in found.items() if specialist is not None}
    judged = ["kit.metrics"] * (recipe.settings.keep == "best")          # the scores choose the weights
    made_from = (material.made_from | from_code("kit.train", "kit.predict", type(model).__module__, *judged)
                 | from_settings(settings=recipe.settings, shape=model.settings) | {"weights": file_sha256(path)})
    return Trained(history, costs, made_from, corrected)
