"""Conversion of images into tensors."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.api.view.formats import format_shape
from webnn_py.core import dtypes
from webnn_py.core.dimensions import is_dimension
from webnn_py.core.errors import DataError, ValidationError
from webnn_py.core.files import open_regular
from webnn_py.ir import Array

LAYOUTS = ("auto", "nchw", "nhwc")
FITS = ("crop", "stretch")


@dataclass(frozen=True)
class Image:
    """An image that was read from a file.

    Attributes:
        picture: Pillow's image.
        path: The file.
    """

    picture: Any
    path: Path


def read_image(path: Path) -> Image:
    """Read an image, rotated as its EXIF orientation says.

    Raises:
        DataError: The file is no image, or its pixels have 32 bits.
        OSError: The file cannot be read.
    """
    import PIL.Image
    import PIL.ImageOps

    try:
        with open_regular(path) as file, PIL.Image.open(file) as opened:
            opened.load()
            picture = PIL.ImageOps.exif_transpose(opened)
    except DataError:
        raise
    except PIL.UnidentifiedImageError as error:
        raise DataError(
            f"{path} holds no image that Pillow reads; arrays are .npy, tensors .pb"
        ) from error
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        if isinstance(error, OSError) and error.filename:  # the file cannot be opened
            raise
        raise DataError(f"{path}: the image is damaged: {error}") from error
    return Image(_of_8_bits(picture, path), path)


def _of_8_bits(picture: Any, path: Path) -> Any:
    """Convert 16-bit greys to 8 bits, as Pillow would clip them at 255."""
    import PIL.Image

    if picture.mode in ("I", "F"):
        raise DataError(f"{path}: pixels of 32 bits, expected 8 or 16; save it so, or as .npy")
    if not picture.mode.startswith("I;16"):
        return picture
    return PIL.Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))


@dataclass(frozen=True)
class Preparation:
    """Preprocessing of images: resize, then (value / 255 - mean) / std.

    Attributes:
        mean: Mean of each channel or of all, for values from 0 to 1.
        std: Standard deviation of each channel or of all, for values from 0 to 1.
        layout: "nchw", "nhwc", or "auto", which takes the axis of size 1 or 3 for the channels.
        fit: "crop" scales the image to cover the target and cuts out the middle; "stretch" scales
            both sides to the target.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "auto"
    fit: str = "crop"

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the options of images."""
        group = parser.add_argument_group(
            "images", "Float inputs become (value / 255 - mean) / std; integers 0 to 255."
        )
        for name, default in (("mean", 0.0), ("std", 1.0)):
            group.add_argument(
                f"--{name}", type=_numbers, default=(default,), metavar="R,G,B",
                help=f"of each channel or of all, 0 to 1 (default {default:g})",
            )  # fmt: skip
        group.add_argument(
            "--layout", choices=LAYOUTS, default="auto",
            help="the order of dimensions (default: channels are where there are 1 or 3)",
        )  # fmt: skip
        group.add_argument(
            "--fit", choices=FITS, default="crop",
            help="cut out the middle, or stretch (default crop)",
        )  # fmt: skip

    @staticmethod
    def of(options: argparse.Namespace) -> Preparation:
        """Return the preparation that the options describe.

        Raises:
            ValidationError: A mean is not finite, or a standard deviation not positive.
        """
        if not all(map(math.isfinite, options.mean)):
            raise ValidationError("--mean: expected finite numbers")
        if not all(0 < number < math.inf for number in options.std):
            raise ValidationError("--std: expected numbers above 0")
        return Preparation(options.mean, options.std, options.layout, options.fit)

    def tensor(
        self, image: Image, name: str, descriptor: MLOperandDescriptor, sizes: Mapping[str, int]
    ) -> Array:
        """Convert an image into the array of an input.

        Args:
            image: The image.
            name: The input's name.
            descriptor: The input's data type and shape.
            sizes: Known sizes of open dimensions. Other heights and widths are the image's, and an
                open batch is 1.

        Raises:
            DataError: The input's shape does not fit an image.
        """
        channel = self._channel_axis(name, descriptor.shape)
        axes = [axis for axis in (1, 2, 3) if axis != channel]
        picture = image.picture
        own = dict(zip(axes, (picture.height, picture.width), strict=True)) | {0: 1}
        shape = [_size(size, sizes, own.get(axis, 3)) for axis, size in enumerate(descriptor.shape)]
        channels, (height, width) = shape[channel], (shape[axis] for axis in axes)
        if channels not in (1, 3):
            other = "nchw" if channel == 3 else "nhwc"
            fits = descriptor.shape[1 if channel == 3 else 3] in (1, 3)
            remedy = f"; they would be with --layout {other}" if fits else ""
            raise DataError(f"input {name}: an image has 1 or 3 channels, not {channels}{remedy}")
        picture = self._fitted(picture.convert("L" if channels == 1 else "RGB"), width, height)
        values = np.asarray(picture).reshape(height, width, channels)
        info = dtypes.DTYPES[descriptor.data_type]
        if info.kind == "f":
            values = (values.astype(np.float32) / 255 - self._of_channels(self.mean, channels)) / (
                self._of_channels(self.std, channels)
            )
        if channel == 1:
            values = values.transpose(2, 0, 1)
        return np.ascontiguousarray(np.broadcast_to(values, shape), info.numpy)

    def _channel_axis(self, name: str, shape: tuple[int, ...]) -> int:
        if len(shape) != 4:
            raise DataError(
                f"input {name}: an image needs [batch, channels, height, width] or [batch, height,"
                f" width, channels], not {format_shape(shape)}"
            )
        if self.layout != "auto":
            return 1 if self.layout == "nchw" else 3
        return 3 if shape[3] in (1, 3) and shape[1] not in (1, 3) else 1

    def _fitted(self, picture: Any, width: int, height: int) -> Any:
        if self.fit == "crop":
            scale = max(width / picture.width, height / picture.height)
            across, down = width / scale, height / scale
            left, top = (picture.width - across) / 2, (picture.height - down) / 2
            box = (left, top, left + across, top + down)
        else:
            box = (0, 0, picture.width, picture.height)
        import PIL.Image

        return picture.resize((width, height), PIL.Image.Resampling.BICUBIC, box)

    def _of_channels(self, values: tuple[float, ...], channels: int) -> Array:
        if len(values) not in (1, channels):
            raise DataError(f"--mean and --std: {len(values)} numbers for {channels} channels")
        return np.array(values, np.float32)


def _size(size: int, sizes: Mapping[str, int], own: int) -> int:
    if not is_dimension(size):
        return size
    return size.evaluate(sizes) if set(size.names) <= set(sizes) else own


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected numbers like 0.5,0.5,0.5") from (
            None
        )
