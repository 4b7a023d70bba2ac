"""`python -m tests.engine.cpu.report_kl`: how far exllamav3 on the CPU is from transformers in fp32, by architecture.

The right-hand column is the yardstick: transformers itself in bf16. exllamav3 has fp16, and bf16 in parts of recurrent layers.
With mixtures of experts a few positions choose another expert at a near-tie, which the median leaves out.
"""

import logging
from pathlib import Path

import torch

from daemon.engine.cpu.install import install

install()

from tests.engine.checkpoints import Architecture, Codebook, write_checkpoint, write_exl3_checkpoint  # noqa: E402 - installed first
from tests.engine.cpu.models import Served, decode_checkpoint, divergence, prompt, reference_logits, scratch  # noqa: E402 - as above

LENGTH = 200


def _line(name: str, served: Path, reference: Path) -> str:
    ids = prompt(LENGTH)
    wanted = reference_logits(reference, ids)
    ours, yardstick = (
        divergence(wanted, Served(served).logits(ids)),
        divergence(wanted, reference_logits(reference, ids, torch.bfloat16)),
    )
    return f"| {name} | {ours.mean:.1e} | {ours.median:.1e} | {ours.largest:.1e} | {yardstick.mean:.1e} |"


def report() -> list[str]:
    """The table's lines, in Markdown."""
    lines = ["| checkpoint | KL mean | median | largest | bf16 mean |", "| --- | --- | --- | --- | --- |"]
    with torch.inference_mode(), scratch() as place:
        for architecture in Architecture:
            directory = write_checkpoint(architecture, Path(place) / architecture.name)
            lines.append(_line(architecture.value, directory, directory))
        for rate, codebook in ((4, Codebook.DEFAULT), (3, Codebook.MCG), (4, Codebook.MUL1), (2.5, Codebook.MUL1)):
            directory = write_exl3_checkpoint(
                Architecture.QWEN3_5, Path(place) / f"exl3-{rate}-{codebook.name}", rate=rate, codebook=codebook
            )
            decoded = decode_checkpoint(directory, Path(place) / f"plain-{rate}-{codebook.name}")
            lines.append(_line(f"{Architecture.QWEN3_5.value}, EXL3 {rate} bits, {codebook.name.lower()}", directory, decoded))
    return lines


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    print("\n".join(report()))  # noqa: T201 - a command
