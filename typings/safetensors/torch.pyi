from collections.abc import Mapping
from os import PathLike

from torch import Tensor

def load_file(filename: str | PathLike[str], device: str | int = "cpu") -> dict[str, Tensor]: ...
def save_file(
    tensors: Mapping[str, Tensor], filename: str | PathLike[str], metadata: Mapping[str, str] | None = None
) -> None: ...
