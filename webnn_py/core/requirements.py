"""Oldest supported versions of optional libraries, checked at first use."""

from __future__ import annotations

import re
from types import ModuleType

from webnn_py.core.errors import NotSupportedError

MIN_VERSIONS = {
    "numpy": "2.2.6",  # 2.2.4 takes all memory by DLPack for read-only
    "onnx": "1.17",  # 1.16 confuses 4-bit integers with bytes
    "onnxruntime": "1.27",  # 1.26 returns 1 for erf(NaN); 1.20 cannot use weights in place
    "openvino": "2025.4",  # 2025.3 cannot use weights in place
    "wgpu": "0.29",
    "wgpudawn": "0.32.0.4",
}
"""Oldest version by module name; pyproject.toml declares the same."""


def check_version(library: ModuleType) -> None:
    """Refuse a library that is older than the oldest supported version.

    Raises:
        NotSupportedError: It is too old.
    """
    name, found = library.__name__, str(getattr(library, "__version__", ""))
    oldest = MIN_VERSIONS[name]
    numbers = re.match(r"\d+(\.\d+)*", found)
    if numbers is not None and _numbers(numbers[0]) < _numbers(oldest):
        raise NotSupportedError(
            f"{name} {found} is installed, expected {oldest} or newer:"
            f' pip install "{name}>={oldest}"'
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]
