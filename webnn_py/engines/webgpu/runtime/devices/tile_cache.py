"""What is remembered on disk of the tiles that were measured on an adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from webnn_py._version import __version__
from webnn_py.core import cache
from webnn_py.engines.webgpu.program.storage import NO_TILES, Features

KIND = "tiles"


def known_tiles(adapter: Any, features: Features) -> Mapping[str, str]:
    """What is remembered for `Features.tiles`; nothing where that is damaged."""
    try:
        found = json.loads(cache.recall(KIND, key_of(adapter, features)) or "{}")
        return MappingProxyType({str(key): str(tile) for key, tile in found.items()})
    except (ValueError, AttributeError):
        return NO_TILES


def remember_tiles(adapter: Any, features: Features, tiles: Mapping[str, str]) -> None:
    """Remember them in the place of what was."""
    cache.remember(KIND, key_of(adapter, features), json.dumps(dict(tiles)))


def key_of(adapter: Any, features: Features) -> str:
    """What measurements hold for: the adapter, its driver, what is used of it, and this version."""
    info = sorted((name, str(value)) for name, value in dict(adapter.info).items())
    return f"{__version__}\n{info}\n{replace(features, tiles=NO_TILES)}"
