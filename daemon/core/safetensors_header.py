"""The header of a safetensors file: which tensors it holds, how large each is, and whether the file can be whole.

Pure: the bytes are handed in. A file is 8 bytes of length (little endian), that many bytes of JSON, then the tensors.
"""

from dataclasses import dataclass
from math import prod

import msgspec

from daemon.core.errors import ConfigError

PREFIX = 8
"""Bytes in front of the header that hold its length."""
MAX_HEADER = 100_000_000
"""The format's own limit."""

_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as its header describes it. `size` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """A file's tensors in its order, and how many bytes must follow the header."""

    tensors: tuple[Tensor, ...]
    body: int


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def header_length(prefix: bytes, where: str) -> int:
    """Bytes of JSON that follow the first eight. Raises ConfigError where this cannot be a safetensors file."""
    length = int.from_bytes(prefix[:PREFIX], "little") if len(prefix) >= PREFIX else 0
    if not len("{}") <= length <= MAX_HEADER:
        raise ConfigError("this is no safetensors file: its first eight bytes are no header length; download it again", where)
    return length


def parse_header(header: bytes, where: str) -> Header:
    """What a file's header says. Raises ConfigError where it is damaged, tensors overlap, or bytes do not fit a shape."""
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries = {name: msgspec.json.decode(value, type=_Entry) for name, value in raw.items() if name != "__metadata__"}
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise ConfigError(f"the safetensors header is damaged: {problem}", where) from problem
    tensors: list[Tensor] = []
    upto, last = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin < 0 or end < begin or min(entry.shape, default=0) < 0:
            raise ConfigError(f"the safetensors header is damaged: {name} has the offsets {begin} and {end}", where)
        if begin < upto:
            raise ConfigError(f"the safetensors header is damaged: {name} begins inside {last}", where)
        bits = _BITS.get(entry.dtype)
        if bits is not None and prod(entry.shape) * bits // 8 != end - begin:
            raise ConfigError(f"{name} holds {end - begin} bytes, but {entry.dtype} {entry.shape} needs another number", where)
        tensors.append(Tensor(name, entry.dtype, tuple(entry.shape), end - begin))
        upto, last = end, name
    return Header(tuple(tensors), upto)
