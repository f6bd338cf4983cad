"""The ledger: one small JSON file per run, so that each score is kept with its CSV and its parameters."""
import csv as tables
import hashlib
import json
import math
import os
import re
import subprocess
import time
from pathlib import Path

import kit
from kit.data import COLLECTIONS, DataError
from kit.files import write_json

CLONE = Path(kit.__file__).resolve().parents[1]            # the kit's own clone, if it is one
RUN_NAME = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f]+")      # a possible folder name; a run has the name of its folder


def record_run(folder, run, csv, data, parameters, validation, made_from=None):
    """Write the ledger entry of one run, `folder`/`run`.json; see submissions/README.md.

    The entry keeps the sha256 of the submission `csv`, not the file. `made_from`: as from `Folder.origin`.
    `data` says what the submission was made from, for example "real files". `parameters` are the settings that make it
    again; paths become text, nan becomes null.
    `validation`: {collection: {"score": float, "low": float, "high": float, "graphs": int, ...}}. An entry that is
    written again for the same CSV keeps its time and its leaderboard scores; what somebody added to an entry always
    stays. The entry of another CSV that has a leaderboard score is kept as `folder`/`run`-<8 hex digits>.json, and a
    line says so; if that CSV comes back, its scores come back.
    ValueError if the name cannot be a file name, if a collection is unknown or has no "score", or if the existing entry
    is damaged.
    """
    if not RUN_NAME.fullmatch(run):
        raise ValueError(f"run {run!r} cannot be a file name; use one without slashes")
    unfit = [name for name, result in validation.items() if name not in COLLECTIONS or "score" not in result]
    if unfit:
        raise ValueError(f"validation of {', '.join(unfit)}: expected collections with a \"score\"; these are "
                         f"{', '.join(COLLECTIONS)}")
    entry, digest = Path(folder, f"{run}.json"), hashlib.sha256(Path(csv).read_bytes()).hexdigest()
    entry.parent.mkdir(parents=True, exist_ok=True)
    old = read_entry(entry) if entry.exists() else {}
    if old and old["sha256"] != digest and any(score is not None for score in old["leaderboard"].values()):
        print(f"note  {entry} belongs to another CSV that has a leaderboard score; that entry is kept as "
              f"{_keep(entry, old)}")
        old = {}
    before = _kept(entry, digest)                        # there if this CSV had a score, and made room for another one
    back = read_entry(before) if before.exists() else {}
    same = next((one for one in (back, old) if one.get("sha256") == digest), None)
    leaderboard = same["leaderboard"] if same else {"public": None, "private": None}
    recorded = same.get("recorded") if same else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    new = {"run": run, "data": data, "sha256": digest, "recorded": recorded, "commit": _commit(CLONE),
           "parameters": parameters, "validation": validation, "leaderboard": leaderboard, "made_from": made_from or {}}
    added = {name: value for name, value in {**old, **back}.items() if name not in new}
    write_json(entry, {**new, **added}, indent=2)
    if back and same is back:
        before.unlink()
    return entry


def graph_scores(path, validation):
    """`validation` as `record_run` takes it, with the scores of the single graphs from a file of notebook 05.

    The file is a CSV with the columns collection, graph and score. A collection gets "each", its scores as text, sorted
    by the names of the graphs, and "names", a digest of these names. Two submissions can then be compared graph by
    graph. A collection whose scores in the file do not fit its number of graphs and its mean stays as it is, and all
    do without a file. DataError if the file is no such table.
    """
    if not Path(path).is_file():
        return validation
    found = {}
    try:
        for row in tables.DictReader(Path(path).read_text("utf-8").splitlines(), strict=True):
            found.setdefault(row["collection"], {})[row["graph"]] = float(row["score"])
    except (OSError, ValueError, KeyError, TypeError, tables.Error) as fault:
        raise DataError(f"{path}: is no table of scores per graph ({type(fault).__name__}); run notebook 05 again"
                        ) from fault
    more = {}
    for name, result in validation.items():
        scores = [found[name][graph] for graph in sorted(found.get(name, {}))]
        fits = len(scores) == result.get("graphs") and result["score"] is not None
        if scores and fits and abs(sum(scores) / len(scores) - result["score"]) < 1e-3:
            digest = hashlib.sha256("\n".join(sorted(found[name])).encode("utf-8", "backslashreplace")).hexdigest()
            more[name] = {"each": " ".join(f"{score:.4f}" for score in scores), "names": digest[:16]}
    return {name: {**result, **more.get(name, {})} for name, result in validation.items()}


