"""Weights that travel: the trained checkpoints of a run in one folder, and predictions from this folder.

`pack_weights` writes such a folder, and `predict_from_weights` ranks validation and test graphs from it. Nothing is
trained, and no training graph is needed. The folder holds:

- `weights.json`: each checkpoint with its network, settings, code and SHA-256; for each collection its data, the
  settings of its step, and each of its predictions with the checkpoint that it comes from
- `store/NAME.pt`: the checkpoints
- `store/costs-*.npz`: costs that no checkpoint gives. These are the costs of specialists, which learn from training
  graphs, and the predictions of models without weights. Such costs hold for the same graphs alone

Nothing is unpickled. No package of lab imports it, because it loads PyTorch.
"""
import json
import re
from pathlib import Path
from typing import NamedTuple

from kit.data import COLLECTIONS, DataError, find_data_root
from kit.files import copy_whole, file_sha256, write_json
from kit.predict import predict
from kit.prepare import is_prepared, prepare
from kit.prune import fewer_configs
from kit.recipes import SCALES, recipes_for
from kit.train_parts import CheckpointError, load_checkpoint, read_checkpoint
from kit.train_parts.pool import default_workers, run_jobs
from lab.data import MOST_CONFIGS, Data, copy_table, data_digest, left_out, read_split, wanted
from lab.predictions import Prediction, Predictions
from lab.run.code import code_digest
from lab.run.folder import COMBINES, TRAINS, Folder, Run, step_of
from lab.run.store import Store, read_kept
from lab.season.report import read_record

LIST, FORMAT = "weights.json", 2
RANKED = ("valid", "test")
_AGAIN = "publish the weights again"
_CHECKPOINT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+.-]{0,250}")
_COSTS = re.compile(r"costs-[0-9a-f]{16}")


class Weights(NamedTuple):
    """A folder of weights whose list was checked; `read_weights` gives one."""
    folder: Path
    digest: str              # SHA-256 of the list
    checkpoints: dict        # {name: {"sha256", "network", "settings", "code"}}
    # {collection: {"settings", "data": {split: digest}, "predictions": [{"member", "split", "model": name of a
    # checkpoint or "", "stored": file of costs or ""}]}}
    collections: dict

    def path(self, name, suffix):
        """Where a checkpoint or stored costs are."""
        return self.folder / "store" / f"{name}{suffix}"


# --- at home


def models_of(out):
    """Names of the checkpoints that the predictions of a run come from."""
    return sorted({one["model"] for section in Folder(out).sections(*TRAINS.values()) for one in section["costs"]
                   if one["model"] and one["split"] in RANKED and not one["baseline"]})


def pack_weights(out, data_root, folder):
    """Write the trained checkpoints of a run to a folder, with all that a prediction from them needs.

    Parameters
    ----------
    out : str or Path
        The folder of the run.
    data_root : str or Path
        The prepared data of the run.
    folder : str or Path
        Where to; a new or empty folder.

    Returns
    -------
    Weights

    Raises
    ------
    DataError
        If the run has no predictions, or they do not fit the data and the code that are here now.
    """
    run, folder, checkpoints, collections = Folder(out, data_root), Path(folder), {}, {}
    for c in COLLECTIONS:
        section = run.section(step_of(c), c)
        told = [one for one in (section or {"costs": ()})["costs"] if one["split"] in RANKED and not one["baseline"]]
        if not told:
            continue
        # sorted: the same run gives the same list in each process, so that it is uploaded once
        for name in sorted({one["model"] for one in told} - checkpoints.keys() - {""}):
            checkpoints |= _pack_checkpoint(run.store, name, folder)
        collections[c] = {"settings": section["settings"],
                          "data": {split: section["data"][f"{c} {split}"] for split in RANKED},
                          "predictions": [_pack_costs(run.store, one, one["model"] in checkpoints, folder)
                                          for one in told]}
    if not collections:
        raise DataError(f"{out}: no predictions that can be used; notebooks 03 and 04 make them")
    _say_what_stays(run)
    write_json(folder / LIST, {"format": FORMAT, "checkpoints": checkpoints, "collections": collections})
    return read_weights(folder)


