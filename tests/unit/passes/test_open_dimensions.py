"""Passes over graphs with open dimensions: what is done once for all sizes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import awaited, normal
from tests.unit.passes.listings import Built, Record, assert_prints, printed, tensor
from webnn_py import MLContext, MLGraph, MLGraphBuilder, MLOperand


def mixed(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """What needs no sizes, and what does."""
    n = x.shape[0]
    weights = b.transpose(b.neg(b.constant(tensor(4, 3))))
    product = b.add(b.matmul(weights, b.transpose(x)), b.constant(tensor(3, 1)))
    row = b.expand(b.neg(b.constant(tensor(3, 1))), [3, n])
    kept = b.triangular(b.constant(tensor(3, 3)), diagonal=n - 1)
    return b.matmul(kept, b.mul(b.reshape(product, [3, n]), row))


def test_what_needs_no_sizes_is_done_without_them() -> None:
    built = Built(mixed, ["n", 4])
    assert built.listings[-1][0] == "fuse_batch_norm"
    assert_prints(
        built.listings[-1][1],
        """
        graph(%x: float32[n,4]) {
          %c0: float32[3,1] constant
          %c1: float32[3,3] constant
          %c2: float32[3,4] constant
          %c3: float32[3,1] constant
          %0: float32[4,n] = transpose(%x, permutation=[1, 0])
          %1: float32[3,n] = matmul(%c2, %0)
          %2: float32[3,n] = add(%1, %c0)
          %3: float32[3,n] = expand(%c3, new_shape=[3, n])
          %4: float32[3,3] = triangular(%c1, upper=true, diagonal=n - 1)
          %5: float32[3,n] = mul(%2, %3)
          %6: float32[3,n] = matmul(%4, %5)
          return y=%6
        }
        """,
    )


def normalized(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Passes leave as much of it for all sizes as for some."""
    h = b.gelu(b.matmul(x, b.constant(normal(8, 8))))
    return b.layer_normalization(b.matmul(h, b.constant(normal(8, 8, seed=1))), axes=[1])


def sliced(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Of one row, nothing of it is left."""
    rows = x.shape[0]
    for _ in range(6):
        x = b.sin(b.tile(x, [rows, 1]))
        x = b.slice(x, [0, 0], [rows, 8])
    return x


@pytest.mark.parametrize("body", [normalized, sliced])
def test_a_graph_on_a_device_is_right_for_all_sizes(
    gpu: MLContext, cpu: MLContext, body: Record
) -> None:
    def made(context: MLContext) -> MLGraph:
        b = MLGraphBuilder(context)
        return b.build_sync({"y": body(b, b.input("x", "float32", ["n", 8]))})

    graph, other = made(gpu), made(cpu)
    for n in (1, 3, 5, 1, 7):
        x = {"x": normal(n, 8, seed=n)}
        np.testing.assert_allclose(awaited(graph, x)["y"], awaited(other, x)["y"], atol=1e-4)


@pytest.mark.parametrize(("body", "sizes"), [(normalized, (3, 5, 7, 8)), (sliced, (1, 3, 5))])
def test_passes_run_for_all_sizes_where_they_make_as_much_of_them(
    gpu: MLContext, body: Record, sizes: tuple[int, ...]
) -> None:
    """For the first sizes and for all; or else for each."""
    b = MLGraphBuilder(gpu)
    graph = b.build_sync({"y": body(b, b.input("x", "float32", ["n", 8]))})
    runs = []
    for n in sizes:
        with printed() as text:
            graph.prepare_sync({"n": n})
        runs.append(text.getvalue().count("# after decompose"))
    if body is sliced:
        assert all(runs)
    else:  # hardware compiles for the first sizes by themselves on another thread, meanwhile
        assert runs[2:] == [0, 0]
        assert sum(runs) <= 2
