"""Where tokens lie in the paged cache."""

import torch
from torch import Tensor

from daemon.engine.cpu import kv_cache

PAGE = 4


def caches(pages: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(pages, PAGE, 2, 8, dtype=torch.half), torch.zeros(pages, PAGE, 2, 8, dtype=torch.half)


def test_new_tokens_go_behind_the_old_ones_page_by_page() -> None:
    k_cache, v_cache = caches(5)
    k = torch.arange(2 * 3 * 2 * 8).view(2, 3, 2, 8).half()
    table, lengths = torch.tensor([[4, 2], [1, 0]], dtype=torch.int32), torch.tensor([3, 0], dtype=torch.int32)
    kv_cache.paged_kv_cache_update(k, -k, k_cache, v_cache, table, lengths)
    assert torch.equal(k_cache[4, 3], k[0, 0])
    assert torch.equal(k_cache[2, :2], k[0, 1:])
    assert torch.equal(k_cache[1, :3], k[1])
    assert torch.equal(v_cache, -k_cache)
    assert not k_cache[[0, 3]].any()


def test_rotation_moves_pages_over_the_spare_one() -> None:
    cache = torch.arange(3).view(3, 1, 1).expand(3, PAGE, 2).clone()
    order = torch.tensor([-1, 0, 0, 1, 1, 2, 2, -1], dtype=torch.int32)
    kv_cache.cache_rotate(cache, order, torch.empty(PAGE, 2, dtype=cache.dtype))
    assert cache[:, 0, 0].numpy().tolist() == [1, 2, 0]


def test_step_says_where_tokens_lie_and_what_queries_see() -> None:
    table, lengths = torch.tensor([[4, 2], [1, 0]], dtype=torch.int32), torch.tensor([5, 1], dtype=torch.int32)
    step = kv_cache.plan_step(table, lengths, 2, PAGE)
    assert step.past == (5, 1)
    assert step.rows.numpy().tolist() == [[16, 17, 18, 19, 8, 9, 10], [4, 5, 6, 4, 4, 4, 4]]
    assert step.added.numpy().tolist() == [9, 10, 5, 6]
    assert step.unseen is not None
    seen = (step.unseen == 0).squeeze(1)
    assert seen[0].numpy().tolist() == [[True] * 6 + [False], [True] * 7]
    assert seen[1].numpy().tolist() == [[True] * 2 + [False] * 5, [True] * 3 + [False] * 4]


def test_single_row_of_a_decode_step_needs_no_mask() -> None:
    step = kv_cache.plan_step(torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([5], dtype=torch.int32), 1, PAGE)
    assert step.unseen is None


def test_a_mask_is_made_for_few_tokens_and_for_a_short_prompt_only() -> None:
    """A long prompt's would grow with its length times the context's."""
    table, one, two = torch.zeros(2, 100, dtype=torch.int32), torch.tensor([90]).int(), torch.tensor([90, 4]).int()
    short = kv_cache.plan_step(table[:1], one, 200, PAGE)
    assert short.together
    assert short.unseen is not None
    assert short.unseen.shape == (1, 1, 200, 290)
    for step in (kv_cache.plan_step(table, two, 200, PAGE), kv_cache.plan_step(table[:1], one, 250, PAGE)):
        assert not step.together
        assert step.unseen is None
    assert kv_cache.plan_step(table, two, kv_cache.FEW_QUERIES, PAGE).together


def test_pages_in_a_row_are_one_slice() -> None:
    lengths = torch.tensor([9], dtype=torch.int32)
    straight = kv_cache.plan_step(torch.tensor([[2, 3, 4]], dtype=torch.int32), lengths, 1, PAGE)
    scattered = kv_cache.plan_step(torch.tensor([[2, 4, 3]], dtype=torch.int32), lengths, 1, PAGE)
    assert straight.run(0, 10) == slice(8, 18)
    assert scattered.run(0, 10) is None
    assert scattered.run(0, 4) == slice(8, 12)


def test_step_is_remembered_until_its_inputs_change_even_in_place() -> None:
    steps = kv_cache.Steps()
    table, lengths = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    first = steps.find(table, lengths, 1, PAGE)
    assert steps.find(table.clone(), lengths.clone(), 1, PAGE) is first
    lengths += 1
    second = steps.find(table, lengths, 1, PAGE)
    assert second is not first
    assert second.past == (3,)
    table[0, 0] = 1
    assert steps.find(table, lengths, 1, PAGE).rows[0, 0] == PAGE
    assert steps.find(table, lengths, 2, PAGE).new == 2
