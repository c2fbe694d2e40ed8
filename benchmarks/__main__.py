"""Runs one of the benchmarks: python -m benchmarks NAME [arguments]."""

from __future__ import annotations

import argparse
import ast
import pkgutil
import runpy
import sys
from pathlib import Path


def purposes() -> dict[str, str]:
    """The modules of this folder that are programs, each with the first line of its docstring."""
    folder, found = Path(__file__).parent, dict[str, str]()
    for module in pkgutil.iter_modules([str(folder)]):
        text = (folder / f"{module.name}.py").read_text(encoding="utf-8")
        if "__main__" in text and module.name != "__main__":
            found[module.name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return found


def main() -> None:
    known = purposes()
    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description=__doc__,
        epilog="\n".join(f"  {name:16} {purpose}" for name, purpose in sorted(known.items())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=sorted(known), metavar="NAME", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the benchmark itself")
    options = parser.parse_args()
    sys.argv = [f"benchmarks.{options.name}", *options.arguments]
    runpy.run_module(f"benchmarks.{options.name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
