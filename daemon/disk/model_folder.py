"""A model directory on disk, as the memory plan reads it."""

from pathlib import Path


class ModelFolder:
    """`core.vram_directory.Folder` over a path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def where(self) -> str:
        """The path."""
        return str(self._path)

    def names(self) -> frozenset[str]:
        """Files in it; none where there is no such directory."""
        return frozenset(path.name for path in self._path.iterdir() if path.is_file()) if self._path.is_dir() else frozenset()

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return (self._path / name).stat().st_size

    def read(self, name: str, at: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file from `at` on."""
        with (self._path / name).open("rb") as file:
            file.seek(at)
            return file.read() if length is None else file.read(length)
