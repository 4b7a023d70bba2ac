"""Parameters of other servers that exl3d knows and does not honour: closed tables, one a kind of treatment.

A refused parameter is refused only where its value asks for something: a value that means "as usual" passes, since many clients
send every field they know. Names in neither table nor schema are ignored, with one warning in the log for each.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a parameter is not honoured, and the values that ask for nothing (`null` always does)."""

    reason: str
    neutral: tuple[object, ...] = ()


REFUSED: Mapping[str, Refusal] = {
    "best_of": Refusal("ask for several choices with `n` instead", (1,)),
    "use_beam_search": Refusal("exl3d samples", (False,)),
    "length_penalty": Refusal("it belongs to beam search", (1,)),
    "typical_p": Refusal("there is no typical sampling", (1,)),
    "typical": Refusal("there is no typical sampling", (1,)),
    "tfs": Refusal("there is no tail-free sampling", (1,)),
    "tfs_z": Refusal("there is no tail-free sampling", (1,)),
    "top_a": Refusal("there is no top-a sampling", (0,)),
    "mirostat": Refusal("there is no mirostat sampling", (0,)),
    "mirostat_mode": Refusal("there is no mirostat sampling", (0,)),
    "dynatemp_range": Refusal("there is no dynamic temperature", (0,)),
    "dynatemp_exponent": Refusal("there is no dynamic temperature", (1,)),
    "top_n_sigma": Refusal("there is no top-n-sigma sampling", (0, -1)),
    "smoothing_factor": Refusal("there is no quadratic sampling", (0,)),
    "epsilon_cutoff": Refusal("use `min_p`", (0,)),
    "eta_cutoff": Refusal("use `min_p`", (0,)),
    "no_repeat_ngram_size": Refusal("use the DRY penalty", (0,)),
    "ban_eos_token": Refusal("use `ignore_eos`", (False,)),
    "num_beams": Refusal("exl3d samples", (1,)),
    "samplers": Refusal("the order of samplers is fixed", ([],)),
    "prompt_logprobs": Refusal("probabilities are given for generated tokens only", (0, False)),
    "allowed_token_ids": Refusal("use `logit_bias` or a grammar", ([],)),
    "bad_words": Refusal("use `logit_bias`", ([],)),
    "banned_strings": Refusal("use `logit_bias` or a grammar", ([],)),
    "truncate_prompt_tokens": Refusal("a prompt is never truncated", ()),
    "include_stop_str_in_output": Refusal("stop strings are never part of the answer", (False,)),
    "spaces_between_special_tokens": Refusal("text is never changed after decoding", (True,)),
    "return_tokens_as_token_ids": Refusal("tokens are given as text", (False,)),
    "return_token_ids": Refusal("tokens are given as text", (False,)),
    "logits_processors": Refusal("clients cannot run code here", ([],)),
    "chat_template": Refusal("the template is the model's or the operator's", ("",)),
    "documents": Refusal("put the documents into a message", ([],)),
    "functions": Refusal("use `tools`", ([],)),
    "function_call": Refusal("use `tool_choice`", ("none", "auto")),
    "modalities": Refusal("the answer is text", (["text"], [])),
    "audio": Refusal("the answer is text", ()),
    "prediction": Refusal("there are no predicted outputs", ()),
    "web_search_options": Refusal("there is no web search", ()),
    "suffix": Refusal("there is no fill-in-the-middle", ("",)),
    "guided_decoding_backend": Refusal("llguidance is the only one", ("auto", "llguidance", "guidance")),
    "guided_whitespace_pattern": Refusal("whitespace follows llguidance", ()),
    "negative_prompt": Refusal("there is no classifier-free guidance", ("",)),
    "guidance_scale": Refusal("there is no classifier-free guidance", (1,)),
    "cfg_scale": Refusal("there is no classifier-free guidance", (1,)),
    "background": Refusal("answers are not kept on the server", (False,)),
    "lora": Refusal("adapters are the operator's, for everybody (`engine.loras`)", ([],)),
    "mm_processor_kwargs": Refusal("images are processed as the model says", ({},)),
}
"""Known, and refused where they ask for something."""

NO_EFFECT: Mapping[str, str] = {
    "metadata": "nothing is stored",
    "store": "nothing is stored",
    "safety_identifier": "owners come from keys",
    "prompt_cache_key": "the prefix cache finds prefixes by itself",
    "prompt_cache_retention": "the prefix cache decides by use",
    "cache_prompt": "the prefix cache is always on",
    "service_tier": "there is one tier",
    "verbosity": "a hint for hosted models",
    "request_id": "use the header x-request-id",
    "priority": "use the header x-exl3d-priority",
    "id_slot": "slots are the engine's matter",
    "truncation_length": "a prompt is never truncated",
    "n_keep": "a prompt is never truncated",
    "timings_per_token": "timings come at the end",
}
"""Known, accepted, and without influence on the answer."""
