"""Which request may have killed an engine, and which one has: `decide(state, event, policy) -> (state, effects)`. Pure.

1. A death that accuses has one suspect: the request whose prefill was running, else the newest in flight. If that one was
   acquitted before, everybody in flight is suspected, those first that have proved least: so three deaths find whoever it is.
   A death that accuses nobody (a kill by people or the system, evidence against the whole device) changes nothing.
2. Suspects run alone, one after the other in the order in which they were suspected, before they are mixed with others again.
3. Whoever kills an engine while it was a suspect and held nobody else is guilty: it is refused, now and when it comes again.
   A request that merely happened to be alone is suspected first: faults that no request has caused hit lonely ones too.
4. A suspect that generates enough tokens alone is acquitted: `proof` at first, four times as many when it is suspected again, up
   to `most_proof`. One that ends in any other way is forgotten.

What the person said is kept nowhere: a verdict is remembered by a digest of prompt and parameters (`Convictions`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from daemon.core.pictures import without_content
from daemon.core.requests import ValidRequest


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds."""

    proof: int = 64
    """Tokens that a suspect must generate alone the first time."""
    most_proof: int = 1024
    """Tokens after which any suspect is believed."""
    memory: float = 24 * 3600.0
    """Seconds for which a guilty request is refused."""
    remembered: int = 1024
    """Guilty requests that are remembered at once; the oldest is forgotten for the next."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A request that must run alone."""

    id: int
    generated: int
    """Tokens it had generated when it last lost an engine: what comes after them counts as proof."""
    proof: int
    """Tokens it must generate alone."""


@dataclass(frozen=True, slots=True)
class Poison:
    """Who is suspected."""

    suspects: tuple[Suspect, ...] = ()
    """In the order in which they run alone."""
    acquitted: tuple[Suspect, ...] = ()
    """Those that were suspected once and still run."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request inside an engine when that died."""

    id: int
    generated: int


@dataclass(frozen=True, slots=True)
class Fell:
    """An engine died."""

    accuses: bool
    prefilling: int | None
    """The request whose prefill was running."""
    held: tuple[InFlight, ...]
    """Accepted requests inside it, the newest last."""


@dataclass(frozen=True, slots=True)
class Generated:
    """How far a suspect has come."""

    id: int
    generated: int


@dataclass(frozen=True, slots=True)
class Left:
    """A request is over, whatever way."""

    id: int


Event: TypeAlias = Fell | Generated | Left


@dataclass(frozen=True, slots=True)
class SetApart:
    """Have it run alone."""

    id: int


@dataclass(frozen=True, slots=True)
class Acquit:
    """Let it be mixed with others again."""

    id: int


@dataclass(frozen=True, slots=True)
class Convict:
    """End it as poisonous, and remember it."""

    id: int


Effect: TypeAlias = SetApart | Acquit | Convict
Decision: TypeAlias = tuple[Poison, tuple[Effect, ...]]


def decide(state: Poison, event: Event, policy: Policy) -> Decision:
    """The next state and what to do now."""
    match event:
        case Fell():
            return _fell(state, event, policy)
        case Generated(request, generated):
            suspect = _find(state.suspects, request)
            if suspect is None or generated - suspect.generated < suspect.proof:
                return state, ()
            state = _without(state, request)
            return replace(state, acquitted=(*state.acquitted, suspect)), (Acquit(request),)
        case Left(request):
            return _without(state, request), ()


def _fell(state: Poison, event: Fell, policy: Policy) -> Decision:
    came = {one.id: one.generated for one in event.held}
    suspects = tuple(replace(suspect, generated=came.get(suspect.id, suspect.generated)) for suspect in state.suspects)
    state = replace(state, suspects=suspects)
    if not event.accuses or not event.held:
        return state, ()
    accused = event.held[-1].id if event.prefilling is None or event.prefilling not in came else event.prefilling
    if _find(state.suspects, accused) is None:
        return _suspect(state, accused, event.held, policy)
    if len(event.held) == 1:
        return _without(state, accused), (Convict(accused),)
    return state, ()


def _suspect(state: Poison, accused: int, held: tuple[InFlight, ...], policy: Policy) -> Decision:
    needed: dict[int, int] = {}
    for one in held:
        earlier = _find(state.acquitted, one.id)
        needed[one.id] = policy.proof if earlier is None else min(4 * earlier.proof, policy.most_proof)
    known = {suspect.id for suspect in state.suspects}
    if _find(state.acquitted, accused) is None:
        chosen = [one for one in held if one.id == accused]
    else:
        chosen = sorted((one for one in reversed(held) if one.id not in known), key=lambda one: needed[one.id])
    for one in chosen:
        state = _without(state, one.id)
    fresh = tuple(Suspect(one.id, one.generated, needed[one.id]) for one in chosen)
    return replace(state, suspects=(*state.suspects, *fresh)), tuple(SetApart(suspect.id) for suspect in fresh)


def _find(among: tuple[Suspect, ...], request: int) -> Suspect | None:
    return next((suspect for suspect in among if suspect.id == request), None)


def _without(state: Poison, request: int) -> Poison:
    return Poison(
        suspects=tuple(suspect for suspect in state.suspects if suspect.id != request),
        acquitted=tuple(suspect for suspect in state.acquitted if suspect.id != request),
    )


# --- what is remembered ---------------------------------------------------------------------------------------------


def digest_of(request: ValidRequest) -> str:
    """What a request is known by: everything of it that an engine gets to see, hashed. The same for whoever sends it again."""
    seen = (
        without_content(request.spans),
        request.max_tokens,
        request.min_tokens,
        request.sampler,
        request.seed,
        request.stop_ids,
        request.logprobs,
        request.reasoning,
        request.constraint,
    )
    return blake2b(msgspec.msgpack.encode(seen), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Conviction:
    """A guilty request. `until` is wall-clock time, because convictions outlive the daemon."""

    digest: str
    until: float


@dataclass(frozen=True, slots=True)
class Convictions:
    """Guilty requests, the oldest first."""

    known: tuple[Conviction, ...] = ()

    def refuses(self, digest: str, now: float) -> bool:
        """Whether this request was found guilty, and that is not too long ago."""
        return any(one.digest == digest and now < one.until for one in self.known)

    def live(self, now: float) -> bool:
        """Whether anything need be looked up at all."""
        return any(now < one.until for one in self.known)


def convict(convictions: Convictions, digest: str, now: float, policy: Policy) -> Convictions:
    """Remember one more, and forget what is too old or too many."""
    kept = (one for one in convictions.known if one.digest != digest)
    return limited((*kept, Conviction(digest, now + policy.memory)), now, policy)


def limited(known: Iterable[Conviction], now: float, policy: Policy) -> Convictions:
    """As much as may be remembered. A time further ahead than the policy allows (a clock that was set back) is cut."""
    latest = now + policy.memory
    kept = [replace(one, until=min(one.until, latest)) for one in known if one.until > now]
    return Convictions(tuple(kept[-policy.remembered :]))
