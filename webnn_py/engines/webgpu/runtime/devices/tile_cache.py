"""On-disk cache of the tiles that `runtime/tuning.py` measured on an adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from webnn_py._version import __version__
from webnn_py.core import cache
from webnn_py.engines.webgpu.program.storage import NO_TILES, Features
from webnn_py.engines.webgpu.runtime.webgpu_api import implementation_of

KIND = "tiles"


def known_tiles(adapter: Any, features: Features) -> Mapping[str, str]:
    """Return the cached `Features.tiles` of an adapter; empty if there are none or unreadable."""
    try:
        found = json.loads(cache.load_text(KIND, key_of(adapter, features)) or "{}")
        return MappingProxyType({str(key): str(tile) for key, tile in found.items()})
    except (ValueError, AttributeError):
        return NO_TILES


def remember_tiles(adapter: Any, features: Features, tiles: Mapping[str, str]) -> None:
    """Replace the cached tiles of an adapter."""
    cache.store_text(KIND, key_of(adapter, features), json.dumps(dict(tiles)))


def key_of(adapter: Any, features: Features) -> str:
    """Return the cache key: this version, the library, the adapter, and the features in use."""
    info = sorted((name, str(value)) for name, value in dict(adapter.info).items())
    library = implementation_of(adapter).NAME
    return f"{__version__}\n{library}\n{info}\n{replace(features, tiles=NO_TILES)}"
