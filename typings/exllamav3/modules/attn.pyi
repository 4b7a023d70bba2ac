from collections.abc import Callable

from exllamav3.model import Module

class Attention(Module):
    qsa_indexer: Module | None
    multi_kv: object | None
    multi_qg: object | None
    multi_qkv: object | None
    bc_attn_step: Callable[..., object | None]
