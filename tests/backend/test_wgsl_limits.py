"""Drivers compile WGSL that is just below the limits."""

from __future__ import annotations

import contextlib

import pytest

from tests.wgsl_limits import KINDS
from webnn_py import MLContext, MLProgram, OperationError, ValidationError

pytestmark = pytest.mark.kernels

REFUSED = {"functions of each other", "calls behind a blank"}
"""What is no valid WGSL all the same, or what wgpu-native knows no blanks for."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_below_the_limits_compiles(gpu: MLContext, kind: str) -> None:
    make, size, over, told = KINDS[kind]
    program = MLProgram(gpu)
    y = program.argument("y", "float32", [4])
    step = program.sequence()
    with pytest.raises(ValidationError, match=told):
        step.compute(make(over), [y], workgroups=(1, 1, 1))
    if kind in REFUSED:
        return
    step.compute(make(size), [y], workgroups=(1, 1, 1))
    program.append(step)
    if gpu.engine == "dawn":  # whose compiler has lower limits of its own, and tells
        with contextlib.suppress(OperationError):
            program.compile_sync()
        return
    program.compile_sync()
