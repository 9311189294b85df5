"""Determine what the model sees of a sequence longer than the context, in decoding and scoring."""

from __future__ import annotations


def compute_window_start(position: int, context: int, stride: int) -> int:
    """Return the first token that the model sees when it predicts token ``position``.

    It is 0 as long as everything fits. Then windows start at multiples of ``stride``, and a token
    is predicted from the first window that reaches it, so the model sees at least context - stride
    tokens.
    """
    return max(0, -(-(position - context) // stride)) * stride


def compute_default_stride(context: int) -> int:
    return max(1, context // 2)
