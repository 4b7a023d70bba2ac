"""What LoRA adapters take on the GPUs, from the headers of their files. Pure, like `vram_directory`.

The engine holds both matrices of each layer in half precision beside the layer (engine/exl3/lora.py), whatever they were stored
in. Layers whose sizes are no multiple of 128 are padded and take a little more; those of today's models are.
"""

import re
from collections.abc import Iterable, Sequence
from math import prod

from daemon.core.errors import ConfigError
from daemon.core.safetensors_header import PREFIX, Tensor, header_length, parse_header
from daemon.core.vram_directory import Folder
from daemon.core.vram_values import Adapters

WEIGHTS = "adapter_model.safetensors"
_HALF = 2
_LAYER = re.compile(r"(?:^|\.)layers\.(?P<index>\d+)\.")
_HEAD = re.compile(r"(?:^|\.)lm_head\.")


def read_adapter(folder: Folder) -> tuple[Tensor, ...]:
    """The tensors of an adapter's directory. Raises ConfigError where there is none."""
    where = f"{folder.where}/{WEIGHTS}"
    if WEIGHTS not in folder.names():
        raise ConfigError(f"{WEIGHTS} is missing: this is not the directory of a LoRA adapter", folder.where)
    try:
        length = header_length(folder.read(WEIGHTS, 0, PREFIX), where)
        return parse_header(folder.read(WEIGHTS, PREFIX, length), where).tensors
    except OSError as problem:
        raise ConfigError(f"this cannot be read: {problem.strerror or problem}", where) from problem


def weigh_adapters(adapters: Sequence[tuple[str, Iterable[Tensor]]], layers: int) -> Adapters | None:
    """All adapters together, each with its name for people, on a model of so many layers; None without any.

    Raises ConfigError where one is for a layer that the model does not have.
    """
    held, head = [0] * layers, 0
    for name, tensors in adapters:
        for tensor in tensors:
            size = _HALF * prod(tensor.shape)
            layer = _LAYER.search(tensor.name)
            if layer is None:
                head += size if _HEAD.search(tensor.name) else 0
                continue
            index = int(layer["index"])
            if index >= layers:
                raise ConfigError(f"the adapter is for layer {index}, and the model has {layers} layers", name)
            held[index] += size
    return Adapters(tuple(held), head) if adapters else None
