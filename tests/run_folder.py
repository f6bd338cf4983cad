"""A small data set, a copy of the kit, and the real run.py with notebooks 03 to 06 in this process, in a second.

A kernel of Jupyter is what takes time in a run, so papermill is replaced: the cells are executed here. An audit hook
can end a run at any change of a file, as SIGKILL would.
"""
import contextlib
import hashlib
import importlib.util
import io
import os
import shutil
import sys
import traceback
import warnings
from pathlib import Path

import nbformat
import numpy as np
import papermill

PROJECT = Path(__file__).resolve().parents[1]
for folder in (PROJECT, PROJECT / "notebooks"):
    sys.path.insert(0, str(folder))
from sample import write_sample  # noqa: E402

import kit  # noqa: E402
import lab.plots  # noqa: E402
import lab.predictions  # noqa: E402
from kit.data import SPLITS  # noqa: E402
from kit.files import file_sha256  # noqa: E402
from lab.data import graphs  # noqa: E402
from lab.run.code import all_sources, code_digest  # noqa: E402

spec = importlib.util.spec_from_file_location("program_of_a_run", PROJECT / "notebooks" / "run.py")
program = importlib.util.module_from_spec(spec)          # the benchmarks have a module `run`, too
sys.modules[spec.name] = program
spec.loader.exec_module(program)

FULL = ("--only", "03,04,05,06")
SMALL = {"tile.steps": 3, "tile.width": 8, "token.steps": 3, "gnn.steps": 2, "gnn.width": 8,
         "gnn.aggregation": "sparse", "seeds": 1, "first_seed": 0, "workers": 1, "how": "mean_zscore", "partial": True}
MOST_CONFIGS = 40                        # of a validation program that `World.run` lets models rank
COLLECTIONS = ("tile:xla", "layout:nlp:random")
# the cells that show a training train for the reader alone; no file of a run depends on them
SHOWN = ("TrainSettings(steps=100,", "TrainSettings(steps=1,")
ENDED = -9                               # in place of an exit status: the run was killed


class Killed(BaseException):
    """The run ends here, and nothing that unwinds may change a file any more."""


class Watch:
    """What the audit hook does: counts changes of files below `place`, and ends a run."""
    place, left, dead = None, None, False


def _hook(event, args):
    """Before a file below `Watch.place` changes."""
    if Watch.place is None or event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
        return
    if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    path = args[1] if event == "os.rename" else args[0]
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    path = os.fsdecode(path)
    if not path.startswith(Watch.place) or os.path.basename(path).startswith(("lock", ".prepare.lock")):
        return
    if Watch.left is not None:
        Watch.left -= 1
        Watch.dead |= Watch.left < 0
    if Watch.dead:
        raise Killed


def _execute(source, target, parameters, **_):
    """In place of papermill.execute_notebook."""
    book, names = nbformat.read(source, 4), {"__name__": "__main__"}
    nbformat.write(book, target)
    try:
        for cell in book.cells:
            if cell.cell_type == "code":
                exec(compile(cell.source.replace(*SHOWN), str(source), "exec"), names)
                names |= parameters if "parameters" in cell.metadata.get("tags", []) else {}
    except SystemExit:
        pass
    except Exception as fault:                           # as papermill gives it
        fault.ename, fault.evalue = type(fault).__name__, str(fault)
        fault.traceback = traceback.format_exception(fault)
        raise
    nbformat.write(book, target)


@contextlib.contextmanager
def in_process():
    """While this lasts, `World.run` works."""
    pictures = {name: getattr(lab.plots, name) for name in lab.plots.__all__ if callable(getattr(lab.plots, name))}
    before = papermill.execute_notebook, program.use_this_python, os.fsync
    modules = [(vars(module), dict(vars(module))) for name, module in sys.modules.items()
               if name.partition(".")[0] in ("kit", "lab") or name == spec.name]
    papermill.execute_notebook, program.use_this_python, os.fsync = _execute, lambda folder: None, lambda file: None
    for name in pictures:
        setattr(lab.plots, name, lambda *args, **named: None)            # they take half of the time
    if not getattr(_hook, "added", False):
        sys.addaudithook(_hook)
        _hook.added = True
    try:
        yield
    finally:
        papermill.execute_notebook, program.use_this_python, os.fsync = before
        code_digest.cache_clear()                        # of a kit that was changed
        all_sources.cache_clear()
        # `reload_code` made others, which modules may have that came later; pickle takes only the first ones
        first = {id(now[n]): (now[n], value) for now, names in modules for n, value in names.items()
                 if now.get(n) is not value and is_of_the_kit(value)}
        for now, names in modules:
            now.update(names)
        exchange(first)
        for name, value in pictures.items():
            setattr(lab.plots, name, value)


