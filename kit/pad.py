"""Columns of node features by name, tensor rank, the 0 -> -1 repair of layouts, and padding of ragged batches.

In the public files a tensor's layout is padded with 0, although 0 is also a legal axis. Configured layouts are padded
with -1. Only after the repair can a node's own layout be compared with a configured one. Where the two disagree, the
compiler has to insert a copy.
"""
import numpy as np

# the columns of node_feat, (n, 140), that the kit reads by name; a slice has one column per dimension or axis
IS_ROOT = 0
ELEMENT_TYPE = slice(2, 21)              # one-hot
TYPE_BYTES = 0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0        # of each of these types; tuples have none
SHAPE = slice(21, 27)                    # shape_dimensions_0..5
SHAPE_SUM, SHAPE_PRODUCT = 27, 28
PARAMETER_NUMBER = 30
DIMENSIONS = slice(31, 37)               # dimensions_0..5; of a transpose: which input dimension becomes this one
WINDOW_SIZE, WINDOW_PRODUCT = slice(37, 43), 44
WINDOW_STRIDE = slice(45, 51)
INPUT_FEATURE = 94                       # which dimension of a convolution's input holds the features
KERNEL_INPUT = 99                        # which dimension of a convolution's kernel holds the input features
KERNEL_SPATIAL = slice(101, 105)
OUTPUT_FEATURE, FEATURE_GROUPS = 106, 107
LAYOUT = slice(134, 140)                 # layout_minor_to_major_0..5
# arrays lie in memory in tiles of 8 x 128 elements (OpenXLA documentation, "Tiled layout"): the minor-most dimension
# is padded to a multiple of 128, the second minor-most to a multiple of 8
LANES, SUBLANES = 128, 8


def tensor_rank(node_feat):
    """Count the dimensions of each node's output.

    Parameters
    ----------
    node_feat : ndarray, shape (n, 140), float

    Returns
    -------
    ndarray, shape (n,), int64
        The number of sizes that are not 0 (no public file has a dimension of size 0). Tuples have rank 0.

    Raises
    ------
    ValueError
        If `node_feat` has another shape, does not hold numbers, or has NaN among the sizes.

    Examples
    --------
    >>> node_feat = np.zeros((1, 140)); node_feat[0, 21:23] = 8, 128
    >>> tensor_rank(node_feat)
    array([2])
    """
    return (_checked(node_feat)[:, SHAPE] != 0).sum(axis=1)


def _checked(node_feat):
    """`node_feat` as an array; ValueError unless it holds numbers and has the columns of nodes."""
    node_feat = np.asarray(node_feat)
    if node_feat.ndim != 2 or node_feat.shape[1] < LAYOUT.stop or node_feat.dtype.kind not in "iuf":
        raise ValueError(f"node_feat has shape {node_feat.shape} and dtype {node_feat.dtype}; expected numbers "
                         "of shape (n, 140)")
    if np.isnan(node_feat[:, SHAPE]).any():
        raise ValueError(f"node_feat has {np.isnan(node_feat[:, SHAPE]).sum()} NaN among the sizes of dimensions")
    return node_feat


def repad_layout(node_feat):
    """Set layout digits past a tensor's rank from 0 to -1.

    Parameters
    ----------
    node_feat : ndarray, shape (n, 140), float

    Returns
    -------
    node_feat : ndarray, shape (n, 140), same dtype
        A copy. A row is repaired only if its first `rank` digits are a permutation of 0..rank-1. Any other row
        stays as it is. A second repair changes nothing.
    share : float
        Share of the rows that were repaired or needed no repair.

    Raises
    ------
    ValueError
        As `tensor_rank`.

    Examples
    --------
    >>> node_feat = np.zeros((1, 140)); node_feat[0, 21:23] = 8, 128; node_feat[0, 134:136] = 1, 0
    >>> repad_layout(node_feat)[0][0, 134:140]
    array([ 1.,  0., -1., -1., -1., -1.])
    """
    node_feat = _checked(node_feat)
    inside = np.arange(6) < tensor_rank(node_feat)[:, None]             # (n, 6)
    digits = node_feat[:, LAYOUT]
    # with padding replaced by 6, a permutation of 0..rank-1 sorts to 0, 1, .., rank-1, 6, 6, ...
    good = (np.sort(np.where(inside, digits, 6), axis=1) == np.where(inside, np.arange(6), 6)).all(axis=1)
    repaired = node_feat.copy()
    repaired[:, LAYOUT] = np.where(~inside & good[:, None], -1, digits)
    return repaired, float(good.mean()) if len(good) else 1.0


