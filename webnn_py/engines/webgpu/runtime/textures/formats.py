"""Which texture formats can be tensors, in which direction, and why others cannot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A format that a shader loads as floats.

    Attributes:
        channels: How many it has.
        storage: It may be a storage texture; bgra8unorm with the feature bgra8unorm-storage.
        render: It may be rendered to.
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
    """Why a format that is not listed cannot be a tensor, and what to do, as a message's end."""
    if name.startswith(("depth", "stencil")):
        why = "it holds depth or stencil; have a pass of yours copy it into r32float"
    elif name.endswith(("uint", "sint")):
        why = "it holds integers; have a pass of yours write floats, or a buffer for integers"
    elif name.startswith(("bc", "etc2", "eac", "astc")):
        why = "it is compressed; have a pass of yours draw it into rgba8unorm"
    else:
        why = "have a pass of yours draw it into one that is"
    return f"{why}; expected one of {', '.join(FORMATS)}"
