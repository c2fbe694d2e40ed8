"""Texture formats that can be tensors, and the reasons why others cannot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A format that a shader loads as floats.

    Attributes:
        channels: Number of channels.
        storage: Whether it can be a storage texture; bgra8unorm needs bgra8unorm-storage.
        render: Whether it can be rendered to.
    """

    channels: int
    storage: bool = False
    render: bool = True


FORMATS = {
    "r8unorm": Format(1),
    "r16float": Format(1),
    "r32float": Format(1, storage=True),
    "rg8unorm": Format(2),
    "rg16float": Format(2),
    "rg32float": Format(2, storage=True),
    "rgba8unorm": Format(4, storage=True),
    "rgba8unorm-srgb": Format(4),
    "rgba8snorm": Format(4, storage=True, render=False),
    "bgra8unorm": Format(4, storage=True),
    "bgra8unorm-srgb": Format(4),
    "rgba16float": Format(4, storage=True),
    "rgba32float": Format(4, storage=True),
}


def why_not(name: str) -> str:
    """Return the end of a message: why a format cannot be a tensor, and a remedy."""
    if name.startswith(("depth", "stencil")):
        why = "it holds depth or stencil; have a pass of yours copy it into r32float"
    elif name.endswith(("uint", "sint")):
        why = "it holds integers; have a pass of yours write floats, or a buffer for integers"
    elif name.startswith(("bc", "etc2", "eac", "astc")):
        why = "it is compressed; have a pass of yours draw it into rgba8unorm"
    else:
        why = "have a pass of yours draw it into one that is"
    return f"{why}; expected one of {', '.join(FORMATS)}"
