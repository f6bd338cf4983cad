"""Which notebooks a run is asked for, and with which values: all that can be refused before anything is read."""
import argparse
import ast
import re

import papermill
from steps import PROJECT, RunError

OPTIONS = {"data_root": "--data-root", "out_dir": "--out", "collections": "--collections", "size": "--size"}
STUDIES = "10"                                  # notebooks from here on compare models, for hours: only by --only


def assignment(text):
    """NAME=VALUE -> (name, Python value)."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):           # a word
        return name, value


def select(only):
    """All notebooks in order, and those among them that were asked for."""
    notebooks = sorted((PROJECT / "notebooks").glob("[0-9]*.ipynb"))
    starts = [start.strip() for start in (only or "").split(",") if start.strip()] or [""]
    unknown = [start for start in starts if not any(n.stem.startswith(start) for n in notebooks)]
    if unknown:
        raise RunError(f"no notebook {', '.join(unknown)}; there are {', '.join(n.stem for n in notebooks)}")
    return notebooks, [n for n in notebooks if n.stem.startswith(tuple(starts)) and (only or n.stem < STUDIES)]


def share_out(notebooks, options, asked):
    """{notebook: those of the run's `options` and of the parameters `asked` for (-p) that it declares}."""
    known = {n: list(papermill.inspect_notebook(str(n))) for n in notebooks}
    for name in set(asked) & set(OPTIONS):
        raise RunError(f"-p {name}: use {OPTIONS[name]}")
    declared = list(dict.fromkeys(name for names in known.values() for name in names if name not in OPTIONS))
    unknown = [name for name in asked if name not in declared]
    if unknown:                                 # papermill would only warn
        raise RunError(f"{', '.join(n.stem for n in notebooks)}: no parameter {', '.join(unknown)}; "
                       f"{'it declares' if len(notebooks) == 1 else 'they declare'} {', '.join(declared)}")
    return {n: {k: v for k, v in {**options, **asked}.items() if k in known[n]} for n in notebooks}


def check(asked, there):
    """Stop at values that would be missed only after hours of reading, or on Kaggle's machine (`there`)."""
    for name, least in (("seeds", 1), ("first_seed", 0)):
        if type(asked.get(name, least)) is not int or asked.get(name, least) < least:
            raise RunError(f"-p {name}={asked[name]}: expected a whole number of at least {least}")
    if "device" in asked and there:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", str(asked["device"])):
            raise RunError(f"-p device={asked['device']}: expected cpu or cuda, which is what machines there have")
    elif "device" in asked:
        from kit.processes import join_team
        try:
            join_team(asked["device"])
        except ValueError as fault:
            raise RunError(f"-p device={asked['device']}: {fault}") from None
