"""A training that takes several sessions: what one session leaves unfinished, and what the next one takes over.

While a model trains, the mark of its checkpoint says how many steps are done. A notebook on Kaggle takes over a
checkpoint of an earlier session from its input, but only if the checkpoint is whole by its mark, and if the data and
the code in this mark are those that are here.
"""
import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

from kit.files import whole_file, write_json
from lab.run.provenance import MARK, check_code, read_mark, unfit, write_mark

INPUTS = Path("/kaggle/input")           # outputs of other notebooks, and Datasets; each in a folder of its own
UNFINISHED = "unfinished"                # folder of the run: one record per step that a deadline stopped
TRAINED = "trained"                      # in the mark of a checkpoint: "STEPS DONE of STEPS"
_TRAINED = re.compile(r"([0-9]{1,12}) of ([0-9]{1,12})")


def steps_trained(path):
    """How many steps of its training a checkpoint holds, by its mark; None without a mark that says so."""
    match = _TRAINED.fullmatch(((read_mark(path) or {}).get("made_from", {})).get(TRAINED, ""))
    return int(match[1]) if match else None


@contextmanager
def marking(path, out, by, made_from, steps, done):
    """Within this, the checkpoint of a training is written, after `done` of `steps` steps; then follows its mark.

    RuntimeError if this process trains with other code than `made_from` says.
    """
    check_code(made_from)
    # first no mark: a kill at any moment leaves no mark of other bytes, with which the checkpoint would be refused
    Path(f"{path}{MARK}").unlink(missing_ok=True)
    yield
    write_mark(path, out, by, made_from | {TRAINED: f"{done} of {steps}"})


def earlier_checkpoints(inputs=None):
    """The folders `checkpoints` of earlier sessions, in the inputs of this notebook on Kaggle."""
    inputs = INPUTS if inputs is None else Path(inputs)
    # Kaggle has changed these paths: INPUT/NAME/results and INPUT/notebooks/OWNER/NAME/results
    return [folder for depth in range(1, 5) for folder in sorted(inputs.glob("*/" * depth + "checkpoints"))]


def take_over(path, out, by, data_root, folders):
    """Copy a checkpoint from that of the `folders` where it was trained furthest, unless it is here already.

    `path`: of the checkpoint, in the folder `out` of the run. `by`: the step. `data_root`: a prepared folder. What has
    no mark, or does not fit to its mark, the data and the code here, is named and left where it is.
    """
    found = []
    for one in (folder / path.name for folder in folders):
        if one.is_file() and not path.exists():
            why = unfit(one, one.parents[1], data_root, ("data", "code"))
            if why is None and Path(read_mark(one)["name"]).name != path.name:
                why = f"{one}: its mark is of another file"
            if why:
                print(f"note  a checkpoint of an earlier session is not used: {why}", flush=True)
            else:
                found.append((steps_trained(one) or 0, str(one)))
    if found:
        steps, best = max(found)
        with whole_file(path) as part:
            shutil.copyfile(best, part)
        write_mark(path, out, by, read_mark(best)["made_from"])
        print(f"{path.name}: resumed from an earlier session, after {steps} steps", flush=True)


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
