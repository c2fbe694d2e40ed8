"""Images as inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from webnn_py import DataError, MLOperandDescriptor
from webnn_py.cli.images import Preparation, read_image


def photo(path: Path, width: int = 8, height: int = 4) -> Path:
    """Red grows to the right, green downwards; blue is 255."""
    across, down = np.meshgrid(np.arange(width) * 10, np.arange(height) * 10)
    pixels = np.dstack([across, down, np.full_like(across, 255)]).astype(np.uint8)
    PIL.Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize(
    ("data_type", "shape"),
    [
        ("float32", (1, 3, 4, 8)),
        ("float16", (1, 4, 8, 3)),
        ("uint8", (1, 3, 4, 8)),
        ("float32", (2, 4, 8, 3)),
    ],
)
def test_pixels_keep_their_places(data_type: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    image = read_image(photo(tmp_path / "photo.png"))
    descriptor = MLOperandDescriptor(data_type, shape)  # type: ignore[arg-type]
    made = Preparation().tensor(image, "x", descriptor, {})
    assert made.shape == shape
    assert made.dtype == data_type
    pixels = made if shape[3] == 3 else made.transpose(0, 2, 3, 1)
    full = 255 if data_type == "uint8" else 1
    expected = np.array([30, 20, 255]) / (255 / full)
    np.testing.assert_allclose(pixels[-1, 2, 3], expected, rtol=1e-3)
    assert made.flags.c_contiguous


def test_channels_are_normalized(tmp_path: Path) -> None:
    image = read_image(photo(tmp_path / "photo.png"))
    descriptor = MLOperandDescriptor("float32", [1, 3, 4, 8])
    prepared = Preparation(mean=(0.5, 0.25, 0.0), std=(0.5,))
    made = prepared.tensor(image, "x", descriptor, {})
    expected = [(30 / 255 - 0.5) / 0.5, (20 / 255 - 0.25) / 0.5, 2]
    np.testing.assert_allclose(made[0, :, 2, 3], expected, rtol=1e-5)
    with pytest.raises(DataError, match="2 numbers for 3 channels"):
        Preparation(mean=(0.5, 0.5)).tensor(image, "x", descriptor, {})


def test_the_middle_is_cut_out_or_all_is_stretched(tmp_path: Path) -> None:
    image = read_image(photo(tmp_path / "photo.png"))
    descriptor = MLOperandDescriptor("uint8", [1, 4, 4, 3])
    cut = Preparation().tensor(image, "x", descriptor, {})
    assert cut[0, 0, :, 0].tolist() == [20, 30, 40, 50]
    stretched = Preparation(fit="stretch").tensor(image, "x", descriptor, {})
    assert stretched[0, 0, 0, 0] < 15
    assert stretched[0, 0, 3, 0] > 55


def test_open_sizes_are_the_images(tmp_path: Path) -> None:
    image = read_image(photo(tmp_path / "photo.png"))
    descriptor = MLOperandDescriptor("float32", ["batch", 3, "height", "width"])
    assert Preparation().tensor(image, "x", descriptor, {}).shape == (1, 3, 4, 8)
    made = Preparation().tensor(image, "x", descriptor, {"height": 2, "batch": 3})
    assert made.shape == (3, 3, 2, 8)


def test_grey_for_one_channel(tmp_path: Path) -> None:
    image = read_image(photo(tmp_path / "photo.png"))
    made = Preparation().tensor(image, "x", MLOperandDescriptor("uint8", [1, 1, 4, 8]), {})
    assert made[0, 0, 0, 0] == round(0.114 * 255)


@pytest.mark.parametrize("shape", [[3, 4, 8], [1, 2, 4, 8], [1, 4]])
def test_other_inputs_are_not_for_images(shape: list[int], tmp_path: Path) -> None:
    image = read_image(photo(tmp_path / "photo.png"))
    with pytest.raises(DataError, match="input x: an image"):
        Preparation().tensor(image, "x", MLOperandDescriptor("float32", shape), {})


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    whole = photo(tmp_path / "photo.png", 64, 64).read_bytes()
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"damaged.png: the image is damaged: .*truncated"):
        read_image(damaged)
    damaged.write_bytes(b"no image")
    with pytest.raises(DataError, match="holds no image"):
        read_image(damaged)


@pytest.mark.parametrize("order", ["<", ">"])
def test_greys_of_16_bits_are_not_cut_off(order: str, tmp_path: Path) -> None:
    greys = np.linspace(0, 65535, 64).reshape(8, 8).astype(f"{order}u2")
    mode = {"<": "I;16", ">": "I;16B"}[order]
    PIL.Image.frombytes(mode, (8, 8), greys.tobytes()).save(tmp_path / "grey.tif")
    image = read_image(tmp_path / "grey.tif")
    made = Preparation().tensor(image, "x", MLOperandDescriptor("float32", [1, 1, 8, 8]), {})
    np.testing.assert_allclose(made[0, 0], greys / 65535, atol=1 / 255)


def test_pixels_without_a_range_are_refused(tmp_path: Path) -> None:
    PIL.Image.new("F", (2, 2)).save(tmp_path / "floats.tif")
    with pytest.raises(DataError, match=r"floats.tif: pixels of 32 bits, expected 8 or 16"):
        read_image(tmp_path / "floats.tif")
