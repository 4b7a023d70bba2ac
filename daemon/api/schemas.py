"""What the bodies of generation requests may hold: type, bounds and one line of documentation per parameter, written once.

The structs validate requests, word the errors (`expectation`) and make docs/API.md. `null` always means not given. What clients
of other servers send beyond these fields is in `parameters.py`: refused by name, or without effect.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

MAX_CHOICES = 16
MAX_STREAMS = 128
"""Streams that one request may open: prompts times choices."""
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
MAX_TIMEOUT = 86_400.0
MAX_COUNT = 2**63 - 1
"""Most tokens that a length or a budget may name, as clients do that mean "no limit": the most that the link can carry."""
MAX_TOP_K = 2**31 - 1
"""The most that the kernels of samplers can take; some clients say it for "all"."""
MAX_REACH = 2**30
"""Most tokens that DRY looks at: its kernel adds lengths to it in 32 bits."""

StopString = Annotated[str, Meta(min_length=1)]
TokenId = Annotated[int, Meta(ge=0)]
Json = dict[str, object]

# --- fields that mean the same in several bodies ------------------------------------------------------------------------

ModelName: TypeAlias = Annotated[str | None, Meta(description="Name or alias of the model; absent: the one served")]
Streamed: TypeAlias = Annotated[bool | None, Meta(description="Answer with server-sent events")]
Temperature: TypeAlias = Annotated[Annotated[float, Meta(ge=0, le=2)] | None, Meta(description="0: always the likeliest token")]
TopP: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="Nucleus sampling; 0: the likeliest token")
]
TopK: TypeAlias = Annotated[
    Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None, Meta(description="Keep the k likeliest tokens; 0 or -1: all")
]
MinP: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="Drop tokens less likely than this share of the likeliest")
]
FrequencyPenalty: TypeAlias = Annotated[
    Annotated[float, Meta(ge=-2, le=2)] | None, Meta(description="Per occurrence in the generated text")
]
PresencePenalty: TypeAlias = Annotated[
    Annotated[float, Meta(ge=-2, le=2)] | None, Meta(description="For any occurrence in the generated text")
]
StopTexts: TypeAlias = Annotated[
    StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None,
    Meta(description="Text that ends the answer and is not part of it; does not act inside reasoning"),
]
IgnoreEos: TypeAlias = Annotated[bool | None, Meta(description="The model's own stop tokens do not end the answer")]
TemplateVariables: TypeAlias = Annotated[Json | None, Meta(description="Variables of the chat template, as enable_thinking")]
OneCall: TypeAlias = Annotated[bool | None, Meta(description="false: at most one call")]
Patience: TypeAlias = Annotated[
    Annotated[float, Meta(gt=0, le=MAX_TIMEOUT)] | None, Meta(description="Seconds after which nobody waits any more")
]
Budget: TypeAlias = Annotated[int, Meta(ge=-1, le=MAX_COUNT)]
User: TypeAlias = Annotated[str | None, Meta(description="Accepted; owners come from keys")]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that every generating endpoint takes."""

    model: ModelName = None
    stream: Streamed = None
    stream_options: Annotated[
        StreamOptions | None,
        Meta(description="include_usage: a last chunk with the usage; continuous_usage_stats: usage in every chunk"),
    ] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None,
        Meta(description="Longest answer in tokens; absent: to the end of the context"),
    ] = None
    min_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None, Meta(description="Tokens before the model may stop")
    ] = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: MinP = None
    seed: Annotated[
        Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None,
        Meta(description="Same seed, same draws; choice i of n draws with seed + i; -1: not given"),
    ] = None
    stop: StopTexts = None
    stop_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=64)] | None, Meta(description="Ids that end the answer, besides the model's")
    ] = None
    ignore_eos: IgnoreEos = None
    frequency_penalty: FrequencyPenalty = None
    presence_penalty: PresencePenalty = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=2)] | None, Meta(description="Multiplicative, on generated tokens only; 1: none")
    ] = None
    repeat_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=2)] | None, Meta(description="llama-server's name of repetition_penalty")
    ] = None
    logit_bias: Annotated[
        dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None, Meta(description="Token id to what is added to its logit")
    ] = None
    n: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None,
        Meta(description="Choices; all but the first start once the first has its first token, and share its prefix"),
    ] = None
    dry_multiplier: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None, Meta(description="DRY penalty against verbatim repetition; 0: off")
    ] = None
    dry_base: Annotated[Annotated[float, Meta(ge=1, le=100)] | None, Meta(description="DRY: growth per token of the match")] = (
        None
    )
    dry_allowed_length: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_REACH)] | None, Meta(description="DRY: longest repetition that is not penalised")
    ] = None
    dry_penalty_last_n: Annotated[
        Annotated[int, Meta(ge=-1, le=MAX_REACH)] | None, Meta(description="DRY: tokens looked back over; -1: all, 0: off")
    ] = None
    dry_sequence_breakers: Annotated[
        Annotated[list[StopString], Meta(max_length=64)] | None, Meta(description="DRY: texts at which a match ends")
    ] = None
    xtc_probability: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="XTC: chance that the likeliest tokens are dropped; 0: off")
    ] = None
    xtc_threshold: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="XTC: tokens above this probability count; above 0.5: off")
    ] = None
    response_format: Annotated[
        Json | None, Meta(description="type text, json_object or json_schema: the answer follows it by construction")
    ] = None
    guided_json: Annotated[Json | str | None, Meta(description="A JSON schema that the answer follows (vLLM's name)")] = None
    guided_regex: Annotated[StopString | None, Meta(description="A regular expression that the answer follows")] = None
    guided_grammar: Annotated[StopString | None, Meta(description="A GBNF or Lark grammar that the answer follows")] = None
    guided_choice: Annotated[
        Annotated[list[StopString], Meta(min_length=1, max_length=1024)] | None, Meta(description="The answer is one of these")
    ] = None
    structured_outputs: Annotated[Json | None, Meta(description="vLLM's object of json, regex, grammar or choice")] = None
    grammar: Annotated[str | None, Meta(description="llama-server's name of guided_grammar; empty: none")] = None
    json_schema: Annotated[Json | None, Meta(description="llama-server's name of guided_json")] = None
    skip_special_tokens: Annotated[bool | None, Meta(description="Leave special tokens out of the text; true if absent")] = None
    timeout: Patience = None
    user: User = None


