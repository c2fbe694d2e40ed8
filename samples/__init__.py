"""Samples: each runs by itself, and the tests run them all."""
