"""Train the digits network on scikit-learn's bundled 8x8 handwritten digits.

    pip install torch==2.13.0 scikit-learn tqdm
    python -m samples.training.train_digits        # from the repository's root

Trains in about 15 seconds on one CPU thread. The committed weights (seed 0, 19,178 parameters
stored as float16) get 449 of the 450 held-out digits right: 99.78 %. Seeds 1 and 2 got all 450.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn import functional
from tqdm import trange

from samples.models import digits
from samples.training.torch_builder import Parameters, convolution, evaluate, to_float16

EPOCHS = 60
BATCH = 32
WEIGHTS = Path(__file__).parents[1] / "weights" / "digits.npz"


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images `[n, 1, 8, 8]` in 0..1 and labels, to train on, then of the held-out quarter."""
    bunch = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        bunch.images, bunch.target, test_size=0.25, stratify=bunch.target, random_state=0
    )
    images = [torch.tensor(x[:, None] / 16, dtype=torch.float32) for x in (train_x, test_x)]
    return images[0], torch.tensor(train_y), images[1], torch.tensor(test_y)


def initial_weights() -> Parameters:
    """Fresh weights, which also set the sizes of the layers."""
    return {
        **convolution("conv1", 16, 1, 3),
        **convolution("conv2", 32, 16, 3),
        **convolution("conv3", 32, 32, 3),
        "dense.weight": torch.nn.Parameter(torch.randn(32 * 4 * 4, 10) / (32 * 4 * 4) ** 0.5),
        "dense.bias": torch.nn.Parameter(torch.zeros(10)),
    }


def jitter(images: Tensor) -> Tensor:
    """Rotate, scale and shift each image a little."""
    count = len(images)
    angle = torch.empty(count).uniform_(-0.2, 0.2)
    scale = torch.empty(count).uniform_(0.9, 1.1)
    # One pixel is a quarter of the [-1, 1] range in which affine_grid measures.
    shift = torch.empty(count, 2).uniform_(-0.25, 0.25)
    cosine, sine = scale * angle.cos(), scale * angle.sin()
    matrices = torch.stack([cosine, -sine, shift[:, 0], sine, cosine, shift[:, 1]], 1)
    grid = functional.affine_grid(matrices.view(-1, 2, 3), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def probabilities(weights: dict[str, Tensor], images: Tensor) -> Tensor:
    return evaluate(digits, {"image": images}, weights, batch=len(images))


def train(images: Tensor, labels: Tensor) -> Parameters:
    """Minimise the negative log likelihood; the learning rate rises, then falls to nothing."""
    weights = initial_weights()
    steps = len(images) // BATCH
    optimizer = torch.optim.AdamW(weights.values(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=EPOCHS * steps)
    progress = trange(EPOCHS, unit="epoch")
    for _ in progress:
        for batch in torch.randperm(len(images))[: steps * BATCH].split(BATCH):
            predicted = probabilities(dict(weights), jitter(images[batch]))
            loss = functional.nll_loss(predicted.clamp_min(1e-7).log(), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        progress.set_postfix(loss=f"{loss.item():.4f}")
    return weights


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train_images, train_labels, images, labels = load()
    stored = to_float16(train(train_images, train_labels))
    np.savez_compressed(WEIGHTS, **stored)
    weights = {name: torch.tensor(value, dtype=torch.float32) for name, value in stored.items()}
    right = int((probabilities(weights, images).argmax(1) == labels).sum())
    print(f"{right} of {len(labels)} held-out digits are right: {right / len(labels):.2%}")
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
