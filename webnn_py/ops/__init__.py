"""The operators: each declared once, in the file of its family."""

from __future__ import annotations
