"""Choose the notebooks of a run and check their parameters, to refuse wrong values before any data is read."""
import argparse
import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import nbformat
import papermill
from steps import PROJECT, RunError, show

from kit.kaggle import MACHINE

OPTIONS = {"data_root": "--data-root", "out_dir": "--out", "collections": "--collections", "size": "--size"}
STUDIES = "10"                                  # notebooks from here on run only by --only


def assignment(text):
    """NAME=VALUE, or MODEL.SETTING=VALUE -> (name, Python value)."""
    name, equals, value = text.partition("=")
    if not (equals and 1 <= len(name.split(".")) <= 2 and all(map(str.isidentifier, name.split(".")))):
        raise argparse.ArgumentTypeError(f"{text!r} is neither NAME=VALUE nor MODEL.SETTING=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):           # a word
        return name, value


def collected(assignments):
    """{name: value} of assignments; MODEL.SETTING=VALUE becomes a part of the parameter `changes`."""
    found, changes = {}, {}
    for name, value in assignments:
        model, dot, setting = name.partition(".")
        if dot:
            changes.setdefault(model, {})[setting] = value
        else:
            found[name] = value
    given = found.setdefault("changes", {}) if changes else {}
    if isinstance(given, dict) and all(isinstance(own, dict) for own in given.values()):         # else it is refused
        found |= {"changes": given | {model: {**given.get(model, {}), **own} for model, own in changes.items()}
                  } if changes else {}
    return found


def dataset(text):
    """OWNER/SLUG of a Kaggle Dataset."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+/[a-z0-9-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not OWNER/SLUG, as in kaggle.com/datasets/OWNER/SLUG")
    return text


def machine(name, device=None):
    """`machine_shape` for kernel-metadata.json, None for a machine without a GPU; `device`: as asked for with -p."""
    if name is None:
        return None if device == "cpu" else MACHINE
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", name) or name.lower().startswith("tpu"):
        raise RunError(f"--machine {name}: expected cpu, or one of Kaggle's names for machines with GPUs, such as "
                       f"{MACHINE}")
    if name.lower() == "nvidiateslap100":        # kaggle 2.2.5 warns of it, where nobody would see the warning
        raise RunError(f"--machine {name}: Kaggle has retired this machine and would give {MACHINE} instead; remove "
                       "--machine")
    if (name == "cpu") != (device == "cpu") and device is not None:
        raise RunError(f"--machine {name} and -p device={device} do not fit: remove one of the two")
    return None if name == "cpu" else name


def select(only):
    """All notebooks in order, and those among them that were asked for."""
    notebooks = sorted((PROJECT / "notebooks").glob("[0-9]*.ipynb"))
    starts = [start.strip() for start in (only or "").split(",") if start.strip()] or [""]
    unknown = [start for start in starts if not any(n.stem.startswith(start) for n in notebooks)]
    if unknown:
        raise RunError(f"no notebook {', '.join(unknown)}; there are {', '.join(n.stem for n in notebooks)}")
    return notebooks, [n for n in notebooks if n.stem.startswith(tuple(starts)) and (only or n.stem < STUDIES)]


def declared(notebooks):
    """{notebook: {parameter: source text of its default}}, from the parameters cells."""
    found = {}
    for n in notebooks:
        try:
            found[n] = {name: about["default"] for name, about in papermill.inspect_notebook(str(n)).items()}
            cells = [cell.source for cell in nbformat.read(n, 4).cells if cell.cell_type == "code"]
        except (ValueError, KeyError, TypeError, AttributeError, nbformat.ValidationError) as fault:
            raise RunError(f"{show(n)}: no notebook, or a damaged one ({type(fault).__name__}); restore it") from None
        if not found[n] and any(re.search(r"^data_root *=", cell, re.MULTILINE) for cell in cells):
            raise RunError(f"{show(n)}: no cell is tagged parameters, so it would read other data and write elsewhere; "
                           "tag the cell that sets data_root")
    return found


def share_out(notebooks, options, asked):
    """{notebook: {name: value}} of the run's `options` and of the parameters `asked` for (-p) that it declares."""
    known = declared(notebooks)
    for name in set(asked) & set(OPTIONS):
        raise RunError(f"-p {name}: use {OPTIONS[name]}")
    names = list(dict.fromkeys(name for defaults in known.values() for name in defaults if name not in OPTIONS))
    unknown = [name for name in asked if name not in names]
    if unknown:                                 # papermill would only warn
        raise RunError(f"{', '.join(n.stem for n in notebooks)}: no parameter {', '.join(unknown)}; "
                       f"{'it declares' if len(notebooks) == 1 else 'they declare'} {', '.join(names)}")
    return {n: {k: v for k, v in {**options, **asked}.items() if k in known[n]} for n in notebooks}


def number(least, below=float("inf")):
    """value -> what is expected if it is not a number in the range, else None."""
    words = f"a number of at least {least}{f' and below {below}' * (below < float('inf'))}"
    return lambda value: None if type(value) in (int, float) and least <= value < below else words


def whole(least, most=10**9):
    """value -> what is expected if it is not a whole number in this range, else None."""
    words = f"a whole number of at least {least} and at most {most:,}"
    return lambda value: None if type(value) is int and least <= value <= most else words


def whole_ones(value):
    """What is expected if a value is not a list of whole numbers above 0, else None."""
    good = type(value) in (list, tuple) and value and not any(map(whole(1), value))
    return None if good else "a list of whole numbers of at least 1, such as [10,30]"


def one_of(*names):
    """value -> what is expected if it is not one of these names, else None."""
    return lambda value: None if value in names else " or ".join(map(str, names))


def one_of_kit(module, constant):
    """The same for the names in a constant of the kit; imported only when needed, because this may load PyTorch."""
    return lambda value: one_of(*getattr(import_module(f"kit.{module}"), constant))(value)


def file(value):
    """What is expected if a value names no file, else None."""
    return None if isinstance(value, str) and (PROJECT / Path(value).expanduser()).is_file() else "the path of a file"


def place(value):
    """What is expected if a value cannot name a folder, else None."""
    path = PROJECT / Path(str(value)).expanduser()      # where notebooks are executed
    return None if path.is_dir() or not path.exists() else "a folder, which may be missing"


def models(value):
    """What is expected if a value does not name models of a recipe, else None."""
    from kit.recipes import recipes_for
    names = [*recipes_for("layout:xla:random")]
    chosen = value.split(",") if isinstance(value, str) else value
    good = isinstance(chosen, (list, tuple)) and chosen and all(one in names for one in chosen)
    return None if good else f"one or more of {', '.join(names)}, joined by commas"


def network(value):
    """What is expected if a value names no known network, else None."""
    from lab.kernels import network_names
    return one_of(*network_names())(value)


def changes(value):
    """What is expected if a value does not change settings of models of a recipe, else None."""
    from kit.recipes import recipes_for
    from lab.training.plan import SET_BY_RUN
    known = recipes_for("tile:xla") | recipes_for("layout:xla:random")
    if not isinstance(value, dict) or not all(isinstance(own, dict) for own in value.values()):
        return '{model: {setting: value}}, such as {"token": {"steps": 2000}}; or -p token.steps=2000'
    if unknown := [name for name in value if name not in known]:
        return f"no {', '.join(map(str, unknown))}, but one or more of {', '.join(known)}"
    if taken := [setting for own in value.values() for setting in own if setting in SET_BY_RUN]:
        return f"other settings; the run sets {', '.join(taken)}"
    try:
        for name, own in value.items():
            known[name].changed(**own)
    except (ValueError, TypeError) as fault:
        return f"other settings: {fault}"
    return None


# parameter -> check of its value; these values a notebook would refuse, or misread, only hours later
EXPECTED = {
    **dict.fromkeys(("first_seed", "seed", "k_hops"), whole(0)),
    "most_hops": whole(0, 20),                  # every hop prunes all graphs again
    **dict.fromkeys(("steps", "gnn_steps", "programs", "queries", "trials", "shown", "most_graphs", "segments"),
                    whole(1)),
    "folds": whole(2, 1000),
    **dict.fromkeys(("seeds", "threads", "workers"), whole(1, 1000)),
    "models": models, "changes": changes, "most_configs": whole(2),                              # pairs
    # a word would be true
    **dict.fromkeys(("submit_to_kaggle", "partial", "choose", "tie", "use_valid"), one_of(True, False)),
    "recipe": one_of_kit("recipes", "SCALES"), "how": one_of("mean_zscore", "mean_rank"), "hours": number(0, 1000),
    "budget": whole(3), "budgets": whole_ones, "network": network, "minutes": number(0),
    "score_within": number(0), "hlo": file, "sample_submission": file, "weights_from": file, "ledger": place,
    "predictions_from": lambda value: None if isinstance(value, str) and (PROJECT / Path(value).expanduser()).is_dir()
    else "a folder that is there"}


# run in its own process, because a process that has used a GPU holds a part of its memory until it ends
PROBE = """import sys
sys.path.insert(0, "")
from kit.train_parts import check_device
try:
    check_device(sys.argv[1])
except ValueError as fault:
    sys.exit(str(fault))"""


def check(notebooks, asked, there=False):
    """Refuse values that would fail only after hours of reading, or on Kaggle's machine (`there`)."""
    defaults = declared(notebooks).values()
    for name, value in asked.items():
        if value is None and {own[name] for own in defaults if name in own} == {"None"}:
            continue                            # the notebook chooses
        if there and name in ("hlo", "sample_submission", "weights_from", "ledger",
                              "predictions_from"):
            continue                            # files and packages on Kaggle's machine are not known here
        expected = EXPECTED[name](value) if name in EXPECTED else None
        if name == "changes" and not expected and not there and "scatter" in value.get("gnn", {}).values():
            expected = None if find_spec("torch_scatter") else "sparse, or scatter if torch-scatter is installed"
        if expected:
            raise RunError(f"-p {name}={value}: expected {expected}")
    if "device" in asked and there:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", str(asked["device"])):
            raise RunError(f"-p device={asked['device']}: expected cpu or cuda, as on Kaggle's machines")
    elif asked.get("device", "cpu") != "cpu":
        probe = subprocess.run([sys.executable, "-c", PROBE, str(asked["device"])], cwd=PROJECT, text=True,
                               capture_output=True)
        if probe.returncode:
            raise RunError(f"-p device={asked['device']}: {probe.stderr.strip().splitlines()[-1]}")


def folder(option, path, words="a folder"):
    """The folder that an option names; it may be missing, but not be a file or lie below one."""
    try:
        path = Path(path).expanduser().resolve()
    except RuntimeError as fault:                # a link to itself; or ~NAME without such a user
        raise RunError(f"{path}: {fault}; {option} names {words}") from None
    file = next((place for place in (path, *path.parents) if place.exists() and not place.is_dir()), None)
    if file:
        raise RunError(f"{show(file)}: is a file; {option} names {words}")
    return path
