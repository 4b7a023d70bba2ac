"""A model that several processes compute: a card's part each (layout tensor), or experts on the CPU.

A pass that failed in one of them leaves the others in the middle of it: waiting for each other, with answers on their pipes that
belong to no question any more. Nothing but a new engine brings them together again, so such a failure is told as what it is, a
lost device, and never contained. Streams go on in the next engine.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from daemon.engine.exl3.faults import DeviceLost, FaultKind, classify, describe
from daemon.engine.exl3.placing import Placing
from daemon.engine.exl3.watched import ForwardModel

_WORKER = "CPU MoE worker"
"""How every failure of the library's expert process begins (model/moe_cpu_host.py)."""

Severs = Callable[[Exception], bool]
"""Whether a failure leaves processes apart."""


class Computing(ForwardModel, Protocol):
    """A model with both of its passes."""

    def prefill(self, input_ids: torch.Tensor, params: dict[str, object]) -> object:
        """A pass over part of a prompt, without logits."""
        ...


def parted_from_worker(problem: Exception) -> bool:
    """The process that computes experts is gone, or does not answer."""
    return isinstance(problem, RuntimeError) and str(problem).startswith(_WORKER)


def parted_from_cards(_problem: Exception) -> bool:
    """Any failure of a pass: no other process knows of it."""
    return True


class ShardedModel:
    """Passes everything on to `model`; a pass that failed as `severs` says leaves as DeviceLost."""

    def __init__(self, model: Computing, severs: Severs) -> None:
        self._model = model
        self._severs = severs
        self.output_device = model.output_device
        """Where logits lie."""

    def __getattr__(self, name: str) -> object:
        """Everything else is the model's own."""
        return getattr(self._model, name)

    def forward(self, input_ids: torch.Tensor, params: dict[str, object]) -> torch.Tensor:
        """The model's logits."""
        try:
            return self._model.forward(input_ids, params)
        except Exception as problem:
            if self._severed(problem):
                raise DeviceLost(_words(problem)) from problem
            raise

    def prefill(self, input_ids: torch.Tensor, params: dict[str, object]) -> object:
        """The model's prefill pass."""
        try:
            return self._model.prefill(input_ids, params)
        except Exception as problem:
            if self._severed(problem):
                raise DeviceLost(_words(problem)) from problem
            raise

    def _severed(self, problem: Exception) -> bool:
        return classify(problem) is not FaultKind.DEVICE and self._severs(problem)


def _words(problem: Exception) -> str:
    return f"the processes that compute the model have lost each other: {describe(problem)}"


def guarded(model: Computing, place: Placing, experts_on_cpu: int) -> ForwardModel:
    """The loaded model as it may be used: as it is where one process computes it."""
    if place.tensor:
        return ShardedModel(model, parted_from_cards)
    return ShardedModel(model, parted_from_worker) if experts_on_cpu else model
