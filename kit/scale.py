"""Feature scaling, fitted on training graphs only.

Sizes in an HLO graph span ten decades and some columns are negative, so values pass through sign(x) log(1 + |x|)
before they are standardised.
"""
from typing import NamedTuple

import numpy as np


class Scaler(NamedTuple):
    """What `scale` subtracts and multiplies by, one value a column."""
    mean: np.ndarray             # (f,) float64, of signed logarithms
    factor: np.ndarray           # (f,) float64; 1 / standard deviation, 0 for a constant column


def signed_log(x):
    """Compress magnitudes and keep signs: sign(x) log(1 + |x|).

    Parameters
    ----------
    x : array_like of float, any shape

    Returns
    -------
    ndarray, same shape, float64

    Examples
    --------
    >>> signed_log([-2.0, 0.0]).round(2)
    array([-1.1,  0. ])
    """
    x = np.asarray(x, dtype=np.float64)
    return np.sign(x) * np.log1p(np.abs(x))


def fit_scaler(arrays):
    """Fit a scaler on the rows of all arrays together.

    Parameters
    ----------
    arrays : iterable of ndarray, shapes (rows_i, f)
        Training graphs only. Read once, so a generator will do.

    Returns
    -------
    Scaler
        A column that is constant in `arrays` gets factor 0: nothing was learned about it, so nothing of it
        reaches the model.

    Raises
    ------
    ValueError
        If there is no row.
    """
    rows, mean, squares = 0, 0.0, 0.0
    for array in arrays:
        if not len(array):
            continue
        x = signed_log(array)
        # Chan, Golub & LeVeque (1983): means and sums of squares of parts are merged without cancellation
        delta = x.mean(axis=0) - mean
        squares = squares + x.var(axis=0) * len(x) + delta ** 2 * rows * len(x) / (rows + len(x))
        mean = mean + delta * len(x) / (rows + len(x))
        rows += len(x)
    if not rows:
        raise ValueError("a scaler needs at least one row; were there no training graphs?")
    deviation = np.sqrt(squares / rows)
    # rounding leaves a constant column with a deviation of about 1e-16 times its value
    varies = deviation > 1e-9 * np.maximum(1, np.abs(mean))
    return Scaler(mean, np.divide(1, deviation, out=np.zeros_like(deviation), where=varies))


def scale(x, scaler):
    """Standardise the signed logarithm of each column.

    Parameters
    ----------
    x : ndarray, shape (rows, f)
    scaler : Scaler

    Returns
    -------
    ndarray, shape (rows, f), float32
        Mean 0 and variance 1 over the arrays that the scaler was fitted on; 0 in columns constant there.
    """
    return ((signed_log(x) - scaler.mean) * scaler.factor).astype(np.float32)
