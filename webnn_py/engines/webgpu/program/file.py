"""Read and write files of compiled programs; spec/programs.md lists the entries."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from webnn_py.core import gil_yield
from webnn_py.engines.webgpu.program.document import document_of, plan_of
from webnn_py.engines.webgpu.program.plan import Plan
from webnn_py.storage.archive import PROGRAM, Archive, replacing, write_archive
from webnn_py.storage.document import parse, to_json
from webnn_py.storage.safetensors import read_safetensors, safetensors_parts

WEIGHTS = "weights.safetensors"


def write_program(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a program to a file, atomically; replace an existing file.

    Raises:
        FileError: The file cannot be written.
    """
    entries = {PROGRAM: [to_json(document_of(plan))], WEIGHTS: safetensors_parts(plan.tensors)}
    with replacing(path) as stream:
        write_archive(stream, entries)


@contextlib.contextmanager
def reading_program(path: str | os.PathLike[str]) -> Iterator[Plan]:
    """Open a file as a plan whose tensors are views of the mapped file.

    A thread compares their checksum; the end of the block waits for it.

    Raises:
        FileError: The file cannot be opened.
        DataError: The file is damaged, or no program.
    """
    archive = Archive.open(path)
    archive.check_names((PROGRAM, WEIGHTS))
    with ThreadPoolExecutor(1, "webnn-checksum", gil_yield.enable) as thread:
        compared = thread.submit(archive.verify, WEIGHTS)
        tensors = read_safetensors(archive.view(WEIGHTS), archive.where(WEIGHTS))
        yield plan_of(parse(archive.read(PROGRAM), archive.where(PROGRAM)), tensors)
        compared.result()
