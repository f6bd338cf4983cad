"""Feature scaling: standardise sign(x) log(1 + |x|), fitted on training graphs only.

Sizes in an HLO graph span ten decades, and some columns are negative, so magnitudes are compressed first.
"""
from typing import NamedTuple

import numpy as np


class Scaler(NamedTuple):
    """What `scale` subtracts and multiplies by, one value per column."""
    mean: np.ndarray             # (f,) float64, of signed logarithms
    factor: np.ndarray           # (f,) float64; 1 / standard deviation, 0 for a constant column


def signed_log(x):
    """Compress magnitudes and keep signs: sign(x) log(1 + |x|), float64."""
    x = np.asarray(x, dtype=np.float64)
    return np.sign(x) * np.log1p(np.abs(x))


def fit_scaler(arrays):
    """Fit a Scaler on the rows of all arrays (rows_i, f) together; they are read once, so a generator is enough."""
    rows, mean, squares = 0, 0.0, 0.0
    for array in arrays:
        if not len(array):
            continue
        x = signed_log(array)
        # Chan, Golub & LeVeque (1983): means and sums of squares of parts are merged without loss of digits
        delta = x.mean(axis=0) - mean
        squares = squares + x.var(axis=0) * len(x) + delta ** 2 * rows * len(x) / (rows + len(x))
        mean = mean + delta * len(x) / (rows + len(x))
        rows += len(x)
    if not rows:
        raise ValueError("a scaler needs at least one row; were there no training graphs?")
    deviation = np.sqrt(squares / rows)
    # nothing was learned about a constant column, so its factor is 0 and it never reaches a model; rounding leaves it
    # with a deviation of about 1e-16 times its value
    varies = deviation > 1e-9 * np.maximum(1, np.abs(mean))
    return Scaler(mean, np.divide(1, deviation, out=np.zeros_like(deviation), where=varies))


def scale(x, scaler):
    """Standardise the columns of x (rows, f) -> float32; columns that were constant in the fit become 0."""
    return ((signed_log(x) - scaler.mean) * scaler.factor).astype(np.float32)
