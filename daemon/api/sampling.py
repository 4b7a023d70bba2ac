"""From the sampling fields of a body to the values that engines understand. Pure.

A request's own value goes first, then the model's generation_config, then the neutral value.
"""

from daemon.api.schemas import Generation
from daemon.core.errors import InvalidRequest
from daemon.core.ports import ModelCard
from daemon.core.wire import Dry, Sampler, Xtc

MAX_STOP_CHARACTERS = 8192
"""Of all stop strings of a request together. A matcher is built of them, character by character, where everybody waits."""
_MOST_XTC = 0.5
"""Above it at most one token passes the threshold, so that XTC has nothing to drop."""
_ALL = -1
_NO_SEED = -1
_SEED_MASK = 2**63 - 1
_DIGITS = 20
"""More than any token id has; Python itself refuses to read numbers of thousands of digits."""
_DEFAULT_BREAKERS = ("\n", ":", '"', "*")


def sampler_of(body: Generation, card: ModelCard) -> Sampler:
    """The sampler a request asks for. Raises InvalidRequest."""
    usual = card.defaults.sampler
    top_p = usual.top_p if body.top_p is None else body.top_p
    top_k = usual.top_k if body.top_k is None else max(body.top_k, 0)
    if top_p == 0.0:
        top_p, top_k = 1.0, 1
    repetition = body.repetition_penalty if body.repetition_penalty is not None else body.repeat_penalty
    return Sampler(
        temperature=usual.temperature if body.temperature is None else body.temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=usual.min_p if body.min_p is None else body.min_p,
        repetition_penalty=usual.repetition_penalty if repetition is None else repetition,
        frequency_penalty=usual.frequency_penalty if body.frequency_penalty is None else body.frequency_penalty,
        presence_penalty=usual.presence_penalty if body.presence_penalty is None else body.presence_penalty,
        temperature_last=usual.temperature_last,
        logit_bias=_bias(body.logit_bias or {}, card.vocabulary),
        dry=_dry(body),
        xtc=_xtc(body),
    )


def seed_of(body: Generation, choice: int) -> int | None:
    """The seed of one choice of a request: different ones give different answers, the same one the same answer."""
    if body.seed is None or body.seed == _NO_SEED:
        return None
    return (body.seed + choice) & _SEED_MASK


def stop_ids_of(body: Generation, card: ModelCard) -> tuple[int, ...]:
    """Ids that end the answer. Raises InvalidRequest."""
    own = body.stop_token_ids or []
    for index, token in enumerate(own):
        if token >= card.vocabulary:
            param = f"stop_token_ids[{index}]"
            raise InvalidRequest(f"`{param}` is {token}; this model's token ids end at {card.vocabulary - 1}.", param)
    return tuple(dict.fromkeys([*(() if body.ignore_eos else card.eos), *own]))


def stop_strings_of(body: Generation) -> tuple[str, ...]:
    """Texts that end the answer. Raises InvalidRequest where they are too long to be looked for beside everybody's tokens."""
    stop = body.stop or []
    found = tuple(dict.fromkeys([stop] if isinstance(stop, str) else stop))
    characters = sum(map(len, found))
    if characters > MAX_STOP_CHARACTERS:
        raise InvalidRequest(f"`stop` has {characters} characters; the limit is {MAX_STOP_CHARACTERS}.", "stop", "invalid_value")
    return found


def _bias(given: dict[str, float], vocabulary: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    for text, value in given.items():
        param = f"logit_bias.{text[:20]}"
        if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS or int(text) >= vocabulary:
            raise InvalidRequest(f"`{param}`: keys are token ids from 0 to {vocabulary - 1}.", param, "invalid_value")
        bias[int(text)] = value
    return bias


def _dry(body: Generation) -> Dry | None:
    reach = _ALL if body.dry_penalty_last_n is None else body.dry_penalty_last_n
    if not body.dry_multiplier or reach == 0:
        return None
    usual = Dry(body.dry_multiplier)
    breakers = _DEFAULT_BREAKERS if body.dry_sequence_breakers is None else body.dry_sequence_breakers
    return Dry(
        multiplier=body.dry_multiplier,
        base=usual.base if body.dry_base is None else body.dry_base,
        allowed_length=usual.allowed_length if body.dry_allowed_length is None else body.dry_allowed_length,
        range=max(reach, 0),
        breakers=list(breakers),
    )


def _xtc(body: Generation) -> Xtc | None:
    threshold = 0.1 if body.xtc_threshold is None else body.xtc_threshold
    return Xtc(body.xtc_probability, threshold) if body.xtc_probability and threshold <= _MOST_XTC else None
