"""Define the two token ids that every vocabulary has; this module does not load torch."""

from __future__ import annotations

from collections.abc import Sequence

END_OF_TEXT_ID = 0  # begins every document
PAD_ID = 1  # pads rows

TokenIds = Sequence[int]
