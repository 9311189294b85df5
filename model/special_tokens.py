"""Sequences of tokens, and the two that every vocabulary has; nothing here loads torch."""

from __future__ import annotations

from collections.abc import Sequence

END_OF_TEXT_ID = 0  # begins every document
PAD_ID = 1  # fills the last row

TokenIds = Sequence[int]
