"""Random sequences of what users do in the folder of a run: python tests/state_machine.py --sequences 500 --seed 0

After each sequence, a full run must give exactly the submission of a new folder with the same data, kit, settings,
collections and brought predictions, or refuse with a sentence. After each run, each file that the user put or changed
must still exist, at its place or under another name, and so must each finished checkpoint. A failing sequence is made
as short as possible, and printed with the option that repeats it. The exit status is then 1.

An operation is a pair of a name and a number that seeds its draws. `tests/run_folder.py` has the small data set, the
copy of the kit, and the real run.py and notebooks 03 to 06 in this process.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
import matplotlib
import numpy as np

matplotlib.use("Agg")
from run_folder import CHANGES, COLLECTIONS, FULL, World, digests, finished_world, in_process, invert, permute

from kit.files import file_sha256
from kit.train_parts import CheckpointError, read_checkpoint
from lab.run import Folder

CHOICES = {"seeds": (1, 2), "first_seed": (0, 3), "tile.steps": (3, 4), "token.steps": (3, 4), "gnn.steps": (2, 3),
           "how": ("mean_zscore", "mean_rank"), "choose": (True, False), "folds": (None, 2), "use_valid": (False, True),
           "models": (None, "token,lightgbm"), "segments": (None, 40), "token.learning_rate": (1e-3, 1e-2),
           "gnn.width": (8, 16), "lightgbm.leaves": (8, 4)}
STEPS = ("03", "04", "03,04", "05", "06", "05,06", "04,05,06")
NAMES = ("submission.csv", "scores.csv", "graph_scores.csv", "weights.json", "report.html", "steps/05_ensemble.json",
         "steps/04_train_layout.json", "notebooks/05_ensemble.ipynb", "my-best/notes.txt", "store/notes.txt",
         "problems/notes.txt")


def is_finished(path):
    """Whether a file is the checkpoint of a finished training, as it was written."""
    try:
        saved = read_checkpoint(path)
        return saved["name"] == path.name and saved["step"] == saved["made_by"]["steps"]
    except (CheckpointError, KeyError):
        return False


class Fault(AssertionError):
    """What must hold does not."""


class Machine:
    """A user at a folder of a run. `known` has the submissions of new folders, for all sequences of a process."""

    def __init__(self, world, known):
        self.world, self.known, self.out = world, known, world.place / "out"
        self.settings, self.collections, self.log = {}, None, []
        self.mine, self.made, self.saved, self.pool, self.brought = {}, {}, {}, [], world.place / "brought"
        self.note_made()

    # --- what must hold

    def files(self, *folders):
        """Files in the folder of the run; with `folders`, those in them."""
        found = [path for path in sorted(self.out.rglob("*")) if path.is_file()]
        return [p for p in found if not folders or p.relative_to(self.out).parts[0] in folders]

    def note_made(self):
        """Remember what runs made: content per path."""
        for path in self.files():
            self.made.setdefault(path, set()).add(file_sha256(path))

    def run(self, *args, kill=None):
        """A run in the folder; then all files of the user must exist -> exit status."""
        place = self.out / "submission.csv"
        before = place.read_bytes() if place.is_file() else b""
        costly = {file_sha256(p): p for p in self.out.glob("store/*.pt") if is_finished(p)}
        if self.collections and "--collections" not in args:
            args = (*args, "--collections", self.collections)
        status = self.world.run(*args, kill=kill, **self.settings)
        self.log.append(f"{' '.join(args)}{f' killed at {kill}' * (kill is not None)} -> {status}")
        if status is None or "Traceback" in self.world.said:
            raise Fault(f"a traceback:\n{self.world.said[-3000:]}")
        there = digests(self.out)
        for kind, wanted in (("file of the user", self.mine), ("checkpoint", costly)):
            gone = [str(path) for sha, path in wanted.items() if sha not in there]
            if gone:
                raise Fault(f"gone: {kind}, {gone}")
        after = place.read_bytes().splitlines() if place.is_file() else []
        lost = {row.split(b",")[0] for row in before.splitlines()} - {row.split(b",")[0] for row in after}
        if lost and before not in [path.read_bytes() for path in self.out.rglob("submission*.csv")]:
            raise Fault(f"the wider submission is gone, with {lost}")
        self.note_made()
        return status

    def edited(self, *paths):
        """The user changed these files, or put them there."""
        for path in paths:
            inside = path.relative_to(self.out).parts[0]
            logs = inside in (".run", "unfinished", "problems.jsonl") or (inside, path.suffix) in (
                ("problems", ".jsonl"), ("store", ".json"))
            if path.is_file() and not logs and file_sha256(path) not in self.made.get(path, ()):
                self.mine[file_sha256(path)] = path
        there = digests(self.out)
        self.mine = {sha: path for sha, path in self.mine.items() if sha in there}   # the user removed the others

    def key(self):
        """All that a new folder depends on, but for what was brought."""
        files = [(path.relative_to(self.world.data).as_posix(), file_sha256(path)) for path in self.world.sources()]
        kit = sorted({*self.world.changed} - {"comment", "docstring"})
        weights = self.settings.get("weights_from")
        weights = file_sha256(weights) if weights and Path(weights).is_file() else None
        brought = [(str(path), file_sha256(path)) for path in sorted(self.brought.glob("*/*.npz"))]
        return json.dumps([files, kit, sorted(self.settings.items(), key=str), self.collections, weights, brought])

    def expected(self):
        """(exit status, submission) of a new folder."""
        key = self.key()
        if key not in self.known:
            out = self.world.place / "new"
            args = ("--collections", self.collections) if self.collections else ()
            status = self.world.run(*FULL, *args, out="new", **self.settings)
            csv = out / "submission.csv"
            self.known[key] = status, csv.read_bytes() if csv.is_file() else None, self.world.said
            shutil.rmtree(out, ignore_errors=True)                   # a run that is refused at once makes none
        return self.known[key]

    def check(self):
        """A full run gives the submission of a new folder, or refuses with a sentence."""
        status = self.run(*FULL)
        said, csv = self.world.said, self.out / "submission.csv"
        data = csv.read_bytes() if csv.is_file() else None
        wanted_status, wanted, words = self.expected()
        if status in (1, 2):
            if "run.py: " not in said:
                raise Fault(f"exit status {status} without a sentence:\n{said}")
            return "refused, as a new folder" if wanted_status == status else f"refused: {said.strip()[-300:]}"
        if data != wanted:
            raise Fault(f"exit status {status}, and another submission than that of a new folder (its exit status is "
                        f"{wanted_status}):\n{said}\n--- the new folder:\n{words}")
        if status == 3 and wanted_status == 0 and not {"left out", "not used", "submission"} & {
                line.split(":")[0] for line in said.splitlines()}:
            raise Fault(f"exit status 3 without a reason:\n{said}")
        return f"same submission, {status}" if data else f"no submission, {status}"

    # --- operations: each takes a generator

    def op_run(self, rng):
        self.check() if rng.random() < 0.4 else self.run(*FULL)

    def op_some_steps(self, rng):
        only = STEPS[rng.integers(len(STEPS))]
        some = ("--collections", COLLECTIONS[rng.integers(2)]) if rng.random() < 0.2 else ()
        self.run("--only", only, *some)

    def op_kill(self, rng):
        only = FULL[1] if rng.random() < 0.6 else STEPS[rng.integers(len(STEPS))]
        self.run("--only", only, kill=int(rng.integers(1, 250)))

    def op_data(self, rng):
        """Change, delete, damage or restore a file of the data set."""
        files = self.world.sources()
        kind = rng.integers(8)
        if kind >= 6 or not files:
            for path, data in self.world.pristine.items() if kind == 6 else [
                    [*self.world.pristine.items()][rng.integers(len(self.world.pristine))]]:
                if not path.is_file() or path.read_bytes() != data:
                    path.unlink(missing_ok=True)
                    path.write_bytes(data)
            return
        path = files[rng.integers(len(files))]
        others = [other for other in files if other.parent == path.parent]
        if kind in (0, 1):
            before = path.stat()
            try:
                invert(path) if kind else permute(path)
            except Exception:                            # it is damaged already
                return
            if rng.random() < 0.5:
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        elif kind == 2:
            path.unlink()
        elif kind == 3:
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data[:rng.integers(len(data))])
        elif kind == 4:
            data = others[rng.integers(len(others))].read_bytes()
            path.unlink()
            path.write_bytes(data)
        else:
            shutil.copy(path, path.with_name(f"copy_of_{path.name}" if rng.random() < 0.7 else f"a copy {path.name}"))

    def op_setting(self, rng):
        name = [*CHOICES][rng.integers(len(CHOICES))]
        self.settings = self.settings | {name: CHOICES[name][rng.integers(2)]}

    def op_weights(self, rng):
        """Keep the weights of this run's ensemble and use them, or choose weights again."""
        kept, now = self.world.place / "kept.json", self.out / "weights.json"
        self.settings = {name: value for name, value in self.settings.items() if name != "weights_from"}
        if rng.random() < 0.7 and now.is_file():
            kept.write_bytes(now.read_bytes())
            self.settings |= {"weights_from": str(kept)}

    def op_kit(self, rng):
        name = [*CHANGES][rng.integers(len(CHANGES))]
        self.world.change_kit(name, name not in self.world.changed)

    def op_collections(self, rng):
        self.collections = (None, *COLLECTIONS)[rng.integers(3)]

    def op_file(self, rng):
        """Delete, cut, edit, copy or restore a file in the folder of the run."""
        files = self.files()
        if not files:
            return
        folders = sorted({path.relative_to(self.out).parts[0] for path in files})
        folder = folders[rng.integers(len(folders))]
        files = [path for path in files if path.relative_to(self.out).parts[0] == folder]
        path, kind = files[rng.integers(len(files))], rng.integers(6)
        data = path.read_bytes()
        if kind == 5:
            back = [p for p in self.saved if p.parent.is_dir()]
            if back:
                path = back[rng.integers(len(back))]
                path.write_bytes(self.saved[path])
                self.edited(path)
            return
        self.saved[path] = data
        if kind == 0:
            path.unlink()
        elif kind == 1:
            path.write_bytes(data[:100 if rng.random() < 0.5 else rng.integers(len(data) + 1)])
        elif kind == 2:
            place = rng.integers(len(data) + 1)
            path.write_bytes(data[:place] + bytes([rng.integers(256)]) + data[place + 1:])
        elif kind == 3:
            path.write_bytes(b"\n".join(data.splitlines()[:2]) + b"\n")
        else:
            self.copy(path, [p for p in files if p.suffix == path.suffix], rng)
        self.edited(path)

    def copy(self, path, others, rng):
        """Copy a result over another one, or to a name of its own."""
        target = others[rng.integers(len(others))]
        if rng.random() < 0.4:
            target = path.with_name(f"copy_{path.name}")
        if path != target:
            shutil.copy(path, target)
            self.edited(target)

    def op_own_file(self, rng):
        """Put a file of one's own at some name."""
        path = self.out / NAMES[rng.integers(len(NAMES))]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine " + rng.bytes(8))
        self.edited(path)

    def op_bring(self, rng):
        """Bring predictions of a machine with the same data and other seeds, or those of earlier data."""
        key = "elsewhere" + json.dumps([self.key(), 7])
        if key not in self.known:
            own = {name: value for name, value in self.settings.items() if name != "predictions_from"}
            self.world.run("--only", "03,04", out="elsewhere", **own | {"first_seed": 7, "seeds": 1})
            folder = Folder(self.world.place / "elsewhere", self.world.place / "elsewhere")
            self.known[key] = {
                f"{one['collection'].replace(':', '_')}/{one['member']}.{one['split']}.npz":
                folder.store.read(one["file"])
                for step in ("03_train_tile", "04_train_layout")
                for section in folder.record(step)["sections"].values()
                for one in section["costs"] if not one["baseline"]}
            shutil.rmtree(folder.out, ignore_errors=True)
        self.pool.append(self.known[key])
        files = self.pool[rng.integers(len(self.pool))]
        for name, costs in files.items():
            (self.brought / name).parent.mkdir(parents=True, exist_ok=True)
            np.savez(self.brought / name, **costs)
        self.settings = self.settings | {"predictions_from": str(self.brought)}

    def op_take_away(self, rng):
        shutil.rmtree(self.brought, ignore_errors=True)
        if rng.random() < 0.5:
            self.settings = {name: value for name, value in self.settings.items() if name != "predictions_from"}


