"""Tiny random checkpoints, complete enough to be served: config, weights, tokenizer, chat template, generation defaults.

`write_checkpoint(Architecture.QWEN3_5, directory)` takes well under two seconds and writes the same files for the same seed. Both
transformers and exllamav3 load them. Sizes are multiples of 128, as exllamav3 1.6.5 needs.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import (
    load_file,
    save_file,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512
"""Tokens, control tokens included; every id decodes to something."""
CONTEXT = 8192
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1, 2: padding and end of text, start of a message, end of a message."""
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Ids 3 to 6: found in text as one token each, but not special."""
END_OF_TEXT, MESSAGE_START, MESSAGE_END = 0, 1, 2

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CORPUS = (
    "The daemon keeps serving when the graphics stack under it does not, and several people share one model.",
    "Every request ends in exactly one explained event, and a stream survives the death of the engine that made it.",
    "What is the capital of France? The capital of France is Paris, a city on the river Seine in the north of the country.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle, and explain how the tides work.",
    "def add(first, second): return first + second  # numbers 0 1 2 3 4 5 6 7 8 9 10 100 1000 2026",
    '{"name": "get_weather", "arguments": {"city": "Berlin", "unit": "celsius"}}',
    "How many people fit on one card at eighty thousand tokens of context? That depends on the cache and the weights.",
    "Thinking about the question first, then answering it, and stopping when the answer is complete.",
)


class Architecture(Enum):
    """The models exl3d is made for, by the name of their class in config.json."""

    LLAMA = "LlamaForCausalLM"
    QWEN2 = "Qwen2ForCausalLM"
    QWEN3 = "Qwen3ForCausalLM"
    QWEN3_MOE = "Qwen3MoeForCausalLM"
    QWEN3_5 = "Qwen3_5ForCausalLM"
    QWEN3_5_MOE = "Qwen3_5MoeForCausalLM"

    @property
    def recurrent(self) -> bool:
        """Whether some layers keep a recurrent state instead of keys and values."""
        return self in {Architecture.QWEN3_5, Architecture.QWEN3_5_MOE}

    @property
    def experts(self) -> bool:
        """Whether the feed-forward layers are mixtures of experts."""
        return self in {Architecture.QWEN3_MOE, Architecture.QWEN3_5_MOE}


_MODEL_TYPES: Mapping[Architecture, str] = {
    Architecture.LLAMA: "llama",
    Architecture.QWEN2: "qwen2",
    Architecture.QWEN3: "qwen3",
    Architecture.QWEN3_MOE: "qwen3_moe",
    Architecture.QWEN3_5: "qwen3_5_text",
    Architecture.QWEN3_5_MOE: "qwen3_5_moe_text",
}


def tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of `VOCABULARY` tokens, trained on a page of text: the same each time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*CONTROL_TOKENS, *TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 2, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"the corpus yields {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    return tokenizer


def _sizes(architecture: Architecture) -> dict[str, object]:
    """config.json's model part."""
    sizes: dict[str, object] = {
        "model_type": _MODEL_TYPES[architecture],
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4 if architecture.recurrent else 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "initializer_range": 0.08,
        "rms_norm_eps": 1e-6,
        "bos_token_id": None,
        "eos_token_id": MESSAGE_END,
        "pad_token_id": END_OF_TEXT,
    }
    if architecture is not Architecture.QWEN2:
        sizes["head_dim"] = 64
    if architecture.recurrent:
        sizes |= {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_conv_kernel_dim": 4,
        }
    if architecture.experts:
        sizes |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
        sizes |= {"shared_expert_intermediate_size": 128} if architecture.recurrent else {"norm_topk_prob": True}
    return sizes


class _Parametric(Protocol):
    """What is used of a model of transformers."""

    def named_parameters(self) -> Iterable[tuple[str, torch.Tensor]]: ...


