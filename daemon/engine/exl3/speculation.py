"""Speculation: what drafts tokens for the model to check, built before the model itself, with its constraints said in words.

exllamav3 does the drafting. What must fit together:
1. A hybrid takes rejected tokens back out of its recurrent state only as far as its cache keeps history: the cache is built with
   as much as a draft is long.
2. A drafter has a cache of its own with the same pages.
3. A draft model must speak the model's tokens; the library does not look.
4. Drafts of all streams are checked in one pass. With many streams those of a drafter are cut to `DRAFT_ROWS` rows, for beyond
   that a pass costs more than the tokens it saves; those from the conversation (ngram) the library does not cut.
5. A drafter lies beside the model, layers one card after the other, also where the model is divided (layout tensor).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from exllamav3 import Cache, CacheLayer_fp16, CacheLayer_quant, Config, Model, Tokenizer

from daemon.core.drafting import DRAFT_TOKENS
from daemon.core.settings import EngineSettings, Speculation
from daemon.core.wire import FatalClass
from daemon.engine.backend import EngineFailed
from daemon.engine.cpu.coverage import require_operations
from daemon.engine.cpu.extension import OperationMissing
from daemon.engine.exl3.placing import Placing

NGRAM_MATCH = 3
"""Tokens that must have occurred before for what followed them to be a draft."""
FULL_PRECISION = 16
QUANTISED = range(2, 9)
"""Bits a quantised key or value may have."""

ReadConfig = Callable[[str], Config]


@dataclass(frozen=True, slots=True)
class Drafting:
    """What the generator is told about drafts. `tokens` is 0 where there are none."""

    tokens: int = 0
    model: Model | None = None
    cache: Cache | None = None
    ngram_match: int = 0

    def load(
        self, settings: EngineSettings, device: torch.device | None, place: Placing, progress: Callable[[int, int], None]
    ) -> None:
        """Load the drafter's weights. `device`: one place for all of them; None: spread over the GPUs."""
        if self.model is None:
            return
        if device is not None:
            self.model.load(device=device, max_chunk_size=settings.chunk_tokens)
            return
        self.model.load(
            max_chunk_size=settings.chunk_tokens,
            max_output_size=settings.max_batch,
            max_batch_size=settings.max_batch,
            use_per_device=place.use_per_device,
            reserve_per_device=place.reserve_per_device,
            callback=progress,
        )


def prepare(settings: EngineSettings, config: Config, tokens: int, read: ReadConfig, *, on_cpu: bool) -> Drafting:
    """The drafter that is asked for, with its cache, before its weights. Raises EngineFailed."""
    if settings.draft_model is not None and settings.speculation is not Speculation.DRAFT:
        raise _wrong(f"engine.draft_model is set, but engine.speculation is {settings.speculation.value}; set it to draft")
    match settings.speculation:
        case Speculation.NONE:
            return Drafting()
        case Speculation.NGRAM:
            return Drafting(settings.draft_tokens or DRAFT_TOKENS, ngram_match=NGRAM_MATCH)
        case Speculation.DRAFT:
            if settings.draft_model is None:
                raise _wrong("engine.speculation is draft: engine.draft_model must name the directory of a small model")
            drafter = read(settings.draft_model)
            _require_same_words(config, drafter)
            model = Model.from_config(drafter)
        case Speculation.MTP:
            if "mtp" not in config.model_classes:
                raise _wrong(
                    f"engine.speculation is mtp, but {config.directory} ({config.architecture}) has no multi-token prediction"
                    " head that exllamav3 can use: set engine.speculation to ngram, or to draft with a small model"
                )
            model = Model.from_config(config, component="mtp")
    if on_cpu:
        require_cpu_operations(model)
        if model.caps.get("recurrent_states"):
            raise _wrong("a draft model with recurrent layers needs a GPU: name one without them in engine.draft_model")
    length = settings.draft_tokens or _default_length(model)
    return Drafting(length, model, build_cache(model, settings, tokens, length))


def require_cpu_operations(model: Model) -> None:
    """Refuse now what would otherwise fail in the middle of somebody's request. Raises EngineFailed."""
    try:
        require_operations(model)
    except OperationMissing as problem:
        raise _wrong(str(problem)) from problem


def build_cache(model: Model, settings: EngineSettings, tokens: int, history: int) -> Cache:
    """A cache as configured, whose recurrent layers can go back `history` tokens. Raises EngineFailed."""
    k_bits, v_bits = settings.k_bits, settings.v_bits
    if k_bits == FULL_PRECISION and v_bits == FULL_PRECISION:
        return Cache(model, tokens, CacheLayer_fp16, settings.max_batch, max_history=history)
    if k_bits not in QUANTISED or v_bits not in QUANTISED:
        raise _wrong(f"engine.k_bits is {k_bits} and engine.v_bits is {v_bits}: both must be 16, or both between 2 and 8")
    return Cache(model, tokens, CacheLayer_quant, settings.max_batch, max_history=history, k_bits=k_bits, v_bits=v_bits)


def _default_length(model: Model) -> int:
    length = model.caps.get("default_draft_size", DRAFT_TOKENS)
    return length if isinstance(length, int) else DRAFT_TOKENS


def _require_same_words(config: Config, drafter: Config) -> None:
    """Ids must mean the same to both: drafts cross from one to the other as ids."""
    if not Path(drafter.directory, "tokenizer.json").is_file():
        raise _wrong(f"engine.draft_model {drafter.directory} has no tokenizer.json")
    words, others = (Tokenizer.from_config(each).tokenizer.get_vocab() for each in (config, drafter))
    differing = sum(1 for word, token in words.items() if others.get(word) != token)
    if differing or drafter.vocab_size < len(words):
        raise _wrong(
            f"engine.draft_model {drafter.directory} does not speak the tokens of {config.directory}: {differing} of"
            f" {len(words)} tokens differ, and it knows {drafter.vocab_size}. A draft model must come from the same family."
        )


def _wrong(detail: str) -> EngineFailed:
    return EngineFailed(FatalClass.CONFIG, detail)
