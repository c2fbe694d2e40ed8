"""Which outputs are written in place of an input: their kernels read the new rows alone."""

from __future__ import annotations

import pytest

from tests.compiler.compiled import kernels
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.program.storage import Features

GPU = Features()


def scattered(
    b: MLGraphBuilder, data_type: str = "float32", places: int = 512
) -> tuple[MLOperand, MLOperand]:
    cache = b.input("cache", data_type, [2, 3, places, 64])
    rows, starts = b.input("rows", data_type, [2, 3, 1, 64]), b.input("starts", "int64", [2])
    return cache, b.scatter_rows(cache, b.neg(rows), starts)


@pytest.mark.parametrize(
    ("data_type", "f16", "whole"),
    [("float32", True, False), ("float16", True, False), ("float16", False, True)],
)
def test_an_output_that_continues_an_input(data_type: str, f16: bool, whole: bool) -> None:
    """Packed float16 share words with elements that stay."""
    features = Features(f16=f16)
    made = kernels(lambda b: {"after": scattered(b, data_type)[1]}, features)
    read = {part.value.name for kernel in made for part in kernel.reads}
    assert ("cache" in read) is whole
    assert "rows" in read
    (kernel,) = [k for k in made if k.writes[0].value.shape == (2, 3, 512, 64)]
    x, y, z = kernel.workgroups
    assert (x * y * z > 6) is whole


@pytest.mark.parametrize("other", ["read", "returned", "twice", "inner"])
def test_where_the_old_contents_are_needed(other: str) -> None:
    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        cache, after = scattered(b)
        return {
            "read": lambda: {"after": after, "sum": b.reduce_sum(cache)},
            "returned": lambda: {"after": after, "before": b.identity(cache)},
            "twice": lambda: {"after": after, "again": b.identity(after)},
            "inner": lambda: {"after": b.neg(after)},
        }[other]()

    made = kernels(what, GPU)
    assert "cache" in {part.value.name for kernel in made for part in kernel.reads}


def test_parts_of_a_large_cache() -> None:
    """Each binding's kernel writes the rows that lie in its part."""
    features = Features(binding_bytes=1 << 18)
    made = kernels(lambda b: {"after": scattered(b)[1]}, features)
    made = [kernel for kernel in made if kernel.name == "scatter_rows"]
    assert [kernel.writes[0].offset for kernel in made] == [0, 1 << 18, 2 << 18]
    assert all("cache" not in {part.value.name for part in k.reads} for k in made)
