"""Every operator on WebGPU gives what the reference gives, with the device's features and without.

WEBNN_EXAMPLES=100 draws so many calls of each operator.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.backend import test_long_loops
from tests.backend.compared import (
    applied,
    assert_indices_are_clamped,
    assert_like_reference,
    drawn,
    units_apart,
)
from tests.internals import session_of
from tests.public import REDUCTIONS
from webnn_py import MLContext, MLGraphBuilder, OperationError
from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.webgpu.compiler.lower import has_lowering
from webnn_py.engines.webgpu.compiler.lower.registry import LOOPING
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.decompositions import DECOMPOSITIONS

pytestmark = pytest.mark.kernels

EXAMPLES = int(os.environ.get("WEBNN_EXAMPLES", "2"))
INDICES = {
    "int32": [0, 4, -1, -5, -6, 5, 2**31 - 1, -(2**31)],
    "uint32": [0, 4, 5, 2**31, 2**32 - 1],
    "int64": [0, 4, -1, -5, -6, 5, 2**31, -(2**31), 2**32 + 1, -(2**32) + 1, 2**63 - 1, -(2**63)],
}


@pytest.mark.parametrize("name", sorted(REGISTRY))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_operator(
    each_device: MLContext, reference: MLContext, name: str, data: st.DataObject
) -> None:
    call = drawn(data, name)
    assert_like_reference(each_device, reference, call, units_apart(name), nan=False)


def test_every_operator_has_a_lowering_or_is_decomposed() -> None:
    lacking = [n for n, op in REGISTRY.items() if not has_lowering(n) and n not in DECOMPOSITIONS]
    assert not lacking


def test_the_context_supports_what_the_declarations_allow(each_device: MLContext) -> None:
    for op in REGISTRY.values():
        types = session_of(each_device).compiler.supported_types[op]
        assert {name: types[name] for name in op.limits} == {
            n: op.operand_types(n) for n in op.limits
        }


@pytest.mark.parametrize("kind", INDICES)
def test_indices_outside_are_clamped(
    each_device: MLContext, reference: MLContext, kind: str
) -> None:
    indices = np.array(INDICES[kind], DTYPES[kind].numpy)
    assert_indices_are_clamped(each_device, reference, indices)


@pytest.mark.parametrize("data_type", ["float32", "float16", "int8", "uint8", "int64"])
def test_the_last_of_updates_to_one_place_wins(
    each_device: MLContext, reference: MLContext, data_type: str
) -> None:
    table = np.zeros((7, 3), data_type)
    indices = np.array([[2], [5], [2], [-2]], np.int32)
    updates = np.arange(1, 13).reshape(4, 3).astype(data_type)
    operands = {"input": table, "indices": indices, "updates": updates}
    assert_like_reference(each_device, reference, applied("scatter_nd", operands))
    operands["indices"] = np.repeat(indices, 3, axis=1)
    assert_like_reference(each_device, reference, applied("scatter_elements", operands))


def test_groups_that_do_not_divide_are_refused(each_device: MLContext) -> None:
    builder = MLGraphBuilder(each_device)
    x = builder.input("x", "float32", [1, 3, 4, 4])
    y = builder.conv_transpose2d(
        x, builder.constant(np.ones((3, 2, 1, 1), "f4")), groups=2, label="up"
    )
    with pytest.raises(OperationError, match=r"conv_transpose2d \[up\]: 3 channels in 2 groups"):
        builder.build_sync({"y": y})


def test_every_operator_with_a_loop_has_a_long_one() -> None:
    """Scattering has tests of its own."""
    looping = LOOPING | {*REDUCTIONS}
    long = {name for name, _, _ in test_long_loops.CASES}
    assert looping - long <= {"scatter_elements", "scatter_nd"}
