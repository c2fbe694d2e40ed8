"""Every template of kernels, in each of its forms, written and run: as for GPUs and as for CPUs.

Which kernels a device gets depends on what it is (`Features`). Here software drivers are taken for
something else, so that they run what graphics hardware would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest

from tests.adapters import need_quick_compiler
from tests.backend import four_cases, kernel_cases, product_cases, test_gemm_kernels
from tests.backend.compared import assert_close
from tests.backend.emitted import TEMPLATES, Record, all_lines, invocations, shared_bytes
from tests.backend.kernel_cases import SETTINGS, Case
from tests.compiler.compiled import legal
from tests.graphs import awaited, build, expected
from tests.internals import executable_of, taken_for
from webnn_py import MLContext, MLGraphBuilder, MLOperand
from webnn_py.core.shape_tracing import Trace
from webnn_py.engines.webgpu.compiler.horizontal_fusion import fuse_abreast
from webnn_py.engines.webgpu.compiler.kernel_list import kernels_of
from webnn_py.engines.webgpu.compiler.kernels import costs
from webnn_py.engines.webgpu.compiler.kernels.costs import best_tile
from webnn_py.engines.webgpu.compiler.kernels.matmul import GemmProblem, Limits, named_tiles
from webnn_py.engines.webgpu.compiler.pipeline_sharing import share
from webnn_py.engines.webgpu.compiler.tuning import candidates
from webnn_py.engines.webgpu.program.storage import Features, MatrixShape

UNFOLDED = {"conv_direct.emit"}
"""Templates that leave what needs a folded grid to others."""


@pytest.fixture(scope="module")
def contexts(gpu: MLContext) -> Iterator[dict[str, MLContext]]:
    """By the settings' names."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(taken_for(gpu.device, **changes))
            for name, changes in SETTINGS.items()
        }


CASES = [*kernel_cases.CASES, *product_cases.CASES, *four_cases.CASES]
RUNS = [(case, setting) for case in CASES for setting in case.settings]


@dataclasses.dataclass
class Forms:
    """Runs cases, each of them once on a setting, and records what wrote their kernels."""

    contexts: dict[str, MLContext]
    records: dict[str, Record]
    _done: set[tuple[Case, str]] = dataclasses.field(default_factory=set)

    def run(self, case: Case, setting: str) -> None:
        """Compare a case with the reference; an error if it differs."""
        if (case, setting) in self._done:
            return
        context = self.contexts[setting]
        plain = setting in ("cpu", "cpu, folded")
        if case.name.startswith("conv2d") and not plain:
            need_quick_compiler(context.device)
        graph = build(context, case)
        assert_close(awaited(graph, case.inputs)["y"], _wanted(case))
        compiled = executable_of(graph).compiled
        features = compiled.features
        made = self.records[setting].trace(lambda: list(kernels_of(compiled.graph, features)))
        assert [kernel.code for kernel in share([*fuse_abreast(made, features)], features)] == [
            kernel.code for kernel in compiled.kernels
        ]
        for kernel in made:
            assert max(kernel.workgroups) <= features.grid
            assert invocations(kernel.code) <= features.invocations
            assert shared_bytes(kernel.code) <= features.workgroup_bytes
            # What follows a loop must not run it once more.
            assert not re.search(r"^fn (put|tail)\b[^}]*\bfor \(", kernel.code, re.MULTILINE)
        graph.destroy()
        self._done.add((case, setting))

    def run_all(self) -> None:
        """Run what has not been run."""
        for case, setting in RUNS:
            self.run(case, setting)


@functools.cache
def _wanted(case: Case) -> Any:
    return expected(case, case.inputs)["y"]


@pytest.fixture(scope="module")
def forms(contexts: dict[str, MLContext]) -> Forms:
    """What was recorded on each of these contexts."""
    return Forms(contexts, {name: Record() for name in SETTINGS})


@pytest.mark.kernels
@pytest.mark.parametrize(("case", "setting"), RUNS, ids=[f"{c.name}, {s}" for c, s in RUNS])
def test_a_kernel(forms: Forms, case: Case, setting: str) -> None:
    forms.run(case, setting)


def _chosen_for_who_waits() -> None:
    """A tile that is compiled soon, as for open sizes."""
    for waits in (False, True):
        with Trace({"rows": 2600}, for_any=waits) as trace:
            rows = trace.sizes["rows"]
            at = {name: (lambda *at: "0") for name in ("a", "b", "store")}
            best_tile(GemmProblem(m=rows, n=1536, k=384, **at), Limits())


