"""Find speech in a recording with Silero VAD, as it comes in, and draw where it is.

The network comes out of the package silero-vad (MIT License), of which nothing is imported:
`pip install --no-deps silero-vad`. It takes 32 ms at a time and keeps a state between them, which
stays in one array.

    python samples/speech.py [RECORDING.wav] [--picture out/speech.png]

The recording has 16,000 samples a second, 16 bits each. Without one, a few vowels are synthesized.
"""

from __future__ import annotations

import argparse
import importlib.util
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from webnn_py import MLContext, MLExecution, ml, onnx

Array = NDArray[np.float32]
RATE, CHUNK, CONTEXT = 16_000, 512, 64  # samples: a second, a step, what a step sees of the last
THRESHOLD, RELEASE = 0.5, 0.35  # probabilities at which speech begins and ends
LEAST_SPEECH, LEAST_SILENCE, MARGIN = 0.25, 0.1, 0.03  # seconds
OUT = Path(__file__).parents[1] / "out"


def model() -> Path:
    """The network's file in the package."""
    found = importlib.util.find_spec("silero_vad")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the sample needs silero-vad: pip install --no-deps silero-vad")
    return Path(found.submodule_search_locations[0], "data", "silero_vad_16k_op15.onnx")


def probabilities(context: MLContext, chunks: Iterable[Array]) -> Iterator[float]:
    """The probability of speech in each chunk, as soon as the chunk is there."""
    shapes = {"input": [1, CONTEXT + CHUNK], "state": [2, 1, 128]}
    rate = {"sr": np.array(RATE, np.int64)}
    graph = onnx.load(model(), context, input_shapes=shapes, constants=rate)
    execution = MLExecution(context)
    heard, state = np.zeros((1, CONTEXT + CHUNK), np.float32), np.zeros((2, 1, 128), np.float32)
    for chunk in chunks:
        heard[:, :CONTEXT] = heard[:, -CONTEXT:]
        heard[:, CONTEXT:] = chunk
        results = execution.compute(graph, {"input": heard, "state": state}, {"stateN": state})
        yield float(results["output"].item())


def in_chunks(sound: Array) -> Iterator[Array]:
    """The sound in chunks, the last one filled with silence."""
    for start in range(0, len(sound), CHUNK):
        chunk = sound[start : start + CHUNK]
        yield np.pad(chunk, (0, CHUNK - len(chunk)))


def speeches(found: Iterable[float], seconds: float) -> list[tuple[float, float]]:
    """Begin and end of each stretch of speech, in seconds; short gaps and bursts are left out."""
    made: list[tuple[float, float]] = []
    begin = quiet = None
    for step, probability in enumerate(found):
        now = step * CHUNK / RATE
        if probability >= THRESHOLD:
            begin, quiet = now if begin is None else begin, None
        elif probability < RELEASE and begin is not None:
            quiet = now if quiet is None else quiet
            if now - quiet >= LEAST_SILENCE:
                made += [(begin, quiet)] * (quiet - begin > LEAST_SPEECH)
                begin = quiet = None
    if begin is not None and seconds - begin > LEAST_SPEECH:
        made.append((begin, seconds))
    return [(max(0.0, a - MARGIN), min(seconds, b + MARGIN)) for a, b in made]


def vowels() -> Array:
    """Three sung vowels with pauses: pulses of a voice through the resonances of a throat."""
    parts = [np.zeros(RATE // 2)]
    for formants in ((730, 1090, 2440), (270, 2290, 3010), (570, 840, 2410)):
        time = np.arange(RATE * 7 // 10) / RATE
        pitch = 120 + 6 * np.sin(2 * np.pi * 5 * time)
        phase = 2 * np.pi * np.cumsum(pitch) / RATE
        voice = np.zeros_like(time)
        for harmonic in range(1, 30):
            gain = sum(1 / (1 + ((harmonic * 120 - f) / 90) ** 2) for f in formants)
            voice += gain / harmonic**0.5 * np.sin(harmonic * phase)
        parts += [voice * np.hanning(len(time)) ** 0.3, np.zeros(RATE // 2)]
    sound = np.concatenate(parts)
    noise = np.random.default_rng(0).normal(size=len(sound)) * 0.002
    return np.asarray(0.3 * sound / np.abs(sound).max() + noise, np.float32)


def recording(path: Path) -> Array:
    """A WAV file's first channel."""
    with wave.open(str(path)) as file:
        if (file.getframerate(), file.getsampwidth()) != (RATE, 2):
            raise SystemExit(f"{path}: expected {RATE:,} samples a second, 16 bits each")
        frames = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        sound: Array = frames[:: file.getnchannels()].astype(np.float32)
        return sound / np.float32(32768)


def draw(sound: Array, found: list[float], stretches: list[tuple[float, float]]) -> Image.Image:
    """The sound, with the probability above it and speech shaded."""
    width, height = 1000, 240
    picture = Image.new("RGB", (width, height), "white")
    pen, scale = ImageDraw.Draw(picture), width * RATE / len(sound)
    for begin, end in stretches:
        pen.rectangle((begin * scale, 0, end * scale, height), fill="#dcefdc")
    loud = np.abs(sound[: len(sound) // width * width].reshape(width, -1)).max(1)
    for x, level in enumerate(loud / loud.max() * 70):
        pen.line((x, 160 - level, x, 160 + level), fill="#4060a0")
    line = [(i * CHUNK / RATE * scale, 78 - 70 * p) for i, p in enumerate(found)]
    pen.line(line, fill="#b03030", width=2)
    return picture


def main(path: Path | None = None, picture: Path = OUT / "speech.png") -> list[tuple[float, float]]:
    """Print where speech is, and draw it."""
    sound = vowels() if path is None else recording(path)
    with ml.create_context_sync(device_type="cpu", engine_options={"threads": 1}) as context:
        found = list(probabilities(context, in_chunks(sound)))
    stretches = speeches(found, len(sound) / RATE)
    for begin, end in stretches:
        print(f"speech from {begin:6.2f} to {end:6.2f} s")
    picture.parent.mkdir(exist_ok=True)
    draw(sound, found, stretches).save(picture)
    print(f"picture: {picture}")
    return stretches


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("recording", nargs="?", type=Path, help="a WAV file; else vowels")
    parser.add_argument("--picture", type=Path, default=OUT / "speech.png")
    options = parser.parse_args()
    main(options.recording, options.picture)
