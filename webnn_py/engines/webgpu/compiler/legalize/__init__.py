"""Rewrites that the compiler wants of a graph before kernels are decided, each in a module."""
