"""What speculation needs of the CPU: finding repeats, and taking rejected tokens back out of recurrent layers."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from daemon.engine.cpu.delta_net import delta_rule_steps
from daemon.engine.cpu.rewind import ConvRewindJob, ScanReplayJob, batched_conv_rewind, batched_scan_replay
from daemon.engine.cpu.suffixes import NOWHERE, SuffixAutomaton

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def _slowly(tokens: list[int]) -> tuple[int, int]:
    """The first place where the longest end of `tokens` that occurs earlier stands."""
    for size in range(len(tokens) - 1, 0, -1):
        tail = tokens[-size:]
        for begin in range(len(tokens) - size):
            if tokens[begin : begin + size] == tail:
                return begin, begin + size
    return NOWHERE


@given(TOKENS)
def test_the_longest_repeated_end_is_found_where_it_stood_first(tokens: list[int]) -> None:
    """As by looking everywhere."""
    automaton = SuffixAutomaton()
    found = [automaton.accept(token) for token in tokens]
    assert found == [_slowly(tokens[:end]) for end in range(1, len(tokens) + 1)]
    assert automaton.length() == len(tokens)


@given(TOKENS, TOKENS)
def test_a_sequence_is_taken_in_parts_and_again_when_it_became_shorter(one: list[int], more: list[int]) -> None:
    """Only what is new is read; a rewound sequence begins anew."""
    automaton = SuffixAutomaton()
    automaton.accept_tensor(torch.tensor([one]))
    assert automaton.accept_tensor(torch.tensor([one + more])) == _slowly(one + more)
    assert automaton.accept_tensor(torch.tensor([one + more])) == NOWHERE
    automaton.accept_tensor(torch.tensor([one]))
    assert automaton.length() == len(one)


def test_the_window_before_the_rejected_tokens_is_the_next_one() -> None:
    """Two of five tokens rejected, a window of four: columns 2 to 5 of a ring of eight come first, in one slot alone."""
    ring = torch.arange(2 * 3 * 8).reshape(2, 3, 8).to(torch.bfloat16)
    before = ring.clone()
    width, rejected = 4, 2
    base = ring[1].data_ptr()
    place = 8 - rejected - width
    batched_conv_rewind([ConvRewindJob(base + place * 2, base, 3, width, 8)], None)
    assert torch.equal(ring[1, :, :width], before[1, :, place : place + width])
    assert torch.equal(ring[1, :, width:], before[1, :, width:])
    assert torch.equal(ring[0], before[0])


def test_the_state_after_the_accepted_tokens_is_computed_again() -> None:
    """As if the pass had ended there, for a row in the middle of the batch; the state before the pass stays."""
    torch.manual_seed(3)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
    rows, length, accepted, k_heads, v_heads, size = 3, 5, 3, 2, 4, 32
    width = 2 * k_heads * size + v_heads * size
    qkv = torch.randn(rows * length, width).to(torch.bfloat16)
    g = -torch.rand(rows * length, v_heads)
    beta = torch.rand(rows * length, v_heads).to(torch.bfloat16)
    pool = torch.randn(6, 1, v_heads, size, size).half()
    before = pool.clone()
    row, base, scratch = 1, 2, 3
    part = slice(row * length, row * length + accepted)
    job = ScanReplayJob(
        qkv[row * length].data_ptr(),
        g[row * length].data_ptr(),
        beta[row * length].data_ptr(),
        pool[base].data_ptr(),
        pool[scratch].data_ptr(),
        0,
        accepted,
        1,
    )
    batched_scan_replay([job], None, 0, k_heads, v_heads, size, size, state_half=True)
    keys = k_heads * size
    q, k, v = qkv[part, :keys], qkv[part, keys : 2 * keys], qkv[part, 2 * keys :]
    _, want = delta_rule_steps(
        q.reshape(1, accepted, k_heads, size),
        k.reshape(1, accepted, k_heads, size),
        v.reshape(1, accepted, v_heads, size),
        g[part].unsqueeze(0),
        beta[part].unsqueeze(0),
        before[base].float(),
    )
    assert torch.equal(pool[scratch], want.half())
    untouched = [index for index in range(6) if index != scratch]
    assert torch.equal(pool[untouched], before[untouched])
