"""Packages that look installed: a folder with modules and what installers write about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ENGINE = '''
from webnn_py.engines import HostEngine
from webnn_py.engines.reference import ReferenceEngine


class Engine(HostEngine):
    """The reference, with options."""

    def __init__(self, threads=1, *, precise=True):
        self.threads, self.precise = threads, precise

    def compile(self, graph):
        return ReferenceEngine().compile(graph)


def free(**options):
    return Engine()


def bare():
    return Engine()


def picky(threads):
    from webnn_py import ValidationError

    if threads < 1:
        raise ValidationError(f"threads: got {threads}, expected at least 1")
    return Engine(threads)


def failing():
    raise RuntimeError("no licence")


def other():
    return "an engine"
'''


def install(
    folder: Path, name: str, entry_points: Mapping[str, str], version: str = "1.0", code: str = ""
) -> None:
    """A distribution with a module of its name.

    Args:
        folder: On `sys.path`.
        name: Of both.
        entry_points: Of the group `webnn_py.engines`, what each refers to.
        version: Of the distribution.
        code: Of the module.
    """
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(code)
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{engine} = {target}" for engine, target in entry_points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[webnn_py.engines]", *lines, ""]))
