"""WebNN's operators, each declared once, in the module of its family."""

from __future__ import annotations
