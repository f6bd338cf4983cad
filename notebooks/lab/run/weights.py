"""Weights that travel: the trained checkpoints of a run in one folder, and predictions from this folder.

`pack_weights` writes such a folder, and `predict_from_weights` ranks validation and test graphs from it. Nothing is
trained, and no training graph is needed. The folder holds:

- `weights.json`: each checkpoint with its network, settings and SHA-256; each file of predictions of the run, with the
  checkpoint that it comes from
- `checkpoints/NAME.pt`, with the mark that says what it was made from (see `lab.run.provenance`)
- `stored/`: costs that no checkpoint gives. These are the costs of specialists, which learn from training graphs, and
  the predictions of models without weights. Such costs hold for the same graphs alone

Nothing is unpickled. Not imported by `lab.run` itself, because it loads PyTorch.
"""
import json
import re
import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from kit.data import COLLECTIONS, DataError, find_data_root
from kit.files import file_sha256, plain, write_json
from kit.predict import predict
from kit.prepare import content_digests, is_prepared, prepare
from kit.prune import fewer_configs
from kit.recipes import SCALES, recipes_for
from kit.training import CheckpointError, default_workers, load_checkpoint, read_checkpoint, run_jobs
from lab.run.provenance import MARK, from_code, from_data, from_settings, read_mark
from lab.run.report import read_record
from lab.run.results import Results
from lab.run.workflow import (
    left_out,
    load_costs,
    locate_data,
    noted_settings,
    open_data,
    read_split,
    save_costs,
    wanted,
)

