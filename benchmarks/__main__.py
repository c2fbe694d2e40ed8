"""Runs one of the benchmarks: python -m benchmarks NAME [arguments]."""

from __future__ import annotations

import argparse
import pkgutil
import runpy
import sys
from pathlib import Path


def names() -> list[str]:
    """The modules of this folder that are programs."""
    folder = Path(__file__).parent
    modules = (module.name for module in pkgutil.iter_modules([str(folder)]))
    return sorted(m for m in modules if "__main__" in (folder / f"{m}.py").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("name", choices=[n for n in names() if n != "__main__"])
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the benchmark itself")
    options = parser.parse_args()
    sys.argv = [f"benchmarks.{options.name}", *options.arguments]
    runpy.run_module(f"benchmarks.{options.name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
