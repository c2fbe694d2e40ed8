"""Check that the built package works in clean environments, at both ends of its bounds.

Builds the sdist, and the wheel from it. For each Python, extra and end of the bounds this makes an
environment, installs the wheel there, and runs tests of the sdist against the installed package:

    python scripts/check_bounds.py                                    # all extras, this Python
    python scripts/check_bounds.py --python python3.13 --ends newest --extras ort openvino

Needs the package `build`. An environment is removed when its tests have run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

PLAIN = [
    "tests/tiny", "tests/unit/test_execution.py", "tests/unit/test_saved_graphs.py",
    "tests/unit/test_timeline.py", "tests/backend/test_awaited.py", "tests/backend/test_dlpack.py",
    "tests/backend/test_encoder.py", "tests/backend/test_programs.py",
    "tests/backend/test_tensors.py", "tests/backend/test_without_native.py",
]  # fmt: skip
ONNX = ["tests/onnx/test_importer.py", "tests/onnx/test_exporter.py"]
ORT = ["tests/unit/engines/test_onnxruntime.py", "tests/unit/engines/test_versions.py"]
OPENVINO = ["tests/unit/engines/test_openvino.py"]
TESTS = {
    "": PLAIN,
    "onnx": ONNX,
    "ort": ORT,
    "openvino": OPENVINO,
    "dawn": ["tests/backend/test_dawn.py"],
    "all": [*ONNX, *ORT, *OPENVINO, "tests/unit/engines/test_fastest.py", "tests/unit/cli"],
    "language,ort,service": ["tests/samples/test_chat.py"],
    "samples": ["tests/samples/test_photo_classifier.py", "tests/samples/test_dask_batches.py"],
    "graphics,samples": ["tests/samples/test_graphics_samples.py"],
    "service": ["tests/samples/test_ordering_samples.py"],
}
"""Tests by extras; "" is the package alone. The extras for contributors are not here."""
TOOLS = (
    "anyio",
    "hypothesis",
    "jsonschema",
    "ml-dtypes",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "trio",
)
"""Requirements of the extra `test` that all test modules share."""


def main() -> int:
    """Check each environment; return 1 if one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="PATH")
    parser.add_argument(
        "--ends", nargs="+", choices=["lowest", "newest"], default=["lowest", "newest"]
    )
    parser.add_argument("--extras", nargs="+", choices=list(TESTS), default=list(TESTS))
    options = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory(prefix="webnn-bounds-") as folder:
        wheel, tests = build(Path(folder))
        for python in options.python:
            for end in options.ends:
                for extra in options.extras:
                    title = f"{python}, {end}, {extra or 'no extra'}"
                    if not check(title, python, wheel, tests, extra, end):
                        failed.append(title)
    print(f"{len(failed)} failed", *failed, sep="\n  ")
    return bool(failed)


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist and from it the wheel; return the wheel, and the sdist's tests unpacked."""
    subprocess.run(
        [sys.executable, "-m", "build", "-o", folder, ROOT], check=True, stdout=subprocess.DEVNULL
    )
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tests,) = folder.glob("*/tests")
    shutil.rmtree(tests.parent / "webnn_py")  # tests are to import the installed package
    return wheel, tests.parent


def check(title: str, python: str, wheel: Path, tests: Path, extra: str, end: str) -> bool:
    """Install the wheel with one extra into a new environment, and run the extra's tests."""
    environment = wheel.parent / "environment"
    subprocess.run([python, "-m", "venv", "--clear", environment], check=True)
    own = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    constraints = wheel.parent / "constraints.txt"
    constraints.write_text("\n".join(lowest(extra)) if end == "lowest" else "", encoding="utf-8")
    tools = [row for row in EXTRAS["test"] if re.split(r"[^\w-]", row)[0] in TOOLS]
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["--only-binary", ":all:", "--constraint", constraints]
    install += [f"{wheel}[{extra}]" if extra else wheel, *tools]
    pytest = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS[extra]]
    for command in (install, pytest):
        made = subprocess.run(
            command,
            cwd=tests,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )
        if made.returncode:
            print(f"{title}: FAILED", made.stdout, sep="\n", flush=True)
            return False
    print(f"{title}: {made.stdout.splitlines()[-1]}", flush=True)
    return True


def lowest(extras: str) -> list[str]:
    """Return constraints that fix each requirement with the extras at its highest lower bound."""
    own = [f"{PROJECT['name']}[{extras}]"] if extras else []
    bounds: dict[str, str] = {}
    for row in requirements([*PROJECT["dependencies"], *own]):
        found = re.match(r"([\w-]+)(?:\[.*\])?[>=]=([\d.]+)", row)
        assert found is not None, row
        name, bound = found.groups()
        bounds[name] = max(bounds.get(name, "0"), bound, key=numbers)
    return [f"{name}=={bound}" for name, bound in bounds.items()]


def numbers(version: str) -> list[int]:
    """Return a version's numbers, to compare versions."""
    return list(map(int, version.split(".")))


def requirements(rows: Iterable[str]) -> list[str]:
    """Return requirements, with those of the package's own extras in their place."""
    found = []
    for row in rows:
        own = re.fullmatch(rf"{PROJECT['name']}\[(.*)\]", row)
        found += requirements(r for e in own[1].split(",") for r in EXTRAS[e]) if own else [row]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    sys.exit(main())
