"""Errors about a field, told in the names of the family that was spoken to.

Families other than OpenAI's chats are translated into a chat, and what is wrong with it is found out there. The person must read
the name of the field they sent, not of the one it became.
"""

import dataclasses
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from daemon.core.errors import InvalidRequest

_BOUNDARY = r"(?=[.\[`]|$)"


class Names:
    """Names of fields in a chat, and what they are called by the family."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        """`pairs` are regular expressions and their replacements; of one field the first that matches counts."""
        self._pairs = tuple(pairs)

    def with_paths(self, paths: Sequence[tuple[str, str]]) -> "Names":
        """With further fields, by plain name; they go first."""
        return Names([*((re.escape(old), new.replace("\\", r"\\")) for old, new in paths), *self._pairs])

    def own(self, error: InvalidRequest) -> InvalidRequest:
        """The error in the family's names."""
        if error.param is None:
            return error
        for old, new in self._pairs:
            param, found = re.subn("^" + old + _BOUNDARY, new, error.param)
            if found:
                message = re.sub("`" + old + _BOUNDARY, "`" + new, error.message)
                return dataclasses.replace(error, param=param, message=message)
        return error

    @contextmanager
    def spoken(self) -> Generator[None]:
        """Errors that leave this block have the family's names."""
        try:
            yield
        except InvalidRequest as error:
            renamed = self.own(error)
            if renamed is error:
                raise
            raise renamed from error
