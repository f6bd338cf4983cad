"""The options of one operation: the rules of kit/programs/own.py for convolutions, dots and reshapes."""
from functools import lru_cache
from itertools import permutations, product

import numpy as np

from kit.data import DIGITS, DataError
from kit.pad import LANES, SUBLANES

MAX_RANK = 6                     # a configuration has six digits per tensor


def operation_options(instruction, tensors, label):
    """The options of an instruction: sorted rows of 18 digits."""
    if instruction.opcode == "reshape":
        choices = [((), ()), *bitcast_layouts(*tensors)]
    elif instruction.opcode == "dot":
        choices = list(product(*map(permutations, dot_axes(instruction.dot, *map(len, tensors[1:])))))
        if list(map(len, tensors)) == [2, 2, 2]:
            choices.append((least_padded(tensors[0]), (), ()))
    else:
        c = instruction.convolution
        axes = ((c.output_batch, c.output_feature), (c.input_batch, c.input_feature), (c.kernel_in, c.kernel_out))
        choices = list(product(*map(permutations, axes)))
    for digits, tensor in zip(choices[0], tensors):
        if len(set(digits)) < len(digits) or not all(0 <= digit < len(tensor) for digit in digits):
            raise DataError(f"{label}: {instruction.opcode} {instruction.name!r} names the dimensions "
                            f"{sorted(digits)} of a tensor of {len(tensor)}")
    rows = [[*digits, *[-1] * (MAX_RANK - len(digits))] for choice in choices for digits in (*choice, (), ())[:3]]
    return tuple(sorted(map(tuple, np.array(rows).reshape(-1, DIGITS).tolist())))


def layout_agreement(rows, layouts):
    """(k,) per row of digits: pairs of dimensions ordered as in the layouts, minus pairs ordered the other way."""
    total, (first, second) = 0, np.triu_indices(MAX_RANK, 1)
    for digits, layout in zip(np.array(rows).reshape(-1, 3, MAX_RANK).swapaxes(0, 1), layouts):
        place = np.zeros(MAX_RANK + 1, np.int64)
        place[list(layout)] = np.arange(len(layout))
        order = np.sign(place[digits[:, second]] - place[digits[:, first]])
        total += (order * (digits[:, second] >= 0)).sum(axis=1)          # -1, no digit, comes last
    return total


def dot_axes(numbers, *ranks):
    """The dimensions that a dot's configuration orders, of the output, the first and the second operand."""
    output, operands, size = [], [], len(numbers.lhs_batch)    # the output has the batch, then the free dimensions
    for rank, contracting, batch in zip(ranks, (numbers.lhs_contracting, numbers.rhs_contracting),
                                        (numbers.lhs_batch, numbers.rhs_batch)):
        free = [axis for axis in range(rank) if axis not in (*contracting, *batch)]
        size += len(free)
        output += [size - 1] if free else []
        operands.append([*free[-1:], *sorted(contracting)[-1:]])
    return output, *operands


def least_padded(shape):
    """The order of a matrix's dimensions, minor first, that needs the least padding to tiles; row-major on a tie."""
    return min(((1, 0), (0, 1)), key=lambda order: -(-shape[order[0]] // LANES) * -(-shape[order[1]] // SUBLANES))


@lru_cache(1024)
def bitcast_layouts(output, given):
    """All pairs of layouts under which reshaping `given` into `output` moves no data; sizes of 1 are the most major."""
    if 0 in (*output, *given):
        return ()
    own, theirs = _strides(output), _strides(given)
    ones, given_ones = (tuple(d for d in reversed(range(len(shape))) if shape[d] == 1) for shape in (output, given))
    found = []
    for order in permutations(own):
        runs = []                            # [stride, size] of dimensions that lie together, minor first
        for d in order:
            if runs and runs[-1][0] * runs[-1][1] == own[d]:
                runs[-1][1] *= output[d]
            else:
                runs.append([own[d], output[d]])
        layout = []
        for stride, size in runs:
            for d in theirs:       # by rising stride: consecutive dimensions fill the run
                if theirs[d] == stride and size % given[d] == 0:
                    layout.append(d)
                    stride, size = stride * given[d], size // given[d]
            if size > 1:
                break
        else:
            if len(layout) == len(theirs):
                found.append((order + ones, (*layout, *given_ones)))
    return tuple(found)


def _strides(shape):
    """{dimension: stride} in elements, row-major, of the dimensions larger than 1, the last first."""
    strides, stride = {}, 1
    for d in reversed(range(len(shape))):
        if shape[d] > 1:
            strides[d] = stride
        stride *= shape[d]
    return strides