LIST, FORMAT, STEP = "weights.json", 1, "weights"
RANKED = ("valid", "test")
TRAINS = ("03_", "04_", "on_kaggle")     # the steps whose settings say how the weights were trained
_COMBINES = "05_ensemble"
_AGAIN = "publish the weights again"
_CHECKPOINT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+.-]{0,200}\.pt")
_MEMBER = re.compile(r"\w[\w+.-]{0,200}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Weights(NamedTuple):
    """A folder of weights whose list was checked; `read_weights` gives one."""
    folder: Path
    digest: str              # SHA-256 of the list
    checkpoints: dict        # {file name: {"sha256", "network", "settings", "code", "made_from"}}
    predictions: list        # of {"collection", "member", "split", "checkpoint", "k_hops", "most", "graphs", "stored",
    #                          "data"}; "checkpoint" and "stored" may be None, but not both
    settings: dict           # of the steps that trained


# --- at home


def lacking_checkpoints(out):
    """SHA-256 of the checkpoints that predictions of a run come from, but that are not in its folder."""
    return {sha for path in Path(out, "predictions").glob("*/*.npz") if (sha := _made_from(path).get("weights"))
            } - _checkpoints_here(out).keys()


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
        If the run has no predictions that can be used.
    """
    out, folder, networks = Path(out), Path(folder), _networks()
    found, here = Results(out, STEP, data_root).load_members("predictions", COLLECTIONS), _checkpoints_here(out)
    checkpoints, predictions, reasons = {}, [], Counter()
    for (_, collection, split), members in found.items():
        names = {f"{collection}:{name}" for name, _ in content_digests(data_root, collection, split)}
        for member, costs in members.items():
            path = out / "predictions" / collection.replace(":", "_") / f"{member}.{split}.npz"
            made_from = _made_from(path)
            checkpoint = here.get(made_from.get("weights"))
            try:
                about = _describe(checkpoint, made_from, networks, collection)
                if not costs.keys() <= names:
                    raise DataError("they rank other graphs than those of their split")
            except DataError as why:
                about, reasons[str(why)] = None, reasons[str(why)] + 1
            known = {*made_from.get("specialists", "").split("/")} if about else costs.keys()
            stored = {name: cost for name, cost in costs.items() if name in known}
            if about:
                checkpoints[checkpoint.name] = about
            if stored:
                save_costs(_stored(folder, collection, member, split), stored)
            predictions.append({
                "collection": collection, "member": member, "split": split,
                "checkpoint": checkpoint.name if about else None,
                "k_hops": int(made_from.get("k_hops", 0)) if about else 0,
                "most": max(map(len, costs.values()), default=0), "graphs": sorted(costs.keys() - stored.keys()),
                "stored": file_sha256(_stored(folder, collection, member, split)) if stored else None,
                "data": from_data(data_root, [collection], split)[f"data {collection} {split}"]})
    if not predictions:
        raise DataError(f"{out}: no predictions that can be used; notebooks 03 and 04 make them")
    for name in checkpoints:
        _copy(out / "checkpoints" / name, folder / "checkpoints" / name)
    for reason, count in reasons.items():
        print(f"{count} of {len(predictions)} files of predictions travel as they are: {reason}")
    noted = noted_settings(out)
    combined, settings = noted.get(_COMBINES, {}), {step: own for step, own in noted.items() if step.startswith(TRAINS)}
    if combined.get("weights_from") or (combined.get("choose", True) and [*out.glob("predictions/*/*.train.npz")]):
        print("note  training programs, or another run, chose the weights of this run's ensemble; a notebook that "
              "predicts from these weights chooses them from validation graphs alone, so its submission may be another "
              "one")
    write_json(folder / LIST, {"format": FORMAT, "checkpoints": checkpoints, "predictions": predictions,
                               "settings": settings})
    return read_weights(folder)


def combined_by(out):
    """How notebook 05 combined the models of a run: {parameter: value} where it is not the usual value."""
    noted = noted_settings(out).get(_COMBINES, {})
    return {name: noted[name] for name, usual in (("how", "mean_zscore"), ("choose", True))
            if noted.get(name, usual) != usual}


def _made_from(path):
    """What a result was made from; {} if nothing says so."""
    return (read_mark(path) or {"made_from": {}})["made_from"]


def _checkpoints_here(out):
    """{SHA-256: path} of the checkpoints in the folder of a run."""
    return {file_sha256(path): path for path in sorted(Path(out, "checkpoints").glob("*.pt"))}


def _describe(checkpoint, made_from, networks, collection):
    """An entry of the list of checkpoints; DataError, with the reason, if predictions cannot be repeated from it."""
    if "weights" not in made_from:
        raise DataError("a model without weights made them")
    if checkpoint is None:
        raise DataError("the checkpoint that made them is not in the folder of the run")
    if not re.fullmatch(r"\d{1,3}", made_from.get("k_hops", "0" if collection == "tile:xla" else "")):
        raise DataError("they do not say how the graphs were pruned")
    record = read_record(checkpoint.with_suffix(".json"))
    if record["model"] not in networks or not _CHECKPOINT.fullmatch(checkpoint.name):
        raise DataError(f"no recipe has a network {record['model']}")
    network, kind = networks[record["model"]]
    if not _is_of(record, kind, made_from) or _changed(checkpoint.with_suffix(".json")):
        raise DataError(f"{checkpoint.with_suffix('.json')} was changed after the training wrote it")
    return {"sha256": made_from["weights"], "network": record["model"], "settings": record["model_settings"],
            "code": _code(network), "made_from": _made_from(checkpoint)}


def _is_of(record, kind, made_from):
    """Whether a record has the settings of the model that made predictions, as their mark says."""
    try:
        said = from_settings(shape=kind(**record["model_settings"]))
    except (TypeError, ValueError, KeyError):
        return False
    return said["shape"] == made_from.get("shape", said["shape"])


def _changed(path):
    """Whether a file is another one than its mark says; records that were fetched from Kaggle have no mark."""
    mark = read_mark(path)
    return mark is not None and mark["sha256"] != file_sha256(path)


def _networks():
    """{name: (network, class of its settings)} of all recipes."""
    recipes = [one for c in COLLECTIONS for scale in SCALES for one in recipes_for(c, scale).values()]
    return {one.network.__name__: (one.network, type(one.shape)) for one in recipes}


def _code(network):
    """A digest of the code that ranks with a network."""
    return from_code("kit.predict", "kit.prune", network.__module__)


def _stored(folder, collection, member, split):
    """Where a folder of weights has the stored costs of a file of predictions."""
    return Path(folder, "stored", collection.replace(":", "_"), f"{member}.{split}.npz")


def _copy(source, target):
    """Copy a checkpoint with its mark."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for end in ("", MARK):
        if Path(f"{source}{end}").is_file():
            shutil.copyfile(f"{source}{end}", f"{target}{end}")


# --- where the weights are


def find_weights(places):
    """The first of some folders that holds weights; DataError if there is none."""
    found = next((Path(place) for place in places if Path(place, LIST).is_file()), None)
    if found is None:
        raise DataError(f"no {LIST} in {' or '.join(map(str, places))}; add the Dataset with the weights to the "
                        "notebook (Add Input), or publish it with notebooks/weights.py")
    return found


def open_ranked(data_root, collections, size, folder):
    """Prepare the graphs that are ranked, without the training graphs, in `folder` -> the prepared folder.

    A data root that is prepared already is taken as it is; sample data is written if `data_root` is "sample". DataError
    if there is no data set.
    """
    if data_root == "sample" or locate_data(data_root or find_data_root(), size)[2]:
        return open_data(data_root, size, collections)[0]
    root = find_data_root(data_root)
    print(f"data set: {root}")
    root = root if is_prepared(root) else prepare(root, folder, collections, splits=RANKED).folder
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
    folder = Path(folder)
    path = folder / LIST
    if not path.is_file():
        raise DataError(f"{path}: not there; expected a folder that notebooks/weights.py has published")
    try:
        found = json.loads(path.read_bytes())
        if found["format"] != FORMAT:
            raise DataError(f"{path}: has format {found['format']!r:.40}, and this kit reads {FORMAT}; {_AGAIN} with "
                            "this version of the kit")
        whole = Weights(folder, file_sha256(path), found["checkpoints"], found["predictions"],
                        found["settings"])
        named = _files_of(whole)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        if isinstance(fault, DataError):
            raise
        raise DataError(f"{path}: is no list of weights ({type(fault).__name__}); {_AGAIN}") from fault
    for file, sha in named.items():
        if not file.is_file():
            raise DataError(f"{file}: not there, but {LIST} names it; {_AGAIN}")
        if file_sha256(file) != sha:
            raise DataError(f"{file}: is damaged, or not the file that {LIST} names; {_AGAIN}")
    return whole


def _files_of(weights):
    """{path: SHA-256} of all files that a list names; an error of Python's if the list is not as it should be."""
    files = {}
    _must(isinstance(weights.settings, dict))
    for name, about in weights.checkpoints.items():
        texts = [about["network"], *(text for part in ("code", "made_from") for pair in about[part].items()
                                     for text in pair)]
        _must(_CHECKPOINT.fullmatch(name) and all(isinstance(text, str) for text in texts))
        _must(isinstance(about["settings"], dict))
        files[weights.folder / "checkpoints" / name] = about["sha256"]
    for one in weights.predictions:
        _must(one["collection"] in COLLECTIONS and one["split"] in RANKED and _MEMBER.fullmatch(one["member"]))
        _must(one["checkpoint"] in weights.checkpoints or (one["checkpoint"] is None and one["stored"]))
        _must(all(type(one[name]) is int and one[name] >= 0 for name in ("k_hops", "most")))
        _must(_SHA256.fullmatch(one["data"]) and all(isinstance(name, str) for name in one["graphs"]))
        if one["stored"]:
            files[_stored(weights.folder, one["collection"], one["member"], one["split"])] = one["stored"]
    _must(all(_SHA256.fullmatch(sha) for sha in files.values()))
    return files


def _must(good):
    """ValueError unless a part of the list is as it should be."""
    if not good:
        raise ValueError


# --- predictions


def predict_from_weights(folder, data_root, out, collections=COLLECTIONS, device="cpu", workers=None, report=print):
    """Rank validation and test graphs with the checkpoints of a folder, as the run did that trained them.

    The predictions go to the folder `out` of a run, where notebook 05 finds them. On the same data and the same kind of
    machine they are those of the run that trained, and the submission is the same byte for byte.

    Parameters
    ----------
    folder : str or Path
        From `pack_weights`.
    data_root : str or Path
        A prepared folder; training graphs are not read.
    out : str or Path
        The folder of the new run.
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
    asked = [one for one in weights.predictions if one["collection"] in collections]
    results = Results(out, STEP, data_root, {"weights": weights.digest, "trained": weights.settings})
    if not asked:
        raise DataError(f"{weights.folder / LIST}: has no predictions of {', '.join(collections)}; train them at home, "
                        f"and {_AGAIN}")
    asked = [one | {"same": _is_same(weights, one, data_root)} for one in asked]
    costs = _rank_all(weights, asked, results, device, workers, report)
    for one in asked:
        own, collection, split = costs.get(_key(one), {}), one["collection"], one["split"]
        made_from = from_data(data_root, [collection], split) | {"weights.json": weights.digest}
        if one["checkpoint"]:
            about = weights.checkpoints[one["checkpoint"]]
            made_from |= {f"weights {name}": value for name, value in about["made_from"].items()}
            made_from |= {"weights": about["sha256"]} | about["code"]
        if one["stored"]:
            made_from["stored"] = one["stored"]
            own |= _load_stored(weights, one)
        results.save_costs(f"predictions/{collection.replace(':', '_')}/{one['member']}.{split}.npz", own, made_from)
    results.retire(collections)


def _key(one):
    """What tells a file of predictions from the others of its run."""
    return one["collection"], one["member"], one["split"]


def _is_same(weights, one, data_root):
    """Whether the graphs are those of the run that trained; DataError if they are not, but stored costs are needed."""
    collection, split = one["collection"], one["split"]
    if from_data(data_root, [collection], split)[f"data {collection} {split}"] == one["data"]:
        return True
    if one["stored"]:
        raise DataError(f"{_stored(weights.folder, *_key(one))}: holds costs of other graphs: the {split} files of "
                        f"{collection} in {data_root} are not those of the run that trained; run the notebooks at home "
                        f"on the same files, and {_AGAIN}")
    print(f"note  {one['member']}: the {split} files of {collection} are not those of the run that trained")
    return False


def _load_stored(weights, one):
    """The stored costs of a file of predictions."""
    path = _stored(weights.folder, *_key(one))
    costs = load_costs(path)
    if any(name.rpartition(":")[0] != one["collection"] for name in costs):
        raise DataError(f"{path}: holds costs of other collections than {one['collection']}; {_AGAIN}")
    return costs


def _rank_all(weights, asked, results, device, workers, report):
    """What the checkpoints give -> {key of a file of predictions: {ID: cost (c,)}}."""
    by_checkpoint, shared, jobs, problems = {}, {}, [], results.out / "problems" / f"{STEP}.jsonl"
    for one in asked:
        if one["checkpoint"]:
            by_checkpoint.setdefault(one["checkpoint"], []).append(one)
    networks = _networks()
    models = {name: _load(weights, name, networks) for name in by_checkpoint}        # all of them, before any ranks
    for name, some in by_checkpoint.items():
        places = tuple(sorted({(one["collection"], one["split"], one["k_hops"]) for one in some}))
        if places not in shared:
            shared[places] = {place: {f"{place[0]}:{graph.graph_id}": graph for graph in read_split(
                results.data_root, *place[:2], problems, place[2])} for place in places}
        jobs.append((places, (weights.folder / "checkpoints" / name, models[name], some, device)))
    jobs.sort(key=lambda job: job[0])                    # so that a process reads its graphs once
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)                         # as when the models were trained: other sums, other bits
        found = run_jobs(_rank, jobs, shared, default_workers(device) if workers is None else workers, report)
    finally:
        torch.set_num_threads(threads)
    return {key: costs for some in found for key, costs in some.items()}


def _load(weights, name, networks):
    """The model of a checkpoint, on the CPU; DataError if it is not what the list says."""
    path, about = weights.folder / "checkpoints" / name, weights.checkpoints[name]
    if about["network"] not in networks:
        raise DataError(f"{path}: holds a network {about['network']!r:.60}, and this kit has {', '.join(networks)}; "
                        "use the version of the kit that trained it")
    network, kind = networks[about["network"]]
    if sorted(about["code"].values()) != sorted(_code(network).values()):      # wherever the modules lie
        raise DataError(f"{path}: was made by another version of the kit; bundle the notebook with the version that "
                        f"trained, or run the notebooks with this version and {_AGAIN}")
    try:
        shape = kind(**about["settings"])
        if plain(asdict(shape)) != about["settings"]:
            raise ValueError("settings are missing")
        _check_shapes(path, network, shape)
        model = network(shape)
        load_checkpoint(path, model)
    except CheckpointError as fault:
        raise DataError(f"{fault}; {_AGAIN}") from fault
    except (TypeError, ValueError, RuntimeError, AttributeError, ImportError) as fault:
        raise DataError(f"{path}: no {about['network']} can be made with the settings in {LIST} ({fault}); {_AGAIN}"
                        ) from fault
    return model


def _check_shapes(path, network, shape):
    """CheckpointError if the tensors of a checkpoint have other shapes than those of a network with these settings."""
    with torch.device("meta"):                           # takes no memory, whatever sizes the settings ask for
        expected = {name: tensor.shape for name, tensor in network(shape).state_dict().items()}
    saved = read_checkpoint(path)
    saved = saved.get("best", saved["model"])
    if {name: getattr(tensor, "shape", None) for name, tensor in saved.items()} != expected:
        raise CheckpointError(f"{path}: holds the weights of another model than {shape}")


def _rank(job, graphs, report):
    """Rank with one checkpoint -> {key of a file of predictions: {ID: cost (c,)}}."""
    path, model, asked, device = job
    model, found = model.to(device), {}
    for one in asked:
        here = graphs[one["collection"], one["split"], one["k_hops"]]
        known = {name: here[name] for name in one["graphs"] if name in here} if one["same"] else here
        if one["split"] == "valid" and one["collection"] != "tile:xla":          # as notebook 04
            known = {name: fewer_configs(graph, one["most"]) for name, graph in known.items()}
        try:
            found[_key(one)] = {name: predict(model, graph) for name, graph in known.items()}
        except ValueError as fault:
            raise DataError(f"{path}: {fault}; {_AGAIN}") from fault
    report(f"{path.stem}: ranked {sum(map(len, found.values()))} programs")
    return found