OPERATIONS = {"run": 2, "some_steps": 3, "kill": 2, "data": 4, "setting": 3, "weights": 0.5, "kit": 1,
              "collections": 1, "file": 6, "own_file": 1, "bring": 1, "take_away": 0.3}


def draw(seed, number, most=8):
    """The operations of one sequence."""
    rng = np.random.default_rng([seed, number])
    chances = np.array([*OPERATIONS.values()])
    names = rng.choice([*OPERATIONS], rng.integers(1, most + 1), p=chances / chances.sum())
    return [(str(name), int(rng.integers(1 << 30))) for name in names]


def play(operations, template, place, known):
    """Play a sequence -> what the last full run gave; a Fault if something does not hold."""
    shutil.rmtree(place, ignore_errors=True)
    world = World(place, template)
    machine = Machine(world, known)
    try:
        for name, seed in operations:
            machine.log.append(name)
            getattr(machine, f"op_{name}")(np.random.default_rng(seed))
        return machine.check()
    except Fault as fault:
        raise Fault(f"{fault}\n{machine.log}") from None
    finally:
        world.restore_kit()


def fails(operations, template, place, known):
    """The fault of a sequence as text, or None."""
    try:
        play(operations, template, place, known)
    except Fault as fault:
        return str(fault)


def shortest(operations, template, place, known):
    """The operations without those that a fault does not need."""
    number = 0
    while number < len(operations):
        fewer = operations[:number] + operations[number + 1:]
        if fails(fewer, template, place, known):
            operations = fewer
        else:
            number += 1
    return operations


