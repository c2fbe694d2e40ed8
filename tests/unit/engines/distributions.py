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
    folder: Path,
    module: str,
    entry_points: Mapping[str, str],
    version: str = "1.0",
    code: str = "",
    name: str = "",
) -> None:
    """A distribution of one module.

    Args:
        folder: On `sys.path`.
        module: Its name.
        entry_points: Of the group `webnn_py.engines`, what each refers to.
        version: Of the distribution.
        code: Of the module.
        name: Of the distribution, if not the module's.
    """
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(code)
    about = folder / f"{module}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name or module}\nVersion: {version}\n"
    )
    lines = [f"{engine} = {target}" for engine, target in entry_points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[webnn_py.engines]", *lines, ""]))
