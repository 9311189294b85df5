"""Sequences longer than the context: which tokens the model sees. Decoding and scoring agree."""

from __future__ import annotations


def compute_window_start(position: int, context: int, stride: int) -> int:
    """First token the model sees when it predicts token ``position`` of a long sequence.

    0 while all fits; then windows start at multiples of ``stride``, and a token is predicted from
    the first window that reaches it: it sees at least context - stride tokens. Scoring and
    decoding share this rule.
    """
    return max(0, -(-(position - context) // stride)) * stride


def compute_default_stride(context: int) -> int:
    return max(1, context // 2)
