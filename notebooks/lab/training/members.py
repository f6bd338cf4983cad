"""Train the members of an ensemble, several at the same time, and let each rank."""
import re
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

from kit import models
from kit.data import content_digest
from kit.files import write_json
from kit.metrics import score_for
from kit.predict import predict
from kit.train import train
from kit.train_parts import CheckpointError, check_device, find_deadline, read_checkpoint
from kit.train_parts.pool import default_workers, one_thread, run_jobs
from lab.predictions import Predictions, mean_of_folds
from lab.run import Store, note_unfinished, steps_trained
from lab.run.code import code_digest, things_digest
from lab.training.estimate import minutes_ahead
from lab.training.plan import Member, in_folds, plan_members, with_seed


def train_recipes(run, data, recipes, seeds=None, first_seed=0, folds=None, device="cpu", workers=None, hours=None,
                  report=print):
    """Train the models of recipes, several at the same time, and let each rank -> Predictions.

    What was trained or ranked before is read from the store of the run, and an interrupted training resumes from its
    checkpoint. The costs do not depend on `workers`.

    Parameters
    ----------
    run : Run
    data : lab.data.Data
    recipes, seeds, first_seed
        As for `plan_members`.
    folds : int, optional
        2 or more: each model is trained once per fold, without the fold's programs, which it then ranks out of fold.
        The costs of validation and test graphs are the means of the z-scores of the models of all folds.
    device : str
        "cpu", "cuda" or "cuda:N".
    workers : int, optional
        Models that are trained at the same time. None: one per CPU core, or one per GPU.
    hours : float, optional
        As for `find_deadline`. A model that is unfinished then keeps its checkpoint, has no predictions,
        and is named in the folder of the run and in a printed line; the same call goes on with it.
    report : callable
        Gets lines of progress.

    Returns
    -------
    Predictions
        Of the models that are finished.

    Raises
    ------
    RuntimeError
        If training fails in another process.
    """
    check_device(device)                                 # if it is missing, fail before anything is read
    members = plan_members(data, with_fastest_messages(recipes, data, device), seeds, first_seed)
    members = [one._replace(recipe=with_seed(one.recipe, one.seed, one.judged_by(data), device)) for one in members]
    parts = in_folds(members, data, folds, report) if folds else members
    deadline, known = find_deadline(hours), {}           # known: digests of graphs, which many members share
    jobs = [(None, _job(part, data, run.store, deadline, known)) for part in parts]
    workers = 1 if run.scale == "tiny" and workers is None else workers or default_workers(device)
    if data.source == "real files" and run.scale != "tiny" and jobs:
        _say_how_long(jobs, data, run.store, workers, report)
    trained = run_jobs(_train_member, jobs, {None: data}, workers, report) if jobs else []
    note_unfinished(run.out, run.step, {
        job.member.name: (steps_trained(run.store.path(job.trained, ".json")), job.member.recipe.settings.steps)
        for (_, job), result in zip(jobs, trained) if result is None})
    made = Predictions(data, folds=folds)
    for member in members:
        found = [(job, result) for (_, job), result in zip(jobs, trained) if _is_part(job.member, member)]
        if all(result for _, result in found):
            _put(made, member, found)
    return made


def _is_part(part, member):
    return part._replace(fold=None, left_out=()) == member


def _put(made, member, found):
    """Add the costs of a member, of all its folds together, and its history."""
    each = [result.costs for _, result in found]
    for c in member.ranks:
        costs = mean_of_folds([{split: own for (one, split), own in costs.items() if one == c} for costs in each])
        made.put(c, member.kind, member.seed, costs, trains_on=member.trains_on,
                 model=found[0][0].trained if len(found) == 1 else "")
    curves = made.histories.setdefault(" + ".join(member.trains_on), {}).setdefault(member.kind, [])
    curves.extend(result.history for _, result in found)
    made.trained += [(job.member, job.trained) for job, _ in found]


