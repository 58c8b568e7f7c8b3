"""x / sqrt(sum x² + eps) over the last dimension."""

from torch import Tensor


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()