def record_leaderboard(folder, run, public=None, private=None):
    """Add leaderboard scores to the entry of a recorded run and give back its path; a score of None changes nothing.

    ValueError if there is no such run, if its entry is damaged, or if a score is no number.
    """
    for name, score in (("public", public), ("private", private)):
        if score is not None and not (isinstance(score, (int, float)) and math.isfinite(score)):
            raise ValueError(f"{name} is {score!r}; expected the number that the leaderboard shows, such as 0.65")
    entry = Path(folder, f"{run}.json")
    if not entry.exists():
        known = ", ".join(path.stem for path in entry_paths(folder)) or "none"
        raise ValueError(f"{entry}: no such run; recorded runs: {known}")
    record = read_entry(entry)
    record["leaderboard"].update({k: v for k, v in (("public", public), ("private", private)) if v is not None})
    write_json(entry, record, indent=2)
    return entry


def list_runs(folder):
    """The ledger as a list of rows for a table, sorted by name.

    The columns are run, data, each collection (None: not scored), public, private, commit, sha256, same_as (an earlier
    row with the same CSV, or "") and problem (what is wrong with a damaged entry, or "").
    """
    rows, first = [], {}
    for entry in entry_paths(folder):
        row = dict.fromkeys(["run", "data", *COLLECTIONS, "public", "private", "commit", "sha256"])
        row |= {"run": entry.stem, "same_as": "", "problem": ""}
        try:
            record = read_entry(entry)
        except ValueError as fault:
            row["problem"] = str(fault)
        else:
            row |= {key: record[key] for key in ("data", "commit", "sha256")} | record["leaderboard"]
            row |= {name: result["score"] for name, result in record["validation"].items()}
            row["same_as"] = first.get(row["sha256"], "")
            first.setdefault(row["sha256"], entry.stem)
        rows.append(row)
    return rows


def entry_paths(folder):
    """The JSON files in a folder that are entries, also damaged ones; what has no "sha256" is somebody else's file."""
    def is_entry(path):
        try:
            return b'"sha256"' in path.read_bytes()
        except OSError:
            return False
    return [path for path in sorted(Path(folder).glob("*.json")) if is_entry(path)]


def read_entry(entry):
    """Read an entry; ValueError names the file and its fault."""
    try:
        record = json.loads(entry.read_text(encoding="utf-8"))
        lacking = {"run", "data", "commit", "parameters"} - record.keys()
        lacking |= {"public", "private"} ^ record["leaderboard"].keys()
        unknown = record["validation"].keys() - set(COLLECTIONS)
        if lacking or unknown or not all("score" in result.keys() for result in record["validation"].values()):
            raise ValueError("keys are missing or unknown")
        if not isinstance(record["sha256"], str):
            raise ValueError(f"sha256 is {record['sha256']!r:.80}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise DataError(f"{entry} is not a ledger entry ({type(fault).__name__}: {fault}); move it away or restore it"
                        ) from fault
    return record


def _kept(entry, digest):
    """Where the scored entry of a CSV is kept while the run of this name has another CSV."""
    return entry.with_name(f"{entry.stem}-{digest[:8]}.json")


def _keep(entry, old):
    """Keep the entry of an earlier CSV of a run under a name of its own -> its path."""
    place = _kept(entry, old["sha256"])
    if place.exists() and read_entry(place)["sha256"] != old["sha256"]:
        raise DataError(f"{place} belongs to another CSV; give the folder of the run another name")
    write_json(place, {**old, "run": place.stem}, indent=2)
    return place


def _commit(clone):
    """The commit of a clone of the kit, "-dirty" if files differ from it; None without git or where it is no clone.

    A kit that was unpacked inside another repository, or committed into it, does not have that repository's commit.
    """
    # git itself sets such variables, for example for a hook; they point to another repository
    around = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    words = (["rev-parse", "--show-prefix"], ["ls-files", "--error-unmatch", "kit/__init__.py"],
             ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])
    try:
        prefix, _, commit = (subprocess.run(["git", "-C", str(clone), *some], capture_output=True, text=True,
                                            timeout=20, env=around, check=True).stdout.strip() for some in words)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if prefix else commit or None
