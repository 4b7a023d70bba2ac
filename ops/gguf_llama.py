"""A Llama model in a GGUF file, rewritten as the directory that Hugging Face loaders and exllamav3 read. numpy only, no torch.

Widths are padded with zeros up to multiples of 128, because exllamav3's Llama modules refuse others (SmolLM2's hidden width
is 576). The padded model computes the same function: added channels are zero everywhere, added heads have zero values and
zero output columns. Only RMSNorm sees a difference, since its mean now runs over more channels: with n real and m padded
ones, weights are scaled by sqrt(n / m) and epsilon by n / m, which cancels it but for the rounding of fp16.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

Weights: TypeAlias = NDArray[np.float32]
Half: TypeAlias = NDArray[np.float16]

_CONTROL, _USER_DEFINED = 3, 4
"""Token types of GGUF that stand for added tokens."""

_OUTSIDE_LAYERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}


class NotConvertible(Exception):
    """The GGUF file lacks something or holds a model of another kind; the text says what."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths of a Llama model."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    layers: int
    vocabulary: int

    def padded(self, multiple: int) -> "Shape":
        """The smallest shape whose widths are multiples of `multiple` and whose heads still fall into the same groups."""
        group = self.heads // self.kv_heads
        kv_heads = self.kv_heads
        while kv_heads * self.head_dim % multiple or kv_heads * group * self.head_dim % multiple:
            kv_heads += 1
        return Shape(
            hidden=_up(self.hidden, multiple),
            heads=kv_heads * group,
            kv_heads=kv_heads,
            head_dim=self.head_dim,
            intermediate=_up(self.intermediate, multiple),
            layers=self.layers,
            vocabulary=self.vocabulary,
        )


