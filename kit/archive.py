"""An npz archive read with suspicion: every array is checked against what the archive itself declares.

Nothing is unpickled, nothing is allocated on the word of a header alone, and every fault becomes one `DataError`.
"""
import struct
import tokenize
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

MAX_ARRAY_BYTES = 1 << 30        # the largest array that is read whole has 24 MB in the public files
READ_FAULTS = (zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, OSError, EOFError, ValueError,
               KeyError, TypeError, NotImplementedError, RuntimeError, OverflowError, SyntaxError)


class DataError(ValueError):
    """A file or folder is not what the data set promises; the message names it and what was found."""


class NpzFile:
    """An npz archive whose arrays are checked before they are believed; used as a context manager."""

    def __init__(self, path):
        self.path = Path(path)

    def __enter__(self):
        try:
            self.zip = zipfile.ZipFile(self.path)
        except READ_FAULTS as fault:
            raise DataError(f"{self.path}: not a readable npz file ({fault}); fetch it again") from fault
        return self

    def __exit__(self, *_):
        self.zip.close()

    def check(self, true, name, fault):
        """Raise the one error of this reader unless `true`."""
        if not true:
            raise DataError(f"{self.path}: {name} {fault}")

    def open(self, name, kinds):
        """Open one member -> (stream at the first value, shape, fortran order, dtype), sizes checked."""
        self.check(name + ".npy" in self.zip.NameToInfo, name, f"is missing; there are {self.zip.namelist()}")
        try:
            info = self.zip.getinfo(name + ".npy")
            stream = self.zip.open(info)
            version = np.lib.format.read_magic(stream)
            header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, fortran, dtype = header[version](stream)
        except READ_FAULTS as fault:
            raise DataError(f"{self.path}: {name} has no readable header ({fault}); fetch the file again") from fault
        self.check(dtype.kind in kinds and dtype.itemsize <= 8, name, f"has dtype {dtype}, expected a plain number")
        declared, stored = dtype.itemsize * int(np.prod(shape, dtype=object)), info.file_size - stream.tell()
        self.check(declared == stored, name, f"of shape {shape} needs {declared} bytes, the file holds {stored}")
        return stream, shape, fortran, dtype

    def read(self, stream, name, nbytes):
        """Read exactly `nbytes`."""
        try:
            data = stream.read(nbytes)
        except READ_FAULTS as fault:
            raise DataError(f"{self.path}: {name} is damaged ({fault}); fetch the file again") from fault
        self.check(len(data) == nbytes, name, f"ends after {len(data)} of {nbytes} bytes; fetch the file again")
        return data

    def array(self, name, kinds, shape, to, low=None, high=None):
        """Read one array; `shape` may hold None for any length, or be None."""
        stream, found, fortran, dtype = self.open(name, kinds)
        fits = shape is None or (len(found) == len(shape) and all(s in (None, f) for s, f in zip(shape, found)))
        self.check(fits, name, f"has shape {found}, expected {shape}")
        nbytes = dtype.itemsize * int(np.prod(found, dtype=object))
        self.check(nbytes <= MAX_ARRAY_BYTES, name, f"declares {nbytes} bytes; at most {MAX_ARRAY_BYTES} are read")
        flat = np.frombuffer(self.read(stream, name, nbytes), dtype)
        self.read_end(stream, name)
        values = flat.reshape(found, order="F" if fortran else "C")
        if values.size:
            self.check(np.isfinite(values).all(), name, "holds a value that is not finite")
            least, most = values.min(), values.max()
            self.check(low is None or least >= low, name, f"holds {least}, expected at least {low}")
            self.check(high is None or most <= high, name, f"holds {most}, expected at most {high}")
            self.check(np.dtype(to).kind != "i" or most <= np.iinfo(to).max, name, f"holds {most}, too large for {to}")
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(values, dtype=to)
        self.check(np.isfinite(values).all(), name, f"holds a value too large for {np.dtype(to)}")
        return values

    def read_end(self, stream, name):
        """Step past the end, which makes zipfile compare the checksum."""
        try:
            stream.read(1)
        except READ_FAULTS as fault:
            raise DataError(f"{self.path}: {name} is damaged ({fault}); fetch the file again") from fault

    def chunks(self, stream, name, shape, dtype, starts):
        """Yield a streamed array in pieces of whole configurations; a thread inflates the next one meanwhile."""
        def inflate(start):
            size = min(starts.step, shape[0] - start)
            return self.read(stream, name, size * int(np.prod(shape[1:])) * dtype.itemsize)
        with ThreadPoolExecutor(1) as ahead:
            following = ahead.submit(inflate, 0)
            for start in starts:
                data = following.result()
                if start + starts.step < shape[0]:
                    following = ahead.submit(inflate, start + starts.step)
                yield np.frombuffer(data, dtype).reshape(-1, *shape[1:])
        self.read_end(stream, name)
