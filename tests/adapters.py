"""What an adapter has not, or takes minutes for: tests that need it are skipped there."""

from __future__ import annotations

from typing import Any

import pytest


def need_halves(device: Any) -> None:
    """Skip a test on devices without float16 in shaders."""
    if "shader-f16" not in device.features:
        pytest.skip("the adapter has no shader-f16")


def need_quick_compiler(device: Any, what: str = "the branches of unrolled windows") -> None:
    """Skip a test of what takes the driver's compiler minutes."""
    if "SwiftShader" in device.adapter.summary:
        pytest.skip(f"SwiftShader takes minutes to compile {what}")
