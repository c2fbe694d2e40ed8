"""Benchmarks, side by side with other engines."""
