"""What a step leaves to be continued when its time is used up."""
import json
from pathlib import Path

from kit.files import write_json

UNFINISHED = "unfinished"                # folder of the run: one record per step that a deadline stopped
INPUTS = Path("/kaggle/input")           # outputs of other notebooks, and Datasets; each in a folder of its own


def steps_trained(path, unknown=0):
    """How many steps of a training are done, by the record beside its checkpoint; `unknown` without a readable one."""
    try:
        about = json.loads(Path(path).read_bytes())
        return int(about["steps_done"] if "steps_done" in about else about["settings"]["steps"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return unknown


def earlier_stores(inputs=None):
    """The stores of earlier sessions, in the inputs of this notebook on Kaggle."""
    inputs = INPUTS if inputs is None else Path(inputs)
    # Kaggle has changed these paths: INPUT/NAME/results and INPUT/notebooks/OWNER/NAME/results
    return [folder for depth in range(1, 5) for folder in sorted(inputs.glob("*/" * depth + "store"))]


def note_unfinished(out, step, left, what="model"):
    """Write the record of what a step leaves unfinished, `left` {name: (steps done, steps)}; without any, remove it.

    Such a step runs again when the same run is asked for. Prints one sentence if there is any. `what` is the word
    for one of them.
    """
    record = Path(out, UNFINISHED, f"{step}.json")
    if not left:
        record.unlink(missing_ok=True)
        return
    write_json(record, {"step": step, "unfinished": [{"name": name, "steps_done": done, "steps": steps}
                                                     for name, (done, steps) in left.items()]})
    shown = [f"{name} after step {done} of {steps}" if done else name for name, (done, steps) in left.items()]
    print(f"note  to be continued: the time is used up, and {len(left)} "
          f"{f'{what} is' if len(left) == 1 else f'{what}s are'} unfinished "
          f"({'; '.join(shown[:4])}{'; ...' * (len(shown) > 4)}); run the same again to continue", flush=True)


def unfinished(out):
    """What the steps of a run left unfinished -> {step: [names of models or kernels]}; a damaged record names none."""
    found = {}
    for record in sorted(Path(out, UNFINISHED).glob("*.json")):
        try:
            found[record.stem] = [str(one["name"]) for one in json.loads(record.read_bytes())["unfinished"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            found[record.stem] = []
    return found
