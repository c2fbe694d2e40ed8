"""Read the text in a photo: RapidOCR's detector and recognizer, run by webnn_py.

The package rapidocr (Apache License 2.0, weights included) prepares photos, finds boxes in what the
detector returns, and turns the recognizer's scores into text. Its three networks run on a context:
each is loaded with open sizes, so that one graph serves photos and lines of any size.

    pip install ".[ocr]"
    python samples/read_text.py [PHOTO] [--picture out/read_text.png]

Without a photo, it reads a sign that is drawn for it.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from webnn_py import MLContext, MLExecution, ml, onnx

OUT = Path(__file__).parents[1] / "out"
SIGN = ("Platform 9", "Trains to King's Cross", "depart 11:00")


class Session:
    """A network as the package runs it: called with an array, it returns the result.

    Args:
        context: The context that runs it.
        path: The ONNX file.
    """

    def __init__(self, context: MLContext, path: Path) -> None:
        self.graph = onnx.load(path, context)
        self._execution = MLExecution(context)
        (self._input,), (self._output,) = self.graph.inputs, self.graph.outputs

    def __call__(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Run it."""
        given = {self._input: np.ascontiguousarray(pixels, np.float32)}
        return self._execution.compute(self.graph, given)[self._output]


def reader(context: MLContext, photo: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """RapidOCR's reader, whose networks run on `context`, and what it read before by itself."""
    if importlib.util.find_spec("rapidocr") is None:
        raise SystemExit('the sample needs rapidocr: pip install ".[ocr]"')
    import rapidocr

    made = rapidocr.RapidOCR(params={"Global.log_level": "warning"})
    before = made(photo)  # loads its networks, too
    files = Path(rapidocr.__file__).parent / "models"
    parts = {"det": made.text_det, "cls": made.text_cls, "rec": made.text_rec}
    for kind, part in parts.items():
        if part is not None:  # None where no box was found
            part.session = Session(context, next(files.glob(f"*_{kind}_*.onnx")))
    return made, before


def sign() -> Image.Image:
    """A sign, a little askew."""
    picture = Image.new("RGB", (640, 300), "#20406a")
    pen = ImageDraw.Draw(picture)
    for row, line in enumerate(SIGN):
        pen.text((60, 50 + 70 * row), line, "white", ImageFont.load_default(44))
    return picture.rotate(2, fillcolor="#d8d4c8", expand=True)


def draw(photo: Image.Image, found: Any) -> Image.Image:
    """The photo with a box around each line."""
    picture = photo.copy()
    pen = ImageDraw.Draw(picture)
    for box in found.boxes if found.boxes is not None else ():
        pen.polygon([tuple(map(float, corner)) for corner in box], outline="#ff5050", width=3)
    return picture


def main(path: Path | None = None, picture: Path = OUT / "read_text.png") -> list[str]:
    """Print the lines with their scores, and draw their boxes."""
    photo = sign() if path is None else Image.open(path).convert("RGB")
    pixels = np.asarray(photo)[..., ::-1]  # blue first, as OpenCV has it
    with ml.create_context_sync(device_type="cpu") as context:
        read, before = reader(context, pixels)
        found = read(pixels)
    lines = list(found.txts or ())
    assert lines == list(before.txts or ())  # as by ONNX Runtime, which the package calls
    for line, score in zip(lines, found.scores or (), strict=True):
        print(f"{score:7.2%}  {line}")
    picture.parent.mkdir(exist_ok=True)
    draw(photo, found).save(picture)
    print(f"picture: {picture}")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("photo", nargs="?", type=Path, help="by default a sign that is drawn")
    parser.add_argument("--picture", type=Path, default=OUT / "read_text.png")
    options = parser.parse_args()
    main(options.photo, options.picture)
