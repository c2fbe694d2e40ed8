"""Import of the compiler on another thread while a driver opens a device.

A driver takes half a second or more to open a device, without the GIL. The import takes 0.1 to
0.2 s, which the first graph would otherwise wait for. Loaded programs need no compiler. So the
import stops when the device is open, and the first graph imports the rest.
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
    """Import the compiler's modules on another thread until the `with` block ends."""
    over = threading.Event()
    thread = threading.Thread(target=_import_until, args=(over,), name="webnn-imports")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # if two threads import the compiler at once, either may find a deadlock


def _import_until(over: threading.Event) -> None:
    """Import the compiler's modules one by one until `over` is set."""
    gil_yield.enable()
    with contextlib.suppress(ImportError):  # the first graph imports again and raises it
        compiler = importlib.import_module(COMPILER)
        modules = pkgutil.walk_packages(compiler.__path__, f"{COMPILER}.")
        for module in gil_yield.checkpoints(modules):
            if over.is_set():
                return
            importlib.import_module(module.name)