def is_of_the_kit(value):
    """Whether this is a function or a class of kit or lab."""
    return getattr(value, "__module__", None) is not None and hasattr(value, "__qualname__") and (
        value.__module__.partition(".")[0] in ("kit", "lab"))


def exchange(values):
    """Put other values in all modules of kit and lab; `values`: {id of a value: (the value, the other)}."""
    for name, module in list(sys.modules.items()):
        if module is not None and (name.partition(".")[0] in ("kit", "lab") or name == spec.name):
            for key, value in list(vars(module).items()):
                if id(value) in values:
                    setattr(module, key, values[id(value)][1])


def run_clone(folder, *args, within=None):
    """`run.py ARGS` of a copy of the project, in its folder or `within` another one.

    -> exit status, lines of stdout, stderr
    """
    modules, before = (program, sys.modules["steps"], sys.modules["arguments"]), (program.PROJECT, os.getcwd())
    said, errors = io.StringIO(), io.StringIO()
    with in_process(), warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        warnings.simplefilter("ignore")
        try:
            os.chdir(within or folder)
            for module in modules:
                module.PROJECT = Path(folder)
            status = program.main([*map(str, args)])
        finally:
            os.chdir(before[1])
            for module in modules:
                module.PROJECT = before[0]
    return status, said.getvalue().splitlines(), errors.getvalue()


# {name of a change of the kit: (file, before, after)}
CHANGES = {
    "comment": ("train.py", "CHECKPOINT_SECONDS = 60 ", "# a comment\nCHECKPOINT_SECONDS = (60)   "),
    "docstring": ("losses.py", '"""Ranking losses: pure', '"""Losses for ranking: pure'),
    "losses": ("losses.py", "    return (remaining - score).mean()", "    return (2 * remaining - score).mean()"),
    "hinge": ("losses.py", "hinge = F.relu(margin - (", "hinge = F.relu(margin + 1 - ("),
    "loss of tiles": ("recipes.py", "TileModel, shape, settings, list_mle_loss,",
                      "TileModel, shape, settings, pairwise_hinge_loss,"),
    "rate": ("recipes.py", "1200, 256, learning_rate=5e-3", "1200, 256, learning_rate=2e-1"),
    "ensemble": ("ensemble.py", "    stacked /= np.where(", "    stacked = stacked ** 3 / np.where("),
    "submit": ("submit.py", "np.lexsort((bits, cost))", "np.lexsort((bits, -cost))"),
    "predict": ("predict.py", "cost[chunk[:c - start]] += scored", "cost[chunk[:c - start]] -= scored"),
    "token": ("models/config_token.py", "return cost + pair_terms", "return cost - pair_terms")}


def module_of(file):
    return "kit." + file.removesuffix(".py").replace("/", ".")


def reload_code(module, text):
    """Give a module of the kit, and every other one that took names from it, the functions and classes of a text."""
    old = dict(vars(module))
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    exchange({id(old[n]): (old[n], value) for n, value in vars(module).items()
              if n in old and value is not old[n] and getattr(value, "__module__", None) == module.__name__})


