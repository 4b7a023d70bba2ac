from collections.abc import Iterable

from exllamav3.tokenizer import Tokenizer

class SS_Base: ...
class SS_Argmax(SS_Base): ...
class SS_Sample(SS_Base): ...

class SS_LogitBias(SS_Base):
    def __init__(self, logit_bias: dict[int, float]) -> None: ...

class SS_RepP(SS_Base):
    def __init__(self, rep_p: float = 1.0) -> None: ...

class SS_PresFreqP(SS_Base):
    def __init__(self, pres_p: float = 0.0, freq_p: float = 0.0) -> None: ...

class SS_DRY(SS_Base):
    def __init__(
        self,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_range: int = 0,
        dry_sequence_breakers: Iterable[int] | None = None,
    ) -> None: ...

class SS_Temperature(SS_Base):
    def __init__(self, temperature: float) -> None: ...

class SS_MinP(SS_Base):
    def __init__(self, min_p: float) -> None: ...

class SS_TopK(SS_Base):
    def __init__(self, top_k: int) -> None: ...

class SS_TopP(SS_Base):
    def __init__(self, top_p: float) -> None: ...

class SS_XTC(SS_Base):
    def __init__(
        self,
        probability: float,
        threshold: float,
        protected_token_ids: frozenset[int] | list[int] | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None: ...

def dry_sequence_breaker_tokens(tokenizer: Tokenizer, sequence_breakers: tuple[str, ...]) -> frozenset[int]: ...
