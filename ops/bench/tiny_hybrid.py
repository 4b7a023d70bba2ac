"""A small random Qwen3.5 hybrid to measure with: one recurrent layer, one of attention, 128,000 tokens of context.

Its text is nonsense; what a benchmark learns from it is what scheduler, page table, prefix cache and checkpoints do, through
the real library and its real model code. Written without torch, in a second.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import (
    save_file,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

Weights = NDArray[np.float16]

_VOCABULARY = 512
_WIDTH = 128
_FEED = 128
_HEAD = 64
_HEADS, _KV_HEADS = 2, 1
_KEY_HEADS, _VALUE_HEADS = 1, 2
_KERNEL = 4
_CONTEXT = 131072
_SPACE, _NEWLINE = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}", "\N{LATIN CAPITAL LETTER C WITH DOT ABOVE}"
"""As byte-level tokenizers write them."""
_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(directory: Path, words: str, *, ascii_only: bool = False) -> Path:
    """Write the model into a new directory; its tokenizer is trained on `words`. `ascii_only`: each token is a text of its own,
    none is a part of a character.
    """
    directory.mkdir(parents=True)
    save_file(dict(_tensors()), directory / "model.safetensors", metadata={"format": "pt"})
    _write_json(directory / "config.json", _config())
    _write_json(directory / "generation_config.json", {"eos_token_id": [2, 0], "pad_token_id": 0})
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": _CONTROL[2],
        "pad_token": _CONTROL[0],
        "add_bos_token": False,
        "chat_template": _TEMPLATE,
    }
    _write_json(directory / "tokenizer_config.json", settings)
    (directory / "tokenizer.json").write_text(_tokenizer(words, ascii_only=ascii_only).to_str(), encoding="utf-8")
    return directory


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _tokenizer(words: str, *, ascii_only: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = [*map(chr, range(33, 127)), _SPACE, _NEWLINE] if ascii_only else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(_CONTROL),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([words], trainer)
    return tokenizer


def _config() -> dict[str, object]:
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "float16",
        "vocab_size": _VOCABULARY,
        "hidden_size": _WIDTH,
        "intermediate_size": _FEED,
        "hidden_act": "silu",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "full_attention_interval": 2,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD,
        "linear_num_key_heads": _KEY_HEADS,
        "linear_num_value_heads": _VALUE_HEADS,
        "linear_key_head_dim": _HEAD,
        "linear_value_head_dim": _HEAD,
        "linear_conv_kernel_dim": _KERNEL,
        "max_position_embeddings": _CONTEXT,
        "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000000.0, "rope_type": "default"},
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def _tensors() -> dict[str, Weights]:
    random = np.random.default_rng(0)

    def made(*shape: int, around: float = 0.0, spread: float = 0.08) -> Weights:
        return (around + spread * random.standard_normal(shape)).astype(np.float16)

    keys, values = _KEY_HEADS * _HEAD, _VALUE_HEADS * _HEAD
    mixed = 2 * keys + values
    base = "model.language_model."
    recurrent, attention = f"{base}layers.0.linear_attn.", f"{base}layers.1.self_attn."
    tensors = {
        "lm_head.weight": made(_VOCABULARY, _WIDTH, spread=0.3),
        f"{base}embed_tokens.weight": made(_VOCABULARY, _WIDTH),
        f"{base}norm.weight": made(_WIDTH),
        f"{recurrent}A_log": made(_VALUE_HEADS, around=1.5),
        f"{recurrent}dt_bias": made(_VALUE_HEADS, around=1.0),
        f"{recurrent}conv1d.weight": made(mixed, 1, _KERNEL, spread=0.3),
        f"{recurrent}in_proj_a.weight": made(_VALUE_HEADS, _WIDTH),
        f"{recurrent}in_proj_b.weight": made(_VALUE_HEADS, _WIDTH),
        f"{recurrent}in_proj_qkv.weight": made(mixed, _WIDTH),
        f"{recurrent}in_proj_z.weight": made(values, _WIDTH),
        f"{recurrent}norm.weight": made(_HEAD, around=1.0),
        f"{recurrent}out_proj.weight": made(_WIDTH, values),
        f"{attention}q_proj.weight": made(2 * _HEADS * _HEAD, _WIDTH),
        f"{attention}k_proj.weight": made(_KV_HEADS * _HEAD, _WIDTH),
        f"{attention}v_proj.weight": made(_KV_HEADS * _HEAD, _WIDTH),
        f"{attention}o_proj.weight": made(_WIDTH, _HEADS * _HEAD),
        f"{attention}q_norm.weight": made(_HEAD),
        f"{attention}k_norm.weight": made(_HEAD),
    }
    for layer in range(2):
        name = f"{base}layers.{layer}."
        tensors |= {
            f"{name}input_layernorm.weight": made(_WIDTH),
            f"{name}post_attention_layernorm.weight": made(_WIDTH),
            f"{name}mlp.gate_proj.weight": made(_FEED, _WIDTH),
            f"{name}mlp.up_proj.weight": made(_FEED, _WIDTH),
            f"{name}mlp.down_proj.weight": made(_WIDTH, _FEED),
        }
    return tensors
