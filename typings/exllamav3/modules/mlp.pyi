from exllamav3.model import Module

class MLP(Module):
    bc: object | None

class GatedMLP(Module):
    bc: object | None
    multi_gu: list[object | None]
