"""The ledger as a season: the submissions in order, what changed between them, and whether their scores agree.

Validation is the mean over the collections of an entry. The ends of its interval are the means of the ends of the
collections. That is as wide as if all collections erred together: `random` and `default` share programs.
"""
import json
import math
import re
from itertools import combinations
from typing import NamedTuple

import numpy as np

from kit.data import COLLECTIONS, DataError
from kit.noise import bootstrap_interval
from lab.season.ledger import entry_paths, read_entry

SHOWN = 60               # letters of a changed value in the table
MOST = 3                 # pairs of submissions that are named
_NOTHING = {"data": {}, "code": {}, "predictions": {}, "weights": {}}


class Entry(NamedTuple):
    """One entry of the ledger. A score is None where it is not known."""
    run: str
    data: str                # what the run read, such as "real files"
    sha256: str              # of the CSV
    recorded: str            # UTC, "" in an entry of an earlier kit
    commit: str              # "" without git
    parameters: dict         # {step: {setting: value}}
    validation: dict         # {collection: {"score": float, "low": float or None, "high": ..., "graphs": ..., ...}}
    made_from: dict          # as `lab.run.folder.Folder.origin` gives it; {} in an entry of an earlier kit
    public: float
    private: float

    @property
    def score(self):
        """Validation: the mean over the scored collections, or None."""
        return self._mean("score")

    @property
    def interval(self):
        """The interval of `score` as (low, high), or None if a collection has none."""
        low, high = self._mean("low"), self._mean("high")
        return None if low is None or high is None else (low, high)

    def _mean(self, name):
        values = [result[name] for result in self.validation.values()]
        return math.fsum(values) / len(values) if values and None not in values else None

    @property
    def judged_by(self):
        """What two entries must share to be compared: the data, the collections, and the graphs of each."""
        return self.data, sorted((name, str(result.get("split")), result.get("graphs"))
                                 for name, result in self.validation.items())


class Season(NamedTuple):
    """The entries of a ledger, in the order in which their CSVs were recorded first; see `read_season`."""
    entries: list
    problem: str             # one sentence about damaged entries; None if there are none

    def rows(self):
        """A table of text: one dict per entry, with equal keys."""
        named = [c for c in COLLECTIONS if any(c in entry.validation for entry in self.entries)]
        rows, last = [], {}
        for number, entry in enumerate(self.entries, 1):
            scores = {c: _shown(entry.validation.get(c, {})) for c in named}
            low, high = entry.interval or (None, None)
            rows.append({
                "no.": str(number), "run": entry.run,
                "own score": _shown({"score": entry.score, "low": low, "high": high}),
                "public": _digits(entry.public), "private": _digits(entry.private),
                "changed since the last": "; ".join(changes(last[entry.data], entry)) if entry.data in last
                else "the first on these data",
                "data": entry.data, **scores, "models": str(len(entry.made_from.get("predictions", ())) or ""),
                "CSV": entry.sha256[:8], "commit": entry.commit[:7]})
            last[entry.data] = entry
        return rows

    def points(self):
        """What `lab.plots.validation_against_leaderboard` draws: entries with validation and a leaderboard score."""
        return [(str(number), *_ends(entry), entry.public, entry.private)
                for number, entry in enumerate(self.entries, 1)
                if entry.score is not None and (entry.public, entry.private) != (None, None)]

    def remarks(self):
        """Sentences about the order of the submissions: by validation, by the public and by the private score.

        Only entries with the same data and the same validation graphs are compared. Where both entries have the score
        of each graph, validation is certain about two submissions if the 95% interval of their difference excludes 0;
        else, if their two intervals do not overlap.
        """
        said = []
        for name in ("public", "private"):
            pairs = [(a, b) for a, b in combinations(self.entries, 2)
                     if None not in (a.score, b.score, getattr(a, name), getattr(b, name))
                     and a.judged_by == b.judged_by and a.sha256 != b.sha256]
            otherwise = [(a, b) for a, b in pairs if (a.score - b.score) * (getattr(a, name) - getattr(b, name)) < 0]
            ordered = [(a, b) if a.score > b.score else (b, a) for a, b in otherwise]
            certain = [(a, b, lead) for a, b in ordered if (lead := _certain_lead(a, b))]
            if not pairs:
                continue
            said.append(f"validation and the {name} score disagree on the order of {len(otherwise)} of {len(pairs)} "
                        f"pairs of submissions, {len(certain)} of them beyond the intervals of validation")
            said += [f"shake-up? validation puts {a.run} above {b.run} ({lead}), but the {name} score puts it below "
                     f"({_digits(getattr(a, name))} against {_digits(getattr(b, name))})"
                     for a, b, lead in certain[:MOST]]
            said += [f"shake-up? {len(certain) - MOST} more pairs like this"] if certain[MOST:] else []
            known = [entry for entry in self.entries if any(entry is one for pair in pairs for one in pair)]
            best, shown = (max(known, key=lambda e: e.score), max(known, key=lambda e: getattr(e, name)))
            if best is not shown and len({str(entry.judged_by) for entry in known}) == 1:
                said.append(f"best by validation: {best.run}; best by the {name} score: {shown.run}")
        return said


