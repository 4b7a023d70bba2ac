"""Written-out configurations of the models exl3d is made for, and the tensors an EXL3 conversion of them would have.

`python -m tests.core.vram_models FOLDER` writes both as directories that `exl3ctl plan` can read: true headers, and holes where
the weights would be.

Dimensions are those of public models of this family; names are "-like" because nothing here is anybody's file.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

from daemon.core.safetensors_header import Tensor
from daemon.core.vram_model import AttentionLayer, DeltaLayer, ModelShape, describe
from daemon.core.vram_weights import Weights, weigh

QWEN3_5_27B: Mapping[str, object] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    "quantization_config": {"quant_method": "exl3", "bits": 4.0, "head_bits": 6},
}

ORNITH_9B: Mapping[str, object] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    "quantization_config": {"quant_method": "exl3", "bits": 4.0, "head_bits": 6},
}

MOE: Mapping[str, object] = {
    **{key: value for key, value in ORNITH_9B.items() if not key.startswith("linear_") and key != "full_attention_interval"},
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6144,
    "max_position_embeddings": 40960,
}
"""Sizes of a mixture of experts that two cards of 12 GiB do not hold."""

_BYTES = {"F16": 2, "BF16": 2, "I16": 2, "F32": 4}


def tensor(name: str, dtype: str, *shape: int) -> Tensor:
    """A tensor as a header would describe it."""
    return Tensor(name, dtype, shape, prod(shape) * _BYTES[dtype])


def exl3(name: str, columns_in: int, columns_out: int, bits: int) -> Iterator[Tensor]:
    """The tensors of one quantised matrix."""
    rows, columns = -(-columns_in // 128) * 8, -(-columns_out // 128) * 8
    yield tensor(f"{name}.trellis", "I16", rows, columns, 16 * bits)
    yield tensor(f"{name}.suh", "F16", rows * 16)
    yield tensor(f"{name}.svh", "F16", columns * 16)


def _layer(model: ModelShape, number: int, bits: int) -> Iterator[Tensor]:
    prefix, layer = f"model.language_model.layers.{number}", model.layers[number]
    hidden = model.hidden
    match layer:
        case AttentionLayer(q_heads, kv_heads, head_dim):
            yield from exl3(f"{prefix}.self_attn.q_proj", hidden, 2 * q_heads * head_dim, bits)
            yield from exl3(f"{prefix}.self_attn.k_proj", hidden, kv_heads * head_dim, bits)
            yield from exl3(f"{prefix}.self_attn.v_proj", hidden, kv_heads * head_dim, bits)
            yield from exl3(f"{prefix}.self_attn.o_proj", q_heads * head_dim, hidden, bits)
        case DeltaLayer(_, v_heads, _, v_dim, conv):
            yield from exl3(f"{prefix}.linear_attn.in_proj_qkv", hidden, layer.channels, bits)
            yield from exl3(f"{prefix}.linear_attn.in_proj_z", hidden, v_heads * v_dim, bits)
            yield from exl3(f"{prefix}.linear_attn.out_proj", v_heads * v_dim, hidden, bits)
            yield tensor(f"{prefix}.linear_attn.in_proj_a.weight", "F16", v_heads, hidden)
            yield tensor(f"{prefix}.linear_attn.in_proj_b.weight", "F16", v_heads, hidden)
            yield tensor(f"{prefix}.linear_attn.conv1d.weight", "F16", layer.channels, 1, conv)
            yield tensor(f"{prefix}.linear_attn.A_log", "F32", v_heads)
            yield tensor(f"{prefix}.linear_attn.dt_bias", "F32", v_heads)
        case _:
            raise AssertionError(layer)
    yield from exl3(f"{prefix}.mlp.gate_proj", hidden, model.intermediate, bits)
    yield from exl3(f"{prefix}.mlp.up_proj", hidden, model.intermediate, bits)
    yield from exl3(f"{prefix}.mlp.down_proj", model.intermediate, hidden, bits)
    yield tensor(f"{prefix}.input_layernorm.weight", "F16", hidden)
    yield tensor(f"{prefix}.post_attention_layernorm.weight", "F16", hidden)


def tensors(config: Mapping[str, object], bits: int = 4, head_bits: int = 6) -> tuple[Tensor, ...]:
    """Every tensor of an EXL3 conversion."""
    model = describe(config)
    found = [tensor("model.language_model.embed_tokens.weight", "F16", model.vocabulary, model.hidden)]
    for number in range(len(model.layers)):
        found.extend(_layer(model, number, bits))
    found.append(tensor("model.language_model.norm.weight", "F16", model.hidden))
    found.extend(exl3("lm_head", model.hidden, model.vocabulary, head_bits))
    return tuple(found)


def expert_tensors(bits: int = 4) -> tuple[Tensor, ...]:
    """Those of `MOE`: layer 0 has an ordinary feed-forward part, the others experts of the codebook that can leave a card."""
    model = describe(MOE)
    found = [tensor("model.embed_tokens.weight", "F16", model.vocabulary, model.hidden)]
    for number, layer in enumerate(model.layers):
        prefix = f"model.layers.{number}"
        assert isinstance(layer, AttentionLayer)
        wide, thin = layer.q_heads * layer.head_dim, layer.kv_heads * layer.head_dim
        for name, size in (("q_proj", wide), ("k_proj", thin), ("v_proj", thin)):
            found.extend(exl3(f"{prefix}.self_attn.{name}", model.hidden, size, bits))
        found.extend(exl3(f"{prefix}.self_attn.o_proj", wide, model.hidden, bits))
        norms = ("input_layernorm", "post_attention_layernorm")
        found.extend(tensor(f"{prefix}.{name}.weight", "F16", model.hidden) for name in norms)
        experts = [f"{prefix}.mlp.experts.{n}" for n in range(16)] if number else [f"{prefix}.mlp"]
        for expert in experts:
            for name, sizes in (("gate_proj", (4096, 6144)), ("up_proj", (4096, 6144)), ("down_proj", (6144, 4096))):
                found.extend(exl3(f"{expert}.{name}", *sizes, bits))
                found.append(tensor(f"{expert}.{name}.mul1", "F32"))
        if number:
            found.append(tensor(f"{prefix}.mlp.gate.weight", "F16", 16, model.hidden))
    found.append(tensor("model.norm.weight", "F16", model.hidden))
    found.extend(exl3("lm_head", model.hidden, model.vocabulary, 6))
    return tuple(found)


def dense_tensors(config: Mapping[str, object]) -> tuple[Tensor, ...]:
    """Those of an ordinary transformer in half precision."""
    model = describe(config)
    found = [tensor("model.embed_tokens.weight", "F16", model.vocabulary, model.hidden)]
    for number, layer in enumerate(model.layers):
        assert isinstance(layer, AttentionLayer)
        wide, thin = layer.q_heads * layer.head_dim, layer.kv_heads * layer.head_dim
        sizes = {
            "self_attn.q_proj": (wide, model.hidden), "self_attn.k_proj": (thin, model.hidden),
            "self_attn.v_proj": (thin, model.hidden), "self_attn.o_proj": (model.hidden, wide),
            "mlp.gate_proj": (model.intermediate, model.hidden), "mlp.up_proj": (model.intermediate, model.hidden),
            "mlp.down_proj": (model.hidden, model.intermediate),
            "input_layernorm": (model.hidden,), "post_attention_layernorm": (model.hidden,),
        }  # fmt: skip
        found.extend(tensor(f"model.layers.{number}.{name}.weight", "F16", *size) for name, size in sizes.items())
    found.append(tensor("model.norm.weight", "F16", model.hidden))
    found.append(tensor("lm_head.weight", "F16", model.vocabulary, model.hidden))
    return tuple(found)


def weights(config: Mapping[str, object], bits: int = 4) -> Weights:
    """Those tensors, weighed."""
    model = describe(config)
    return weigh(tensors(config, bits), len(model.layers), tied=model.tied)


def write_adapter(directory: Path, files: tuple[Tensor, ...]) -> Path:
    """The directory of a LoRA adapter, as `write_model` writes models."""
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 16, "lora_alpha": 16}))
    _write_tensors(directory / "adapter_model.safetensors", files)
    return directory


def write_model(directory: Path, config: Mapping[str, object], files: tuple[Tensor, ...] | None = None) -> Path:
    """A model directory whose weight file has a true header and a hole where the weights would be."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    _write_tensors(directory / "model.safetensors", files if files is not None else tensors(config))
    return directory


def _write_tensors(path: Path, files: tuple[Tensor, ...]) -> None:
    at, entries = 0, dict[str, object]()
    for item in files:
        entries[item.name] = {"dtype": item.dtype, "shape": item.shape, "data_offsets": [at, at + item.size]}
        at += item.size
    head = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + at)


if __name__ == "__main__":
    for name, described in (("Qwen3.5-27B-like", QWEN3_5_27B), ("Ornith-9B-like", ORNITH_9B)):
        write_model(Path(sys.argv[1]) / name, described)