def _up(width: int, multiple: int) -> int:
    return -(-width // multiple) * multiple


class LlamaFile:
    """A GGUF file of architecture `llama` with a byte-level BPE tokenizer. Raises NotConvertible where it is another thing."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = GGUFReader(path)
        except (ValueError, OSError, IndexError) as problem:
            raise NotConvertible(f"{path.name} is no readable GGUF file: {problem}") from problem
        if self._text("general.architecture") != "llama":
            raise NotConvertible(f"{path.name} holds a {self._text('general.architecture')} model; only llama is known here")
        if self._text("tokenizer.ggml.model") != "gpt2" or self._text("tokenizer.ggml.pre") != "smollm":
            raise NotConvertible(f"{path.name} has a tokenizer of another kind than SmolLM's")
        hidden, heads = self._int("llama.embedding_length"), self._int("llama.attention.head_count")
        self.tokens = self._texts("tokenizer.ggml.tokens")
        self.shape = Shape(
            hidden=hidden,
            heads=heads,
            kv_heads=self._int("llama.attention.head_count_kv"),
            head_dim=hidden // heads,
            intermediate=self._int("llama.feed_forward_length"),
            layers=self._int("llama.block_count"),
            vocabulary=len(self.tokens),
        )
        self.tied = all(tensor.name != "output.weight" for tensor in self._reader.tensors)

    @property
    def tensors(self) -> int:
        """How many tensors `weights` gives."""
        return len(self._reader.tensors)

    def weights(self, shape: Shape) -> Iterator[tuple[str, Half]]:
        """Every tensor under its Hugging Face name, padded to `shape`, in fp16."""
        for tensor in self._reader.tensors:
            name = _name(tensor.name)
            values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            if name.endswith("self_attn.q_proj.weight"):
                values = _halves(values, self.shape.heads)
            elif name.endswith("self_attn.k_proj.weight"):
                values = _halves(values, self.shape.kv_heads)
            padded = _pad(values, _padded_size(name, values.shape, self.shape, shape))
            if values.ndim == 1:
                padded *= math.sqrt(self.shape.hidden / shape.hidden)
            half = padded.astype(np.float16)
            if not np.isfinite(half).all():
                raise NotConvertible(f"{tensor.name} does not fit into fp16")
            yield name, half

    def config(self, shape: Shape) -> dict[str, object]:
        """config.json for weights padded to `shape`."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "vocab_size": shape.vocabulary,
            "max_position_embeddings": self._int("llama.context_length"),
            "rms_norm_eps": self._float("llama.attention.layer_norm_rms_epsilon") * self.shape.hidden / shape.hidden,
            "rope_theta": self._float("llama.rope.freq_base"),
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "bos_token_id": self._int("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self._int("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self._int("tokenizer.ggml.padding_token_id"),
            "torch_dtype": "float16",
            "attention_bias": False,
            "mlp_bias": False,
        }

    def tokenizer(self) -> dict[str, object]:
        """tokenizer.json: byte-level BPE that splits off every digit, as SmolLM was trained."""
        kinds = self._ints("tokenizer.ggml.token_type")
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": index,
                    "content": self.tokens[index],
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": kind == _CONTROL,
                }
                for index, kind in enumerate(kinds)
                if kind in (_CONTROL, _USER_DEFINED)
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
            "post_processor": None,
            "decoder": byte_level | {"add_prefix_space": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: index for index, token in enumerate(self.tokens)},
                "merges": [merge.split(" ") for merge in self._texts("tokenizer.ggml.merges")],
            },
        }

    def tokenizer_config(self) -> dict[str, object]:
        """tokenizer_config.json, with the chat template."""
        bos, eos, pad = (self._int(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding"))
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.tokens[bos],
            "eos_token": self.tokens[eos],
            "pad_token": self.tokens[pad],
            "add_bos_token": False,
            "model_max_length": self._int("llama.context_length"),
            "chat_template": self._text("tokenizer.chat_template"),
        }

    def _value(self, key: str) -> object:
        field = self._reader.get_field(key)
        if field is None:
            raise NotConvertible(f"the GGUF file has no {key}")
        return field.contents()

    def _text(self, key: str) -> str:
        return _checked(key, self._value(key), str)

    def _int(self, key: str) -> int:
        return _checked(key, self._value(key), int)

    def _float(self, key: str) -> float:
        return _checked(key, self._value(key), float)

    def _texts(self, key: str) -> list[str]:
        return _all(key, self._value(key), str)

    def _ints(self, key: str) -> list[int]:
        return _all(key, self._value(key), int)


T = TypeVar("T")


def _checked(key: str, value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise NotConvertible(f"{key} in the GGUF file is {type(value).__name__}, not {kind.__name__}")
    return value


def _all(key: str, value: object, kind: type[T]) -> list[T]:
    items = cast("list[object]", _checked(key, value, list))
    return [_checked(key, item, kind) for item in items]


def _name(gguf_name: str) -> str:
    """The Hugging Face name of a tensor: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    if gguf_name in _OUTSIDE_LAYERS:
        return _OUTSIDE_LAYERS[gguf_name]
    parts = gguf_name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _IN_LAYER:  # noqa: PLR2004  # blk.LAYER.PART.weight
        return f"model.layers.{parts[1]}.{_IN_LAYER[parts[2]]}.{parts[3]}"
    raise NotConvertible(f"a Llama model has no tensor {gguf_name}")


def _halves(weights: Weights, heads: int) -> Weights:
    """Rows of a query or key projection in the order Hugging Face's rotary embedding wants (the two halves of a head apart).
    GGUF stores them interleaved in pairs.
    """
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _padded_size(name: str, size: tuple[int, ...], real: Shape, padded: Shape) -> tuple[int, ...]:
    """What a tensor of `size` becomes: each axis is hidden, intermediate, query heads, key heads or vocabulary wide."""
    if len(size) == 1:
        return (padded.hidden,)
    part = name.split(".")[-2]
    queries, keys = padded.heads * padded.head_dim, padded.kv_heads * padded.head_dim
    sizes = {
        "q_proj": (queries, padded.hidden),
        "k_proj": (keys, padded.hidden),
        "v_proj": (keys, padded.hidden),
        "o_proj": (padded.hidden, queries),
        "gate_proj": (padded.intermediate, padded.hidden),
        "up_proj": (padded.intermediate, padded.hidden),
        "down_proj": (padded.hidden, padded.intermediate),
        "embed_tokens": (real.vocabulary, padded.hidden),
        "lm_head": (real.vocabulary, padded.hidden),
    }
    return sizes[part]


def _pad(values: Weights, size: tuple[int, ...]) -> Weights:
    """`values` in the corner of a zero array of `size`."""
    padded = np.zeros(size, dtype=np.float32)
    padded[tuple(slice(0, width) for width in values.shape)] = values
    return padded