def _pack_checkpoint(store, name, folder):
    """Copy a checkpoint -> {name: its entry in the list}; {} if it cannot be used, so that its costs have to travel."""
    source, target = store.path(name, ".pt"), Path(folder, "store", f"{name}.pt")
    network = read_record(source.with_suffix(".json"))["model"] if source.is_file() else None
    if network not in _networks():
        print(f"note  {source} is not there, or no recipe has its network; its predictions travel as they are")
        return {}
    try:
        made_by = read_checkpoint(source)["made_by"]
    except (CheckpointError, KeyError) as fault:
        raise DataError(f"{source}: is damaged ({fault}); delete it and run the step again that makes it") from fault
    copy_whole(source, target)
    settings = {key.removeprefix("model "): value for key, value in made_by.items() if key.startswith("model ")}
    return {name: {"sha256": file_sha256(target), "network": network, "settings": settings,
                   "code": _code(_networks()[network][0])}}


def _pack_costs(store, one, has_checkpoint, folder):
    """An entry of the list for predictions; costs that the checkpoint does not give are stored."""
    costs = store.read(one["file"])
    stored = {name: cost for name, cost in costs.items() if not has_checkpoint or name in one["specialists"]}
    named = {name: one[name] for name in ("member", "kind", "seed", "trains_on", "split")}
    return {**named, "model": one["model"] if has_checkpoint else "",
            "stored": Store(Path(folder, "store")).keep("costs", stored) if stored else ""}


def _say_what_stays(run):
    """Say so if the ensemble of a run was made from more than the predictions that travel."""
    combined = [section["settings"] for section in run.sections(COMBINES)]
    folds = any(one["split"] == "train" and not one["baseline"]
                for section in run.sections(*TRAINS.values()) for one in section["costs"])
    if any(own.get("weights_from") or own.get("choose", True) and folds for own in combined):
        print("note  training programs, or another run, chose the weights of this run's ensemble; a notebook that "
              "predicts from these weights chooses them from validation graphs alone, so its submission may be another "
              "one")
    if any(own.get("predictions_from") for own in combined):
        print("note  other people's predictions in this run's ensemble do not travel, so the submission will be "
              "another one")


def combined_by(out):
    """How notebook 05 combined the models of a run: {parameter: value} where it is not the usual value."""
    usual, found = {"how": "mean_zscore", "choose": True}, {}
    for section in Folder(out).sections(COMBINES):
        found |= {name: section["settings"].get(name, value) for name, value in usual.items()}
    return {name: value for name, value in found.items() if value != usual[name]}


def _networks():
    """{name: (network, class of its settings)} of all recipes."""
    recipes = [one for c in COLLECTIONS for scale in SCALES for one in recipes_for(c, scale).values()]
    return {one.network.__name__: (one.network, type(one.shape)) for one in recipes}


def _code(network):
    """A digest of the code that ranks with a network."""
    return code_digest("kit.predict", "kit.prune", network.__module__)


# --- where the weights are


def find_weights(places):
    """The first of some folders that holds weights; DataError if there is none."""
    found = next((Path(place) for place in places if Path(place, LIST).is_file()), None)
    if found is None:
        raise DataError(f"no {LIST} in {' or '.join(map(str, places))}; add the Dataset with the weights to the "
                        "notebook (Add Input), or publish it with notebooks/weights.py")
    return found


def open_ranked(data_root, collections, folder):
    """Prepare the graphs that are ranked, without the training graphs, in `folder` -> the prepared folder.

    A data root that is prepared already is taken as it is. DataError if there is no data set.
    """
    root = find_data_root(data_root)
    print(f"data set: {root}")
    if not is_prepared(root):
        source, root = root, prepare(root, folder, collections, splits=RANKED).folder
        copy_table(source, root)
    for name, reason in left_out(root, wanted(collections)):
        print(f"left out: {name}: {reason}")
    return root


