"""Runs `core.poison` for the registry: who may have killed an engine, who runs alone, who is refused for good."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemon.core import poison
from daemon.core.errors import PoisonousRequest
from daemon.core.poison import digest_of
from daemon.core.requests import ValidRequest
from daemon.host.conviction_store import ConvictionStore
from daemon.host.entry import Entry
from daemon.host.workforce import Fall

_log = logging.getLogger("exl3d.poison")


@dataclass(frozen=True, slots=True)
class Sentences:
    """How verdicts are carried out."""

    set_apart: Callable[[Entry], None]
    acquit: Callable[[Entry], None]
    convict: Callable[[Entry], None]


class Suspicion:
    """See the module. Lives on the event loop's thread."""

    def __init__(self, convictions: ConvictionStore, policy: poison.Policy, sentences: Sentences) -> None:
        self._convictions = convictions
        self._policy = policy
        self._sentences = sentences
        self._state = poison.Poison()
        self._entries: dict[int, Entry] = {}
        """Suspects by link id."""

    def admit(self, request: ValidRequest) -> None:
        """Raises PoisonousRequest where this very request killed an engine before."""
        if self._convictions.any() and self._convictions.refuses(digest_of(request)):
            raise PoisonousRequest

    def fell(self, fall: Fall, held: Sequence[Entry]) -> None:
        """An engine that held these requests, in the order in which they were given, died."""
        inside = {link_id: place for place, link_id in enumerate(fall.in_flight)}
        order = sorted(held, key=lambda entry: inside.get(entry.link_id, -1))
        known = {entry.link_id: entry for entry in held}
        in_flight = tuple(poison.InFlight(entry.link_id, len(entry.transcript.delivered)) for entry in order)
        self._decide(poison.Fell(fall.accuses, fall.prefilling, in_flight), known)

    def look(self) -> None:
        """See how far suspects have come."""
        for link_id, entry in list(self._entries.items()):
            self._decide(poison.Generated(link_id, len(entry.transcript.delivered)), self._entries)

    @property
    def idle(self) -> bool:
        """Whether nobody is suspected."""
        return not self._entries

    @property
    def suspects(self) -> tuple[int, ...]:
        """Who runs alone, by link id, in their order."""
        return tuple(suspect.id for suspect in self._state.suspects)

    def left(self, entry: Entry) -> None:
        """A request is over."""
        self._entries.pop(entry.link_id, None)
        if self._state.suspects or self._state.acquitted:
            self._state, _ = poison.decide(self._state, poison.Left(entry.link_id), self._policy)

    def _decide(self, event: poison.Event, known: dict[int, Entry]) -> None:
        self._state, effects = poison.decide(self._state, event, self._policy)
        for effect in effects:
            entry = known[effect.id]
            match effect:
                case poison.SetApart():
                    self._set_apart(entry)
                case poison.Acquit():
                    _log.info("%s did well alone and is mixed with others again", entry.request.name)
                    del self._entries[effect.id]
                    self._sentences.acquit(entry)
                case poison.Convict():
                    _log.error("%s killed an engine while it ran alone and is refused from now on", entry.request.name)
                    self._entries.pop(effect.id, None)
                    self._convictions.remember(digest_of(entry.request))
                    self._sentences.convict(entry)

    def _set_apart(self, entry: Entry) -> None:
        if entry.ended:
            self.left(entry)
            return
        _log.warning("%s may have killed the engine and runs alone for now", entry.request.name)
        self._entries[entry.link_id] = entry
        self._sentences.set_apart(entry)
