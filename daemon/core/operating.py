"""What a person may have a running daemon do: values and the port between the admin API and whoever does it."""

from dataclasses import dataclass
from typing import Protocol

SOCKET = "run/exl3d.sock"
"""The admin API's UNIX socket, in the state directory."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether it was done, and what happens now or why not."""

    done: bool
    words: str


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What became of the configuration file when it was read again."""

    problem: str
    """Why nothing was changed; empty where the file is good."""
    applied: tuple[str, ...] = ()
    """Settings with new values that hold now."""
    waiting: tuple[str, ...] = ()
    """Settings with new values that need a restart."""

    @property
    def words(self) -> str:
        """One sentence or two for people."""
        if self.problem:
            return f"the new configuration is bad and the old one stays: {self.problem}"
        told = f"new values hold for {', '.join(self.applied)}" if self.applied else "nothing to take over has changed"
        return f"{told}; needs a restart: {', '.join(self.waiting)}" if self.waiting else told


class Operating(Protocol):
    """The daemon, as far as a person commands it."""

    def restart_engines(self, engine: int | None = None) -> Outcome:
        """Have the engine with this number replaced, or every one. Running streams pause and go on."""
        ...

    def drain(self) -> Outcome:
        """Accept no more requests; those accepted go on to their end."""
        ...

    def resume(self) -> Outcome:
        """Accept requests again."""
        ...

    async def reload(self) -> Reloaded:
        """Read the configuration again and take over what can be."""
        ...
