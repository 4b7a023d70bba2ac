"""A model as the generator sees it: everything the model is, with a look at the logits of each decode pass on the way."""

from typing import Protocol

import torch

from daemon.engine.exl3.ticket import Desk


class ForwardModel(Protocol):
    """What is looked at: exllamav3's model, or the null one."""

    output_device: torch.device | None

    def forward(self, input_ids: torch.Tensor, params: dict[str, object]) -> torch.Tensor:
        """Logits of shape (rows, tokens, padded vocabulary)."""
        ...


class WatchedModel:
    """Passes everything on to `model`, and shows each pass's logits to the desk: NaN and infinity are seen there."""

    def __init__(self, model: ForwardModel, desk: Desk) -> None:
        self._model = model
        self._desk = desk

    def __getattr__(self, name: str) -> object:
        """Everything else is the model's own."""
        return getattr(self._model, name)

    def forward(self, input_ids: torch.Tensor, params: dict[str, object]) -> torch.Tensor:
        """The model's logits. Raises what the device was lost to, where that came up earlier in the step: nothing computed after
        it is worth waiting for.
        """
        if self._desk.lost is not None:
            raise self._desk.lost
        logits = self._model.forward(input_ids, params)
        self._desk.begin_rows(logits)
        return logits
