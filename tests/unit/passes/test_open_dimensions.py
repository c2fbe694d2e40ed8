"""Passes over graphs with open dimensions, and what they compute from constants for many graphs."""

from __future__ import annotations

import numpy as np

from tests.unit.passes.listings import TARGET, assert_prints, recorded, tensor
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.ir import Graph
from webnn_py.passes import Derivations, DerivedConstants, SharedResults, Target, optimize_open
from webnn_py.passes.fold import fold_constants
from webnn_py.passes.simplify import simplify


def mixed(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """What needs no sizes, and what does."""
    n = x.shape[0]
    weights = b.transpose(b.neg(b.constant(tensor(4, 3))))
    product = b.add(b.matmul(weights, b.transpose(x)), b.constant(tensor(3, 1)))
    row = b.expand(b.neg(b.constant(tensor(3, 1))), [3, n])
    kept = b.triangular(b.constant(tensor(3, 3)), diagonal=n - 1)
    return b.matmul(kept, b.mul(b.reshape(product, [3, n]), row))


def test_what_needs_no_sizes_is_done_without_them() -> None:
    graph = optimize_open(recorded(mixed, ["n", 4]), TARGET)
    assert_prints(
        graph,
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


def test_passes_that_may_need_sizes_wait_for_them() -> None:
    def other(graph: Graph, target: Target) -> Graph:
        raise AssertionError("it was run")

    graph = recorded(mixed, ["n", 4])
    made = optimize_open(graph, TARGET, (fold_constants, simplify, other, fold_constants))
    assert len(made.nodes) < len(graph.nodes)


def test_a_computation_is_known_while_somebody_has_it() -> None:
    shared, source, computed = DerivedConstants(), tensor(2), []

    def derived(by: Derivations, what: str = "neg", array: np.ndarray = source) -> int:
        """How many computations there were by then."""

        def compute() -> tuple[np.ndarray]:
            computed.append(what)
            return (-array,)

        (made,) = by(what, [array], compute)
        np.testing.assert_array_equal(made, -array)
        return len(computed)

    one, other = Derivations(shared), Derivations(shared)
    assert derived(one) == derived(other) == derived(one) == 1
    assert derived(other, "abs") == 2
    assert derived(other, array=source.copy()) == 3
    del one
    assert derived(Derivations(shared)) == 3
    del other
    assert derived(Derivations(shared)) == 4


def test_results_are_shared_while_somebody_has_all_of_them() -> None:
    shared, computed = SharedResults(), []

    def derived(what: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        def compute() -> tuple[np.ndarray, ...]:
            computed.append(what)
            return tuple(-array for array in arrays)

        return shared(what, arrays, compute)

    one, other = tensor(2), tensor(3)
    made = derived("neg", one, other)
    assert all(a is b for a, b in zip(derived("neg", one, other), made, strict=True))
    assert derived("abs", one, other)[0] is not made[0]
    assert derived("neg", other, one)[0] is not made[1]
    assert computed == ["neg", "abs", "neg"]
    kept, made = made[0], ()
    assert derived("neg", one, other)[0] is not kept
    for _ in range(1000):
        derived("neg", tensor(2))
    assert len(shared._cache) < 100
