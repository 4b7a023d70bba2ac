from exllamav3.model import Module

class GatedDeltaNet(Module):
    bc: object | None
    bc_split: bool
    multi_qkvz: object | None
    ba_weight_filled: bool
