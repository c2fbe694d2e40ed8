"""Textures as inputs and outputs: which, what of them, and how they become tensors and back."""