def read_weights(folder):
    """Read the list of a folder of weights, and check each file that it names.

    Parameters
    ----------
    folder : str or Path

    Returns
    -------
    Weights

    Raises
    ------
    DataError
        If the list cannot be read, or a file is missing or has changed; the message names the file.
    """
    path = Path(folder, LIST)
    if not path.is_file():
        raise DataError(f"{path}: not there; expected a folder that notebooks/weights.py has published")
    try:
        found = json.loads(path.read_bytes())
        if found["format"] != FORMAT:
            raise DataError(f"{path}: has format {found['format']!r:.40}, and this kit reads {FORMAT}; {_AGAIN} with "
                            "this version of the kit")
        weights = Weights(Path(folder), file_sha256(path), found["checkpoints"], found["collections"])
        good = _is_list(weights)
        whole = {weights.path(name, ".pt"): about["sha256"] for name, about in weights.checkpoints.items()}
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise DataError(f"{path}: is no list of weights; {_AGAIN}")
    whole |= {weights.path(one["stored"], ".npz"): None for own in weights.collections.values()
              for one in own["predictions"] if one["stored"]}
    for file, sha in whole.items():
        if not file.is_file():
            raise DataError(f"{file}: not there, but {LIST} names it; {_AGAIN}")
        if read_kept(file) is None if sha is None else file_sha256(file) != sha:
            raise DataError(f"{file}: is damaged, or not the file that {LIST} names; {_AGAIN}")
    return weights


def _is_list(weights):
    """Whether a list names nothing outside its folder; an error of Python's says that it has another form."""
    listed = [one for own in weights.collections.values() for one in own["predictions"]]
    return {*weights.collections} <= {*COLLECTIONS} and all(map(_CHECKPOINT.fullmatch, weights.checkpoints)) and all(
        one["split"] in RANKED and (one["model"] or one["stored"]) and one["model"] in {"", *weights.checkpoints}
        and (one["stored"] == "" or _COSTS.fullmatch(one["stored"])) for one in listed)


# --- predictions


def predict_from_weights(folder, data_root, out, collections=COLLECTIONS, device="cpu", workers=None, report=print):
    """Rank validation and test graphs with the checkpoints of a folder, as the run did that trained them.

    The predictions are published in the folder `out` of a run, where notebook 05 finds them. On the same data and the
    same kind of machine they are those of the run that trained, and the submission is the same byte for byte.

    Parameters
    ----------
    folder : str or Path
        From `pack_weights`.
    data_root : str or Path
        A prepared folder; training graphs are not read.
    out : str or Path or None
        The folder of the new run, as for `Run`.
    collections : sequence of str
    device : str
    workers : int, optional
        Checkpoints that rank at the same time. None: one per CPU core, or one per GPU.
    report : callable
        Called with one line of text per checkpoint.

    Raises
    ------
    DataError
        If a file is damaged, holds something else, comes from another version of the kit, or holds costs of other data
        than those in `data_root`. The message names the file and what to do.
    """
    weights = read_weights(folder)
    asked = [c for c in collections if c in weights.collections]
    if not asked:
        raise DataError(f"{weights.folder / LIST}: has no predictions of {', '.join(collections)}; train them at home, "
                        f"and {_AGAIN}")
    for c in asked:
        _check_data(weights, c, data_root)
    runs = {step: Run(step, data_root, out, collections=asked) for step in dict.fromkeys(map(step_of, asked))}
    graphs = {c: _graphs(weights.collections[c], runs[step_of(c)], c) for c in asked}
    ranked = _rank_all(weights, graphs, device, workers, report)
    for c in asked:
        own = weights.collections[c]
        rows = [_prediction(weights, c, one, ranked, graphs[c]) for one in own["predictions"]]
        settings = {name: value for name, value in own["settings"].items() if name != "k_hops"}
        data = Data(runs[step_of(c)].root, [c], own["settings"]["k_hops"])
        runs[step_of(c)].publish(Predictions(data, rows), **settings, weights=weights.digest)


