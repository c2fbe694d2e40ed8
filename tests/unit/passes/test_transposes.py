"""Transposes go in pairs; never one more, never one that costs more than it saves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.passes.listings import (
    Built,
    Record,
    assert_keeps,
    assert_prints,
    normal,
    operators,
    tensor,
)
from webnn_py import MLGraphBuilder, MLOperand

TO_NHWC = [0, 2, 3, 1]
TO_NCHW = [0, 3, 1, 2]
IMAGE = (2, 3, 4, 5)
STAGE = "cancel_transposes"


def count(listing: str) -> int:
    return operators(listing).count("transpose")


def assert_moves(body: Record, before: int, left: int, shape: Any = IMAGE) -> None:
    """So many transposes become fewer, and the results keep their bits."""
    built = Built(body, shape)
    assert (count(built.before(STAGE)), count(built.after(STAGE))) == (before, left)
    built.assert_computes(normal(*shape))


def nhwc(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.transpose(x, permutation=TO_NHWC)


def nchw(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.transpose(x, permutation=TO_NCHW)


def test_a_sandwich() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        y = nhwc(b, b.exp(x))
        y = b.add(b.mul(y, b.constant(tensor(3))), b.constant(tensor(1, 4, 1, 1)))
        y = b.where(b.greater(y, b.constant(1.5, "float32")), y, b.constant(tensor(2, 1, 5, 1)))
        y = b.concat([y, b.pad(y, [0, 0, 0, 1], [0, 0, 0, 2])], 3)
        y = b.reverse(b.slice(y, [0, 1, 0, 0], [2, 3, 4, 9], strides=[1, 1, 2, 1]), axes=[1, 3])
        return b.sin(nchw(b, b.tile(y, [1, 2, 1, 1])))

    built = Built(body, IMAGE)
    assert_prints(
        built.before(STAGE),
        """
        graph(%x: float32[2,3,4,5]) {
          %c0: float32[3] constant
          %c1: float32[1,4,1,1] constant
          %c2: float32[] constant = 1.5
          %c3: float32[2,1,5,1] constant
          %0: float32[2,3,4,5] = exp(%x)
          %1: float32[2,4,5,3] = transpose(%0, permutation=[0, 2, 3, 1])
          %2: float32[2,4,5,3] = mul(%1, %c0)
          %3: float32[2,4,5,3] = add(%2, %c1)
          %4: uint8[2,4,5,3] = greater(%3, %c2)
          %5: float32[2,4,5,3] = where(%4, %3, %c3)
          %6: float32[2,4,5,6] = pad(%5, beginning_padding=[0, 0, 0, 1], \
ending_padding=[0, 0, 0, 2], mode=constant, value=0.0)
          %7: float32[2,4,5,9] = concat(%5, %6, axis=3)
          %8: float32[2,3,2,9] = slice(%7, starts=[0, 1, 0, 0], sizes=[2, 3, 4, 9], \
strides=[1, 1, 2, 1])
          %9: float32[2,3,2,9] = reverse(%8, axes=[1, 3])
          %10: float32[2,6,2,9] = tile(%9, repetitions=[1, 2, 1, 1])
          %11: float32[2,9,6,2] = transpose(%10, permutation=[0, 3, 1, 2])
          %12: float32[2,9,6,2] = sin(%11)
          return y=%12
        }
        """,
    )
    assert_prints(
        built.after(STAGE),
        """
        graph(%x: float32[2,3,4,5]) {
          %c0: float32[] constant = 1.5
          %c1: float32[1,3,1,1] constant
          %c2: float32[1,1,4,1] constant
          %c3: float32[2,1,1,5] constant
          %0: float32[2,3,4,5] = exp(%x)
          %1: float32[2,3,4,5] = mul(%0, %c1)
          %2: float32[2,3,4,5] = add(%1, %c2)
          %3: uint8[2,3,4,5] = greater(%2, %c0)
          %4: float32[2,3,4,5] = where(%3, %2, %c3)
          %5: float32[2,6,4,5] = pad(%4, beginning_padding=[0, 1, 0, 0], \
ending_padding=[0, 2, 0, 0], mode=constant, value=0.0)
          %6: float32[2,9,4,5] = concat(%4, %5, axis=1)
          %7: float32[2,9,3,2] = slice(%6, starts=[0, 0, 1, 0], sizes=[2, 9, 3, 4], \
strides=[1, 1, 1, 2])
          %8: float32[2,9,3,2] = reverse(%7, axes=[2, 1])
          %9: float32[2,9,6,2] = tile(%8, repetitions=[1, 1, 2, 1])
          %10: float32[2,9,6,2] = sin(%9)
          return y=%10
        }
        """,
    )
    built.assert_computes(normal(*IMAGE))


def _from_nchw(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Two operands transposed alike: one transpose behind them is enough."""
    return b.softmax(b.add(nhwc(b, b.exp(x)), nhwc(b, b.sin(x))), 3)


