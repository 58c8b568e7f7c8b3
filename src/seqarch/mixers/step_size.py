"""The step size dt = softplus(bias + ...) of Mamba, Mamba-2 and Gated DeltaNet: its published initial
values.
"""

import math

import torch
from torch import Tensor

DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 1e-1, 1e-4


def init_dt_bias(bias: Tensor) -> None:
    """softplus(bias) = dt, log-uniform in [1e-3, 1e-1] with floor 1e-4; softplus^-1(y) = y + log(1 -
    exp(-y)).
    """
    low, high = math.log(DT_MIN), math.log(DT_MAX)
    dt = torch.empty_like(bias).uniform_(low, high).exp().clamp(min=DT_FLOOR)
    bias.copy_(dt + torch.log(-torch.expm1(-dt)))
