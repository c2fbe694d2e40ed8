"""Files of outputs: `--output`, and the results that `--compare` reads."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from webnn_py.core.errors import DataError, ValidationError
from webnn_py.core.files import open_regular
from webnn_py.core.messages import describe_error
from webnn_py.ir import Array
from webnn_py.storage.archive import replacing

ARRAYS = ".npz"
"""File extension of several arrays by name."""


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--output`."""
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        type=_named_output,
        metavar="NAME=FILE",
        help=f"write an output to a file: {', '.join(WRITERS)}. Without NAME=, the only output,"
        f" or all outputs to an {ARRAYS}",
    )


def _named_output(text: str) -> tuple[str, Path]:
    name, found, file = text.partition("=")
    path = Path(file if found else text)
    if path.suffix not in WRITERS:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected NAME=FILE with the ending {', '.join(WRITERS)}"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path}: there is no folder {path.parent}")
    return (name if found else ""), path


def check_names(pairs: Sequence[tuple[str, Path]], outputs: Collection[str]) -> None:
    """Raise a ValidationError unless each pair of `--output` names one of the outputs."""
    for name, path in pairs:
        if not name and len(outputs) != 1 and path.suffix != ARRAYS:
            raise ValidationError(f"--output: say which one: NAME=FILE; {', '.join(outputs)}")
        if name and name not in outputs:
            raise ValidationError(f"--output: there is no {name!r}, but {', '.join(outputs)}")


def write(pairs: Sequence[tuple[str, Path]], results: Mapping[str, Array]) -> None:
    """Write results to the files of `--output`."""
    for name, path in pairs:
        chosen = {name: results[name]} if name else results
        with replacing(path) as stream:
            WRITERS[path.suffix](stream, chosen)


def read_arrays(path: Path) -> dict[str, Array]:
    """Read arrays by name; the array of a .npy file has the name "".

    Raises:
        DataError: The file holds no arrays.
        OSError: The file cannot be read.
    """
    try:
        with open_regular(path) as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.lib.npyio.NpzFile):
                return {name: found[name] for name in found.files}
    except (OSError, MemoryError, DataError):
        raise
    except Exception as error:  # a damaged header can raise anything
        raise DataError(f"{path} holds no array: {describe_error(error)}") from error
    if not isinstance(found, np.ndarray):
        raise DataError(f"{path} holds no array, but {type(found).__name__}")
    return {"": found}


def _write_npy(stream: Any, results: Mapping[str, Array]) -> None:
    (array,) = results.values()
    np.save(stream, array)


def _write_npz(stream: Any, results: Mapping[str, Array]) -> None:
    # Not by `np.savez`, which takes no array of the name "file".
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in results.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.save(entry, array)


def _write_pb(stream: Any, results: Mapping[str, Array]) -> None:
    from webnn_py.onnx.tensor_files import tensor_bytes

    ((name, array),) = results.items()
    stream.write(tensor_bytes(array, name))


WRITERS: Mapping[str, Callable[[Any, Mapping[str, Array]], None]] = {
    ".npy": _write_npy,
    ARRAYS: _write_npz,
    ".pb": _write_pb,
}
"""Writers of arrays by file extension."""
