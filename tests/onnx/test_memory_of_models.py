"""Buffers between the kernels of known models take little more than what lives at once."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.internals import recipe_of
from webnn_py import MLContext
from webnn_py.engines.reference import evaluate
from webnn_py.engines.webgpu.compiler.compiled import compile_graph
from webnn_py.engines.webgpu.compiler.lower import has_lowering
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.onnx import load
from webnn_py.passes import Target, optimize

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
MOST = 1.5
"""Buffers are whole: no step may read and write one, so not all that is free can be used."""


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v2", "densenet121"])
def test_buffers_between_kernels(cpu: MLContext, name: str) -> None:
    recipe = recipe_of(load(FOLDER / f"light_{name}.onnx", cpu))
    target = Target(lambda node: has_lowering(node.op), evaluate)
    plan = compile_graph(optimize(recipe, target), Features()).plan
    assert 0 < plan.bound <= plan.total <= MOST * plan.bound
