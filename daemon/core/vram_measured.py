"""A load that has happened, set against what the plan predicts for it: what `memory.json` learns from."""

from collections.abc import Mapping, Sequence

from daemon.core.vram import split_as, tensor_plans
from daemon.core.vram_learned import Held, Load, Machine
from daemon.core.vram_model import ModelShape
from daemon.core.vram_values import Card, Demand, Layout
from daemon.core.vram_weights import Weights
from daemon.core.wire import DeviceMemory


def layout_of(memory: Sequence[DeviceMemory], *, replica: bool) -> Layout:
    """How an engine's cards are used together, by where its layers lie. A `replica` is one engine of several."""
    if replica:
        return Layout.REPLICAS
    return Layout.TENSOR if len(memory) > 1 and not any(device.layers for device in memory) else Layout.SPLIT


def compare(
    t: float,
    model: str,
    shape: ModelShape,
    weights: Weights,
    demand: Demand,
    memory: Sequence[DeviceMemory],
    others: Mapping[str, int],
    *,
    replica: bool = False,
) -> Load:
    """Predicted and measured bytes of each card. `t` is wall-clock time; `others`: what other programs held before, by uuid.

    The plan is made for the layers that really lie on each card, so that a boundary one layer further does not look like an
    overhead.
    """
    cards = tuple(Card(device.name, device.total, 0, reserve=0) for device in memory)
    if layout_of(memory, replica=replica) is Layout.TENSOR:
        plans = tensor_plans(shape, weights, cards, demand)
    else:
        plans = split_as(shape, weights, cards, demand, tuple(device.layers for device in memory)).cards
    return Load(
        t,
        model,
        tuple(
            Held(plan.computed, _measured(device, others.get(device.uuid)), device.total, others.get(device.uuid))
            for plan, device in zip(plans, memory, strict=True)
        ),
    )


def machine_of(memory: Sequence[DeviceMemory], driver: str, *, replica: bool = False) -> Machine:
    """What the overheads of a load belong to."""
    return Machine(tuple(device.name for device in memory), driver, layout_of(memory, replica=replica))


def _measured(device: DeviceMemory, others: int | None) -> int:
    """The most the engine held: what is used beyond torch's pool now, and the pool when it was largest."""
    beside = device.total - device.free - device.reserved - (others or 0)
    return max(0, beside) + device.peak
