"""The compiler's modules, imported while a driver opens a device.

Drivers take half a second or more for that, without Python's interpreter. The modules take 0.1 to
0.2 s, for which the first graph would wait. Programs that are loaded need none of them, so that
what is not imported by then is left to the first graph.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import threading
from collections.abc import Iterator

from webnn_py.core import gil_yield

COMPILER = "webnn_py.engines.webgpu.compiler"


@contextlib.contextmanager
def compiler_imported() -> Iterator[None]:
    """Import the compiler on another thread, as long as what is done here takes."""
    over = threading.Event()
    threading.Thread(target=_import_until, args=(over,), name="webnn-imports").start()
    try:
        yield
    finally:
        over.set()


def _import_until(over: threading.Event) -> None:
    """Import one module after the other, each with what it needs."""
    gil_yield.enable()
    with contextlib.suppress(ImportError):  # told to who builds a graph
        compiler = importlib.import_module(COMPILER)
        modules = pkgutil.walk_packages(compiler.__path__, f"{COMPILER}.")
        for module in gil_yield.checkpoints(modules):
            if over.is_set():
                return
            importlib.import_module(module.name)
