"""The oldest versions of libraries that work, checked when each is first used."""

from __future__ import annotations

import re
from types import ModuleType

from webnn_py.core.errors import NotSupportedError

MIN_VERSIONS = {
    "numpy": "1.26",
    "onnx": "1.17",  # 1.16 tells no 4-bit integers from their bytes
    "onnxruntime": "1.27",  # erf of NaN is 1 in 1.26, 1.20 takes no weights at an address
    "openvino": "2025.4",  # 2025.3 takes no weights at an address
    "wgpu": "0.29",
}
"""By the name of the module; pyproject.toml declares the same."""


def check_version(library: ModuleType) -> None:
    """Refuse a library that is older than the oldest version that works.

    Raises:
        NotSupportedError: It is.
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