def read_season(folder):
    """Read the entries of a ledger.

    Parameters
    ----------
    folder : str or Path

    Returns
    -------
    Season
        Entries without a time, of an earlier kit, come first. A damaged or odd entry is left out and named in
        `problem`; nothing is raised. Other JSON files are passed over.
    """
    entries, odd = [], []
    for path in entry_paths(folder):
        try:
            entries.append(_entry(path))
        except DataError as fault:
            odd.append(str(fault))
    more = f"; and {len(odd) - 2} more" if odd[2:] else ""
    return Season(sorted(entries, key=lambda entry: (entry.recorded, entry.run)),
                  f"left out of the ledger's table: {'; '.join(odd[:2])}{more}" if odd else None)


def changes(old, new):
    """What differs between two entries, as a list of short sentences; one says so if nothing does."""
    said = []
    if old.sha256 == new.sha256:
        said.append(f"the same CSV as {old.run}")
    before, after = ({(step, name): value for step, settings in entry.parameters.items()
                      for name, value in settings.items()} for entry in (old, new))
    for step, name in sorted(before.keys() | after.keys()):
        a, b = (json.dumps(one[step, name], default=str) if (step, name) in one else "unset" for one in (before, after))
        if a != b:
            where = " ".join(filter(None, [re.sub(r"^(\d\d)_.*", r"\1", step), name]))
            said.append(f"{where}: {a[:SHOWN]} to {b[:SHOWN]}")
    for words, names in (("with", new.validation.keys() - old.validation.keys()),
                         ("without", old.validation.keys() - new.validation.keys())):
        said += [f"{words} {', '.join(sorted(names, key=COLLECTIONS.index))}"] if names else []
    regraded = [c for c in COLLECTIONS if c in old.validation and c in new.validation
                and any(old.validation[c].get(key) != new.validation[c].get(key) for key in ("graphs", "split"))]
    said += [f"other validation graphs of {', '.join(regraded)}"] if regraded else []
    commits = f"commit {old.commit[:7] or 'unknown'} to {new.commit[:7] or 'unknown'}"
    if old.made_from and new.made_from:
        data = _differ(old.made_from["data"], new.made_from["data"])
        said += [f"other data: {', '.join(data)}"] if data else []
        code = _differ(old.made_from["code"], new.made_from["code"])
        said += [f"other code ({commits})" if old.commit != new.commit else "other code"] if code else []
        said += _models(old.made_from, new.made_from)
    elif old.commit != new.commit:
        said.append(commits)
    return said or ["nothing that the ledger knows of"]


def _models(old, new):
    """What is said about the models of two submissions: those that are new, gone, or trained again."""
    before, after = ({name: made["weights"].get(name, digest) for name, digest in made["predictions"].items()}
                     for made in (old, new))
    kinds = (("new models", after.keys() - before.keys()), ("models gone", before.keys() - after.keys()),
             ("models with other weights", _differ(before, after)))
    return [f"{words}: {', '.join(sorted(names)[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
            for words, names in kinds if names]


def _differ(old, new):
    """The names that both have, with different values."""
    return [name for name in sorted(old.keys() & new.keys()) if old[name] != new[name]]


def _certain_lead(a, b):
    """In words, by how much validation puts `a` above `b`; None if chance in the choice of graphs could do so."""
    pairs = [(a.validation[name], b.validation[name]) for name in a.validation]
    if all(x["each"] is not None and y["each"] is not None and x.get("names") == y.get("names")
           and len(x["each"]) == len(y["each"]) for x, y in pairs):
        ends = np.mean([bootstrap_interval(x["each"] - y["each"], draws=500) for x, y in pairs], axis=0)
        return f"by {a.score - b.score:.3f}, {ends[0]:.3f} to {ends[1]:.3f}" if ends[0] > 0 else None
    apart = a.interval and b.interval and a.interval[0] > b.interval[1]
    return f"{_interval(a)} against {_interval(b)}" if apart else None


def _ends(entry):
    """Score, low, high; NaN where there is no interval."""
    return entry.score, *(entry.interval or (math.nan, math.nan))


def _digits(score):
    return "" if score is None else f"{score:.3f}"


def _shown(result):
    """A score with its interval, as text."""
    if result.get("score") is None:
        return ""
    ends = None in (result["low"], result["high"])
    return _digits(result["score"]) + ("" if ends else f" ({_digits(result['low'])} to {_digits(result['high'])})")


def _interval(entry):
    return " to ".join(map(_digits, entry.interval))


def _entry(path):
    """Read an entry; DataError if a value is not what it should be."""
    record = read_entry(path)
    try:
        validation = {name: {**result, **{key: _number(result.get(key)) for key in ("score", "low", "high")},
                             "each": _each(result.get("each"))}
                      for name, result in record["validation"].items()}
        parameters = {step: settings if isinstance(settings, dict) else {"": settings}
                      for step, settings in record["parameters"].items()}
        made_from = {kind: {name: str(digest) for name, digest in pairs.items()}
                     for kind, pairs in (record.get("made_from") or {}).items()}
        return Entry(path.stem, str(record["data"]), record["sha256"], str(record.get("recorded") or ""),
                     str(record["commit"] or ""), parameters,
                     {name: result for name, result in validation.items() if result["score"] is not None},
                     {**_NOTHING, **made_from} if made_from else {},
                     *(_number(record["leaderboard"][name]) for name in ("public", "private")))
    except (ValueError, TypeError, AttributeError, OverflowError) as fault:
        raise DataError(f"{path} is an odd ledger entry ({type(fault).__name__}: {fault})") from fault


def _each(text):
    """The scores of single graphs, None in an entry without them; an error for anything else."""
    return None if text is None else np.array([_number(float(word)) for word in text.split()])


def _number(value):
    """A finite number, or None; ValueError for anything else."""
    if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
        raise ValueError(f"{value!r:.40} is no number")
    return value
