"""The ledger: one small JSON file per run, so that each score is kept with its CSV and its parameters."""
import hashlib
import json
import re
import subprocess
from pathlib import Path

from kit.data import COLLECTIONS, DataError
from kit.files import write_json

RUN_NAME = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f]+")      # a possible folder name; a run has the name of its folder


def record_run(folder, run, csv, data, parameters, validation):
    """Write the ledger entry of one run, `folder`/`run`.json; see submissions/README.md.

    The entry keeps the sha256 of the submission `csv`, not the file. `data` says what the submission was made from, for
    example "sample data". `parameters` are the settings that make it again; paths become text, nan becomes null.
    `validation`: {collection: {"score": float, "low": float, "high": float, "graphs": int, ...}}. An entry that is
    written again for the same CSV keeps its leaderboard scores; what somebody added to an entry always stays.
    ValueError if the name cannot be a file name or belongs to another CSV with a leaderboard score, if a collection is
    unknown or has no "score", or if the existing entry is damaged.
    """
    if not RUN_NAME.fullmatch(run):
        raise ValueError(f"run {run!r} cannot be a file name; use one without slashes")
    unfit = [name for name, result in validation.items() if name not in COLLECTIONS or "score" not in result]
    if unfit:
        raise ValueError(f"validation of {', '.join(unfit)}: expected collections with a \"score\"; these are "
                         f"{', '.join(COLLECTIONS)}")
    entry, digest = Path(folder, f"{run}.json"), hashlib.sha256(Path(csv).read_bytes()).hexdigest()
    leaderboard = {"public": None, "private": None}
    entry.parent.mkdir(parents=True, exist_ok=True)
    if entry.exists():
        old = _read_entry(entry)
        if old["sha256"] == digest:
            leaderboard = old["leaderboard"]
        elif any(score is not None for score in old["leaderboard"].values()):
            raise DataError(f"{entry} belongs to another CSV that has a leaderboard score; choose another name, which "
                            "is that of the folder of the run")
    else:
        old = {}
    new = {"run": run, "data": data, "sha256": digest, "commit": _commit(folder), "parameters": parameters,
           "validation": validation, "leaderboard": leaderboard}
    write_json(entry, {**new, **{name: value for name, value in old.items() if name not in new}}, indent=2)
    return entry


def record_leaderboard(folder, run, public=None, private=None):
    """Add leaderboard scores to the entry of a recorded run and give back its path; a score of None changes nothing."""
    entry = Path(folder, f"{run}.json")
    if not entry.exists():
        known = ", ".join(sorted(path.stem for path in Path(folder).glob("*.json"))) or "none"
        raise ValueError(f"{entry}: no such run; recorded runs: {known}")
    record = _read_entry(entry)
    record["leaderboard"].update({k: v for k, v in (("public", public), ("private", private)) if v is not None})
    write_json(entry, record, indent=2)
    return entry


def list_runs(folder):
    """The ledger as a list of rows for a table, sorted by name.

    The columns are run, data, each collection (None: not scored), public, private, commit, sha256, same_as (an earlier
    row with the same CSV, or "") and problem (what is wrong with a damaged entry, or "").
    """
    rows, first = [], {}
    for entry in sorted(Path(folder).glob("*.json")):
        row = dict.fromkeys(["run", "data", *COLLECTIONS, "public", "private", "commit", "sha256"])
        row |= {"run": entry.stem, "same_as": "", "problem": ""}
        try:
            record = _read_entry(entry)
        except ValueError as fault:
            row["problem"] = str(fault)
        else:
            row |= {key: record[key] for key in ("data", "commit", "sha256")} | record["leaderboard"]
            row |= {name: result["score"] for name, result in record["validation"].items()}
            row["same_as"] = first.get(row["sha256"], "")
            first.setdefault(row["sha256"], entry.stem)
        rows.append(row)
    return rows


def _read_entry(entry):
    """Read an entry; ValueError names the file and its fault."""
    try:
        record = json.loads(entry.read_text(encoding="utf-8"))
        parts = [set(part) for part in (record, record["leaderboard"], record["validation"])]
        lacking = {"run", "data", "sha256", "commit", "parameters"} - parts[0] | {"public", "private"} ^ parts[1]
        unscored = [name for name, result in record["validation"].items() if "score" not in result.keys()]
        if lacking or parts[2] - set(COLLECTIONS) or unscored:
            raise ValueError("keys are missing or unknown")
        if not isinstance(record["sha256"], str):
            raise ValueError(f"sha256 is {record['sha256']!r:.80}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise DataError(f"{entry} is not a ledger entry ({type(fault).__name__}: {fault})") from fault
    return record


def _commit(folder):
    """The commit of the working tree around `folder`, "-dirty" if files differ from it; None without git."""
    try:
        answer = subprocess.run(["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40",
                                 "--exclude=*"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
