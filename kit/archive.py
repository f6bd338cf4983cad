"""An npz archive read with suspicion: every array is checked against what the archive itself declares.

Nothing is unpickled, nothing is allocated on the word of a header alone, and every fault becomes one `DataError`.
"""
import math
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

MAX_ARRAY_BYTES = 1 << 30        # the largest array that is read whole has 24 MB in the public files


class DataError(ValueError):
    """A file or folder is not what the data set promises; the message names it and what was found."""


class NpzFile:
    """An npz archive whose arrays are checked before they are believed; used as a context manager."""

    def __init__(self, path):
        self.path = Path(path)

    def __enter__(self):
        self.opened = ExitStack()
        with self.faults("not a readable npz file ({})"):
            self.zip = self.opened.enter_context(zipfile.ZipFile(self.path))
        return self

    def __exit__(self, *_):
        self.opened.close()

    @contextmanager
    def faults(self, words):
        """Turn whatever zipfile, zlib and numpy raise over bytes that they cannot read into a DataError."""
        try:
            yield
        except Exception as fault:       # far more kinds than are documented: IndexError, TokenError, MemoryError...
            reason = f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
            raise DataError(f"{self.path}: {words.format(reason)}; fetch the file again") from fault

    def check(self, true, name, fault):
        """Raise the one error of this reader unless `true`."""
        if not true:
            raise DataError(f"{self.path}: {name} {fault}")

    def open(self, name, kinds):
        """Open one member -> (stream at the first value, shape, fortran order, dtype), sizes checked."""
        self.check(name + ".npy" in self.zip.NameToInfo, name, f"is missing; there are {self.zip.namelist()}")
        with self.faults(name + " has no readable header ({})"), warnings.catch_warnings():
            warnings.simplefilter("ignore")          # that a header is Python 2's, or holds an invalid escape
            info = self.zip.getinfo(name + ".npy")
            stream = self.opened.enter_context(self.zip.open(info))
            version = np.lib.format.read_magic(stream)
            if version != (1, 0):                    # the later ones have gigabytes of names of structured types
                raise NotImplementedError(f"npy version {version}, expected (1, 0)")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        self.check(dtype.kind in kinds and dtype.itemsize <= 8, name, f"has dtype {dtype}, expected a plain number")
        declared, stored = dtype.itemsize * math.prod(shape), info.file_size - stream.tell()
        self.check(declared == stored and min(shape, default=0) >= 0, name,
                   f"of shape {shape} needs {declared} bytes, the file holds {stored}")
        return stream, shape, fortran, dtype

    def read(self, stream, name, nbytes):
        """Read exactly `nbytes`."""
        with self.faults(name + " is damaged ({})"):
            data = stream.read(nbytes)
        self.check(len(data) == nbytes, name, f"ends after {len(data)} of {nbytes} bytes; fetch the file again")
        return data

    def array(self, name, kinds, shape, to, low=None, high=None):
        """Read one array of a shape that may hold None for any length; shape None: any, given back flat."""
        stream, found, fortran, dtype = self.open(name, kinds)
        fits = shape is None or (len(found) == len(shape) and all(s in (None, f) for s, f in zip(shape, found)))
        self.check(fits, name, f"has shape {found}, expected {shape}")
        nbytes = dtype.itemsize * math.prod(found)
        self.check(nbytes <= MAX_ARRAY_BYTES, name, f"declares {nbytes} bytes; at most {MAX_ARRAY_BYTES} are read")
        values = np.frombuffer(self.read(stream, name, nbytes), dtype)
        self.read_end(stream, name)
        if shape is not None:
            values = values.reshape(found, order="F" if fortran else "C")
        with np.errstate(over="ignore"):         # of half precision, to which the bounds are cast, and of the cast
            if values.size:
                self.check(np.isfinite(values).all(), name, "holds a value that is not finite")
                least, most = values.min(), values.max()
                self.check(low is None or least >= low, name, f"holds {least}, expected at least {low}")
                self.check(high is None or most <= high, name, f"holds {most}, expected at most {high}")
                self.check(np.dtype(to).kind != "i" or most <= np.iinfo(to).max, name, f"holds {most}, too large for "
                           f"{np.dtype(to)}")
            values = np.ascontiguousarray(values, dtype=to)
        self.check(np.isfinite(values).all(), name, f"holds a value too large for {np.dtype(to)}")
        return values

    def read_end(self, stream, name):
        """Step past the end, which makes zipfile compare the checksum."""
        with self.faults(name + " is damaged ({})"):
            stream.read(1)

    def chunks(self, stream, name, shape, dtype, starts):
        """Yield a streamed array in pieces of whole configurations; a thread inflates the next one meanwhile."""
        def inflate(start):
            piece = (min(starts.step, shape[0] - start), *shape[1:])
            return np.frombuffer(self.read(stream, name, math.prod(piece) * dtype.itemsize), dtype).reshape(piece)
        with ThreadPoolExecutor(1) as ahead:
            following = ahead.submit(inflate, 0)
            for start in starts:
                chunk = following.result()
                if start + starts.step < shape[0]:
                    following = ahead.submit(inflate, start + starts.step)
                yield chunk
        self.read_end(stream, name)
