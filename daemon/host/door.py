"""Whether requests are accepted, judged from what is known of each engine and from what people asked for.

A restart in between does not close the door: requests wait for the next engine. It is open while at least one engine serves or
is being replaced.
"""

from enum import Enum

from daemon.core.errors import NotReady, RequestError, ShuttingDown

LOADING_RETRY = 5.0
FAILED_RETRY = 60.0
PAUSED_RETRY = 30.0
"""Seconds a client is told to wait before it tries again."""


class _Place(Enum):
    """Where one engine stands, as far as requests are concerned."""

    LOADING = "loading"
    SERVING = "serving"
    RESTARTING = "restarting"
    FAILED = "failed"


class Door:
    """See the module. `engines` are expected; until one of them serves, nothing is accepted."""

    def __init__(self, engines: int) -> None:
        self._places = dict.fromkeys(range(engines), _Place.LOADING)
        self._why_failed = ""
        self._why_paused: str | None = None
        self._closed = False

    def serves(self, engine: int) -> None:
        """It takes requests."""
        self._places[engine] = _Place.SERVING

    def lost(self, engine: int) -> None:
        """It takes none for now; another is expected in its place."""
        self._places[engine] = _Place.RESTARTING

    def coming(self, engine: int) -> None:
        """One is being started. After a failure that means hope; otherwise nothing changes."""
        if self._places[engine] is _Place.FAILED:
            self._places[engine] = _Place.LOADING

    def failed(self, engine: int, why: str) -> None:
        """None will come in this place."""
        self._places[engine] = _Place.FAILED
        self._why_failed = why

    def pause(self, why: str) -> None:
        """Accept nothing until `resume`; `why` is told to whoever comes."""
        self._why_paused = why

    def resume(self) -> None:
        """Accept requests again."""
        self._why_paused = None

    def close(self) -> None:
        """Accept nothing any more."""
        self._closed = True

    @property
    def serving(self) -> bool:
        """Whether any engine takes requests now."""
        return _Place.SERVING in self._places.values()

    @property
    def expected(self) -> int:
        """Engines that are there, or will be."""
        return sum(place is not _Place.FAILED for place in self._places.values())

    @property
    def hopeless(self) -> bool:
        """Whether no engine is there and none will come."""
        return all(place is _Place.FAILED for place in self._places.values())

    @property
    def shut(self) -> str | None:
        """Why people's wish keeps it shut, in words; None where it does not."""
        if self._closed:
            return "the daemon is shutting down"
        return None if self._why_paused is None else f"no new requests are taken: {self._why_paused}"

    def refusal(self) -> RequestError | None:
        """What to tell a request that comes now; None: it is accepted."""
        if self._closed:
            return ShuttingDown()
        if self._why_paused is not None:
            return NotReady(f"This server takes no new requests for now: {self._why_paused}", PAUSED_RETRY)
        places = self._places.values()
        if _Place.SERVING in places or _Place.RESTARTING in places:
            return None
        if self.hopeless:
            return NotReady(self._why_failed, FAILED_RETRY)
        return NotReady("The model is still being loaded.", LOADING_RETRY)
