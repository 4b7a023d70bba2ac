"""Tiny checkpoints in exllamav3 on the CPU and, as the reference, in transformers in fp32; how far they are apart."""

import importlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import (
    load_file,
    save_file,
)
from torch import Tensor

from daemon.engine.cpu.coverage import require_operations
from tests.engine.checkpoints import VOCABULARY
from tests.engine.cpu import reference_exl3

FIRST_TEXT_TOKEN = 7
"""Ids below are control tokens and tags."""


def library() -> ModuleType:
    """The real exllamav3, its operations in torch."""
    return importlib.import_module("exllamav3")


class Served:
    """A checkpoint in exllamav3, with a cache."""

    def __init__(self, directory: Path, *, cache_tokens: int = 2048, slots: int = 4, bits: tuple[int, int] | None = None) -> None:
        x = library()
        self.model = x.Model.from_config(x.Config.from_directory(str(directory)))
        require_operations(self.model)
        settings = {} if bits is None else {"layer_type": x.CacheLayer_quant, "k_bits": bits[0], "v_bits": bits[1]}
        self.cache = x.Cache(self.model, max_num_tokens=cache_tokens, max_batch_size=slots, **settings)
        self.model.load(device=torch.device("cpu"))
        self.tokenizer = x.Tokenizer.from_config(self.model.config)

    def logits(self, ids: Tensor) -> Tensor:
        """Logits fp32 (length, vocabulary) of ids (1, length), without a cache."""
        out: Tensor = self.model.forward(ids, {"attn_mode": "flash_attn_nc"})
        return out[0, :, :VOCABULARY].float()

    def generate(self, prompts: Sequence[Tensor], count: int, **settings: object) -> list[list[int]]:
        """`count` tokens for each of prompts (1, length), all in one batch, through the real Generator. Greedy by default."""
        x = library()
        generator = x.Generator(self.model, self.cache, self.tokenizer, max_chunk_size=256, recurrent_cache_size=1 << 26)
        settings = {"sampler": x.GreedySampler()} | settings
        jobs = [x.Job(input_ids=prompt, max_new_tokens=count, **settings) for prompt in prompts]
        for job in jobs:
            generator.enqueue(job)
        tokens: dict[int, list[int]] = {job.serial_number: [] for job in jobs}
        while generator.num_remaining_jobs():
            for result in generator.iterate():
                if "token_ids" in result:
                    tokens[result["serial"]] += result["token_ids"][0].numpy().tolist()
        return [tokens[job.serial_number] for job in jobs]


def prompt(length: int, seed: int = 3) -> Tensor:
    """Random ids (1, length)."""
    return torch.randint(FIRST_TEXT_TOKEN, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def reference_logits(directory: Path, ids: Tensor, dtype: torch.dtype = torch.float) -> Tensor:
    """What transformers says, fp32 (length, vocabulary)."""
    transformers = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    out: Tensor = model(ids).logits
    return out[0].float()


def decode_checkpoint(directory: Path, target: Path) -> Path:
    """An EXL3 checkpoint as an fp32 one, decoded by the reference decoder, for transformers."""
    target.mkdir()
    for file in directory.iterdir():
        if file.suffix == ".json":
            (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    packed = load_file(directory / "model.safetensors")
    plain: dict[str, Tensor] = {}
    for name, tensor in packed.items():
        key, _, part = name.rpartition(".")
        if part == "trellis":
            suh, svh = (packed[f"{key}.{scale}"].double().numpy() for scale in ("suh", "svh"))
            weight = reference_exl3.weight(tensor.numpy(), suh, svh, f"{key}.mcg" in packed, f"{key}.mul1" in packed)
            plain[f"{key}.weight"] = torch.tensor(weight, dtype=torch.float).t().contiguous()
        elif part not in {"suh", "svh", "mcg", "mul1"}:
            plain[name] = tensor.float()
    save_file(plain, target / "model.safetensors", metadata={"format": "pt"})
    return target


@dataclass(frozen=True, slots=True)
class Divergence:
    """KL divergence from the reference over the positions of a text, in nats."""

    mean: float
    median: float
    largest: float


def divergence(reference: Tensor, other: Tensor) -> Divergence:
    """How far `other` is from `reference`, both logits (length, vocabulary)."""
    p, q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    return Divergence(float(kl.mean()), float(kl.median()), float(kl.max()))


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A directory for a command's checkpoints."""
    return tempfile.TemporaryDirectory(prefix="exl3d-checkpoints-")
