"""Awaited computes that are joined along an open dimension: which, when, and by whom."""
