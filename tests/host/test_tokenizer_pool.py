"""The tokenizer behind its port: control tokens count where the template wrote them, and never where people did."""

import asyncio
import json
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.core.errors import ConfigError
from daemon.core.guarded import Guard
from daemon.host.model_directory import read_model_directory
from daemon.host.tokenizer_pool import TokenizerPool
from tests.host.test_model_directory import write
from tests.host.tiny import ADDED, END, START, UNTHINK, tiny_document


def pool_of(path: Path) -> TokenizerPool:
    """The pool of a directory."""
    reading = read_model_directory(path)
    return TokenizerPool(reading.model, reading.tokenizer)


@pytest.fixture
def pool(tmp_path: Path) -> Generator[TokenizerPool]:
    """A pool over the tiny tokenizer, which puts `<|im_start|>` in front of texts."""
    settings: dict[str, object] = {"bos_token": "<|im_start|>", "add_bos_token": True}
    made = pool_of(write(tmp_path / "m", **{"tokenizer_config.json": settings}))
    yield made
    made.close()


async def test_rendered_control_tokens_count(pool: TokenizerPool) -> None:
    assert await pool.encode_rendered("<|im_start|>A</think><|im_end|>") == (START, 65, UNTHINK, END)


async def test_guarded_text_of_people_is_ordinary(pool: TokenizerPool) -> None:
    guard = Guard(ADDED.values())
    rendered = "<|im_start|>" + guard.guard("a<|im_end|>b") + "<|im_end|>"
    assert await pool.encode_rendered(rendered) == (START, *b"a<|im_end|>b", END)


@given(st.lists(st.sampled_from(["<", "|", "im_end", "im_start", ">", "a", "<|im_end|>", "</think>", "\ufdd0"])).map("".join))
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_text_of_people_becomes_a_control_token(pool: TokenizerPool, text: str) -> None:
    ids = await pool.encode_rendered(Guard(ADDED.values()).guard(text))
    assert set(ids).isdisjoint(ADDED)
    assert bytes(ids).decode() == text.replace("\ufdd0", "")


async def test_plain_text_gets_its_bos_and_no_control_token(pool: TokenizerPool) -> None:
    assert await pool.encode_plain("<|im_end|>A") == (START, *b"<|im_end|>A")


async def test_loop_goes_on_while_a_book_is_encoded(pool: TokenizerPool) -> None:
    """The library holds the interpreter lock where it is asked for one text at a time."""
    book = "all work and no play " * 60_000
    for encode in (pool.encode_plain, pool.encode_rendered):
        work, turns = asyncio.ensure_future(encode(book)), 0
        while not work.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(await work) >= len(book)
        assert turns > 15_000  # with the lock held there is time for some thousands, before and after


async def test_decoding_hides_special_tokens_when_asked(pool: TokenizerPool) -> None:
    ids = [START, 65, UNTHINK, END]
    assert await pool.decode(ids, hide_special=True) == "A</think>"
    assert await pool.decode(ids, hide_special=False) == "<|im_start|>A</think><|im_end|>"


def test_single_tokens_are_spelled(pool: TokenizerPool) -> None:
    assert (pool.token_text(65), pool.token_bytes(65)) == ("A", b"A")
    assert (pool.token_text(0xC3), pool.token_bytes(0xC3)) == ("\ufffd", b"\xc3")
    assert pool.token_text(UNTHINK) == "</think>"
    assert pool.special == frozenset({START, END})


async def test_runs_of_spaces_keep_their_ids_in_literal_text(tmp_path: Path) -> None:
    document = json.loads(tiny_document())
    document["model"]["vocab"]["\n\n"] = 260
    document["added_tokens"].append({**document["added_tokens"][2], "id": 260, "content": "\n\n"})
    pool = await asyncio.to_thread(pool_of, write(tmp_path / "m", tokenizer=document))
    assert await pool.encode_plain("a\n\nb<|im_end|>") == (97, 260, 98, *b"<|im_end|>")
    pool.close()


async def test_control_token_inside_the_vocabulary_is_not_reached_by_text(tmp_path: Path) -> None:
    document = json.loads(tiny_document())
    document["model"]["vocab"]["<|im_end|>"] = END
    document["model"]["ignore_merges"] = True
    pool = await asyncio.to_thread(pool_of, write(tmp_path / "m", tokenizer=document))
    assert await pool.encode_plain("<|im_end|>") == tuple(b"<|im_end|>")
    pool.close()


def test_tokenizer_the_library_refuses_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        pool_of(write(tmp_path / "m", tokenizer={"model": {"type": "Unheard", "vocab": {}}}))
