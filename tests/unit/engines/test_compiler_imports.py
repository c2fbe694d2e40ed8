"""The compiler is imported while a driver opens a device, and no further."""

import subprocess
import sys

ALL = """
import pkgutil, sys, threading, time
from webnn_py.engines.webgpu.runtime.compiler_imports import COMPILER, compiler_imported

with compiler_imported():
    imports = [thread for thread in threading.enumerate() if thread.name == "webnn-imports"]
    for thread in imports:
        thread.join(60)
path = sys.modules[COMPILER].__path__
missing = {m.name for m in pkgutil.walk_packages(path, f"{COMPILER}.")} - set(sys.modules)
assert imports and not missing, missing
"""

NO_FURTHER = """
import importlib, pkgutil, sys, threading
from webnn_py.engines.webgpu.runtime import compiler_imports

begun, opened = threading.Event(), threading.Event()
asked = []

def imported(name):
    asked.append(name)
    begun.set()
    assert opened.wait(60)
    return real(name)

real, compiler_imports.importlib.import_module = importlib.import_module, imported
set_over = threading.Event.set

def set_it(event):
    set_over(event)
    set_over(opened)  # the import that has begun ends after the device is open

with compiler_imports.compiler_imported():
    assert begun.wait(60)
    threading.Event.set = set_it
assert asked == [compiler_imports.COMPILER], asked
assert not [thread for thread in threading.enumerate() if thread.name == "webnn-imports"]
"""


def run(code: str) -> None:
    """Run it in a process that has imported nothing yet."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr


def test_all_of_it_is_imported_if_there_is_time() -> None:
    run(ALL)


def test_the_rest_is_left_once_the_device_is_open() -> None:
    """And nothing is imported any more, as a graph that is built may import the same."""
    run(NO_FURTHER)
