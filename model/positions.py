"""Represent positions: sinusoids added to embeddings, and rotations of queries and keys.

Learned positions need no code here: they are an embedding table in ``architecture``.
"""

from __future__ import annotations

import torch
from torch import Tensor

RotaryCosSin = tuple[Tensor, Tensor]  # cosines and sines, see ``compute_rotary_cos_sin``


def compute_sinusoids(positions: Tensor, d_model: int) -> Tensor:
    """Compute sinusoidal position embeddings (Vaswani et al. 2017, section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)), interleaved.

    Args:
        positions: integers of any shape (...).
        d_model: an even number.

    Returns:
        float32 of shape (..., d_model).
    """
    angles = _compute_angles(positions, d_model, 10_000.0)  # (..., d/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def compute_rotary_cos_sin(positions: Tensor, head_dim: int, theta: float) -> RotaryCosSin:
    """Compute the cosines and sines of rotary position embedding (Su et al. 2021).

    Args:
        positions: (B, T) integers.
        head_dim: size of a head, an even number.
        theta: base of the wavelengths.

    Returns:
        cos and sin, each (B, 1, T, head_dim) float32. Both halves of the last dimension are equal,
        as in Llama: dimension i rotates together with dimension i + head_dim/2.
    """
    angles = _compute_angles(positions, head_dim, theta)  # (B, T, D/2)
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)  # (B, 1, T, D)
    return angles.cos(), angles.sin()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys (B, H, T, D) by their positions; q.k then depends only on distance."""
    first_half, second_half = x.chunk(2, dim=-1)
    rotated_half = torch.cat((-second_half, first_half), dim=-1)
    return (x * cos + rotated_half * sin).to(x.dtype)


def _compute_angles(positions: Tensor, dimension: int, theta: float) -> Tensor:
    exponents = (
        torch.arange(0, dimension, 2, device=positions.device, dtype=torch.float32) / dimension
    )
    return positions.to(torch.float32).unsqueeze(-1) / theta**exponents
