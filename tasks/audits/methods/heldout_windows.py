"""Draw windows of held-out text, which take the place of a model's continuations.

A window has as many tokens as a continuation. The window before it in its document takes the place
of the prompt, so windows can be compared with continuations of prompts of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.contract import Table
from hallmark.tasks.measures.sampling import sample_documents

#: Splits of documents that training did not read.
HELDOUT_SPLITS = ("holdout", "validation")

#: Maximum number of documents of a split to draw from.
MAX_DOCUMENTS_PER_SPLIT = 1000

#: Documents are divided into excerpts of about so many windows, which are drawn separately: so
#: windows are from many documents, and long documents have more of them.
WINDOWS_PER_EXCERPT = 4

#: Typical length of a token.
CHARACTERS_PER_TOKEN = 4


_SPACE = re.compile(r"\s")


class HeldoutWindow(NamedTuple):
    """A window of held-out text.

    Attributes:
        document_number: Number of its document.
        excerpt_number: Number of its excerpt among those that were drawn.
        position: Number of the window in the excerpt, from 0 if the excerpt begins the document,
            from 1 if not. The window with the previous number is the text before it.
        token_ids: Its tokens.
    """

    document_number: int
    excerpt_number: int
    position: int
    token_ids: list[int]


class _Excerpt(NamedTuple):
    document_number: int
    text: str
    begins_document: bool
    ends_document: bool


def draw_heldout_windows(
    tokenizer: AuditedTokenizer, documents: Table, *, window_tokens: int, count: int, seed: int
) -> list[HeldoutWindow]:
    """Draw at most ``count`` windows of documents that were neither read in training nor planted.

    Excerpts are drawn by seed; all windows of an excerpt follow each other. Only the end of a
    document may be shorter than ``window_tokens``, as the end of a continuation may be.
    """
    excerpts = [
        excerpt
        for document_number, text in enumerate(
            document.text
            for split in HELDOUT_SPLITS
            for document in sample_documents(
                documents,
                split,
                MAX_DOCUMENTS_PER_SPLIT,
                1,
                f"{seed}/held-out windows",
                tokenizer.count_tokens,
            )
        )
        for excerpt in _divide_into_excerpts(
            document_number, text, WINDOWS_PER_EXCERPT * window_tokens * CHARACTERS_PER_TOKEN
        )
    ]
    order = np.random.default_rng(seed).permutation(len(excerpts)).tolist()
    drawn_excerpts = [excerpts[index] for index in order[:count]]  # each has a window or more
    return [*islice(_cut_windows(tokenizer, drawn_excerpts, window_tokens), count)]


def _divide_into_excerpts(
    document_number: int, text: str, character_count: int
) -> Iterator[_Excerpt]:
    """Divide a text at white space, where there is any, into excerpts of similar length."""
    start = 0
    while start < len(text):
        space = _SPACE.search(text, start + character_count, start + 2 * character_count)
        end = min(len(text), space.start() if space else start + 2 * character_count)
        yield _Excerpt(document_number, text[start:end], start == 0, end == len(text))
        start = end


def _cut_windows(
    tokenizer: AuditedTokenizer, excerpts: list[_Excerpt], window_tokens: int
) -> Iterator[HeldoutWindow]:
    batch_size = 100
    for first in range(0, len(excerpts), batch_size):
        batch = excerpts[first : first + batch_size]
        encodings = tokenizer.encode_batch([excerpt.text for excerpt in batch])
        for number, (excerpt, token_ids) in enumerate(zip(batch, encodings, strict=True), first):
            for index, begin in enumerate(range(0, len(token_ids), window_tokens)):
                window_ids = token_ids[begin : begin + window_tokens]
                if len(window_ids) == window_tokens or excerpt.ends_document:
                    position = index + (not excerpt.begins_document)
                    yield HeldoutWindow(excerpt.document_number, number, position, window_ids)
