"""The paged key-value cache: where the tokens of a step lie in it, writing rows, moving pages."""

from dataclasses import dataclass

import torch
from torch import Tensor

FEW_QUERIES = 8
"""Up to so many new tokens a row, rows are batched; above, padding costs more than it saves."""
SHORT = 1 << 16
"""Largest mask that is made for a row with more new tokens: of 256 KiB, for all layers. Longer ones are cut into slices."""


def cache_rows(block_table: Tensor, first: Tensor, count: int, page: int) -> Tensor:
    """Row numbers int64 (batch, count) in a cache of `page` tokens a page, for `count` tokens from `first` (batch) on."""
    token = first.long().view(-1, 1) + torch.arange(count)
    return block_table.long().gather(1, token // page) * page + token % page


def paged_kv_cache_update(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor
) -> None:
    """Append k and v, half (batch, new, heads, dim), behind each sequence's `cache_seqlens` tokens."""
    rows = cache_rows(block_table, cache_seqlens, k.shape[1], k_cache.shape[1]).flatten()
    write_rows(k, v, k_cache, v_cache, rows)


def write_rows(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, rows: Tensor) -> None:
    """Put k and v, half (batch, new, heads, dim), into the caches' rows int64 (batch·new)."""
    width = k.shape[2] * k.shape[3]
    k_cache.view(-1, width).index_copy_(0, rows, k.reshape(-1, width))
    v_cache.view(-1, width).index_copy_(0, rows, v.reshape(-1, width))


def cache_rotate(cache: Tensor, order: Tensor, temp: Tensor) -> None:
    """Copy pages in the order given: `order` int32 holds pairs (to, from), -1 standing for the spare page `temp`."""
    moves: list[int] = order.numpy().tolist()
    for to, source in zip(moves[0::2], moves[1::2], strict=True):
        (cache[to] if to >= 0 else temp).copy_(cache[source] if source >= 0 else temp)


@dataclass(frozen=True, slots=True)
class Step:
    """Where the tokens of one forward pass lie: each row's past in the cache, its new tokens behind it."""

    table: Tensor
    """Block table int32 (batch, pages)."""
    lengths: Tensor
    """Tokens in the cache before this pass, int32 (batch)."""
    new: int
    """New tokens of each row."""
    page: int
    past: tuple[int, ...]
    total: int
    """Past and new tokens of the longest row."""
    rows: Tensor
    """Cache rows int64 (batch, total); behind a shorter row's end, to be masked, its own first one."""
    added: Tensor
    """Cache rows of the new tokens, int64 (batch·new)."""
    together: bool
    """Whether all rows are attended to in one call, with the mask below."""
    unseen: Tensor | None
    """0 where a query sees a token by position and -inf elsewhere, fp32 (batch, 1, new, total); None: all see all, or
    the rows are not taken together."""

    straight: bool
    """Whether this is a single row whose tokens lie one behind the other."""

    def run(self, row: int, count: int) -> slice | None:
        """The first `count` cache rows of a sequence as one slice, where they follow each other."""
        if self.straight or _follow(self.rows[row, :count], self.page):
            first = int(self.rows[row, 0])
            return slice(first, first + count)
        return None


def _follow(rows: Tensor, page: int) -> bool:
    """Whether cache rows lie one behind the other. Those of one page always do, so only where pages begin is looked at."""
    begins = rows[::page]
    return torch.equal(begins, begins[0] + torch.arange(begins.numel()) * page)


def plan_step(table: Tensor, lengths: Tensor, new: int, page: int) -> Step:
    """Work out a `Step`."""
    past: list[int] = lengths.numpy().tolist()
    total = max(past) + new
    rows = cache_rows(table, torch.zeros_like(lengths), total, page)
    if min(past) != max(past):
        # behind a shorter row's end read its own first token: masked, and no other row's NaN can come in
        rows = torch.where(torch.arange(total) < lengths.view(-1, 1) + new, rows, rows[:, :1])
    queries = lengths.long().view(-1, 1) + torch.arange(new)
    together = new <= FEW_QUERIES or (len(past) == 1 and new * total <= SHORT)
    unseen = None
    if together and (new > 1 or len(past) > 1):
        visible = torch.arange(total) <= queries.unsqueeze(-1)
        unseen = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf")).unsqueeze(1)
    added = rows.gather(1, queries).flatten()
    straight = len(past) == 1 and _follow(rows[0], page)
    return Step(table.clone(), lengths.clone(), new, page, tuple(past), total, rows, added, together, unseen, straight)


class Steps:
    """Remembers the last step: every layer of a model asks for the same one."""

    def __init__(self) -> None:
        self._last: Step | None = None

    def find(self, table: Tensor, lengths: Tensor, new: int, page: int) -> Step:
        """The step for these inputs, compared by value, since their memory is used again for the next one."""
        last = self._last
        same = last is not None and last.new == new and last.page == page and torch.equal(last.lengths, lengths)
        if last is None or not same or not torch.equal(last.table, table):
            last = self._last = plan_step(table, lengths, new, page)
        return last
