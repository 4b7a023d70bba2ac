"""A small file behind a value in memory: always replaced as a whole, in a thread, so that nobody waits for the disk."""

import asyncio
import logging
import os
from pathlib import Path


class KeptFile:
    """One file, with the permissions `mode`. `log` gets `complaint`, and the reason, where it cannot be written; whoever keeps
    something here goes on from memory. Lives on the event loop's thread.
    """

    def __init__(self, path: Path, *, mode: int, log: logging.Logger, complaint: str) -> None:
        self._path = path
        self._mode = mode
        self._log = log
        self._complaint = complaint
        self._wanted = b""
        self._written = b""
        self._writing: asyncio.Task[None] | None = None

    def keep(self, content: bytes) -> None:
        """Replace the content. It is on disk a moment later, unless something newer is by then; see `flushed`."""
        self._wanted = content
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write(), name=f"writes {self._path.name}")

    async def flushed(self) -> None:
        """Wait until the newest content is on disk, or known not to get there."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._written is not self._wanted:
            content = self._wanted
            try:
                await asyncio.to_thread(_replace, self._path, content, self._mode)
            except OSError as problem:
                self._log.error("%s: %s", self._complaint, problem)
            self._written = content


def _replace(path: Path, content: bytes, mode: int) -> None:
    fresh = path.with_suffix(".tmp")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
