"""The paged key-value cache: which row of a layer's cache holds a token, writing rows, moving pages."""

import torch
from torch import Tensor


def cache_rows(block_table: Tensor, first: Tensor, count: int, page: int) -> Tensor:
    """Row numbers int64 (batch, count) in a cache of `page` tokens a page, for `count` tokens from `first` (batch) on."""
    token = first.long().view(-1, 1) + torch.arange(count)
    return block_table.long().gather(1, token // page) * page + token % page


def paged_kv_cache_update(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor
) -> None:
    """Append k and v, half (batch, new, heads, dim), behind each sequence's `cache_seqlens` tokens."""
    page = k_cache.shape[1]
    rows = cache_rows(block_table, cache_seqlens, k.shape[1], page).flatten()
    k_cache.view(-1, *k_cache.shape[2:])[rows] = k.flatten(0, 1).to(k_cache.dtype)
    v_cache.view(-1, *v_cache.shape[2:])[rows] = v.flatten(0, 1).to(v_cache.dtype)


def cache_rotate(cache: Tensor, order: Tensor, temp: Tensor) -> None:
    """Copy pages in the order given: `order` int32 holds pairs (to, from), -1 standing for the spare page `temp`."""
    moves: list[int] = order.numpy().tolist()
    for to, source in zip(moves[0::2], moves[1::2], strict=True):
        (cache[to] if to >= 0 else temp).copy_(cache[source] if source >= 0 else temp)