def with_fastest_messages(recipes, data, device="cpu"):
    """Recipes whose networks send messages in the way that is faster here; only torch-scatter leaves a choice."""
    graph = next((graph for c in recipes for graph in data.train[c]), None)
    if find_spec("torch_scatter") is None or graph is None:
        return recipes

    def faster(recipe):
        if getattr(recipe.shape, "aggregation", None) != "sparse":       # no messages, or somebody chose
            return recipe
        messages = models.mean_messages(graph.edge_index, len(graph.node_opcode), device)
        way, seconds = models.fastest_aggregation(messages, recipe.shape.width * recipe.settings.configs_per_step)
        print("time of message passing, forward and backward:",
              ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in seconds.items()))
        return recipe.changed(aggregation=way)
    return {c: {kind: faster(one) for kind, one in own.items()} for c, own in recipes.items()}


def _say_how_long(jobs, data, store, workers, report):
    """One line on what is trained already, one on the minutes that the rest will take."""
    left = [job.member for _, job in jobs
            if steps_trained(store.path(job.trained, ".json")) < job.member.recipe.settings.steps]
    report(f"{len(jobs) - len(left)} of {len(jobs)} models are trained already"
           + "; timing a few steps of the others" * bool(left))
    if left:
        with one_thread():
            report(minutes_ahead(left, data, workers))


class _Job(NamedTuple):
    """What a process needs to train one member, beside the data."""
    member: Member           # with the settings of its seed
    trained: str             # name of the checkpoint in the store
    ranked: str              # name of the costs in the store
    code: str                # digest of the code that trains
    store: tuple             # folder of the store, and other stores
    deadline: object


class _Trained(NamedTuple):
    """What one training gives."""
    history: dict            # as `train` returns it
    costs: dict              # {(collection, split): {ID: cost (c,)}}


def _job(member, data, store, deadline, known):
    fold = "" if member.fold is None else f" fold {member.fold}"
    trained = training_name(store, f"{'+'.join(member.trains_on)} {member.kind} {member.seed}{fold}", member.recipe,
                            member.taught(data), member.judged_by(data), _score(member), known)
    asked = {" ".join(key): {i: _digest(graph, known) for i, graph in own.items()}
             for key, own in member.asked(data).items()}
    return _Job(member, trained, store.name("ranked", [trained, asked, ranking_code()]), code_digest("kit.train"),
                (store.folder, store.others), deadline)


def _score(member):
    """What validation graphs choose the weights by."""
    return score_for(member.trains_on[0])


def _train_member(job, data, report):
    """Train one member from its checkpoint on, and rank -> _Trained, or None if the deadline comes first."""
    if job.code != code_digest("kit.train"):             # of this process, which may be a later one
        raise RuntimeError("files of the kit changed after this run started; run it again")
    member, store = job.member, Store(*job.store, report)
    costs, saved = store.find(job.ranked), _checkpoint(store, job.trained)
    history = {**saved["history"], "unfinished": 0} if saved and saved["step"] == member.recipe.settings.steps else None
    if costs is None or history is None:
        if job.deadline is not None and job.deadline.passed():
            return None
        model, history = train_or_read(store, job.trained, member.recipe, member.taught(data), member.judged_by(data),
                                       _score(member), lambda line: report(f"{member.name}: {line}"), job.deadline)
        if history["unfinished"]:
            return None
        costs = store.made(job.ranked, lambda: {
            f"{c}|{split}|{i}": predict(model, graph)
            for (c, split), own in member.asked(data).items() for i, graph in own.items()})
    found = {key: {} for key in member.asked(data)}
    for name, cost in costs.items():
        c, split, i = name.split("|", 2)
        found[c, split][i] = cost
    return _Trained(history, found)


# --- one training