class ChatBody(Generation, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[
        Annotated[list[object], Meta(min_length=1)], Meta(description="The conversation; see the chat room for its parts")
    ]
    max_completion_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None, Meta(description="OpenAI's newer name of max_tokens; goes first")
    ] = None
    logprobs: Annotated[bool | None, Meta(description="Probabilities of the answer's tokens, from the raw logits")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None, Meta(description="Alternatives per token; needs logprobs: true")
    ] = None
    tools: Annotated[list[object] | None, Meta(description="Functions that the model may call")] = None
    tool_choice: Annotated[
        str | Json | None,
        Meta(description="auto, none, required, or a function by name: these two are enforced, in the model's own call format"),
    ] = None
    parallel_tool_calls: OneCall = None
    chat_template_kwargs: TemplateVariables = None
    enable_thinking: Annotated[bool | None, Meta(description="Short for chat_template_kwargs.enable_thinking")] = None
    reasoning_effort: Annotated[str | None, Meta(description="none turns thinking off; other values reach the template")] = None
    reasoning_budget: Annotated[
        Budget | None,
        Meta(
            description="Thinking tokens after which the thought is closed; -1: no limit; absent: what `reasoning_effort` stands"
            " for where the model knows no efforts, else as configured"
        ),
    ] = None
    thinking_token_budget: Annotated[Budget | None, Meta(description="vLLM's name of reasoning_budget")] = None
    thinking_budget: Annotated[Budget | None, Meta(description="DashScope's name of reasoning_budget")] = None
    add_generation_prompt: Annotated[bool | None, Meta(description="Whether the template opens the answer; true if absent")] = (
        None
    )
    continue_final_message: Annotated[bool | None, Meta(description="Go on with the last message, which is the assistant's")] = (
        None
    )


class CompletionBody(Generation, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Annotated[
        str | list[str | int | list[int]],
        Meta(description="Text, a list of texts, token ids, or a list of lists of token ids"),
    ]
    echo: Annotated[bool | None, Meta(description="Begin the text with the prompt")] = None
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None,
        Meta(description="Probabilities of the generated tokens, with that many alternatives"),
    ] = None
