"""Kernels of one node may hand values on to each other that no node of the graph makes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.compared import applied, compute
from tests.internals import executable_of
from webnn_py import MLContext, MLGraphBuilder
from webnn_py.engines.webgpu.compiler import kernel_list
from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.kernel import EntryPoint, Kernel, grid
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder, Make
from webnn_py.engines.webgpu.program.pieces import declared
from webnn_py.ir import Node, Value

pytestmark = pytest.mark.kernels


def _each(builder: KernelBuilder, name: str) -> Kernel:
    """A kernel with `write(i)` called for each element of its root."""
    size = builder.root.size
    entry = EntryPoint.of(
        64,
        (("global_invocation_id", "g"),),
        [f"  if (g.x < {size}u) {{ {declared('write')}(g.x); }}"],
    )
    return builder.finish(name, entry, grid(-(-size // 64), builder.features.grid))


def _in_two_steps(make: Make, node: Node | None) -> list[Kernel]:
    """x + 1 to a scratch value of another data type, then twice that."""
    first, second = make(Value("int32", (100,), "halfway")), make()
    operand = next(first.producers[second.root].operands)
    body = Body(first)
    i = symbol("i")
    body.store(i, f"i32({body.load(operand, i)}) + 1")
    first.function("write", "i: u32", "", body)
    body = Body(second)
    body.store(i, f"f32({body.load(first.root, i)}) * 2.0")
    second.function("write", "i: u32", "", body)
    return [_each(first, "first"), _each(second, "second")]


def test_a_kernel_reads_what_one_before_it_wrote(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_list, "emit", _in_two_steps)
    array = np.arange(100, dtype=np.float32)
    (got,) = compute(gpu, applied("floor", {"input": array}))
    np.testing.assert_array_equal(got, 2 * (array + 1))


def test_a_listing_names_what_no_node_makes(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_list, "emit", _in_two_steps)
    builder = MLGraphBuilder(gpu)
    y = builder.floor(builder.input("x", "float32", [100]))
    executable = executable_of(builder.build_sync({"y": y}))
    assert executable.describe().splitlines()[:2] == [
        "0: first<2,1,1>(%x) -> %scratch0",
        "1: second<2,1,1>(%scratch0) -> %0",
    ]
