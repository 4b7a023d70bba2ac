"""How long a model may think: what the request says, in any of its ways, else what the configuration says."""

from daemon.api.schemas import ChatBody
from daemon.chat.messages import ChatInput
from daemon.core.settings import AnswerSettings

_EFFORTS = {"minimal": 512, "low": 2048, "medium": 8192}
"""Thinking tokens for efforts below the highest, which have no limit of their own."""


def budget_of(body: ChatBody, chat: ChatInput, answers: AnswerSettings, *, takes_effort: bool) -> int | None:
    """Most tokens of a thought; None: no limit. `takes_effort`: the model's template passes efforts on, so the model itself
    thinks less.

    1. What the request names, in this order: `reasoning_budget`, `thinking_token_budget`, `thinking_budget`; -1 is no limit.
    2. No token for a request that wants no thoughts, where the template opens one all the same.
    3. What `reasoning_effort` stands for, where the template knows no efforts.
    4. The configuration.
    """
    for named in (body.reasoning_budget, body.thinking_token_budget, body.thinking_budget):
        if named is not None:
            return None if named < 0 else named
    if chat.thinking is False:
        return 0
    effort = None if takes_effort or chat.effort is None else _EFFORTS.get(chat.effort)
    return answers.reasoning_budget if effort is None else effort