def _residual(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Two blocks in NHWC with a way around the second."""
    first = nhwc(b, b.softmax(b.exp(x), 1))
    second = nhwc(b, b.softmax(nchw(b, b.relu(first)), 1))
    return b.softmax(nchw(b, b.add(first, second)), 1)


def _two_ways_out(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Both inverse transposes go; the reader in NHWC gets one."""
    y = b.relu(nhwc(b, b.exp(x)))
    rest = b.reduce_mean(b.softmax(y, 3), axes=[1, 2, 3])
    outer = b.add(nchw(b, y), nchw(b, b.neg(y)))
    return b.add(b.reduce_mean(outer, axes=[1, 2, 3]), rest)


def _other_orders(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Orders that are not inverse become one transpose, as two matrices' do."""
    y = b.transpose(b.exp(x), permutation=[3, 2, 1, 0])
    return b.softmax(b.transpose(b.relu(y), permutation=[3, 2, 0, 1]), 1)


@pytest.mark.parametrize(
    ("body", "before", "left"),
    [(_from_nchw, 2, 1), (_residual, 4, 0), (_two_ways_out, 3, 1), (_other_orders, 2, 1)],
)
def test_how_many_are_left(body: Record, before: int, left: int) -> None:
    assert_moves(body, before, left)


def _one_way(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.softmax(b.relu(nhwc(b, b.exp(x))), 3)


def _untransposed_partner(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    other = b.reshape(b.sin(x), [2, 4, 5, 3])
    return b.softmax(b.add(nhwc(b, b.exp(x)), other), 3)


def _across_a_reduction(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    y = b.softmax(nhwc(b, b.exp(x)), 3)
    return b.sin(nchw(b, y))


def _shared_and_read_as_it_is(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    y = nhwc(b, b.exp(x))
    return b.add(b.softmax(b.relu(y), 3), b.softmax(y, 3))


def _lower_rank(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    row = b.reduce_mean(x, axes=[0, 2, 3])
    return b.sin(nchw(b, b.add(nhwc(b, b.exp(x)), row)))


def _a_large_partner(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Two transposes of few elements are not worth one of many."""
    small = b.reduce_mean(x, axes=[2, 3], keep_dimensions=True)
    large = b.reshape(b.sin(x), [2, 4, 5, 3])
    both = b.add(nhwc(b, small), b.mul(nhwc(b, b.exp(small)), large))
    return b.softmax(both, 3)


def _two_small_partners(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Few elements are transposed, too; only a single one need not be."""
    y = nhwc(b, b.exp(x))
    for partner in (b.reduce_mean, b.reduce_sum):
        y = b.add(y, partner(x, axes=[1, 2, 3], keep_dimensions=True))
    return b.sin(nchw(b, y))


@pytest.mark.parametrize(
    "body",
    [
        _one_way,
        _two_small_partners,
        _untransposed_partner,
        _across_a_reduction,
        _shared_and_read_as_it_is,
        _lower_rank,
        _a_large_partner,
    ],
)
def test_nothing_is_moved_for_nothing(body: Record) -> None:
    assert_keeps(STAGE, body, IMAGE)


def test_a_constant_keeps_its_other_reader() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        weights = b.constant(tensor(2, 4, 5, 3))
        y = nchw(b, b.add(nhwc(b, b.exp(x)), weights))
        rest = b.softmax(b.mul(weights, b.reduce_sum(x)), 1)
        return b.add(b.reduce_sum(b.matmul(y, y_like(b, y))), b.reduce_sum(rest))

    def y_like(b: MLGraphBuilder, y: MLOperand) -> MLOperand:
        return b.transpose(y, permutation=[0, 1, 3, 2])

    assert_moves(body, 3, 1)
    constants = [
        line for line in Built(body, IMAGE).after(STAGE).splitlines() if "constant" in line
    ]
    assert sorted(line.split()[1] for line in constants) == ["float32[2,3,4,5]", "float32[2,4,5,3]"]


def test_outputs_inside_a_region() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        relu = b.relu(nhwc(b, b.exp(x)))
        return {"y": nchw(b, b.sin(relu)), "r": relu}

    built = Built(body, IMAGE)
    assert_prints(
        built.after(STAGE),
        """
        graph(%x: float32[2,3,4,5]) {
          %0: float32[2,3,4,5] = exp(%x)
          %1: float32[2,3,4,5] = relu(%0)
          %2: float32[2,4,5,3] = transpose(%1, permutation=[0, 2, 3, 1])
          %3: float32[2,3,4,5] = sin(%1)
          return y=%3, r=%2
        }
        """,
    )
    built.assert_computes(normal(*IMAGE))


def test_an_input_between_two_transposes_goes_straight_on() -> None:
    assert_moves(lambda b, x: nchw(b, b.relu(nhwc(b, x))), 2, 0)


def test_matrices() -> None:
    assert_moves(lambda b, x: b.transpose(b.relu(b.transpose(x))), 2, 0, (2, 3))


def test_partners_of_one_element_stay_as_they_are() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        y = b.mul(nhwc(b, b.exp(x)), b.reduce_mean(x))
        return b.softmax(nchw(b, b.add(y, b.reduce_sum(x))), 1)

    assert_moves(body, 2, 0)


def test_the_order_that_most_of_them_ask_for() -> None:
    """Two operands in one order and one, that comes first, in another."""

    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        y = b.transpose(b.cos(x), permutation=[0, 3, 2, 1])
        return b.softmax(b.add(b.add(y, nhwc(b, b.exp(x))), nhwc(b, b.sin(x))), 3)

    assert_moves(body, 3, 2, [2, 3, 3, 3])


def test_one_transpose_fewer_of_as_many_elements() -> None:
    """Three of 60, 60 and 120 elements for two of 120."""

    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        half = b.reduce_mean(x, axes=[0], keep_dimensions=True)
        y = b.add(nhwc(b, b.exp(half)), b.reshape(b.sin(x), [2, 4, 5, 3]))
        y = b.add(b.add(y, nhwc(b, b.cos(half))), b.reshape(b.tan(x), [2, 4, 5, 3]))
        return b.softmax(nchw(b, y), 1)

    assert_moves(body, 3, 2)


def test_neighbours_move_one_after_the_other() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        for _ in range(6):
            x = b.relu(b.transpose(x, permutation=[1, 2, 0]))
        return b.softmax(x, 1)

    assert_moves(body, 6, 0, [2, 3, 4])
