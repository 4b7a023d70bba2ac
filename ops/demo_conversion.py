"""Writes the demo model's directory from its GGUF file."""

import json
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ops.demo_values import FORMAT, MARKER, Marker, Progress, Stage, sync
from ops.errors import DemoModelFailed
from ops.gguf_llama import Half, LlamaFile, NotConvertible

MULTIPLE = 128
"""Widths that exllamav3's Llama modules accept are multiples of this."""


def convert(gguf: Path, target: Path, progress: Progress, *, source: str, multiple: int = MULTIPLE) -> None:
    """Write the model directory `target`, which must not exist. With `multiple` 1 nothing is padded. Raises DemoModelFailed."""
    try:
        model = LlamaFile(gguf)
        shape = model.shape.padded(multiple)
        weights: dict[str, Half] = {}
        for done, (name, values) in enumerate(model.weights(shape), start=1):
            weights[name] = values
            progress(Stage.CONVERT, done, model.tensors)
        config = model.config(shape)
        texts = {
            "config.json": config,
            "generation_config.json": _generation_config(config),
            "tokenizer.json": model.tokenizer(),
            "tokenizer_config.json": model.tokenizer_config(),
        }
    except NotConvertible as problem:
        raise DemoModelFailed(f"the demo model cannot be converted: {problem}") from problem
    target.mkdir()
    progress(Stage.WRITE, 0, 1)
    for name, content in texts.items():
        (target / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    try:
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as problem:
        raise DemoModelFailed(f"the weights could not be written: {problem}") from problem
    marker = Marker(FORMAT, source, {path.name: path.stat().st_size for path in sorted(target.iterdir())})
    for path in target.iterdir():
        path.chmod(0o644)  # the library makes its files private; a service of another user may serve them
        sync(path)
    (target / MARKER).write_bytes(msgspec.json.format(msgspec.json.encode(marker)))
    sync(target / MARKER)
    sync(target)
    progress(Stage.WRITE, 1, 1)


def _generation_config(config: dict[str, object]) -> dict[str, object]:
    """The sampling that the model's authors recommend; at temperature 1 a model of this size rambles."""
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return ids | {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
