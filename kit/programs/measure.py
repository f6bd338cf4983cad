"""Measure many configurations of a JAX program, so that drift is divided out and a killed command goes on.

Every pass measures the configurations in another order. The program without layouts set, the default, runs before and
after each few of them, and their times are divided by what it takes there. Where it changes by too much in between,
these few are measured again. Each result is one line of `rows.jsonl`, written before the next few begin.
"""
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from kit.checks import as_path, check_number, check_whole
from kit.data import DataError
from kit.files import locked
from kit.programs.layouts import program_digest
from kit.programs.own import with_configs
from kit.programs.timing import Bench, BenchSettings, this_machine

BASE_ROUNDS = 5                  # measurements of the default before all others; their median is the unit
CHANGES = "date", "system", "python"         # of a machine, which may differ when a command goes on


@dataclass(frozen=True)
class MeasureSettings:
    """How often each configuration is measured, and what is measured again."""
    passes: int = 3
    together: int = 4            # configurations between two runs of the default
    drift: float = 0.03          # change of the default in between, from which they are measured again
    tries: int = 3               # in all; the last one counts in any case, and its row says by how much it drifted
    block: int = 48              # configurations that the other process holds compiled
    seed: int = 0                # of the orders

    def __post_init__(self):
        check_whole(vars(self), passes=1, together=1, tries=1, block=1, seed=0)
        check_number(vars(self), "a number above 0", "drift")


class Measurements(NamedTuple):
    """What was measured of c configurations in p passes."""
    codes: np.ndarray            # (c, g); one configuration may stand there more than once
    passes: np.ndarray           # (c, p) nanoseconds, drift divided out; NaN where it failed
    faults: dict                 # {place among the c: why it failed}
    about: dict                  # machine, versions, settings, and the time of the default in nanoseconds

    def runtime(self):
        """Whole nanoseconds (k,) and their places (k,) among the c: medians over passes, without what failed."""
        kept = np.flatnonzero(np.isfinite(self.passes).all(axis=1))
        return np.rint(np.median(self.passes[kept], axis=1)).astype(np.int64), kept


def measure(program, args, codes, folder, settings=None, bench=None, progress=True):
    """Measure configurations of a JAX program on this machine; the same call goes on where a killed one ended.

    Parameters
    ----------
    program : JaxProgram
        Of `program_from_jax`.
    args : tuple
        The arguments that the program was traced for, with values.
    codes : array-like of int, shape (c, g)
        Configurations; those that stand there twice are measured twice.
    folder : path
        For `rows.jsonl`. One program and one list of configurations per folder.
    settings : MeasureSettings, optional
        None: the values that the class shows.
    bench : BenchSettings, optional
        Device, threads and limits.
    progress : bool
        Show what is done and the time that is left.

    Returns
    -------
    Measurements

    Raises
    ------
    BenchError
        If the program fails without layouts set.
    DataError
        If the folder holds measurements of something else, of another machine, or with other settings; or if another
        process measures into it.
    ValueError
        If the codes or the arguments do not fit the program.
    """
    settings, bench, codes = settings or MeasureSettings(), bench or BenchSettings(), np.asarray(codes)
    with_configs(program, codes)
    about = {"program": program_digest(program), "codes": hashlib.sha256(codes.astype(np.int64).tobytes()).hexdigest(),
             "settings": {**asdict(settings), **asdict(bench)}, **this_machine(bench)}
    with locked(as_path(folder) / "lock") as holder:
        if holder is not None:
            raise DataError(f"{folder}: another process{holder} measures into it; wait for it, or give another folder")
        journal = _Journal(as_path(folder) / "rows.jsonl", about)
        todo = journal.missing(len(codes), settings.passes)
        if todo:
            with Bench(program, args, bench) as place, tqdm(
                    total=len(codes) * settings.passes, initial=len(codes) * settings.passes - len(todo),
                    desc=program.graph.graph_id, unit="run", disable=not progress) as bar:
                base = journal.base(place)
                for first in range(0, len(codes), settings.block):
                    part = [(i, p) for i, p in todo if first <= i < first + settings.block]
                    _measure_block(place, codes, part, base, settings, journal, bar)
        return journal.measurements(codes, settings.passes)


def _measure_block(place, codes, todo, base, settings, journal, bar):
    """Compile the configurations of a block, and measure what is missing of it, pass by pass."""
    for i in sorted({i for i, _ in todo}):
        place.compile(codes[i])
    for p in range(settings.passes):
        mine = np.array([i for i, own in todo if own == p], np.int64)
        if not len(mine):
            continue
        order = np.random.default_rng([settings.seed, p, mine[0]]).permutation(mine)
        before = place.time_default()
        for few in np.split(order, range(settings.together, len(order), settings.together)):
            for _ in range(settings.tries):
                answers = [place.time(codes[i]) for i in few]
                after = place.time_default()
                drift = after / before - 1
                local, before = (before + after) / 2, after
                if abs(drift) <= settings.drift:
                    break
            journal.add([_row(i, p, answer, base / local, drift) for i, answer in zip(few.tolist(), answers)])
            bar.update(len(few))
    if todo:
        place.forget()


def _row(i, p, answer, factor, drift):
    """A line of the journal."""
    if "fault" in answer:
        return {"place": i, "pass": p, "fault": answer["fault"]}
    return {"place": i, "pass": p, "ns": round(answer["ns"] * factor, 1), "raw": round(answer["ns"], 1),
            "median": round(answer["median"], 1), "spread": round(answer["spread"], 5), "drift": round(drift, 4),
            "samples": answer["samples"]}


class _Journal:
    """The lines of `rows.jsonl`: first what is measured and where, then the default's time, then results."""

    def __init__(self, path, about):
        self.path, self.rows, self.unit = path, {}, None
        whole = path.read_bytes() if path.exists() else b""
        whole = whole[:whole.rfind(b"\n") + 1]               # without a line that a killed process left half-written
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            self.about, *rows = lines or [about]
            for row in rows:
                if "base" in row:
                    self.unit = row["base"]
                else:
                    self.rows[row["place"], row["pass"]] = row
        except (ValueError, KeyError, TypeError) as fault:
            raise DataError(f"{path}: line is damaged ({fault}); delete the file, and measure again") from fault
        for name in about:
            if name not in CHANGES and self.about.get(name) != json.loads(json.dumps(about[name])):
                raise DataError(f"{path}: holds measurements with {name} {self.about.get(name)!r:.200}, and this is "
                                f"{about[name]!r:.200}; give another folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.truncate(len(whole))
        if not lines:
            self._append([about])

    def missing(self, count, passes):
        """[(place, pass)] without a row."""
        return [(i, p) for i in range(count) for p in range(passes) if (i, p) not in self.rows]

    def base(self, place):
        """Nanoseconds of the default at the beginning, to which all others are scaled."""
        if self.unit is None:
            self.unit = float(np.median([place.time_default() for _ in range(BASE_ROUNDS)]))
            self._append([{"base": self.unit}])
        return self.unit

    def add(self, rows):
        """Keep results."""
        self._append(rows)
        self.rows |= {(row["place"], row["pass"]): row for row in rows}

    def measurements(self, codes, passes):
        """All results as Measurements."""
        found, faults = np.full((len(codes), passes), np.nan), {}
        for (i, p), row in self.rows.items():
            found[i, p] = row.get("ns", np.nan)
            if "fault" in row:
                faults[i] = row["fault"]
        return Measurements(codes, found, faults, {**self.about, "default_ns": self.unit})

    def _append(self, rows):
        with open(self.path, "ab") as file:
            file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())
