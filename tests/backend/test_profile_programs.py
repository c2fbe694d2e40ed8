"""What the steps of programs take, kernels of the user's included."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.program_cases import WEIGHTS, X, mixed
from webnn_py import DataError, InvalidStateError, MLContext, ValidationError


def test_each_kernel_is_a_row(gpu: MLContext) -> None:
    program = mixed(gpu, repeat=3, own=True)
    profile = program.profile({"x": X}, runs=2)
    kernels = [row.kernel for row in profile]
    assert kernels[0] == "matmul"
    assert "accumulate" in kernels[1]
    assert len(profile) == 3
    assert all(row.operator == row.kernel for row in profile)
    assert all(row.milliseconds >= 0 for row in profile)
    assert profile.milliseconds > 0
    assert [row.flop for row in profile] == [0, 0, 0]
    # y and total, each time
    assert profile[1].bytes >= 3 * 2 * 4 * 12
    assert "accumulate" in str(profile)


def test_it_runs_the_program(gpu: MLContext) -> None:
    """As often as it measures, and each time as a whole run does."""
    added = 3 * 2 * (X @ WEIGHTS)
    total = gpu.create_tensor_sync("float32", [4, 3], readable=True, writable=True)
    gpu.write_tensor(total, np.zeros((4, 3), np.float32))
    mixed(gpu, repeat=3).profile({"x": X, "total": total}, runs=1)
    sums = gpu.read_tensor_sync(total)
    runs = float(np.median(sums / added))
    assert runs >= 4
    assert runs == pytest.approx(round(runs), abs=1e-3)
    np.testing.assert_allclose(sums, round(runs) * added, rtol=1e-4, atol=1e-4)


async def test_it_does_not_block_a_loop(gpu: MLContext) -> None:
    program = mixed(gpu, own=True)
    with pytest.raises(InvalidStateError, match="profile_async"):
        program.profile({"x": X})
    assert len(await program.profile_async({"x": X}, runs=1)) == 3


def test_what_does_not_fit_is_said(gpu: MLContext) -> None:
    program = mixed(gpu, own=True)
    with pytest.raises(ValidationError, match="runs"):
        program.profile({"x": X}, runs=0)
    with pytest.raises(DataError, match="unknown argument"):
        program.profile({"z": X})
