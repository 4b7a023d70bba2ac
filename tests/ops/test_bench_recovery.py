"""The recovery bench tells lost, doubled and changed answers from near-ties, and reads engines' ends from the log."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.bench import faults, journal
from ops.bench.hearing import Heard, Token
from ops.bench.likeness import NEAR_TIE, Harm, Words, compare, first_difference

TEXTS = {number: f"w{number} " for number in range(100)} | {100: "\N{REPLACEMENT CHARACTER}", 101: "\N{REPLACEMENT CHARACTER}"}
WORDS = Words(TEXTS)
PROMPT: tuple[int, ...] = (1, 2, 3)


def after(prompt: Sequence[int]) -> int:
    """The token that the model of these tests says after a prompt."""
    return random.Random(str(tuple(prompt))).randrange(100)  # noqa: S311 - test data


def answer(prompt: tuple[int, ...], count: int, *, rival: int | None = None, gap: float = 0.01) -> Heard:
    """An undisturbed answer, whose every token has `rival` behind it by `gap` nats."""
    heard = Heard(prompt, 0.0)
    ids = list(prompt)
    for _ in range(count):
        token = after(ids)
        ids.append(token)
        top = {TEXTS[token]: -0.5} | ({} if rival is None else {TEXTS[rival]: -0.5 - gap})
        heard.tokens.append(Token(TEXTS[token], -0.5, top, 0.0))
    return ended(heard)


def ended(heard: Heard) -> Heard:
    """The same with a proper end."""
    heard.text = "".join(token.text for token in heard.tokens)
    heard.counted, heard.complete, heard.finish = len(heard.tokens), True, "length"
    return heard


def said(ids: Sequence[int]) -> Heard:
    """An answer of these ids."""
    return ended(Heard(PROMPT, 0.0, [Token(TEXTS[token], -1.0, {}, 0.0) for token in ids]))


def usual(count: int) -> list[int]:
    """Ids of the undisturbed answer."""
    ids = [*PROMPT]
    for _ in range(count):
        ids.append(after(ids))
    return ids[len(PROMPT) :]


async def quiet(prompt: tuple[int, ...], count: int) -> Heard:
    return answer(prompt, count)


async def test_same_answer_is_alike() -> None:
    found = await compare(quiet, WORDS, said(usual(40)), 40)
    assert (found.harm, found.gaps, found.unseen) == (None, [], 0)


@pytest.mark.parametrize("count", [0, 39])
async def test_answer_that_is_short_is_lost(count: int) -> None:
    assert (await compare(quiet, WORDS, said(usual(count)), 40)).harm is Harm.LOST


async def test_answer_without_an_end_is_lost() -> None:
    heard = said(usual(40))
    heard.complete = False
    assert (await compare(quiet, WORDS, heard, 40)).harm is Harm.LOST


async def test_answer_that_is_too_long_has_doubled_tokens() -> None:
    assert (await compare(quiet, WORDS, said(usual(41)), 40)).harm is Harm.DUPLICATED


async def test_text_that_is_not_that_of_its_tokens_is_changed() -> None:
    heard = said(usual(40))
    heard.text = heard.text[:-1]
    assert (await compare(quiet, WORDS, heard, 40)).harm is Harm.CHANGED


@given(at=st.integers(1, 25), shift=st.integers(1, 10))
async def test_tokens_said_twice_inside_an_answer_are_found(at: int, shift: int) -> None:
    ids = usual(40)
    shift = min(shift, at)
    doubled = (ids[:at] + ids[at - shift :])[:40]
    assert (await compare(quiet, WORDS, said(doubled), 40)).harm is Harm.DUPLICATED


@given(at=st.integers(0, 20), shift=st.integers(1, 10))
async def test_tokens_left_out_inside_an_answer_are_found(at: int, shift: int) -> None:
    ids = usual(60)
    short = (ids[:at] + ids[at + shift :])[:40]

    async def longer(prompt: tuple[int, ...], count: int) -> Heard:
        return answer(prompt, count)

    assert (await compare(longer, WORDS, said(short), 40)).harm is Harm.LOST


async def test_another_continuation_is_changed() -> None:
    ids = usual(20)
    other = (ids[10] + 1) % 100
    found = await compare(quiet, WORDS, said([*ids[:10], other, *ids[11:]]), 20)
    assert found.harm is Harm.CHANGED


async def test_near_tie_is_followed_to_the_end() -> None:
    """The tokens after it must be those that follow it, not those of the other way."""
    ids = usual(20)
    other = (ids[10] + 1) % 100
    way = list(PROMPT) + ids[:10] + [other]
    while len(way) < len(PROMPT) + 20:
        way.append(after(way))

    async def nearly(prompt: tuple[int, ...], count: int) -> Heard:
        return answer(prompt, count, rival=other, gap=0.02)

    found = await compare(nearly, WORDS, said(way[len(PROMPT) :]), 20)
    assert (found.harm, [round(gap, 3) for gap in found.gaps]) == (None, [0.02])
    found = await compare(nearly, WORDS, said([*ids[:10], other, *ids[11:]]), 20)
    assert found.harm is Harm.CHANGED


async def test_wide_gap_is_no_near_tie() -> None:
    ids = usual(20)
    other = (ids[10] + 1) % 100

    async def clearly(prompt: tuple[int, ...], count: int) -> Heard:
        return answer(prompt, count, rival=other, gap=NEAR_TIE + 0.01)

    assert (await compare(clearly, WORDS, said([*ids[:10], other, *ids[11:]]), 20)).harm is Harm.CHANGED


async def test_rest_behind_an_ambiguous_token_is_counted_as_unseen() -> None:
    """A token that is a part of a character cannot be sent again as a prompt."""
    ids = usual(20)

    async def nearly(prompt: tuple[int, ...], count: int) -> Heard:
        heard = answer(prompt, count)
        tokens = [Token(token.text, token.logprob, {**token.top, TEXTS[100]: -0.5}, 0.0) for token in heard.tokens]
        heard.tokens = tokens
        return heard

    found = await compare(nearly, WORDS, said([*ids[:10], 100, *ids[11:]]), 20)
    assert (found.harm, len(found.gaps), found.unseen) == (None, 1, 9)


def test_answers_of_different_lengths_differ_nowhere_before_their_ends() -> None:
    assert first_difference(said(usual(5)).tokens, said(usual(9)).tokens) is None


def lines(*changes: tuple[float, str, str]) -> list[journal.Change]:
    """Changes as a log would give them."""
    text = "\n".join(
        json.dumps(
            {
                "time": f"2026-01-01T00:00:{second:06.3f}+00:00",
                "level": "info",
                "logger": "exl3d.supervisor",
                "message": f"engine: {before} -> {after_}: words",
            }
        )
        for second, before, after_ in changes
    )
    noise = 'not json\n{"time": "2026-01-01T00:00:00+00:00", "message": "engine 12: stopped -> here is what it printed: x"}\n'
    return list(journal.changes(noise + text))


def test_log_tells_when_an_engine_was_lost_gone_and_replaced() -> None:
    found = lines(
        (1.0, "starting", "ready"),
        (5.0, "ready", "stopping"),
        (5.5, "stopping", "backoff"),
        (6.0, "backoff", "starting"),
        (9.0, "starting", "ready"),
    )
    start = found[0].t - 1.0 if found[0].before == "starting" else found[1].t - 1.0
    recovery = journal.recovery_after(found, start + 4.0)
    assert recovery is not None
    assert (recovery.lost - start, recovery.gone - start, recovery.served - start) == (5.0, 5.5, 9.0)


def test_engine_that_is_gone_before_it_was_missed_counts_as_gone_at_once() -> None:
    found = list(lines((5.0, "ready", "backoff"), (6.0, "backoff", "starting"), (9.0, "starting", "ready")))
    recovery = journal.recovery_after(found, 0.0)
    assert recovery is not None
    assert recovery.lost == recovery.gone


def test_engine_that_has_not_come_back_is_no_recovery() -> None:
    found = lines((5.0, "ready", "stopping"), (5.5, "stopping", "backoff"))
    assert journal.recovery_after(found, 0.0) is None


def test_engine_that_said_when_it_failed_is_taken_at_its_word(tmp_path: Path) -> None:
    moments = tmp_path / "moments"
    assert faults.moment(moments, 7, 9.0) is None
    moments.write_text("7 8.5\n6 10.5\n7 11.25\n")
    assert faults.moment(moments, 7, 9.0) == 11.25
    assert faults.moment(moments, 7, 12.0) is None
    assert faults.moment(moments, 8, 9.0) is None
