"""Playing a model that knows nothing but the grammar: random tokens among those a grammar allows."""

from collections.abc import Sequence
from random import Random

from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from daemon.core import model

MOST_TOKENS = 6000
_HURRY = 250
"""Tokens after which the player takes whatever may lead to an end."""
_WORDS = (
    "</think>",
    "\n</parameter>\n",
    "</parameter>\n",
    "</arg_value>\n",
    "</\uff5cDSML\uff5cparameter>\n",
    "\n</\uff5cDSML\uff5cfunction_calls>",
    "[/THINK]",
    "<channel|>",
    "<|end|>",
    '<|"|>',
)
"""What the player says in one go now and then, as chance alone would not spell it."""


class ByteTokens:
    """A tokenizer with a token a byte, and the tags of a format as tokens of their own."""

    def __init__(self, tags: Sequence[str]) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        special = ["<|end_of_answer|>", *(tag for tag in tags if tag[0] == "[")]
        tokenizer.add_special_tokens([AddedToken(tag, special=True, normalized=False) for tag in special])  # pyright: ignore[reportUnknownMemberType] - bare list in tokenizers
        tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags if tag[0] != "["])  # pyright: ignore[reportUnknownMemberType] - as above
        self.tokenizer = tokenizer
        self.added = [model.AddedToken(id_of(tokenizer, tag), tag, special=tag[0] == "[") for tag in tags]
        self.end = len(alphabet)
        self._guided = LLTokenizer(tokenizer.to_str(), eos_token=self.end)
        self._words = [tokenizer.encode(word, add_special_tokens=False).ids for word in _WORDS]
        self._weights = [self._weight(token) for token in range(tokenizer.get_vocab_size())]

    def play(self, grammar: str, chance: Random) -> str:
        """A text the grammar admits, with an end. Raises AssertionError where it leads nowhere."""
        matcher = LLMatcher(self._guided, LLMatcher.grammar_from_lark(grammar))
        assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
        said: list[int] = []
        while len(said) < MOST_TOKENS:
            hurried = len(said) > _HURRY
            if chance.random() < (0.7 if hurried else 0.1):
                words = self._words if hurried else [chance.choice(self._words)]
                fitting = [word for word in words if matcher.validate_tokens(word) == len(word)]
                if fitting:
                    word = chance.choice(fitting)
                    assert matcher.consume_tokens(word), matcher.get_error()
                    said += word
                    if matcher.is_stopped():
                        break
                    continue
            allowed = [token for token, bias in enumerate(matcher.compute_logit_bias()) if bias]
            assert allowed, f"no way out after {self.text(said)!r}\n{grammar}"
            weights = [self._weights[token] ** (3 if hurried else 1) for token in allowed]
            token = chance.choices(allowed, weights)[0]
            if token == self.end:
                break
            assert matcher.consume_token(token), matcher.get_error()
            said.append(token)
            if matcher.is_stopped():
                break
        else:
            raise AssertionError(f"no end after {self.text(said)[-300:]!r}")
        return self.text(said)

    def follows(self, grammar: str, text: str) -> bool:
        """Whether a grammar admits a text."""
        matcher = LLMatcher(self._guided, LLMatcher.grammar_from_lark(grammar))
        assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return all(matcher.consume_token(token) for token in ids) and matcher.is_accepting()

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, tags included."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def _weight(self, token: int) -> float:
        """How gladly the player takes a token: what closes something most of all."""
        text = self.tokenizer.decode([token], skip_special_tokens=False)
        if token >= self.end:
            return 40.0
        if text in set('"}])'):
            return 12.0
        if text in set("<>/,\n"):
            return 3.0
        return 1.0 if text.isascii() and text.isalnum() else 0.1


def id_of(tokenizer: Tokenizer, text: str) -> int:
    """The id of a token."""
    found = tokenizer.token_to_id(text)
    assert found is not None, text
    return found