def _stir(model: _Parametric) -> None:
    """Make random weights as telling as trained ones."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "bias", "dt_bias")):
                # transformers starts these at 0 or 1, which would hide a mistake in how they are used
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif name.endswith(("lm_head.weight", "mlp.gate.weight")):
                # choices of tokens and of experts as clear as a trained model makes them, not a row of near-ties
                parameter.mul_(4)


def _write_weights(architecture: Architecture, directory: Path, seed: int, dtype: torch.dtype) -> None:
    """Random weights through transformers, under the names both libraries look for."""
    import transformers  # noqa: PLC0415 - takes seconds; tests that only need a tokenizer go without

    config = getattr(transformers.AutoConfig, "for_model")(**_sizes(architecture))  # noqa: B009 - its declared type knows no settings
    with torch.random.fork_rng():  # pyright: ignore[reportUnknownMemberType] - untyped in torch
        torch.default_generator.manual_seed(seed)
        model = getattr(transformers, architecture.value)(config).eval()
        _stir(model)
    model.to(dtype).save_pretrained(directory)
    if architecture.recurrent:
        # exllamav3 knows these models with their weights where the multimodal ones have them, and transformers accepts that
        path = directory / "model.safetensors"
        weights = load_file(path)
        renamed = {
            name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: w
            for name, w in weights.items()
        }
        save_file(renamed, path, metadata={"format": "pt"})


def write_checkpoint(architecture: Architecture, directory: Path, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a checkpoint of `architecture` into `directory` (made, or replaced) and return it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    _write_weights(architecture, directory, seed, dtype)
    write_tokenizer(directory)
    path = directory / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    # transformers writes some sizes under new names only
    path.write_text(json.dumps(_sizes(architecture) | written, indent=1), encoding="utf-8")
    generation = {
        "eos_token_id": [MESSAGE_END, END_OF_TEXT],
        "pad_token_id": END_OF_TEXT,
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 20,
    }
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1), encoding="utf-8")
    return directory


def write_mtp_checkpoint(directory: Path, *, seed: int = 0) -> Path:
    """The tiny hybrid as the multimodal uploads are, with a head for multi-token prediction and without a vision tower's weights.

    The head's block is a copy of the model's last one, so that it drafts something the model might say.
    """
    write_checkpoint(Architecture.QWEN3_5, directory, seed=seed)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    sizes = {"patch_size": 16, "temporal_patch_size": 2}
    vision: dict[str, object] = {
        "model_type": "qwen3_5",
        "deepstack_visual_indexes": [],
        "depth": 1,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 2,
        "num_position_embeddings": 16,
        "out_hidden_size": 128,
        "spatial_merge_size": 2,
        **sizes,
    }
    whole: dict[str, object] = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": config | {"mtp_num_hidden_layers": 1},
        "vision_config": vision,
        "vocab_size": VOCABULARY,
        "eos_token_id": MESSAGE_END,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
    images = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"shortest_edge": 1024, "longest_edge": 65536},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "merge_size": 2,
        **sizes,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(images, indent=1), encoding="utf-8")
    _add_mtp_head(directory)
    return directory


def _add_mtp_head(directory: Path) -> None:
    """Give a tiny hybrid the weights of a head for multi-token prediction."""
    path = directory / "model.safetensors"
    weights = load_file(path)
    last = "model.language_model.layers.3."
    head = {"mtp.layers.0." + name.removeprefix(last): w.clone() for name, w in weights.items() if name.startswith(last)}
    width = weights["model.language_model.norm.weight"].shape[0]
    for name in ("mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding"):
        head[f"{name}.weight"] = torch.zeros(width, dtype=torch.bfloat16)
    head["mtp.fc.weight"] = torch.cat([torch.eye(width), torch.eye(width)], dim=1).to(torch.bfloat16) / 2
    save_file(weights | head, path, metadata={"format": "pt"})


PICTURE_START, PICTURE_PAD, PICTURE_END = 511, 510, 509
"""Ids of `write_vision_checkpoint` that stand before, in and behind a picture: rare pieces of text, taken for the purpose."""
PICTURE_SIDE = 32
"""Pixels of the square that becomes one token there."""


def write_vision_checkpoint(directory: Path, *, seed: int = 0, mtp: bool = False) -> Path:
    """A tiny Qwen3.5 with a vision tower, both with random weights, as the multimodal uploads are: a picture takes 4 to 64
    tokens, and places are counted in three dimensions (`mrope`). `mtp`: with a head for multi-token prediction.
    """
    import transformers  # noqa: PLC0415 - as above

    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    sizes = {"patch_size": 16, "temporal_patch_size": 2}
    vision: dict[str, object] = {
        "model_type": "qwen3_5",
        "deepstack_visual_indexes": [],
        "depth": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 2,
        "num_position_embeddings": 16,
        "out_hidden_size": 128,
        "spatial_merge_size": 2,
        "initializer_range": 0.08,
        **sizes,
    }
    text = _sizes(Architecture.QWEN3_5) | {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
        }
    }
    whole: dict[str, object] = {
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": vision,
        "vision_start_token_id": PICTURE_START,
        "image_token_id": PICTURE_PAD,
        "vision_end_token_id": PICTURE_END,
        "tie_word_embeddings": False,
    }
    config = getattr(transformers.AutoConfig, "for_model")(**whole)  # noqa: B009 - its declared type knows no settings
    with torch.random.fork_rng():  # pyright: ignore[reportUnknownMemberType] - untyped in torch
        torch.default_generator.manual_seed(seed)
        model = getattr(transformers, "Qwen3_5ForConditionalGeneration")(config).eval()  # noqa: B009 - as above
        _stir(model)
    model.to(torch.bfloat16).save_pretrained(directory)
    write_tokenizer(directory)
    path = directory / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    written["text_config"] = text | written["text_config"] | {"mtp_num_hidden_layers": int(mtp)}
    written["vision_config"] = vision | written["vision_config"]
    path.write_text(json.dumps({**whole, **written, "vocab_size": VOCABULARY, "eos_token_id": MESSAGE_END}, indent=1), "utf-8")
    images = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"shortest_edge": 4 * PICTURE_SIDE**2, "longest_edge": 64 * PICTURE_SIDE**2},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "merge_size": 2,
        **sizes,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(images, indent=1), encoding="utf-8")
    if mtp:
        _add_mtp_head(directory)
    return directory


class Codebook(Enum):
    """EXL3's three codebooks; the value is the multiplier a checkpoint carries as its marker, None for the default one."""

    DEFAULT = None
    MCG = 0xCBAC1FED
    MUL1 = 0x83DCD12D