def _check_data(weights, collection, data_root):
    """Say which graphs are not those of the run that trained; DataError if stored costs are of these graphs."""
    own = weights.collections[collection]
    other = [split for split in RANKED if data_digest(data_root, collection, split) != own["data"][split]]
    for split in other:
        stored = [one["stored"] for one in own["predictions"] if one["split"] == split and one["stored"]]
        if stored:
            raise DataError(f"{weights.path(stored[0], '.npz')}: holds costs of other graphs: the {split} files of "
                            f"{collection} in {data_root} are not those of the run that trained; run the notebooks at "
                            f"home on the same files, and {_AGAIN}")
        print(f"note  the {split} files of {collection} are not those of the run that trained")


def _graphs(own, run, collection):
    """The graphs of a collection as the notebook that trained ranked them: {split: {ID: graph}}."""
    found, is_tile = {}, collection == "tile:xla"
    for split in dict.fromkeys(one["split"] for one in own["predictions"]):
        graphs = read_split(run.root, collection, split, run.problems, None if is_tile else own["settings"]["k_hops"])
        if split == "valid" and not is_tile:
            graphs = [fewer_configs(graph, MOST_CONFIGS) for graph in graphs]
        found[split] = {f"{collection}:{graph.graph_id}": graph for graph in graphs}
    return found


def _prediction(weights, collection, one, ranked, graphs):
    """A prediction of the list, with the costs that are stored, and for other graphs those of its checkpoint."""
    stored = read_kept(weights.path(one["stored"], ".npz")) if one["stored"] else {}
    costs = ranked[collection, one["model"]][one["split"]] | stored if one["model"] else stored
    costs = {name: costs[name] for name in graphs[one["split"]] if name in costs}
    return Prediction(collection, one["split"], one["kind"], one["seed"], costs, tuple(one["trains_on"]), one["model"],
                      tuple(stored) if one["model"] else ())


def _rank_all(weights, graphs, device, workers, report):
    """What the checkpoints give -> {(collection, name of a checkpoint): {split: {ID: cost (c,)}}}."""
    keys = [(c, name) for c in graphs for name in sorted({
        one["model"] for one in weights.collections[c]["predictions"] if one["model"]})]
    networks = _networks()
    models = {name: _load(weights, name, networks) for _, name in keys}      # all of them, before any ranks
    jobs = [(c, (weights.path(name, ".pt"), models[name], device)) for c, name in keys]
    found = run_jobs(_rank, jobs, graphs, default_workers(device) if workers is None else workers, report)
    return dict(zip(keys, found))


def _rank(job, graphs, report):
    """Rank all graphs of a collection with one checkpoint -> {split: {ID: cost (c,)}}."""
    path, model, device = job
    model = model.to(device)
    found = {split: {name: predict(model, graph) for name, graph in own.items()} for split, own in graphs.items()}
    report(f"{path.stem}: ranked {sum(map(len, found.values()))} programs")
    return found


def _load(weights, name, networks):
    """The model of a checkpoint, on the CPU; DataError if it is not what the list says."""
    path, about = weights.path(name, ".pt"), weights.checkpoints[name]
    if about["network"] not in networks:
        raise DataError(f"{path}: holds a network {about['network']!r:.60}, and this kit has {', '.join(networks)}; "
                        "use the version of the kit that trained it")
    network, kind = networks[about["network"]]
    if about["code"] != _code(network):
        raise DataError(f"{path}: was made by another version of the kit; bundle the notebook with the version that "
                        f"trained, or run the notebooks with this version and {_AGAIN}")
    try:
        model = network(kind(**about["settings"]))
        load_checkpoint(path, model)
    except CheckpointError as fault:
        raise DataError(f"{fault}; {_AGAIN}") from fault
    return model
