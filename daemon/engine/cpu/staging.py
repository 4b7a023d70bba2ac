"""The generator's small host-side helpers: filling the step's input arena, comparing ids, matching stop strings."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def generator_stage_decode(  # noqa: PLR0917 - the operation's own signature
    arena: Tensor,
    width: int,
    seq_block_index: Sequence[Tensor],
    kv_position: Sequence[int],
    rope_offset: Sequence[int],
    batch_ids: Tensor | None,
    seq_ids: Sequence[Tensor],
    page_seq: Sequence[Tensor],
    page_offset: Sequence[int],
) -> None:
    """Fill one step's inputs. `arena` int32: block tables (B·width, padded with 0), lengths (B), positions (B, if rope_offset).

    With `seq_ids`, each row's next input token also goes into `batch_ids` (B, 1) and into its cache page.
    """
    rows = len(seq_block_index)
    tables = arena[: rows * width].view(rows, width)
    tables.zero_()
    for table, index in zip(tables, seq_block_index, strict=True):
        pages = index.view(-1)[:width]
        table[: pages.numel()] = pages
    arena[rows * width : rows * (width + 1)] = torch.tensor(kv_position, dtype=torch.int32)
    if rope_offset:
        positions = [at + offset for at, offset in zip(kv_position, rope_offset, strict=True)]
        arena[rows * (width + 1) : rows * (width + 2)] = torch.tensor(positions, dtype=torch.int32)
    if not seq_ids:
        return
    if batch_ids is None:
        raise ValueError("generator_stage_decode: seq_ids without batch_ids")
    for row, (ids, at, page, offset) in enumerate(zip(seq_ids, kv_position, page_seq, page_offset, strict=True)):
        token = ids.view(-1)[at]
        batch_ids[row, 0] = token
        page.view(-1)[offset] = token


def count_match_tensor(a: Tensor, b: Tensor, max_a: int) -> int:
    """How many leading ids of `a` and `b` (1, n) agree, at most `max_a`."""
    limit = min(max_a, a.numel(), b.shape[1])
    different = (a.view(-1)[:limit] != b.view(-1)[:limit]).nonzero()
    return int(different[0]) if different.numel() else limit


NO_MATCH = -1
PARTIAL_MATCH = -2


def _first_match(text: str, string: str, limit: int) -> tuple[int, bool] | None:
    """Where `string` first matches in `text` before `limit`, and whether all of it does or the text ends within it."""
    whole = text.find(string, 0, limit + len(string) - 1)
    tail = range(max(0, len(text) - len(string) + 1), min(len(text), limit))
    cut = next((start for start in tail if string.startswith(text[start:])), None)
    if whole >= 0 and (cut is None or whole < cut):
        return whole, True
    return None if cut is None else (cut, False)


def partial_strings_match(match: bytes, offsets: bytes, strings: bytes) -> int:
    """Earliest place in `match` where one of `strings` occurs, all UTF-32; -1 if none, -2 if one may be about to.

    `offsets` are native uint32 byte offsets into `strings`, one more than there are strings. A match that runs off the end
    counts as partial when it begins before any whole match.
    """
    text = bytes(match).decode("utf-32-le")
    data = bytes(strings)
    bounds = memoryview(bytes(offsets)).cast("I").tolist()
    none = len(text) + 1
    full = partial = none
    for begin, end in pairwise(bounds):
        if end <= begin or end > len(data):
            continue
        found = _first_match(text, data[begin:end].decode("utf-32-le"), min(full, partial))
        if found is not None:
            full, partial = (found[0], partial) if found[1] else (full, found[0])
    if partial < full:
        return PARTIAL_MATCH
    return full if full < none else NO_MATCH
