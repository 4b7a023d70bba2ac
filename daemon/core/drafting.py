"""How far ahead is drafted: the numbers that the engine gives the library and the memory plan reckons with."""

from collections.abc import Mapping

import msgspec

from daemon.core.settings import EngineSettings, Speculation

DRAFT_TOKENS = 4
"""A draft's length where neither the configuration nor the drafter says another."""
DRAFT_ROWS = 32
"""Rows of one pass that the drafts of a drafter may fill: EXL3's fast kernels work up to so many."""

HEADS: Mapping[str, int] = {
    "BailingMoeV3ForCausalLM": 1,
    "Glm4MoeLiteForCausalLM": 2,
    "GlmMoeDsaForCausalLM": 2,
    "HYV3ForCausalLM": 2,
    "NemotronHForCausalLM": 2,
    "NemotronH_Omni_Reasoning_V3": 2,
    "Glm5NextForConditionalGeneration": 3,
}
"""Tokens that exllamav3 1.6.5 drafts with a model's own head, where it is not `DRAFT_TOKENS`."""
BLOCKS = frozenset({"DFlashDraftModel", "DFlash2DraftModel", "DFlashLagunaForCausalLM"})
"""Drafters of whole blocks, of which one token is known already."""
_ASSISTANT, _ASSISTANT_TOKENS = "Gemma4AssistantForCausalLM", 6


class _Block(msgspec.Struct, frozen=True):
    block_size: int | None = None


class _Blocks(msgspec.Struct, frozen=True):
    block_size: int | None = None
    dflash_config: _Block = _Block()


def own_head_tokens(architecture: str) -> int:
    """How many tokens a model's own head drafts."""
    return HEADS.get(architecture, DRAFT_TOKENS)


def drafter_tokens(architecture: str, config: Mapping[str, object]) -> int:
    """How many tokens a model drafts for another; `config` is its config.json. Raises msgspec.ValidationError."""
    if architecture in BLOCKS:
        described = msgspec.convert(config, _Blocks, strict=False)
        return (described.block_size or described.dflash_config.block_size or 1 + DRAFT_TOKENS) - 1
    return _ASSISTANT_TOKENS if architecture == _ASSISTANT else DRAFT_TOKENS


def draft_length(engine: EngineSettings, own_head: int, drafter: int) -> int:
    """Tokens a draft is long in an engine with these settings: what a recurrent cache must be able to take back. `own_head` and
    `drafter`: what the two kinds suggest.
    """
    match engine.speculation:
        case Speculation.NONE:
            return 0
        case Speculation.NGRAM:
            return engine.draft_tokens or DRAFT_TOKENS
        case Speculation.DRAFT:
            return engine.draft_tokens or drafter
        case Speculation.MTP:
            return engine.draft_tokens or own_head


def logit_rows(streams: int, length: int, *, drafter: bool) -> int:
    """Most rows of logits in one pass. Drafts of a `drafter` are cut to `DRAFT_ROWS`; those from the conversation are not."""
    rows = streams * (1 + length)
    return min(rows, max(streams, DRAFT_ROWS)) if drafter else rows
