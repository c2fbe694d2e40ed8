"""Tells the reference of the types of properties, which griffe does not look up in live objects."""

from __future__ import annotations

from typing import Any

import griffe


class PropertyTypes(griffe.Extension):
    """Gives every property the annotation of what it returns."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """What griffe calls for each attribute."""
        if isinstance(node.obj, property) and attr.annotation is None:
            attr.annotation = node.obj.fget.__annotations__["return"]
