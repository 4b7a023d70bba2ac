"""What config.json says about memory: the layers of a model and what each keeps of a token and of a person.

Formulas are those of exllamav3 1.6.5's cache classes; `tests/engine/test_vram_real.py` compares them with what the library
allocates. Sizes are bytes throughout.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from daemon.core.drafting import drafter_tokens, own_head_tokens
from daemon.core.errors import ConfigError

PAGE = 256
"""Tokens a page of the cache."""
FULL_BITS = 16
"""`k_bits` and `v_bits` of an fp16 cache."""
_GROUP = 32
"""Values that share a scale in a quantised cache."""
_SLIDING_SLACK = 2 * PAGE
"""Rows a sliding window keeps beyond its width."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Of the KV cache. 16 and 16, or both from 2 to 8."""

    k_bits: int = FULL_BITS
    v_bits: int = FULL_BITS

    @property
    def full(self) -> bool:
        """Whether the cache is fp16."""
        return self.k_bits == FULL_BITS and self.v_bits == FULL_BITS

    def check(self) -> None:
        """Raise ConfigError for bits that no cache has."""
        if not self.full and not (2 <= self.k_bits <= 8 and 2 <= self.v_bits <= 8):  # noqa: PLR2004 - exllamav3's range
            raise ConfigError(f"k_bits is {self.k_bits} and v_bits is {self.v_bits}: both must be 16, or both between 2 and 8")


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Full attention: keys and values of every token."""

    q_heads: int
    kv_heads: int
    head_dim: int

    def token_bytes(self, precision: Precision) -> int:
        """Cache bytes of one token."""
        values = self.kv_heads * self.head_dim
        if precision.full:
            return 4 * values
        return values // _GROUP * (4 * (precision.k_bits + precision.v_bits) + 4)


@dataclass(frozen=True, slots=True)
class LatentLayer:
    """Multi-head latent attention: one latent and one rotary key of every token."""

    q_heads: int
    rank: int
    rope: int

    def token_bytes(self, precision: Precision) -> int:
        """Cache bytes of one token."""
        if precision.full:
            return 2 * (self.rank + self.rope)
        return self.rank // _GROUP * (4 * precision.k_bits + 2) + 2 * self.rope


@dataclass(frozen=True, slots=True)
class SlidingLayer:
    """Attention over a window: a ring of rows for every slot, whatever the context."""

    q_heads: int
    kv_heads: int
    head_dim: int
    window: int

    def state_bytes(self, slots: int, history: int) -> int:
        """Bytes for all slots. `history` does not matter here."""
        del history
        rows = -(-(self.window + _SLIDING_SLACK) // PAGE) * PAGE
        return slots * rows * self.kv_heads * self.head_dim * 4

    def checkpoint_bytes(self) -> int:
        """Host memory of one checkpoint."""
        return self.window * self.kv_heads * self.head_dim * 4


@dataclass(frozen=True, slots=True)
class DeltaLayer:
    """Gated delta net: a fixed state for every slot."""

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    conv: int
    """Width of the convolution."""

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    def state_bytes(self, slots: int, history: int) -> int:
        """Bytes for all slots: the convolution's ring, two fp16 states a slot, and staging for `history` draft tokens."""
        ring = slots * self.channels * (self.conv + history) * 2
        states = 2 * slots * self.v_heads * self.k_dim * self.v_dim * 2
        staging = slots * (history + 1) * (2 * self.channels + 2 * self.v_heads + 4 * self.v_heads)
        return ring + states + staging

    def checkpoint_bytes(self) -> int:
        """Host memory of one checkpoint."""
        return 2 * self.channels * self.conv + self.v_heads * self.k_dim * self.v_dim * 2


Layer: TypeAlias = AttentionLayer | LatentLayer | SlidingLayer | DeltaLayer


def token_bytes(layer: Layer, precision: Precision) -> int:
    """KV bytes of one token in a layer; 0 where it keeps none."""
    match layer:
        case AttentionLayer() | LatentLayer():
            return layer.token_bytes(precision)
        case SlidingLayer() | DeltaLayer():
            return 0


def state_bytes(layer: Layer, slots: int, history: int) -> int:
    """Bytes of a layer's state for all slots; 0 where it keeps none."""
    match layer:
        case SlidingLayer() | DeltaLayer():
            return layer.state_bytes(slots, history)
        case AttentionLayer() | LatentLayer():
            return 0


def checkpoint_bytes(layer: Layer) -> int:
    """Host bytes of a layer's part of a recurrent checkpoint."""
    match layer:
        case SlidingLayer() | DeltaLayer():
            return layer.checkpoint_bytes()
        case AttentionLayer() | LatentLayer():
            return 0


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the feed-forward part."""

    count: int
    per_token: int
    intermediate: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model, as far as memory goes."""

    architecture: str
    hidden: int
    intermediate: int
    vocabulary: int
    context: int
    """max_position_embeddings."""
    layers: tuple[Layer, ...]
    tied: bool
    """The head uses the embedding's weights."""
    experts: Experts | None
    vision: bool
    drafter_layers: int
    """Layers of the multi-token-prediction head."""
    head_drafts: int
    """Tokens that this head drafts where nobody says another number."""
    drafts: int
    """The same, where the model drafts for another."""
    familiar: bool
    """Whether the formulas were checked against this architecture; others are taken to be ordinary transformers."""

    @property
    def recurrent(self) -> bool:
        """Whether each person needs a slot of fixed size."""
        return any(isinstance(layer, SlidingLayer | DeltaLayer) for layer in self.layers)


