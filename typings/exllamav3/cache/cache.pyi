class CacheLayer_fp16: ...
class CacheLayer_quant: ...

class Cache:
    max_num_tokens: int
    initialized: bool
    num_slots: int
    def __init__(
        self,
        model: object,
        max_num_tokens: int,
        layer_type: type[CacheLayer_fp16] | type[CacheLayer_quant] | None = None,
        max_batch_size: int = 16,
        max_history: int = 0,
        *,
        k_bits: int = ...,
        v_bits: int = ...,
    ) -> None: ...
