"""The null model: the attributes and methods that exllamav3's generator, jobs and cache use on a model, without arithmetic."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch

from daemon.core.exit_codes import ExitCode
from daemon.engine.null.profile import Curve, Fault, FaultKind, FaultPlace, NullProfile, Script
from daemon.engine.null.recurrence import NullState
from daemon.engine.tensors import integers

LIKELY = 30.0
"""Logit of the token that is meant; all others have 0."""
STRIDE = 7
"""Plain tokens follow each other in this step through the list, so that texts have some variety."""


class Words(Protocol):
    """The tokenizer, as far as scripts need it."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, in which names of control tokens stand for the tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, with the names of control tokens."""
        ...


class NullRow(Protocol):
    """What a scripted model must know about a row of the batch."""

    @property
    def id(self) -> int:
        """The request's id."""
        ...

    @property
    def prompt(self) -> Sequence[int]:
        """Its prompt."""
        ...

    @property
    def index(self) -> int:
        """Tokens generated for it so far, in all attempts."""
        ...


class NullModel:
    """See the module. `plain` are ordinary tokens to say where no script applies, `named` is the number of ids that stand for
    a token, `config` is passed through.
    """

    loaded_tp = False
    output_device: torch.device | None = torch.device("cpu")

    def __init__(
        self, config: object, vocabulary: int, named: int, eos: int, plain: Sequence[int], profile: NullProfile, words: Words
    ) -> None:
        self.config = config
        recurrent = profile.recurrent
        self.caps: dict[str, object] = {}
        if recurrent is not None:
            self.caps = {"recurrent_states": True, "default_recurrent_checkpoint_interval": recurrent.interval}
        self.recurrent_state_cls = None if recurrent is None else NullState
        self.checkpoint_bytes = 0 if recurrent is None else int(recurrent.checkpoint_mib * 2**20)
        """What a checkpoint takes of the store's budget."""
        self.checkpoint_seconds = 0.0 if recurrent is None else recurrent.checkpoint_seconds
        self.cache_weakrefs: dict[int, object] = {}
        self._padded = -(-vocabulary // 32) * 32
        self._named = named
        self._plain = torch.tensor(plain, dtype=torch.long)
        self._eos = eos
        self._profile = profile
        self._decode = Curve(profile.decode)
        self._prefill = Curve(profile.prefill)
        self._words = words
        self._rows: Callable[[], Sequence[NullRow]] | None = None
        self._logits = torch.zeros((0, 1, self._padded))
        self._said = torch.zeros(0, dtype=torch.long)
        self._answers: dict[int, tuple[Script | None, list[int]]] = {}
        self._left = {index: fault.times for index, fault in enumerate(profile.faults)}
        self._passes = dict.fromkeys(FaultPlace, 0)

    def bind(self, rows: Callable[[], Sequence[NullRow]]) -> None:
        """Give the model a view of the batch it is about to compute, in the order of its rows."""
        self._rows = rows

    # --- what the library asks ---------------------------------------------------------------------------------------

    def get_cache_layers(self) -> list[object]:
        """No layer keeps keys and values."""
        return []

    def get_recurrent_layers(self) -> list[object]:
        """No layer keeps a state."""
        return []

    def prefetch_tokens(self, tokens: list[int]) -> None:
        """Nothing to fetch."""

    def prefill(self, input_ids: torch.Tensor, params: dict[str, object]) -> None:
        """Take a chunk of a prompt, shape (1, tokens)."""
        tokens = int(input_ids.shape[-1])
        self._play(FaultPlace.PREFILL, lambda: [(0, self._words.decode(integers(input_ids)))])
        depth = self._profile.prefill_context * tokens * integers(_positions(params))[0] if self._profile.prefill_context else 0.0
        self._spend(self._prefill.seconds(tokens) + depth)
        _advance(params, tokens)

    def forward(self, input_ids: torch.Tensor, params: dict[str, object]) -> torch.Tensor:
        """Logits of the next token of each row, shape (rows, 1, padded vocabulary). The buffer is reused by the next call."""
        rows = int(input_ids.shape[0])
        positions = _positions(params)[:rows].long()
        logits = self._say(self._plain[positions * STRIDE % len(self._plain)])
        if self._rows is not None and (self._profile.scripts or self._profile.faults):
            batch = self._rows()
            self._script(logits, batch)
            hit = self._play(FaultPlace.DECODE, lambda: [(row.index, self._words.decode(row.prompt)) for row in batch])
            for row in hit:
                logits = logits.clone()
                logits[row] = torch.nan
        depth = self._profile.decode_context * int(positions.sum()) if self._profile.decode_context else 0.0
        self._spend(self._decode.seconds(rows) + depth)
        _advance(params, 1)
        return logits

    # --- answers -----------------------------------------------------------------------------------------------------

    def _say(self, tokens: torch.Tensor) -> torch.Tensor:
        """Make `tokens` the likely ones. Only the places that differ from the last call are written: this is the hot path."""
        rows = len(tokens)
        if rows > self._logits.shape[0]:
            self._logits = torch.zeros((max(rows, 64), 1, self._padded))
        elif len(self._said):
            self._logits.view(-1)[self._said] = 0.0
        logits = self._logits[:rows]
        # Samplers write minus infinity into columns that stand for no token; the buffer must not keep it.
        logits[..., self._named :] = 0.0
        self._said = torch.arange(rows) * self._padded + tokens
        self._logits.view(-1)[self._said] = LIKELY
        return logits

    def _script(self, logits: torch.Tensor, batch: Sequence[NullRow]) -> None:
        for place, row in enumerate(batch):
            token = self._scripted(row)
            if token is not None:
                logits.view(-1)[self._said[place]] = 0.0
                self._said[place] = place * self._padded + token
                logits.view(-1)[self._said[place]] = LIKELY

    def _scripted(self, row: NullRow) -> int | None:
        if row.id not in self._answers:
            script = self._choose(row)
            self._answers[row.id] = (script, self._ids(script))
        script, ids = self._answers[row.id]
        if script is None:
            return None
        if row.index < len(ids):
            return ids[row.index]
        return self._eos if script.ends else None

    def _choose(self, row: NullRow) -> Script | None:
        text = self._words.decode(row.prompt)
        marked = [script for script in self._profile.scripts if script.marker and script.marker in text]
        if marked:
            return max(marked, key=lambda script: text.rfind(script.marker))
        number = len(self._answers) + 1
        return next((script for script in self._profile.scripts if script.order == number), None)

    def _ids(self, script: Script | None) -> list[int]:
        if script is None:
            return []
        return script.ids or self._words.encode(script.text)

    # --- faults and time ---------------------------------------------------------------------------------------------

    def _play(self, place: FaultPlace, prompts: Callable[[], list[tuple[int, str]]]) -> list[int]:
        """Fail if it is time to. Gives the rows whose logits shall not be numbers."""
        self._passes[place] += 1
        spoilt: list[int] = []
        for index, fault in enumerate(self._profile.faults):
            if fault.place is place and self._left[index] and (fault.step is None or self._passes[place] >= fault.step):
                rows = [row for row, (done, text) in enumerate(prompts()) if done >= fault.token and fault.marker in text]
                if rows:
                    self._left[index] -= 1
                    spoilt += self._fail(fault, rows)
        return spoilt

    def _fail(self, fault: Fault, rows: list[int]) -> list[int]:
        match fault.kind:
            case FaultKind.RAISE:
                raise ValueError("a fault was asked for by the null profile")
            case FaultKind.MEMORY:
                raise torch.OutOfMemoryError("CUDA out of memory (asked for by the null profile)")
            case FaultKind.DEVICE:
                raise RuntimeError("CUDA error: an illegal memory access was encountered (asked for by the null profile)")
            case FaultKind.NOT_FINITE:
                return rows
            case FaultKind.HANG:
                while True:
                    time.sleep(3600)
            case FaultKind.EXIT:
                os._exit(ExitCode.FAILED)

    def _spend(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


def _positions(params: dict[str, object]) -> torch.Tensor:
    """Tokens before those of the pass, a number each row."""
    positions = params["cache_seqlens"]
    if not isinstance(positions, torch.Tensor):
        raise TypeError("cache_seqlens must be a tensor")
    return positions


def _advance(params: dict[str, object], tokens: int) -> None:
    """Move the recurrent states of a hybrid on."""
    states = params.get("recurrent_states")
    for state in cast("list[object]", states) if isinstance(states, list) else ():
        if isinstance(state, NullState):
            state.advance(tokens)