FAMILIAR = frozenset(
    {
        "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    }
)  # fmt: skip
_STRANGE = (
    "mamba_d_state",
    "ssm_state_size",
    "mamba_num_heads",
    "linear_attn_config",
    "index_head_dim",
    "compress_ratios",
    "conv_L_cache",
)
"""Keys of layers whose state these formulas do not know."""


class _Text(msgspec.Struct, frozen=True):
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool = False
    layer_types: list[str] | None = None
    full_attention_interval: int = 4
    sliding_window: int | None = None
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int = 0
    num_experts: int | None = None
    num_local_experts: int | None = None
    n_routed_experts: int | None = None
    num_experts_per_tok: int = 1
    moe_intermediate_size: int | None = None
    mtp_num_hidden_layers: int = 0


class _Root(msgspec.Struct, frozen=True):
    architectures: list[str]
    text_config: dict[str, object] | None = None
    vision_config: dict[str, object] | None = None
    tie_word_embeddings: bool = False
    vocab_size: int | None = None


def _layer(text: _Text, kind: str, where: str) -> Layer:
    heads = text.num_attention_heads
    kv_heads = text.num_key_value_heads or heads
    head_dim = text.head_dim or text.hidden_size // heads
    if kind == "linear_attention":
        return DeltaLayer(
            text.linear_num_key_heads,
            text.linear_num_value_heads,
            text.linear_key_head_dim,
            text.linear_value_head_dim,
            text.linear_conv_kernel_dim,
        )
    if kind in {"sliding_attention", "chunked_attention"} and text.sliding_window:
        return SlidingLayer(heads, kv_heads, head_dim, text.sliding_window)
    if kind not in {"full_attention", "sliding_attention"}:
        raise ConfigError(f"layer_types names {kind!r}, whose memory the plan does not know", where)
    if text.kv_lora_rank is not None:
        return LatentLayer(heads, text.kv_lora_rank, text.qk_rope_head_dim)
    return AttentionLayer(heads, kv_heads, head_dim)


def _kinds(text: _Text, architecture: str, where: str) -> list[str]:
    if text.layer_types is not None:
        if len(text.layer_types) != text.num_hidden_layers:
            raise ConfigError(f"layer_types has {len(text.layer_types)} entries for {text.num_hidden_layers} layers", where)
        return text.layer_types
    if architecture.startswith(("Qwen3_5", "Qwen3Next")):
        interval = text.full_attention_interval
        return ["linear_attention" if (n + 1) % interval else "full_attention" for n in range(text.num_hidden_layers)]
    return ["full_attention"] * text.num_hidden_layers


def _experts(text: _Text) -> Experts | None:
    count = text.num_experts or text.num_local_experts or text.n_routed_experts
    if not count:
        return None
    return Experts(count, text.num_experts_per_tok, text.moe_intermediate_size or text.intermediate_size or 0)


def describe(config: Mapping[str, object], where: str = "config.json") -> ModelShape:
    """The shape of the model that `config` (config.json as it was read) describes. Raises ConfigError with what is missing."""
    try:
        root = msgspec.convert(config, _Root)
        inner: Mapping[str, object] = root.text_config if root.text_config is not None else config
        text = msgspec.convert(inner, _Text)
        drafts = drafter_tokens(root.architectures[0] if root.architectures else "", config)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"this does not describe a language model: {problem}", where) from problem
    if not root.architectures:
        raise ConfigError("architectures is empty, so the model's kind is not known", where)
    architecture = root.architectures[0]
    strange = [key for key in _STRANGE if inner.get(key)]
    if strange:
        raise ConfigError(f"{architecture} has {strange[0]}: the plan does not know the memory of such layers", where)
    positive = (
        text.hidden_size,
        text.num_hidden_layers,
        text.num_attention_heads,
        text.num_key_value_heads or 1,
        text.full_attention_interval,
    )
    if min(positive) < 1:
        raise ConfigError("sizes and counts must be positive", where)
    experts = _experts(text)
    intermediate = text.intermediate_size or (experts.intermediate * experts.per_token if experts else 0)
    vocabulary = text.vocab_size or root.vocab_size
    if not vocabulary or not intermediate:
        raise ConfigError(f"{'vocab_size' if not vocabulary else 'intermediate_size'} is missing", where)
    return ModelShape(
        architecture=architecture,
        hidden=text.hidden_size,
        intermediate=intermediate,
        vocabulary=vocabulary,
        context=text.max_position_embeddings or 0,
        layers=tuple(_layer(text, kind, where) for kind in _kinds(text, architecture, where)),
        tied=root.tie_word_embeddings or text.tie_word_embeddings,
        experts=experts,
        vision=root.vision_config is not None,
        drafter_layers=text.mtp_num_hidden_layers,
        head_drafts=own_head_tokens(architecture),
        drafts=drafts,
        familiar=architecture in FAMILIAR,
    )
