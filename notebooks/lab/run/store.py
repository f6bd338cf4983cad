"""Results by the digest of what they were made from: other inputs have another name, so no result is ever out of date.

A store is a folder. `costs-1f0c...npz` holds named arrays, and the digits are a digest of the inputs or, of published
predictions, of the arrays themselves. A file appears whole or not at all, and is never written again. It also holds a
digest of its content, with which a damaged or edited file is noticed; such a file is kept under another name.
"""
import hashlib
import io
from dataclasses import fields, is_dataclass
from pathlib import Path

import joblib
import numpy as np

from kit.data import DataError
from kit.files import copy_whole, whole_file
from lab.run.unfinished import steps_trained

DIGEST = "digest of the content"


class Store:
    """Results in a folder; those in other folders are found, too.

    Parameters
    ----------
    folder : str or Path
    others : sequence of str or Path
        Stores that are only read, such as those of earlier sessions.
    report : callable
        Gets a line about each damaged file.

    Examples
    --------
    A result is made once, and then read: ::

        name = store.name("search", [program, budget, seed])
        found = store.made(name, lambda: {"best": search(program, budget, seed)})
    """

    def __init__(self, folder, others=(), report=print):
        self.folder, self.others, self.used = Path(folder), [Path(other) for other in others], set()
        self.report = report
        self._source, self._spoiled = {}, set()          # {path: where it was copied from}; sources of damaged files

    def name(self, kind, inputs):
        """The name of a result: `kind`, and a digest of the inputs, which are plain values, dataclasses and arrays."""
        name = f"{kind}-{digest_of(inputs)[:16]}"
        self.used.add(name)
        return name

    def path(self, name, suffix):
        """Where a result is, or will be."""
        return self.folder / f"{name}{suffix}"

    def made(self, name, make):
        """Named arrays {name: ndarray}: read if they were made before, else made by `make()` and kept."""
        if (found := self.find(name)) is None:
            found = make()
            self._write(name, found)
        return found

    def keep(self, kind, arrays):
        """Keep named arrays under a digest of themselves -> the name, for `read`."""
        name = f"{kind}-{content_of(arrays)[:16]}"
        self.used.add(name)
        if self.find(name) is None:
            self._write(name, arrays)
        return name

    def read(self, name):
        """Read named arrays; DataError if they are not there, or not as they were written."""
        self.used.add(name)
        found = self.find(name)
        if found is None:
            raise DataError(f"{self.path(name, '.npz')}: is gone, or was damaged; run the step again that makes it")
        return found

    def find(self, name):
        """Named arrays, or None: a damaged file is moved away and named."""
        path = self.take(name, ".npz")
        if not path.exists():
            return None
        if (found := read_whole(path)) is not None:
            return found
        self.set_aside(path)
        return None

    def take(self, name, suffix):
        """The path of a result; where another store has it and this one has not, it is copied from there.

        Of several checkpoints, the one that was trained furthest is copied, with its record.
        """
        path = self.path(name, suffix)
        found = [other / path.name for other in self.others if (other / path.name).is_file()
                 and other / path.name not in self._spoiled]
        if found and not path.exists():
            source = self._source[path] = max(found, key=lambda one: steps_trained(one.with_suffix(".json")))
            for one in [source.with_suffix(".json")] * source.with_suffix(".json").is_file() + [source]:
                copy_whole(one, self.folder / one.name)
        return path

    def set_aside(self, path):
        """Move a file that is not as it was written to a name of its own, and say so -> its new path."""
        place = free_name(path)
        path.replace(place)
        self._spoiled.add(self._source.get(path))
        self.report(f"note  {path} is damaged, or was changed; it is kept as {place.name}, and made again")
        return place

    def _write(self, name, arrays):
        arrays = {key: np.asarray(value) for key, value in arrays.items()}
        # given a name, NumPy appends .npz to it
        with whole_file(self.path(name, ".npz")) as part, open(part, "wb") as file:
            np.savez_compressed(file, **arrays, **{DIGEST: np.array(f"{name} {content_of(arrays)}")})


def read_whole(path):
    """The named arrays in a file of a store, or None if the file is gone or not as it was written."""
    if not Path(path).is_file():
        return None
    data = Path(path).read_bytes()               # an error here is no damage of the file
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as npz:
            found = {key: npz[key] for key in npz.files}
        return found if str(found.pop(DIGEST)) == f"{Path(path).stem} {content_of(found)}" else None
    except Exception:                            # zipfile, zlib and NumPy raise a dozen types for a damaged file
        return None


def read_kept(path):
    """As `read_whole`, for a file that `Store.keep` wrote: its name is a digest of what it holds, whoever wrote it."""
    found = read_whole(path)
    named = found is not None and Path(path).stem.rpartition("-")[2] == content_of(found)[:16]
    return found if named else None


def free_name(path):
    """A name beside `path` that no file has: NAME.kept-1.SUFFIX, or with the next free number."""
    path, number = Path(path), 1
    while (place := path.with_name(f"{path.stem}.kept-{number}{path.suffix}")).exists():
        number += 1
    return place


def content_of(arrays):
    """SHA-256 of named arrays, whatever their order and the machine."""
    digest = hashlib.sha256()
    for name, array in sorted((name, np.asarray(array)) for name, array in arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode("utf-8", "backslashreplace"))
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def digest_of(value):
    """A digest of plain values, dataclasses, arrays, tensors, models, and of lists and dicts of them."""
    return joblib.hash(_plain(value))


def _plain(value):
    """A value as joblib hashes it alike in each process and on each machine: no classes, arrays in their own order."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return [type(value).__name__, _plain(named)]
    if hasattr(value, "state_dict") and hasattr(value, "settings"):      # a model
        return [type(value).__name__, _plain(value.settings), _plain(dict(value.state_dict()))]
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, dict):
        return {repr(_plain(name)): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return value.copy(order="C")                     # joblib hashes strides, too, which views have of their own
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"no result is named after a {type(value).__name__}; give plain values, dataclasses, arrays, "
                    "models, and lists and dicts of them")
