"""Which products workgroups divide along k, and how."""

from __future__ import annotations

import dataclasses

import pytest

from tests.compiler.test_gemm_emission import problem
from webnn_py.engines.webgpu.compiler.kernels.costs import MAX_PARTS
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem, Limits
from webnn_py.engines.webgpu.compiler.kernels.matmul import Split, split_of

DEFAULT, LARGE = Limits(), Limits(49152, 256)


def gathered(m: int, n: int, k: int) -> GemmProblem:
    """A product whose B is read one element at a time, as windows of convolutions are."""
    return dataclasses.replace(problem(1, m, n, k), b4=None)


def split(of: GemmProblem, limits: Limits = LARGE, device: str = "") -> Split:
    found = split_of(of, limits, device)
    assert found is not None
    return found


@pytest.mark.parametrize("limits", [DEFAULT, LARGE])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(256, 196, 2304), (512, 49, 4608), (128, 784, 1152), (512, 784, 4608)]
)
def test_convolutions_of_many_channels(limits: Limits, m: int, n: int, k: int) -> None:
    made = split(gathered(m, n, k), limits)
    assert 2 <= made.parts <= MAX_PARTS
    assert k % (made.parts * made.tile.depth) == 0
    assert made.tile.storage(gathered(m, n, k)) <= limits.max_workgroup_storage


def test_larger_tiles_for_larger_products() -> None:
    small, large = split(gathered(32, 196, 1152)), split(gathered(512, 784, 4608))
    assert small.tile.rows < large.tile.rows


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (256, 196, 100),  # short
        (1, 1000, 4096),  # of one row
        (4096, 4096, 4096),  # there are workgroups enough
        (64, 50176, 1024),
        (256, 196, 2305),  # no parts are equal
    ],
)
def test_whole_products(m: int, n: int, k: int) -> None:
    assert split_of(gathered(m, n, k), LARGE) is None


def test_software_adapters_and_integers() -> None:
    assert split_of(gathered(256, 196, 2304), LARGE, "cpu") is None
    whole = dataclasses.replace(gathered(256, 196, 2304), compute="i32")
    assert split_of(whole, LARGE) is None


def test_the_parts_make_up_the_product() -> None:
    of = dataclasses.replace(gathered(20, 36, 96), k_run=32)
    parts = of.divided(3)
    assert (parts.batch, parts.k, parts.k_run) == (3, 32, 32)
    assert of.divided(2).k_run == 1
