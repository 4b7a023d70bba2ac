"""The directory check: each thing a conversion or an upload can lack is named."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from daemon.core.safetensors_header import Tensor
from daemon.core.vram_check import Surroundings, check
from daemon.core.vram_findings import Finding, Gravity
from daemon.core.vram_model import describe
from tests.core.vram_models import ORNITH_9B, tensor, tensors

WHOLE = Surroundings(has_tokenizer=True, has_template=True, has_preprocessor=False)
FILES = tensors(ORNITH_9B)
Q3 = "model.language_model.layers.3.self_attn.q_proj"


def found(
    files: tuple[Tensor, ...] = FILES, config: Mapping[str, object] = ORNITH_9B, around: Surroundings = WHOLE
) -> tuple[Finding, ...]:
    return check(config, describe(config), files, around)


def without(wanted: Callable[[str], bool]) -> tuple[Tensor, ...]:
    return tuple(item for item in FILES if not wanted(item.name))


def test_whole_directory_has_no_findings() -> None:
    assert found() == ()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "no tensor in any"),
        (without(lambda name: "embed_tokens" in name), "embeddings"),
        (without(lambda name: name.startswith("lm_head")), "head (lm_head) is missing"),
        (without(lambda name: name == "model.language_model.norm.weight"), "final norm"),
        (without(lambda name: ".layers.7.mlp" in name), "feed-forward weights are missing in layer 7 of 32"),
        (
            without(lambda name: ".layers.7.linear_attn" in name or ".layers.3.self_attn" in name),
            "attention weights are missing in layer 3",
        ),
        (
            without(lambda name: ".layers.2.input_layernorm" in name or ".layers.2.post" in name),
            "norm weights are missing in layer 2",
        ),
        (
            without(lambda name: name.endswith("layers.3.self_attn.q_proj.suh")),
            "lack their scales (suh and svh): model.language_model.layers.3.self_attn.q_proj",
        ),
        (without(lambda name: name.endswith((".trellis", ".suh", ".svh"))), "no weight is quantised"),
    ],
)
def test_missing_tensors_are_named_as_fatal(files: tuple[Tensor, ...], words: str) -> None:
    fatal = [finding.words for finding in found(files) if finding.gravity is Gravity.FATAL]
    assert any(words in line for line in fatal), fatal


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            without(lambda name: ".layers.7.self_attn.k_proj" in name),
            "matrices are missing that the other layers have: self_attn.k_proj in layer 7",
        ),
        (without(lambda name: ".layers.5.mlp.up_proj" in name), "mlp.up_proj in layer 5"),
        (without(lambda name: ".layers.2.input_layernorm" in name), "input_layernorm in layer 2"),
        (
            (*without(lambda name: name.endswith("layers.3.self_attn.q_proj.suh")), tensor(Q3 + ".suh", "F32", 4096)),
            "layers.3.self_attn.q_proj.suh is F32, not F16",
        ),
        (
            (*without(lambda name: name.endswith("layers.3.self_attn.q_proj.suh")), tensor(Q3 + ".suh", "F16", 2048)),
            "layers.3.self_attn.q_proj.suh has 2048 values for 4096 of its matrix",
        ),
        ((*FILES, tensor("model.layers.0.mlp.up_proj.qweight", "F32", 4, 4)), "weights of GPTQ or AWQ"),
    ],
)
def test_single_matrix_that_is_missing_or_of_the_wrong_type_is_named(files: tuple[Tensor, ...], words: str) -> None:
    fatal = [finding.words for finding in found(files) if finding.gravity is Gravity.FATAL]
    assert len(fatal) == 1
    assert words in fatal[0]


def test_too_few_experts_are_counted_by_layer() -> None:
    config = {**ORNITH_9B, "architectures": ["Qwen3_5MoeForCausalLM"], "num_experts": 4, "moe_intermediate_size": 512}
    some = tuple(tensor(f"model.language_model.layers.6.mlp.experts.{n}.up_proj.weight", "F16", 512, 4096) for n in range(3))
    lines = [finding.words for finding in found((*FILES, *some), config)]
    assert "config.json has 4 experts a layer, and there are 3 in layer 6" in lines


def test_what_reading_the_files_showed_is_told() -> None:
    around = replace(
        WHOLE,
        damaged=("a.safetensors is cut off: it lacks 3 of 9 bytes; download it again",),
        twice=("lm_head.trellis is in a.safetensors and in b.safetensors",),
        strayed=("x is in a.safetensors, not in b.safetensors",),
        highest_token=248320,
    )
    gravities = [(finding.gravity, finding.words.split(":")[0]) for finding in found(around=around)]
    assert gravities == [
        (Gravity.FATAL, "a.safetensors is cut off"),
        (Gravity.FATAL, "tensors are there twice, and which of them is loaded is chance"),
        (Gravity.WARNING, "tensors lie in other files than model.safetensors.index.json says"),
        (Gravity.WARNING, "tokenizer.json has ids up to 248320, and config.json has 248320 rows (vocab_size)"),
    ]


def test_tied_model_needs_no_head() -> None:
    config = {**ORNITH_9B, "tie_word_embeddings": True}
    assert found(without(lambda name: name.startswith("lm_head")), config) == ()


def test_matrices_of_another_size_than_config_json_are_named() -> None:
    config = {**ORNITH_9B, "hidden_size": 4224}
    lines = [finding.words for finding in found(config=config)]
    assert any("do not fit config.json" in line and "wants 4224" in line for line in lines), lines
    vocabulary = {**ORNITH_9B, "vocab_size": 1000}
    assert any(
        "embed_tokens is 4096 to 248320, config.json wants 4096 to 1000" in finding.words for finding in found(config=vocabulary)
    )


def test_vision_model_without_tower_or_preprocessor_is_fatal() -> None:
    config = {**ORNITH_9B, "vision_config": {"depth": 2}}
    lines = [finding.words for finding in found(config=config)]
    assert any("its weights are missing" in line for line in lines)
    assert any("preprocessor_config.json" in line for line in lines)
    files = (*FILES, tensor("model.visual.patch_embed.weight", "F16", 4, 4))
    assert found(files, config, replace(WHOLE, has_preprocessor=True)) == ()


def test_drafter_without_weights_and_layers_beyond_are_warnings() -> None:
    config = {**ORNITH_9B, "mtp_num_hidden_layers": 1}
    assert [finding.gravity for finding in found(config=config)] == [Gravity.WARNING]
    files = (*FILES, tensor("model.language_model.layers.32.mlp.up_proj.weight", "F16", 4, 4))
    assert [finding.words for finding in found(files)] == ["weights of layer 32 are here, but config.json has 32 layers"]


@pytest.mark.parametrize(
    ("quantisation", "gravity", "words"),
    [
        (None, Gravity.WARNING, "no quantization_config"),
        ({"quant_method": "gptq", "bits": 4}, Gravity.FATAL, "the weights are gptq"),
        ({"quant_method": "exl3", "bits": 6.0}, Gravity.WARNING, "says 6 bits, the weights have 4.00"),
        ({"quant_method": "exl3", "bits": 4.0, "head_bits": 8}, Gravity.WARNING, "says 8 bits for the head, which has 6"),
        ({"quant_method": 7}, Gravity.WARNING, "cannot be read"),
    ],
)
def test_quantisation_metadata_that_does_not_fit_is_named(quantisation: object, gravity: Gravity, words: str) -> None:
    findings = found(config={**ORNITH_9B, "quantization_config": quantisation})
    assert [(finding.gravity, words in finding.words) for finding in findings] == [(gravity, True)]


def test_missing_files_tokenizer_and_template_are_named() -> None:
    around = Surroundings(
        has_tokenizer=False,
        has_template=False,
        has_preprocessor=False,
        shards_named=frozenset({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}),
        shards_present=frozenset({"model-00001-of-00002.safetensors"}),
    )
    findings = found(around=around)
    assert [finding.gravity for finding in findings] == [Gravity.FATAL, Gravity.FATAL, Gravity.WARNING]
    assert "model-00002-of-00002.safetensors" in findings[0].words
    assert "tokenizer.json" in findings[1].words
    assert "chat template" in findings[2].words


def test_tensor_that_only_the_index_knows_is_fatal() -> None:
    around = replace(WHOLE, tensors_named=frozenset({"model.language_model.layers.0.mlp.up_proj.mcg"}))
    assert [finding.gravity for finding in found(around=around)] == [Gravity.FATAL]
