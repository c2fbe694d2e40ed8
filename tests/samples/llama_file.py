"""A GGUF file of a small Llama."""

from __future__ import annotations

from pathlib import Path

import numpy as np

LAYERS, WIDE, HEADS, GROUPS, EACH, HIDDEN = 2, 32, 4, 2, 16, 48


def characters() -> list[str]:
    """The 256 characters that stand for bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def write_llama(path: Path) -> Path:
    """Write a Llama with random weights, whose tokens are bytes and the marks of a turn."""
    import gguf

    rng, words = np.random.default_rng(1), [*characters(), "ab", "<|im_start|>", "<|im_end|>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_dimension_count(EACH)
    writer.add_rope_freq_base(100.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(words)
    writer.add_token_types([1] * 257 + [3] * 2)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(258)

    def add(name: str, *shape: int) -> None:
        array = rng.normal(size=shape) if len(shape) == 2 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", (array * shape[-1] ** -0.5).astype(np.float32))

    add("token_embd", len(words), WIDE)
    for n in range(LAYERS):
        for name, rows, columns in (
            ("attn_q", HEADS * EACH, WIDE),
            ("attn_k", GROUPS * EACH, WIDE),
            ("attn_v", GROUPS * EACH, WIDE),
            ("attn_output", WIDE, HEADS * EACH),
            ("ffn_gate", HIDDEN, WIDE),
            ("ffn_up", HIDDEN, WIDE),
            ("ffn_down", WIDE, HIDDEN),
        ):
            add(f"blk.{n}.{name}", rows, columns)
        add(f"blk.{n}.attn_norm", WIDE)
        add(f"blk.{n}.ffn_norm", WIDE)
    add("output_norm", WIDE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