def _by_matrices(features: Features) -> None:
    """For devices with subgroup matrices; `test_subgroup_matrices` runs such kernels."""
    shapes = {"f16_matrix": MatrixShape(16, 16, 16), "i8_matrix": MatrixShape(16, 16, 32)}
    features = dataclasses.replace(features, **shapes)

    def attention(b: MLGraphBuilder) -> dict[str, MLOperand]:
        q, k, v = (b.input(name, "float16", [2, 64, 32]) for name in "qkv")
        scores = b.matmul(q, b.transpose(k, permutation=[0, 2, 1]))
        return {"y": b.matmul(b.softmax(scores, 2), v)}

    def of_casts(b: MLGraphBuilder) -> dict[str, MLOperand]:
        shapes = {"a": [64, 64], "c": [64, 64], "x": [1, 32, 8, 8], "w": [32, 32, 3, 3]}
        halves = (b.input(name, "float16", shape) for name, shape in shapes.items())
        a, c, x, w = (b.cast(half, "float32") for half in halves)
        return {"y": b.matmul(a, c), "z": b.conv2d(x, w)}

    def packed(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x, scales = b.input("x", "float16", [2, 64]), b.input("s", "float16", [32, 2])
        codes = b.input("c", "uint8", [32, 2, 16]), b.input("d", "uint8", [32, 64])
        return {str(i): b.matmul_packed(x, one, scales) for i, one in enumerate(codes)}

    def of_codes(b: MLGraphBuilder) -> dict[str, MLOperand]:
        """By words of four and of sixteen, and by single codes; with zero points and without."""
        kinds: tuple[Literal["int8", "uint8"], ...] = "int8", "uint8"
        left = [b.input(f"a{kind}", kind, [2, 20, 32]) for kind in kinds]
        right = [b.constant(np.ones((deep, 36), np.int8)) for deep in (32, 20, 35)]
        turned = [b.reshape(b.transpose(one), [20, 64]) for one in left]
        wide = b.constant(np.ones((64, 35), np.uint8))
        made = [b.matmul_integer(one, right[0]) for one in left]
        narrow = b.matmul_integer(left[0], b.constant(np.ones((32, 40), np.int8)))
        made.append(b.cast(narrow, "int8"))
        made += [b.matmul_integer(one, wide) for one in turned]
        for place, deep in enumerate((20, 35), 1):
            for kind in kinds:
                one = b.input(f"b{kind}{deep}", kind, [20, deep])
                made.append(b.matmul_integer(one, right[place]))
        return {str(i): one for i, one in enumerate(made)}

    def of_images(b: MLGraphBuilder) -> dict[str, MLOperand]:
        """With constant zero points, without and with one of an input; between codes, too."""
        made = []
        options: Any = {"input_layout": "nhwc", "filter_layout": "ohwi", "padding": [1, 1, 1, 1]}
        cases: tuple[tuple[int, Literal["int8", "uint8"], int | str | None], ...]
        cases = (3, "uint8", 7), (32, "int8", None), (20, "uint8", "z")
        for channels, kind, zero in cases:
            w = b.constant(np.ones((24, 3, 3, channels), np.int8))
            x = b.input(f"x{kind}{channels}", kind, [2, 9, 8, channels])
            zeros = b.input(zero, kind, []) if isinstance(zero, str) else None
            if isinstance(zero, int):
                zeros = b.constant(np.array(zero, kind))
            turned = b.transpose(x, permutation=[0, 3, 1, 2])
            made.append(b.conv2d_integer(turned, w, filter_layout="ohwi"))
            sums = b.conv2d_integer(x, w, input_zero_point=zeros, **options)
            scale = b.constant(np.ones((1, 1, 1, 1), "f4"))
            zero_point = b.constant(np.zeros((1, 1, 1, 1), kind))
            y = b.quantize_linear(b.cast(sums, "float32"), scale, zero_point)
            other = b.input(f"o{kind}{channels}", kind, [2, 9, 8, 24])
            y = b.dequantize_linear(y, scale, zero_point)
            y = b.add(y, b.dequantize_linear(other, scale, zero_point))
            made.append(b.quantize_linear(y, scale, zero_point))
        return {str(i): one for i, one in enumerate(made)}

    def of_parts(b: MLGraphBuilder) -> dict[str, MLOperand]:
        """Attention over parts of one product; rows that are equally far apart, and others."""
        y = b.matmul(b.input("x", "float16", [2, 64, 64]), b.constant(np.ones((64, 192), "f2")))
        parts = [b.reshape(one, [2, 64, 2, 32]) for one in b.split(y, 3, axis=2)]
        made = b.scaled_dot_product_attention(
            *(b.transpose(one, permutation=[0, 2, 1, 3]) for one in parts)
        )
        results = {"y": made}
        for count in (63, 64):
            rows = b.reshape(b.slice(y, [0, 0, 0], [2, count, 64]), [2 * count, 64])
            results[str(count)] = b.matmul(rows, b.constant(np.ones((64, 64), "f2")))
        return results

    product = test_gemm_kernels.multiplied("float16", [256, 512], [512, 256], False, False)

    def in_parts(b: MLGraphBuilder) -> dict[str, MLOperand]:
        weights = b.constant(np.ones((128, 16), np.int8))
        return {"y": b.matmul_integer(b.input("a", "int8", [40, 128]), weights)}

    def in_halves(b: MLGraphBuilder) -> dict[str, MLOperand]:
        """Constant and other operands, with rests and without; images of both layouts."""
        a, c = b.input("a", "float32", [2048, 2048]), b.input("c", "float32", [2048, 1032])
        made = [b.matmul(a, c)]
        for columns in (1032, 1030):
            made.append(b.matmul(a, b.constant(np.ones((2048, columns), np.float32))))
        batches = b.input("e", "float32", [2, 1100, 1024]), b.input("f", "float32", [2, 1024, 1030])
        made.append(b.matmul(*batches))
        layouts: tuple[tuple[Literal["nchw", "nhwc"], Literal["oihw", "ohwi"]], ...]
        layouts = ("nchw", "oihw"), ("nhwc", "ohwi")
        for layout, filter_layout in layouts:
            sizes = {"n": 1, "c": 256, "h": 64, "w": 64}
            x = b.input(layout, "float32", [sizes[letter] for letter in layout])
            sizes = {"o": 256, "i": 256, "h": 3, "w": 3}
            w = np.ones([sizes[letter] for letter in filter_layout], np.float32)
            filters = b.constant(w), b.input(filter_layout, "float32", w.shape)
            options: Any = {"input_layout": layout, "filter_layout": filter_layout}
            made += [b.conv2d(x, one, **options) for one in filters]
        return {str(i): one for i, one in enumerate(made)}

    high = dataclasses.replace(features, float32_precision="high")
    assert list(kernels_of(legal(in_halves, high), high))
    bound = dataclasses.replace(features, binding_bytes=4096)
    assert list(kernels_of(legal(in_parts, bound), bound))
    for what in (product, attention, of_parts, of_casts, packed, of_codes, of_images):
        assert list(kernels_of(legal(what, features), features))


def test_every_line_that_writes_kernels_was_executed(
    forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a kernel that has run and given what the reference gives."""
    forms.run_all()
    products = Record()
    features = executable_of(build(forms.contexts["gpu"], CASES[0])).compiled.features
    if features.f16_matrix is not None:
        pytest.skip("tensor cores take the place of some kernels: adapters without them hold this")
    plain = dataclasses.replace(features, f16_matrix=None, i8_matrix=None)
    for table, cost, product in test_gemm_kernels.CASES:
        monkeypatch.setattr(costs, table, (cost,))
        graph = legal(test_gemm_kernels.multiplied(*product), plain)
        products.trace(lambda graph=graph: list(kernels_of(graph, plain)))
    monkeypatch.undo()
    products.trace(_chosen_for_who_waits)
    products.trace(lambda: _by_matrices(features))
    small = legal(
        test_gemm_kernels.multiplied("float32", [8, 64], [64, 64], False, False), features
    )
    products.trace(lambda: list(candidates(small, features)))
    products.trace(lambda: [named_tiles.__wrapped__(kind) for kind in ("gpu", "cpu")])  # kept
    executed = set().union(*(r.lines for r in (products, *forms.records.values())))
    unseen = sorted(all_lines() - executed)
    assert not unseen, (
        "add a case to kernel_cases, product_cases or four_cases that takes these lines"
    )


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_every_template_made_kernels_of_folded_grids(forms: Forms, template: str) -> None:
    """More workgroups than one dimension may have."""
    forms.run_all()
    folded = [
        grid
        for setting, changes in SETTINGS.items()
        if "grid" in changes
        for grid in forms.records[setting].grids.get(template, [])
        if math.prod(grid) > changes["grid"]
    ]
    assert folded or template in UNFOLDED