class World:
    """A data set, a kit and folders of runs below `place`; `template`: see `finished_world`."""

    def __init__(self, place, template=None):
        self.place, self.data, self.kit = Path(place), Path(place, "data", "npz"), Path(place, "kit")
        self.place.mkdir(parents=True, exist_ok=True)
        if template:
            for name in ("data", "kit"):
                shutil.copytree(template / name, self.place / name, copy_function=os.link)
            shutil.copytree(template / "out", self.place / "out")
            shutil.copy(template / "out.json", self.place)               # of the ledger
        else:
            self._write_data()
            shutil.copytree(PROJECT / "kit", self.kit, ignore=shutil.ignore_patterns("__pycache__"))
        self.changed, self.said = {}, ""
        self.pristine = {path: path.read_bytes() for path in self.sources()}

    def _write_data(self):
        """Two collections of the tiny sample data, two or three files per split, as if they were real data."""
        sample = write_sample(self.place / "sample")
        for collection in COLLECTIONS:
            for split in SPLITS:
                folder = self.data.joinpath(*collection.split(":"), split)
                folder.mkdir(parents=True)
                paths = sorted(sample.joinpath(*collection.split(":"), split).glob("*.npz"))
                for path in paths[:3 if split == "train" and collection == "tile:xla" else 2]:
                    # the names of test files are hashes
                    name = f"{hashlib.md5(path.stem.encode()).hexdigest()}.npz" if split == "test" else path.name
                    shutil.copy(path, folder / name)
                    change_arrays(folder / name)
        shutil.rmtree(self.place / "sample")

    def sources(self, collection=None, split=None):
        """The files of the data set."""
        folder = self.data.joinpath(*(collection or "*:*").split(":")) if collection else self.data
        return sorted(folder.rglob(f"{split}/*.npz" if split else "*.npz"))

    def run(self, *args, out="out", kill=None, **settings):
        """`run.py ARGS` -> exit status; `said` then has what was printed. `kill`: end at this change of a file."""
        settings = [word for name, value in (SMALL | settings).items() if name in self._declared(args, settings)
                    for word in ("-p", f"{name}={value}")]
        text = io.StringIO()
        before = program.PROJECT, kit.__file__, graphs.MOST_CONFIGS
        program.PROJECT, kit.__file__ = self.place, str(self.kit / "__init__.py")
        graphs.MOST_CONFIGS = lab.predictions.MOST_CONFIGS = MOST_CONFIGS
        Watch.place, Watch.left, Watch.dead = str(self.place) + os.sep, kill, False
        status = None
        code_digest.cache_clear()
        all_sources.cache_clear()
        try:
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                status = program.main(["--data-root", str(self.data), "--out", str(self.place / out), "--jobs", "1",
                                       *(args or FULL), *settings])
        except Killed:
            status = ENDED
        except Exception:
            status = None
            text.write(traceback.format_exc())
        finally:
            status = ENDED if Watch.dead else status
            Watch.place, Watch.left, Watch.dead = None, None, False
            program.PROJECT, kit.__file__, graphs.MOST_CONFIGS = before
            lab.predictions.MOST_CONFIGS = graphs.MOST_CONFIGS
            self.said = text.getvalue()
        return status

    def _declared(self, args, given):
        """Settings that the notebooks of this call declare; those with a dot are changes of a recipe."""
        only = args[args.index("--only") + 1] if "--only" in args else FULL[1]
        changes = [name for name in {**SMALL, **given} if "." in name]
        train = ("seeds", "first_seed", "workers", "folds", "use_valid", *changes)
        own = {"03": train, "04": (*train, "models", "segments"),
               "05": ("how", "choose", "weights_from", "predictions_from"), "06": ("sample_submission", "partial")}
        return {name for number in only.split(",") for name in own.get(number, ())}

    def change_kit(self, name, there=True):
        """Change a line of the kit, or take the change back."""
        file, old, new = CHANGES[name]
        path = self.kit / file
        text = (PROJECT / "kit" / file).read_text()
        self.changed = {**self.changed, name: True} if there else {k: v for k, v in self.changed.items() if k != name}
        for one in self.changed:
            other, old, new = CHANGES[one]
            if other == file:
                assert text.count(old) == 1, one
                text = text.replace(old, new)
        path.unlink()
        path.write_text(text)
        reload_code(importlib.import_module(module_of(file)), text)

    def restore_kit(self):
        """The kit of the project again."""
        for name in [*self.changed]:
            self.change_kit(name, False)


def finished_world(folder):
    """Make a World `folder`/world with a finished run, and move it -> its new path, for copies at the old one.

    A run at another path is another run, because the path of its data is one of its parameters.
    """
    world = World(Path(folder, "world"))
    if world.run():
        raise AssertionError(world.said)
    return world.place.rename(Path(folder, "template"))


def change_arrays(path, **changes):
    """Change arrays of an npz file by functions; without compression, so that its size stays the same."""
    with np.load(path) as npz:
        arrays = {name: npz[name] for name in npz.files}
    arrays |= {name: change(arrays[name]) for name, change in changes.items()}
    part = path.with_suffix(".new")
    with open(part, "wb") as file:
        np.savez(file, **arrays)
    os.replace(part, path)


def invert(path):
    """The fastest configuration of a file becomes the slowest one."""
    change_arrays(path, config_runtime=lambda runtime: runtime.max() + runtime.min() - runtime)


def permute(path):
    """The configurations of a file in another order."""
    with np.load(path) as npz:
        names = [n for n in ("config_feat", "node_config_feat", "config_runtime", "config_runtime_normalizers")
                 if n in npz.files]
        order = np.random.default_rng(0).permutation(len(npz["config_runtime"]))
    change_arrays(path, **{name: lambda array: array[order] for name in names})


def digests(folder):
    """{SHA-256: paths} of all files below a folder."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and not path.is_symlink():
            found.setdefault(file_sha256(path), []).append(path)
    return found
