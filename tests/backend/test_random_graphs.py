"""Random graphs on the GPU give what the reference backend gives.

WEBNN_RANDOM_CASES=500 runs so many of them; WEBNN_SEED=123 runs one, and prints it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from tests.adapters import need_quick_compiler
from tests.backend.compared import built
from tests.property.graphs import seeded_case
from webnn_py import MLAwaitedExecution, MLContext

pytestmark = pytest.mark.kernels

DEFAULT_CASES = 30
ONE = os.environ.get("WEBNN_SEED")
SEEDS = [int(ONE)] if ONE else range(int(os.environ.get("WEBNN_RANDOM_CASES", DEFAULT_CASES)))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for all cases."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graph(gpu: MLContext, loop: asyncio.Runner, seed: int) -> None:
    _compare(gpu, loop, seed)


@pytest.mark.parametrize("seed", SEEDS[: len(SEEDS) // 2 or 1])
def test_random_graph_for_hardware(hardware: MLContext, loop: asyncio.Runner, seed: int) -> None:
    need_quick_compiler(hardware.device)
    _compare(hardware, loop, seed)


def _compare(gpu: MLContext, loop: asyncio.Runner, seed: int) -> None:
    case = seeded_case(seed)
    try:
        graph = built(gpu, case.graph)
        if ONE:
            print(f"{case.graph}\nbecomes\n{graph}")
        results = loop.run(MLAwaitedExecution(gpu).compute(graph, case.inputs))
        graph.destroy()
        case.assert_close(results)
    except Exception as error:
        error.add_note(f"WEBNN_SEED={seed} python -m pytest -s tests/backend/test_random_graphs.py")
        raise
