"""Leaf facts: data types, errors, shapes, messages, conversions, threads."""
