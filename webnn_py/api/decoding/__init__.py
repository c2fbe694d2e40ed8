"""Decoders of language models: caches, continuous batching, sampling and sequences."""