def search(sequences, seed, folder, first=0, report=print, shorten=True):
    """Play sequences -> Counter of how they ended."""
    ends, known, start = Counter(), {}, time.monotonic()
    with in_process():
        template = finished_world(folder)
        for number in range(first, first + sequences):
            operations = draw(seed, number)
            try:
                end = play(operations, template, Path(folder, "world"), known)
            except Fault as fault:
                end = "FAULT"
                if shorten:
                    operations = shortest(operations, template, Path(folder, "world"), known)
                    fault = fails(operations, template, Path(folder, "world"), known) or fault
                report(f"sequence {number} of seed {seed}: {fault}\nrepeat: python tests/state_machine.py --play "
                       f"'{json.dumps(operations)}'", flush=True)
            ends[end] += 1
            if (number - first) % 20 == 19:
                report(f"{number - first + 1} sequences, {time.monotonic() - start:.0f} s, {len(known)} new folders, "
                       f"{ends['FAULT']} faults", flush=True)
    return ends


def main(argv=None):
    """Print how the sequences ended; 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence")
    parser.add_argument("--play", type=json.loads, help="operations to play instead, as a failure prints them")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if args.play:
            with in_process():
                end = fails(args.play, finished_world(folder), Path(folder, "world"), {})
            print(end or "no fault")
            return 1 if end else 0
        ends = search(args.sequences, args.seed, folder, args.first)
    for end, count in ends.most_common():
        print(f"{count:>6}  {end}")
    print(f"{args.sequences} sequences, {ends['FAULT']} faults")
    return 1 if ends["FAULT"] else 0


if __name__ == "__main__":
    sys.exit(main())
