"""Train the x2 super-resolution network on the photos bundled with scikit-image.

    pip install torch==2.13.0 scikit-learn scikit-image pillow tqdm
    python -m samples.training.train_super_resolution        # from the repository's root

The photos of scikit-learn are for judging only. Each is cropped to even sides, halved by PIL's
BICUBIC filter (antialiased) to 8 bits and enlarged again; PSNR is over all pixels of RGB in 8 bits.
The committed weights (seed 0, 61,388 parameters stored as float16, 9 minutes on one CPU thread):

    china.jpg    PIL's bicubic 23.06 dB, network 23.54 dB (+0.48)
    flower.jpg   PIL's bicubic 33.73 dB, network 36.82 dB (+3.09)

The gain on china.jpg is small because its finest detail is lost in halving: even the best linear
9x9 filters, fitted to that very photo, reach 23.96 dB. Photos halved by other filters differ from
what the network was trained for: for china.jpg averaged over 2x2 boxes, bicubic is better.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from skimage import data
from sklearn.datasets import load_sample_image
from torch import Tensor
from tqdm import trange

from samples.models import super_resolution
from samples.training.torch_builder import Parameters, convolution, evaluate, to_float16

CHANNELS = 32
BLOCKS = 3
STEPS = 6000
BATCH = 16
PATCH = 24  # side of a low-resolution patch
WEIGHTS = Path(__file__).parents[1] / "weights" / "super_resolution.npz"

Photo = NDArray[np.uint8]


def training_photos() -> list[Photo]:
    """Photos inside scikit-image (nothing is downloaded), at several sizes; grey becomes RGB.

    Each is there twice, as it is and sharpened, as photos are that were shrunk for the web.
    """
    photos = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket()]
    photos.append(data.stereo_motorcycle()[0])
    for grey in (data.camera(), data.brick(), data.grass(), data.gravel()):
        photos.append(np.repeat(grey[..., None], 3, axis=2))
    photos = [resize(photo, scale) for photo in photos for scale in (1, 0.7, 0.5)]
    sharpen = ImageFilter.UnsharpMask(radius=1, percent=100, threshold=0)
    return photos + [np.asarray(Image.fromarray(photo).filter(sharpen)) for photo in photos]


def resize(photo: Photo, scale: float) -> Photo:
    """Scale by PIL's bicubic filter (antialiased when it shrinks), rounded to 8 bits."""
    size = (int(photo.shape[1] * scale), int(photo.shape[0] * scale))
    return np.asarray(Image.fromarray(photo).resize(size, Image.Resampling.BICUBIC))


def even(photo: Photo) -> Photo:
    """Drop the last row or column where there is an odd number."""
    return photo[: photo.shape[0] // 2 * 2, : photo.shape[1] // 2 * 2]


def to_tensor(photo: Photo) -> Tensor:
    return torch.tensor(photo.transpose(2, 0, 1)).float() / 255


def psnr(photo: Photo, other: Photo) -> float:
    """Peak signal-to-noise ratio over all pixels and colours, in dB."""
    error = np.mean((photo.astype(np.float64) - other) ** 2)
    return float(10 * np.log10(255**2 / error))


def initial_weights() -> Parameters:
    """Fresh weights, which also set the sizes of the layers; the residual starts near zero."""
    weights = convolution("head", CHANNELS, 3, 5)
    for block in range(BLOCKS):
        weights |= convolution(f"block{block}.first", CHANNELS, CHANNELS, 3)
        weights |= convolution(f"block{block}.second", CHANNELS, CHANNELS, 3, gain=0.1)
    return weights | convolution("tail", 12, CHANNELS, 3, gain=0.1)


def random_patches(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A batch of low and high patches, randomly turned and mirrored."""
    areas = np.array([float(low[0].numel()) for low, _ in pairs])
    lows: list[Tensor] = []
    highs: list[Tensor] = []
    for chosen in np.random.choice(len(pairs), BATCH, p=areas / areas.sum()):
        low, high = pairs[chosen]
        top = np.random.randint(low.shape[1] - PATCH + 1)
        left = np.random.randint(low.shape[2] - PATCH + 1)
        turns, mirror = np.random.randint(4), np.random.rand() < 0.5
        for photo, scale, patches in ((low, 1, lows), (high, 2, highs)):
            rows = slice(scale * top, scale * (top + PATCH))
            columns = slice(scale * left, scale * (left + PATCH))
            patch = photo[:, rows, columns].rot90(turns, (1, 2))
            patches.append(patch.flip(2) if mirror else patch)
    return torch.stack(lows), torch.stack(highs)


def upscale(weights: dict[str, Tensor], low: Tensor) -> Tensor:
    batch, _, height, width = low.shape
    return evaluate(super_resolution, {"low": low}, weights, height, width, batch=batch)


def train() -> dict[str, Tensor]:
    """Minimise the Charbonnier loss; the result is a moving average of the weights."""
    photos = [even(photo) for photo in training_photos()]
    pairs = [(to_tensor(resize(photo, 0.5)), to_tensor(photo)) for photo in photos]
    weights = initial_weights()
    average = {name: value.detach().clone() for name, value in weights.items()}
    optimizer = torch.optim.Adam(weights.values())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
    progress = trange(STEPS, unit="step", mininterval=5)
    for step in progress:
        low, high = random_patches(pairs)
        error = upscale(dict(weights), low) - high
        loss = (error.square() + 1e-6).sqrt().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        for name, value in weights.items():
            average[name].lerp_(value.detach(), 0.01)
        if step % 100 == 0:
            progress.set_postfix(loss=f"{loss.item():.5f}", refresh=False)
    return average


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    stored = to_float16(train())
    np.savez_compressed(WEIGHTS, **stored)
    weights = {name: torch.tensor(value, dtype=torch.float32) for name, value in stored.items()}
    for name in ("china.jpg", "flower.jpg"):
        photo = even(load_sample_image(name))
        low = resize(photo, 0.5)
        with torch.no_grad():
            result = upscale(weights, to_tensor(low)[None])[0].permute(1, 2, 0).numpy()
        learned = (result * 255).round().astype(np.uint8)
        print(f"{name}: bicubic {psnr(photo, resize(low, 2)):.2f} dB", end=", ")
        print(f"network {psnr(photo, learned):.2f} dB")
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
