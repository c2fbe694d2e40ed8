"""What ONNX Runtime is given, and makes."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models, as onnx.ModelProto, of the sessions that are made from now on."""
    import onnx

    onnxruntime = pytest.importorskip("onnxruntime")
    made: list[Any] = []

    class Noted(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, model: Any, *given: Any, **options: Any) -> None:
            made.append(onnx.load_model_from_string(bytes(model)))
            super().__init__(model, *given, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Noted)
    return made


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sessions of ONNX Runtime that are made from now on."""
    onnxruntime = pytest.importorskip("onnxruntime")
    made: list[Any] = []

    class Counted(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, *given: Any, **options: Any) -> None:
            made.append(self)
            super().__init__(*given, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Counted)
    return made
