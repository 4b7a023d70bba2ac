"""A tokenizer small enough to reason about: byte-level BPE whose id is the byte's value, with control tokens from 256 on."""

import json

from tokenizers import Tokenizer

from daemon.host.detokenizer import Vocabulary, byte_level_alphabet, vocabulary

END, START, THINK, UNTHINK = 256, 257, 258, 259
ADDED = {END: "<|im_end|>", START: "<|im_start|>", THINK: "<think>", UNTHINK: "</think>"}
SPECIAL = frozenset({END, START})


def tiny_document() -> str:
    """Its tokenizer.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    document: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": text, "special": token in SPECIAL, **flags} for token, text in ADDED.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": byte_level_alphabet(), "merges": []},
    }
    return json.dumps(document)


def tiny_tokenizer() -> Tokenizer:
    """The tokenizer itself."""
    return Tokenizer.from_str(tiny_document())


def tiny_vocabulary() -> Vocabulary:
    """What detokenizers need of it."""
    return vocabulary(tiny_tokenizer(), tiny_document().encode(), ADDED)
