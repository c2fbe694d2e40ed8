"""ONNX's official backend tests on every engine; `excluded.toml` says what is left out.

WEBNN_ALL_ONNX=1 runs all of them on every engine, instead of one out of ten on others than the
reference.
"""

from __future__ import annotations

import functools
import os
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.adapters import need_quick_compiler
from tests.onnx import official
from tests.onnx.models import model
from webnn_py import MLContext, MLError, NotSupportedError, ValidationError
from webnn_py.onnx import backend

PASSING = {"node": 1471, "simple": 13, "pytorch-operator": 30, "pytorch-converted": 82}
"""How many cases of onnx 1.23 pass."""
IS_LISTED = onnx.__version__.startswith("1.23.")
LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


SHARE = 1 if os.environ.get("WEBNN_ALL_ONNX") else 10


@functools.cache
def cases(kind: str) -> list[official.Case]:
    return list(official.cases(kind))


@functools.cache
def outcome(kind: str) -> tuple[dict[str, Exception], list[str]]:
    return official.failures(cases(kind))


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


@pytest.fixture
def compiles_windows(gpu: MLContext) -> None:
    need_quick_compiler(gpu.device)


def assert_pass(kind: str, prepared_by: official.Prepare, engine: str) -> None:
    """What passes on the reference passes elsewhere, but for what is excluded there alone."""
    anywhere, here = official.excluded(), official.excluded(engine)
    chosen = [c for c in cases(kind) if c[0] not in here and not _number(c[0]) % SHARE]
    failed, names = official.failures(chosen, prepared_by)
    assert not failed
    apart = [c for c in cases(kind) if c[0] in here.keys() - anywhere.keys()]
    assert len(official.failures(apart, prepared_by)[0]) == len(apart), "some of these pass"
    assert SHARE > 1 or not IS_LISTED or len(names) + len(apart) == PASSING[kind]


ON_GPU = functools.partial(backend.prepare, device="GPU")


@pytest.mark.usefixtures("compiles_windows")
@pytest.mark.parametrize("kind", PASSING)
def test_cases_pass_on_the_gpu_as_well(kind: str) -> None:
    assert_pass(kind, ON_GPU, "webgpu")


def _number(name: str) -> int:
    return zlib.crc32(name.encode())


@pytest.mark.usefixtures("compiles_windows")
@pytest.mark.parametrize(
    "path",
    [path for path in LIGHT if SHARE == 1 or "squeeze" in path.stem],
    ids=lambda path: path.stem,
)
def test_light_models_give_their_published_outputs_on_the_gpu(path: Path) -> None:
    official.run(official.light_case(path), ON_GPU)


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models_give_their_published_outputs(path: Path) -> None:
    official.run(official.light_case(path))


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")
    with pytest.raises(ValidationError, match="CUDA"):
        backend.prepare(onnx.ModelProto(), "CUDA")
    node = onnx.helper.make_node("Add", ["a", "b"], ["c"])
    (made,) = backend.run_node(node, [np.ones(2, np.float32), np.ones(2, np.float32)])
    assert made.tolist() == [2, 2]
    with pytest.raises(ValidationError, match=r"got 1 inputs, expected \['a', 'b'\]"):
        backend.run_node(node, [np.ones(2, np.float32)])
    with pytest.raises(NotSupportedError, match="random"):
        backend.run_node(onnx.helper.make_node("RandomNormalLike", ["a"], ["c"]), [made])


def test_inputs_that_have_initializers_may_be_given_by_name() -> None:
    add = onnx.helper.make_node("Add", ["a", "b"], ["c"])
    one = np.ones(2, np.float32)
    prepared = backend.prepare(model([add], {"a": [2], "b": [2]}, ["c"], {"b": one}))
    for given, wanted in (([one], 2), ({"a": one, "b": 4 * one}, 5), (one, 2)):
        assert prepared.run(given)[0].tolist() == [wanted, wanted]
    with pytest.raises(ValidationError, match=r"got 2 inputs, expected \['a'\]"):
        prepared.run([one, one])
    with pytest.raises(ValidationError, match=r"got 1 inputs, expected \[\]"):
        backend.prepare(model([add], {}, ["c"], {"a": one, "b": one})).run(one)
