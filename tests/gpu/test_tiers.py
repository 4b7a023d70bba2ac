"""The tiers behind the GPU's prefix cache, on a real GPU: the pool's losses come back from memory, an engine's from disk.

exllamav3 copies these tiers' pages with CUDA, so there is nothing to try on a CPU but that they are refused there
(`engine/test_loading.py`).
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.wire import Configure, Sampler, Started, Submit, TokenSpan
from tests.engine.checkpoints import Architecture, write_checkpoint
from tests.engine.child import EngineChild

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU and its driver"),
]
POOL = 8192
PROMPT = 4000
VOCABULARY = 400
"""Plain tokens of the tiny tokenizer to choose from."""


@pytest.fixture(params=[Architecture.QWEN3, Architecture.QWEN3_5], ids=["dense", "hybrid"])
def configure(request: pytest.FixtureRequest, tmp_path: Path) -> Configure:
    architecture: Architecture = request.param
    model = write_checkpoint(architecture, tmp_path / "model")
    settings = EngineSettings(
        backend=BackendKind.CUDA, cache_tokens=POOL, checkpoint_tokens=1024, ram_cache_mib=1024, disk_cache_gib=1.0
    )
    return Configure(model=str(model), context=POOL - 256, engine=settings, state_dir=str(tmp_path / "state"))


def _prompt(seed: int, length: int = PROMPT) -> list[int]:
    chance = random.Random(seed)  # noqa: S311  # a prompt, not a secret
    return [chance.randrange(10, VOCABULARY) for _ in range(length)]


def _cached(child: EngineChild, number: int, prompt: list[int]) -> int:
    """Tokens of a prompt that the engine did not compute."""
    child.send(Submit(number, 1, [TokenSpan(prompt)], len(prompt), 4, sampler=Sampler(temperature=0.0)))
    started = [event for event in child.until_ended(number)[number] if isinstance(event, Started)]
    assert len(started) == 1
    return started[0].cached


def test_prefix_pushed_out_of_the_pool_comes_back_from_memory(
    configure: Configure, record_property: Callable[[str, object], None]
) -> None:
    with EngineChild() as child:
        child.start(configure)
        assert _cached(child, 1, _prompt(1)) == 0
        for number in (2, 3):
            assert _cached(child, number, _prompt(number, POOL - 600)) == 0
        cached = _cached(child, 4, _prompt(1))
    record_property("cached from memory", f"{cached} of {PROMPT}")
    assert cached >= PROMPT - 1024 - 256


def test_prefix_survives_the_engine_on_disk(configure: Configure, record_property: Callable[[str, object], None]) -> None:
    """Written behind the generation and when the queue drains, so that a kill a moment later loses nothing of the prompt."""
    with EngineChild() as child:
        child.start(configure)
        assert _cached(child, 1, _prompt(1)) == 0
        assert _cached(child, 2, _prompt(2, 300)) == 0
        child.process.kill()
        child.process.wait()
    with EngineChild() as child:
        child.start(configure)
        cached, longer = _cached(child, 1, _prompt(1)), _cached(child, 2, [*_prompt(1), *_prompt(3, 40)])
    record_property("cached from disk", f"{cached} of {PROMPT}")
    assert cached > 0
    assert longer > 0
