"""Compiling what uses the C++ runtime."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

CPP = Path(__file__).parents[2] / "runtime" / "cpp"
STRICT = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def wgpu_resources() -> Path:
    """The folder of wgpu-native's headers and library."""
    found = importlib.util.find_spec("wgpu")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "resources"


def compile_cpp(source: str, target: Path, *options: str) -> Path:
    native = wgpu_resources()
    (library,) = (path.name for path in native.glob("*wgpu_native*.so"))
    arguments = [*STRICT, *options, f"-I{native}", str(CPP / source), "-o", str(target)]
    arguments += [f"-L{native}", f"-l:{library}", f"-Wl,-rpath,{native}"]
    made = subprocess.run(["g++", *arguments], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return target