def _exl3_tensors(shape: tuple[int, int], rate: float, codebook: Codebook, random: torch.Generator) -> dict[str, torch.Tensor]:
    """A random weight of `shape` (n, k) in EXL3: any bits are a valid trellis, and decode to values of about unit variance."""
    n, k = shape
    packed = torch.randint(-(1 << 15), 1 << 15, (k // 16, n // 16, int(16 * rate)), dtype=torch.int16, generator=random)

    def signs(count: int) -> torch.Tensor:
        return torch.randint(0, 2, (count,), generator=random) * 2.0 - 1.0

    tensors = {"trellis": packed, "suh": signs(k).half(), "svh": (signs(n) * 0.07).half()}
    if codebook.value is not None:
        tensors[codebook.name.lower()] = torch.tensor(codebook.value - (1 << 32), dtype=torch.int32)
    return tensors


def write_exl3_checkpoint(
    architecture: Architecture, directory: Path, *, rate: float = 4, codebook: Codebook = Codebook.MUL1, seed: int = 0
) -> Path:
    """Like `write_checkpoint`, with large linear layers in EXL3 at `rate` bits a weight: 1 to 8, or 1.5, 2.5, 3.5 with MUL1.

    transformers cannot load it; tests decode it themselves.
    """
    write_checkpoint(architecture, directory, seed=seed)
    path = directory / "model.safetensors"
    random = torch.Generator()
    random.manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in load_file(path).items():
        linear = name.endswith(".weight") and weight.dim() == 2 and not any(size % 128 for size in weight.shape)
        if linear and not name.endswith(("embed_tokens.weight", "lm_head.weight")):
            rows, columns = weight.shape
            parts = _exl3_tensors((rows, columns), rate, codebook, random)
            tensors |= {f"{name.removesuffix('weight')}{part}": value for part, value in parts.items()}
        else:
            tensors[name] = weight
    save_file(tensors, path, metadata={"format": "pt"})
    config_path = directory / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "exl3", "bits": rate, "head_bits": 16, "version": "1.6.5"}
    config_path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    return directory


def write_tokenizer(directory: Path) -> None:
    """tokenizer.json, tokenizer_config.json and the chat template."""
    data = json.loads(tiny_tokenizer().to_str())
    for token in data["added_tokens"]:
        token["special"] = token["content"] in CONTROL_TOKENS
    (directory / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": CONTROL_TOKENS[MESSAGE_END],
        "pad_token": CONTROL_TOKENS[END_OF_TEXT],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
