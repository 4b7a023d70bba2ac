"""transformers' own `generate` in a process: what the CPU path is measured against (`make bench NAME=cpu`).

Takes a `core.bare_run.BareRun` a line and answers each with a `BareResult`, as `python -m daemon.engine.bare` does. Greedy, in
fp32 like the CPU path, all prompts of a run as one batch; stop tokens end nothing, so that every prompt gets all its tokens.
The zeros with which the demo model is padded for exllamav3 are taken off: transformers refuses such widths, and would lose time
with them. Lies with the tests because transformers is installed for them only.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, cast

import msgspec
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from daemon.core.bare_run import BareReady, BareResult, BareRun


class _Generates(Protocol):
    """What is used of a model of transformers."""

    generate: Callable[..., Tensor]

    def eval(self) -> "_Generates": ...

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]: ...


def _load(directory: Path) -> _Generates:
    """A Llama of the directory's weights without their padding, as `ops/gguf_llama.py` describes it."""
    import transformers  # noqa: PLC0415  # takes seconds

    sizes: dict[str, float] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    weights = load_file(directory / "model.safetensors")
    heads = _used(weights["model.layers.0.self_attn.o_proj.weight"]) // int(sizes["head_dim"])
    hidden = _used(weights["model.embed_tokens.weight"])
    share = hidden / sizes["hidden_size"]
    groups = sizes["num_attention_heads"] / sizes["num_key_value_heads"]
    real = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": int(heads / groups)}
    real |= {"intermediate_size": _used(weights["model.layers.0.mlp.down_proj.weight"])}
    config = cast("Callable[..., object]", transformers.LlamaConfig)(
        **{**sizes, **real, "rms_norm_eps": sizes["rms_norm_eps"] / share}
    )
    model = cast("Callable[[object], _Generates]", transformers.LlamaForCausalLM)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            found = weights[name][tuple(slice(size) for size in parameter.shape)].float()
            parameter.copy_(found / math.sqrt(share) if name.endswith("norm.weight") else found)
    return model


def _used(weight: Tensor) -> int:
    """Inputs up to the last that is not zero everywhere."""
    return int((weight != 0).any(0).nonzero()[-1]) + 1


def _run(model: _Generates, tokenizer: Tokenizer, wanted: BareRun) -> BareResult:
    encoded = [tokenizer.encode(text).ids for text in wanted.prompts]
    longest = max(map(len, encoded))
    ids = torch.tensor([[0] * (longest - len(each)) + each for each in encoded])
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in encoded])
    began = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=wanted.tokens,
            min_new_tokens=wanted.tokens,
            pad_token_id=0,
            # sampling that the model's authors recommend means nothing to greedy decoding, and is warned about
            temperature=None,
            top_p=None,
        )
    return BareResult((out.shape[1] - longest) * len(encoded), time.perf_counter() - began)


def _say(answer: BareReady | BareResult) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; ends with standard input."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.plain_transformers", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    directory: Path = given.model
    model, tokenizer = _load(directory), Tokenizer.from_file(str(directory / "tokenizer.json"))
    _say(BareReady("transformers"))
    for line in sys.stdin:
        _say(_run(model, tokenizer, msgspec.json.decode(line, type=BareRun)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
