"""An operator's WGSL spelled otherwise: what stands for it on a device hangs on what it says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.backend.compared import applied, assert_like_reference
from tests.property.drawing import Array
from webnn_py import MLContext
from webnn_py.ops import registry
from webnn_py.ops.declare import REGISTRY, Reduce

pytestmark = pytest.mark.kernels

SPELLINGS = {
    "add": "({b}+{a})",
    "sub": "-({b} - {a})",
    "mul": "( {b} ) * {a}",
    "div": "( {a} )/( {b} )",
    "max": "max( {b},{a} )",
    "min": "min( {b},{a} )",
    "neg": "{T}(0) - {input}",
    "abs": "max({input}, -{input})",
    "relu": "( max({T}(0),{input}) )",
    "prelu": "select( wn_scaled({input}, {slope}), {input}, {input} >= {T}(0) )",
    "equal": "wn_flag( {b}=={a} )",
    "not_equal": "wn_flag(!({a} == {b}))",
    "lesser": "wn_flag({b} > {a})",
    "greater_or_equal": "wn_flag({b} <= {a})",
    "lesser_or_equal": "wn_flag(({a} < {b}) || {b} == {a})",
}
"""Other ways to say the same; not of NaN where a comparison is turned round."""

SPECIAL = [0.0, -0.0, 1.5, -2.5, 3e38, -3e38, np.inf, -np.inf, np.nan]
WIDE = [0, 1, -1, 2**31, -(2**31), 2**32 - 1, 2**40 + 3, -(2**52) - 7, 2**63 - 1, -(2**63)]
OF_NAN = sorted(SPELLINGS.keys() - {"prelu"})


def respell(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    other = dataclasses.replace(REGISTRY[name], wgsl=SPELLINGS[name])
    monkeypatch.setitem(registry._REGISTRY, name, other)


def operands(name: str, values: Array) -> dict[str, Array]:
    """All pairs of the values."""
    first, *second = REGISTRY[name].limits
    pairs = np.tile(values, (values.size, 1))
    return {first: pairs} | {other: np.ascontiguousarray(pairs.T) for other in second}


@pytest.mark.parametrize("name", SPELLINGS)
def test_wide_integers(
    each_device: MLContext, reference: MLContext, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call = applied(name, operands(name, np.array(WIDE, np.int64)))
    respell(monkeypatch, name)
    assert_like_reference(each_device, reference, call)


@pytest.mark.parametrize("name", OF_NAN)
def test_floats_that_are_not_numbers(
    gpu: MLContext, reference: MLContext, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call = applied(name, operands(name, np.array(SPECIAL, np.float32)))
    respell(monkeypatch, name)
    assert_like_reference(gpu, reference, call)


@pytest.mark.parametrize("data_type", ["int8", "int32", "int64"])
def test_narrow_and_wide_sums(
    each_device: MLContext, reference: MLContext, monkeypatch: pytest.MonkeyPatch, data_type: str
) -> None:
    respell(monkeypatch, "add")
    info = np.iinfo(data_type)
    values = np.array([info.min, -1, 0, 3, info.max], data_type)
    assert_like_reference(each_device, reference, applied("add", operands("add", values)))


@pytest.mark.parametrize("length", [5, 700])
def test_reductions(
    each_device: MLContext, reference: MLContext, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    respelled = Reduce("( max(-{x}, {x}) )", "{b}+{a}", "0", "( {x} )")
    other = dataclasses.replace(REGISTRY["reduce_l1"], reduce=respelled)
    monkeypatch.setitem(registry._REGISTRY, "reduce_l1", other)
    values = np.random.default_rng(0).integers(-(2**62), 2**62, (3, length))
    call = applied("reduce_l1", {"input": values}, axes=[1])
    assert_like_reference(each_device, reference, call)
