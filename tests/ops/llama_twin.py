"""An independent implementation of Llama for converted directories: that of transformers."""

import json
from pathlib import Path

import torch
from safetensors.numpy import load_file
from transformers import LlamaConfig, LlamaForCausalLM


def llama(folder: Path) -> LlamaForCausalLM:
    """The model that transformers makes of a converted directory. Its config insists on hidden = heads x head width, which a
    padded model need not have, so the head counts are set after the check.
    """
    settings = json.loads((folder / "config.json").read_text())
    heads, kv_heads = settings.pop("num_attention_heads"), settings.pop("num_key_value_heads")
    config = LlamaConfig(**settings, num_attention_heads=1, num_key_value_heads=1)
    config.num_attention_heads, config.num_key_value_heads = heads, kv_heads
    model = LlamaForCausalLM(config).eval()
    weights = {name: torch.tensor(values).float() for name, values in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    return model
