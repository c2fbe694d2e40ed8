"""ONNX's official backend tests on the reference engine; `excluded.toml` says what is left out."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.onnx import official
from webnn_py import MLError, NotSupportedError
from webnn_py.onnx import backend

PASSING = {"node": 1444, "simple": 7, "pytorch-operator": 30, "pytorch-converted": 82}
"""How many cases of onnx 1.23 pass."""
IS_LISTED = onnx.__version__.startswith("1.23.")
LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


@functools.cache
def outcome(kind: str) -> tuple[dict[str, Exception], list[str]]:
    return official.failures(official.cases(kind))


@pytest.mark.parametrize("kind", PASSING)
def test_cases_pass_but_for_those_excluded(kind: str) -> None:
    excluded = official.excluded()
    failed, names = outcome(kind)
    assert not {name: error for name, error in failed.items() if name not in excluded}
    for name, error in failed.items():
        assert isinstance(error, (MLError, AssertionError)), (name, error)
    if IS_LISTED:
        assert not {name for name in names if name in excluded} - failed.keys(), "these pass"
        assert len(names) - len(failed) == PASSING[kind]


@pytest.mark.skipif(not IS_LISTED, reason="the list is that of onnx 1.23")
def test_what_is_excluded_is_there() -> None:
    assert official.excluded().keys() <= {name for kind in PASSING for name in outcome(kind)[1]}


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models_give_their_published_outputs(path: Path) -> None:
    official.run(official.light_case(path))


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")
    node = onnx.helper.make_node("Add", ["a", "b"], ["c"])
    (made,) = backend.run_node(node, [np.ones(2, np.float32), np.ones(2, np.float32)])
    assert made.tolist() == [2, 2]
    with pytest.raises(NotSupportedError, match="random"):
        backend.run_node(onnx.helper.make_node("RandomNormalLike", ["a"], ["c"]), [made])