def whole_layouts(digits, rank):
    """Complete the layouts that configurations name in part.

    If the digits name every dimension, they are the layout. Else the first one is the minor dimension, and the others
    follow row-major, as on the measured programs. What TPUs make of a layout that is named in part is not known.

    Parameters
    ----------
    digits : ndarray, shape (..., 6), integers
        Dimensions, minor to major, then -1.
    rank : ndarray, shape (...), integers
        Number of dimensions of each tensor.

    Returns
    -------
    ndarray, shape (..., 6), int8
        Whole layouts, minor to major, then -1; -1 throughout if the first digit names no dimension of the tensor.

    Examples
    --------
    >>> whole_layouts(np.array([0, 3, -1, -1, -1, -1]), 4).tolist()
    [0, 3, 2, 1, -1, -1]
    """
    digits, rank = np.asarray(digits), np.asarray(rank)[..., None]
    place, minor = np.arange(6), digits[..., :1]
    named = (minor >= 0) & (minor < rank)
    # at place i > 0 lies dimension rank - i, or the one before it, once the minor dimension is passed over
    layout = np.where(place == 0, minor, np.where(rank - place > minor, rank - place, rank - place - 1))
    every = (np.sort(np.where(place < rank, digits, 6), axis=-1) == np.where(place < rank, place, 6)).all(
        axis=-1, keepdims=True)
    return np.where(named & (place < rank), np.where(every, digits, layout), -1).astype(np.int8)


def pad_batch(arrays, fill=0):
    """Stack arrays of different lengths into one array, with a mask of the values that are not padding.

    Parameters
    ----------
    arrays : sequence of ndarray, shapes (length_i, ...)
        Equal in dtype and in every axis but the first.
    fill : scalar
        Value of the padding.

    Returns
    -------
    batch : ndarray, shape (len(arrays), longest, ...)
    mask : ndarray, shape (len(arrays), longest), bool
        True where `batch` holds a value of `arrays`.

    Raises
    ------
    ValueError
        If there is no array, dtypes or trailing shapes differ, or values or `fill` are no numbers.

    Examples
    --------
    >>> batch, mask = pad_batch([np.array([1, 2, 3]), np.array([4])], fill=-1)
    >>> batch
    array([[ 1,  2,  3],
           [ 4, -1, -1]])
    >>> mask.sum(axis=1)
    array([3, 1])
    """
    arrays = [np.asarray(a) for a in arrays] if np.iterable(arrays) else [np.asarray(arrays)]
    kinds = {(a.dtype, a.shape[1:]) for a in arrays}
    if len(kinds) != 1:
        raise ValueError(f"arrays of one dtype and one trailing shape are needed, got {sorted(map(str, kinds))}")
    numbers = all(np.asarray(values).dtype.kind in "biuf" for values in (arrays[0], fill))
    if not numbers or not arrays[0].ndim or np.ndim(fill):
        raise ValueError(f"arrays have dtype {arrays[0].dtype} and {arrays[0].ndim} axes, fill is {fill!r}; expected "
                         "numbers, and at least one axis")
    lengths = np.array([len(a) for a in arrays])
    mask = np.arange(lengths.max()) < lengths[:, None]
    batch = np.full(mask.shape + arrays[0].shape[1:], fill, arrays[0].dtype)
    batch[mask] = np.concatenate(arrays)
    return batch, mask