def training_name(store, name, recipe, graphs, valid=(), score=None, known=None):
    """The name of a training in a store: other settings, graphs or code give another one.

    `name` is for readers. The digest is of the model's settings, the settings of the training but for the device, the
    content of the graphs, and the code of the training, the model, the loss, and the score where it chooses weights.
    `known`: {id of a graph: digest} saves to calculate it again.
    """
    known = {} if known is None else known
    functions = [recipe.loss, *[score] * (recipe.settings.keep == "best" and len(valid) > 0)]
    about = [recipe.network(recipe.shape).settings, replace(recipe.settings, device=""), code_digest("kit.train"),
             things_digest(recipe.network, *functions),
             [[_digest(graph, known) for graph in some] for some in (graphs, valid)]]
    return store.name(re.sub(r"[^A-Za-z0-9+_-]+", "-", name.replace(":", "_")), about)


def _digest(graph, known):
    """The digest of the content of a graph."""
    if id(graph) not in known:
        known[id(graph)] = graph, content_digest(graph)  # the graph is held, so that no other one gets its id
    return known[id(graph)][1]


def ranking_code():
    """A digest of the code that ranks with a trained model."""
    return code_digest("kit.predict")


def train_or_read(store, name, recipe, graphs, valid=(), score=None, report=None, deadline=None):
    """A trained model: read if its training is finished in the store, else trained on from its checkpoint.

    Returns the model, and its history as `train` returns it: with "unfinished" steps if the deadline came first.
    """
    path, record = store.path(name, ".pt"), store.path(name, ".json")
    model, saved = recipe.network(recipe.shape), _checkpoint(store, name)
    if saved and saved["step"] == recipe.settings.steps:
        model.load_state_dict(saved["best"])
        return model.to(check_device(recipe.settings.device)), {**saved["history"], "unfinished": 0}
    return model, train(model, graphs, recipe.settings, loss=recipe.loss, valid=valid, score=score, checkpoint=path,
                        report=report, record=record, deadline=deadline,
                        saving=partial(_note_steps, record, recipe.settings.steps))


def load_model(run, made, kind, collection, seed=None):
    """A trained model from the Predictions of `train_recipes`.

    Parameters
    ----------
    run : Run
    made : Predictions
    kind, collection : str
        A model of this kind that ranks this collection.
    seed : int, optional
        None: the first one.

    Returns
    -------
    Module

    Raises
    ------
    ValueError
        If there is no such model, or its checkpoint is gone.
    """
    for member, name in made.trained:
        if member.kind == kind and collection in member.ranks and seed in (None, member.seed):
            return read_model(run.store, member, name)
    raise ValueError(f"no trained {kind} ranks {collection}; there are "
                     f"{'; '.join(dict.fromkeys(member.name for member, _ in made.trained)) or 'none'}")


def read_model(store, member, name):
    """The model of a member from its checkpoint `name`; ValueError if this is gone."""
    saved = _checkpoint(store, name)
    if saved is None:
        raise ValueError(f"{store.path(name, '.pt')}: is gone, or was damaged; train it again")
    model = member.recipe.network(member.recipe.shape)
    model.load_state_dict(saved["best"])
    return model.to(check_device(member.recipe.settings.device))


def rank_unseen(recipe, name, seed, graphs, unseen, store, passes=1, report=None):
    """Train by a `recipe` and rank `unseen` programs -> {graph_id: cost (c,)}; what was made before is read.

    The last weights are kept, because the unseen programs must choose nothing. `name`, of the recipe and its training
    data, is for readers. `seed` is that of the initial weights and of the draws in training. `store`: a Store. `passes`
    is as for `predict`, `report` as for `train`; None: nothing is reported.
    """
    one = with_seed(recipe, seed, device=recipe.settings.device)
    trained = training_name(store, f"{name} {seed}", one, graphs)
    ranked = store.name("ranked", [trained, [content_digest(g) for g in unseen], ranking_code(), passes])

    def rank():
        with one_thread():
            model, _ = train_or_read(store, trained, one, graphs, report=report)
            return {g.graph_id: predict(model, g, passes=passes) for g in unseen}
    return store.made(ranked, rank)


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
    return None


@contextmanager
def _note_steps(record, steps, done):
    """Write how far a training is, once its checkpoint is written."""
    yield
    write_json(record, {"steps_done": done, "steps": steps})
