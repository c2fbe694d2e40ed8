"""Values formatted for display."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webnn_py.core.messages import printable


def format_value(value: object) -> str:
    """Format a value for a cell of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(str(value))


def format_bytes(count: int) -> str:
    """Format a number of bytes for display."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """Format a duration for display."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def format_shape(shape: Sequence[Any]) -> str:
    """Format a shape as in graph listings, such as `[1,3,224,224]`."""
    return f"[{','.join(map(str, shape))}]"
