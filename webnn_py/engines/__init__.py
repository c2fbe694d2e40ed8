"""Engines that run graphs; each offers what `webnn_py.engines.base` asks for."""
