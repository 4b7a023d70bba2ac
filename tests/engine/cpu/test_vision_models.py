"""A model with a vision tower: the real exllamav3 on the CPU operations against transformers in fp32."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import pytest
import torch
from PIL import Image
from torch import Tensor

from daemon.engine.cpu.coverage import require_operations
from daemon.engine.cpu.places import gen_mrope_pos_ids
from tests.engine.checkpoints import PICTURE_END, PICTURE_PAD, PICTURE_START, VOCABULARY
from tests.engine.cpu.models import divergence, library, prompt
from tests.pictures import drawn

SIZES = [(128, 128), (260, 150), (64, 400)]


class _Embedded(Protocol):
    """What exllamav3 gives for a picture."""

    first_index: int
    mm_length: int
    embeddings: Tensor


@dataclass(frozen=True, slots=True)
class Reference:
    """transformers' model and the processor that comes with it."""

    model: Callable[..., object]
    visual: Callable[..., object]
    process: Callable[..., dict[str, Tensor]]

    @classmethod
    def load(cls, directory: Path, dtype: torch.dtype = torch.float) -> "Reference":
        transformers = importlib.import_module("transformers")
        pil = importlib.import_module("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
        model = transformers.Qwen3_5ForConditionalGeneration.from_pretrained(directory, dtype=dtype).eval()
        return cls(model, model.model.visual, pil.Qwen2VLImageProcessorPil.from_pretrained(directory))

    def rows(self, picture: Image.Image) -> Tensor:
        """What the tower makes of a picture, (tokens, width)."""
        seen = self.process(images=[picture], return_tensors="pt")
        with torch.inference_mode():
            out = self.visual(seen["pixel_values"], grid_thw=seen["image_grid_thw"])
        return cast("Tensor", getattr(out, "pooler_output", out))

    def logits(self, ids: Tensor, pictures: list[Image.Image]) -> Tensor:
        """Logits fp32 of ids (1, length) in which PICTURE_PAD stands for the pictures' tokens."""
        seen = self.process(images=pictures, return_tensors="pt")
        kinds = (ids == PICTURE_PAD).int()
        with torch.inference_mode():
            out = self.model(
                input_ids=ids,
                pixel_values=seen["pixel_values"],
                image_grid_thw=seen["image_grid_thw"],
                mm_token_type_ids=kinds,
            )
        return cast("Tensor", getattr(out, "logits"))[0].float()  # noqa: B009 - untyped


class Seeing:
    """The checkpoint in exllamav3."""

    def __init__(self, directory: Path) -> None:
        x = library()
        self._config = x.Config.from_directory(str(directory))
        self._model = x.Model.from_config(self._config)
        self._tower = x.Model.from_config(self._config, component="vision")
        for part in (self._model, self._tower):
            require_operations(part)
            part.load(device=torch.device("cpu"))
        self._tokenizer = x.Tokenizer.from_config(self._config)

    def look(self, picture: Image.Image) -> _Embedded:
        """What the tower makes of a picture."""
        with torch.inference_mode():
            return self._tower.get_image_embeddings(self._tokenizer, picture)

    def logits(self, ids: Tensor, pictures: list[Image.Image]) -> Tensor:
        """As Reference.logits."""
        seen = [self.look(picture) for picture in pictures]
        named = ids.clone()
        places = (ids[0] == PICTURE_PAD).nonzero().flatten()
        for each in seen:
            named[0, places[: each.mm_length]] = each.first_index + torch.arange(each.mm_length)
            places = places[each.mm_length :]
        angles, _ = self._model.g_rope.get_mrope_freqs(named, seen, named.shape[-1])
        params = {"attn_mode": "flash_attn_nc", "indexed_embeddings": seen, "inv_freq": angles}
        with torch.inference_mode():
            out: Tensor = self._model.forward(named, params)
        return out[0, :, :VOCABULARY].float()


@pytest.fixture(scope="module")
def model(seeing_checkpoint: Callable[[], Path]) -> Path:
    """The checkpoint."""
    return seeing_checkpoint()


def between(*pieces: Tensor | int) -> Tensor:
    """Text and pictures of so many tokens, as ids (1, length)."""
    parts: list[Tensor] = []
    for piece in pieces:
        if isinstance(piece, Tensor):
            parts.append(piece)
        else:
            parts.append(torch.tensor([[PICTURE_START, *[PICTURE_PAD] * piece, PICTURE_END]]))
    return torch.cat(parts, -1)


def test_tower_sees_what_transformers_sees(model: Path) -> None:
    """Pictures that are kept, shrunk, and longer than wide. exllamav3 computes in half, and GELU by its usual approximation."""
    reference, seeing = Reference.load(model), Seeing(model)
    for number, size in enumerate(SIZES):
        picture = drawn(*size, seed=number)
        wanted, found = reference.rows(picture), seeing.look(picture).embeddings.float()
        assert found.shape == wanted.shape
        error = float((found - wanted).square().sum().sqrt() / wanted.square().sum().sqrt())
        assert error < 2e-3, (size, error)


def test_logits_around_two_pictures_are_nearer_to_fp32_than_transformers_in_bf16(model: Path) -> None:
    """Places in three dimensions and rows of pictures among those of text; exllamav3 keeps parts of the recurrence in bf16."""
    reference, seeing = Reference.load(model), Seeing(model)
    pictures = [drawn(260, 150), drawn(64, 300, seed=1)]
    counts = [seeing.look(picture).mm_length for picture in pictures]
    ids = between(prompt(40), counts[0], prompt(25, seed=4), counts[1], prompt(60, seed=5))
    wanted = reference.logits(ids, pictures)
    found = divergence(wanted, seeing.logits(ids, pictures))
    yardstick = divergence(wanted, Reference.load(model, torch.bfloat16).logits(ids, pictures))
    swapped = divergence(wanted, reference.logits(ids, [drawn(260, 150, seed=7), pictures[1]]))
    assert found.median < 2e-3
    assert found.mean < yardstick.mean
    assert swapped.mean > 10 * found.mean, "the picture must matter for this to show anything"


def test_places_of_text_and_pictures_are_those_of_transformers(model: Path) -> None:
    reference = Reference.load(model)
    ids = between(prompt(7), 12, prompt(3), 6, prompt(5))
    grids = [(1, 6, 8), (1, 4, 6)]
    kinds = (ids == PICTURE_PAD).int()
    index = cast("Callable[..., tuple[Tensor, Tensor]]", getattr(getattr(reference.model, "model"), "get_rope_index"))  # noqa: B009 - untyped
    wanted, _ = index(ids, kinds, image_grid_thw=torch.tensor(grids))
    first = 1 << 30
    named, pads = ids[0].clone(), (ids[0] == PICTURE_PAD).nonzero().flatten()
    named[pads] = first + torch.arange(18)
    found = torch.zeros((3, named.shape[0]), dtype=torch.long)
    after = gen_mrope_pos_ids(found, named, 2, [(first, first + 12), (first + 12, first + 18)], grids)
    assert torch.equal(found, wanted[-3:, 0])
    assert after == int(found.max()) + 1


def test_pictures_without_text_between_them_begin_at_the_same_place() -> None:
    """As exllamav3's own operation has it; ids of nobody are text."""
    places = torch.zeros((3, 6), dtype=torch.long)
    ids = torch.tensor([5, 100, 101, 200, 201, 7])
    after = gen_mrope_pos_ids(places, ids, 1, [(100, 102), (200, 202)], [(1, 2, 1), (1, 1, 2)])
    assert torch.equal(places, torch.tensor([[0, 1, 1, 1, 1, 3], [0, 1, 2, 1, 1, 3], [0, 1, 1, 1, 2, 3]]))
    assert after == 4
