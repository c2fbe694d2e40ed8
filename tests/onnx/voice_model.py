"""A small model of a voice as Piper exports them (VITS), with random weights."""

from __future__ import annotations

import numpy as np
import onnx

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
voice (int64[batch_size, phonemes] input, int64[batch_size] input_lengths, float[3] scales)
    => (float[batch_size, 1, time] output) {
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    two = Constant <value_int = 2> ()
    axis_0 = Constant <value_ints = [0]> ()
    axis_1 = Constant <value_ints = [1]> ()
    axis_2 = Constant <value_ints = [2]> ()
    last = Constant <value_ints = [-1]> ()
    unit = Constant <value_float = 1.0> ()
    none = Constant <value_float = 0.0> ()
    axes = Constant <value_ints = [1, 2]> ()
    sound_noise = Gather (scales, zero)
    slowness = Gather (scales, one)
    duration_noise = Gather (scales, two)

    rows = Gather (table, input)
    hidden = Transpose <perm = [0, 2, 1]> (rows)
    text_shape = Shape (input)
    text_length = Gather (text_shape, one)
    text_places = Range (zero, text_length, one)
    text_places_row = Unsqueeze (text_places, axis_0)
    lengths_column = Unsqueeze (input_lengths, axis_1)
    in_text = Less (text_places_row, lengths_column)
    in_text_float = Cast <to = 1> (in_text)
    text_mask = Unsqueeze (in_text_float, axis_1)
    masked = Mul (hidden, text_mask)
    encoded = Conv <kernel_shape = [3], pads = [1, 1]> (masked, encode)
    active = Tanh (encoded)
    stats = Conv <kernel_shape = [1]> (active, project)
    parts = Constant <value_ints = [4, 4, 1]> ()
    means, logs, latent = Split <axis = 1> (stats, parts)

    drawn = RandomNormalLike (latent)
    scaled = Mul (drawn, duration_noise)
    moved = Add (latent, scaled)
    size = Abs (moved)
    inside = Less (size, unit)
    outside = Not (inside)
    outside_places = NonZero (outside)
    outside_rows = Transpose <perm = [1, 0]> (outside_places)
    outside_values = GatherND (moved, outside_rows)
    moved_shape = Shape (moved)
    nothing = ConstantOfShape (moved_shape)
    kept = ScatterND (nothing, outside_rows, outside_values)
    inside_places = NonZero (inside)
    inside_rows = Transpose <perm = [1, 0]> (inside_places)
    inside_values = GatherND (moved, inside_rows)
    inside_column = Unsqueeze (inside_values, axis_1)
    bins = Add (inside_column, knots)
    widths = Softmax <axis = -1> (bins)
    ends = CumSum (widths, one)
    end_0 = Sub (ends, inside_column)
    bent = ReduceSum <keepdims = 0> (end_0, axis_1)
    again_shape = Shape (kept)
    inside_again = Expand (inside, again_shape)
    again_places = NonZero (inside_again)
    again_rows = Transpose <perm = [1, 0]> (again_places)
    flat = Reshape (bent, last)
    again_sizes = Shape (again_rows)
    count = Gather (again_sizes, zero)
    end = Unsqueeze (count, axis_0)
    bent_rows = Slice (flat, axis_0, end, axis_0)
    log_durations = ScatterND (kept, again_rows, bent_rows)

    durations = Exp (log_durations)
    shown_durations = Mul (durations, text_mask)
    slow_durations = Mul (shown_durations, slowness)
    frames = Ceil (slow_durations)
    total = ReduceSum <keepdims = 0> (frames, axes)
    least = Clip (total, unit)
    whole = Cast <to = 7> (least)
    longest = ReduceMax <keepdims = 0> (whole)
    time_places = Range (zero, longest, one)
    time_places_row = Unsqueeze (time_places, axis_0)
    whole_column = Unsqueeze (whole, axis_1)
    in_sound = Less (time_places_row, whole_column)
    in_sound_float = Cast <to = 1> (in_sound)
    sound_mask = Unsqueeze (in_sound_float, axis_1)
    frame_ends = CumSum (frames, two)
    ends_column = Transpose <perm = [0, 2, 1]> (frame_ends)
    time_float = Cast <to = 1> (time_places)
    before = Less (time_float, ends_column)
    before_float = Cast <to = 1> (before)
    pads = Constant <value_ints = [0, 1, 0, 0, 0, 0]> ()
    padded = Pad (before_float, pads)
    shifted = Slice (padded, axis_0, last, axis_1)
    path = Sub (before_float, shifted)
    means_path = MatMul (means, path)
    logs_path = MatMul (logs, path)
    sound_drawn = RandomNormalLike (means_path)
    spread = Exp (logs_path)
    spread_noise = Mul (sound_drawn, spread)
    loud_noise = Mul (spread_noise, sound_noise)
    frames_mean = Add (means_path, loud_noise)
    frames_masked = Mul (frames_mean, sound_mask)
    flowed = Conv <kernel_shape = [5], pads = [2, 2]> (frames_masked, flow)
    wave = ConvTranspose <kernel_shape = [8], strides = [4], pads = [2, 2]> (flowed, decode)
    output = Tanh (wave)
}"""

SHAPES = {
    "table": (12, 6),
    "encode": (6, 6, 3),
    "project": (9, 6, 1),
    "knots": (1, 5),
    "flow": (4, 4, 5),
    "decode": (4, 1, 8),
}


def voice() -> onnx.ModelProto:
    """Return the model. Its sound has 4 samples a frame."""
    rng = np.random.default_rng(3)
    made = onnx.parser.parse_model(TEXT)
    for name, shape in SHAPES.items():
        array = (0.3 * rng.normal(size=shape)).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(made)
    return made
