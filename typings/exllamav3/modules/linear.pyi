import torch
from exllamav3.model import Module

class Linear(Module):
    in_features: int
    out_features: int
    in_features_unpadded: int
    out_features_unpadded: int
    trim_padded_out: bool
    is_sliced: bool
    weight_scale: float
    lora_a_tensors: dict[object, torch.Tensor]
    lora_b_tensors: dict[object, torch.Tensor]
    def forward(self, x: torch.Tensor, params: dict[str, object], out_dtype: torch.dtype | None = None) -> torch.Tensor: ...
