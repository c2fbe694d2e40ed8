"""Engines that run graphs; each offers what `webnn_py.backends.base` asks for."""
