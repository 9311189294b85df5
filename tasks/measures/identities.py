"""Mentions of identity groups in texts, by the project's own list of terms."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@cache
def identity_terms() -> list[tuple[str, str]]:
    """(group, term) of the project's own list; terms have one word or two, in lower case."""
    path = Path(__file__).parent / "data" / "identities.json"
    groups = json.loads(path.read_text(encoding="utf-8"))
    return [(group, term) for group, terms in groups.items() for term in terms]


def find_terms(texts: pa.Array) -> tuple[Int64, Int64]:
    """Every mention: the term's number in ``identity_terms`` and the text's number, (n,) each.

    Whole words, whatever their case.
    """
    # RE2 knows letters of all scripts; hyphens and apostrophes separate.
    lists = pc.split_pattern_regex(pc.utf8_lower(texts), r"[^\pL\pN]+")
    words, owners = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()

    terms = identity_terms()
    vocabulary = sorted({word for _, term in terms for word in term.split()})
    code_of = {word: code for code, word in enumerate(vocabulary)}
    known = pc.index_in(words, value_set=pa.array(vocabulary, words.type))
    codes = pc.fill_null(known, -1).to_numpy()
    here = np.flatnonzero(codes >= 0)
    following = np.append(codes, -1)[here + 1]
    same_text = np.append(owners, -1)[here + 1] == owners[here]
    following = np.where(same_text, following, -1)

    found = []
    for number, (_, term) in enumerate(terms):
        first, *second = (code_of[word] for word in term.split())
        hit = codes[here] == first
        if second:
            hit &= following == second[0]
        found.append(np.stack([np.full(hit.sum(), number), owners[here[hit]]]))
    number, owner = np.concatenate(found, axis=1).astype(np.int64)
    return number, owner


def mentioned_groups(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Each identity group that a text mentions, and the number of the text; each pair once."""
    number, owner = find_terms(texts)
    groups = pa.array([group for group, _ in identity_terms()])
    found = pa.table({"group": groups.take(pa.array(number)), "owner": owner})
    found = found.group_by(["group", "owner"]).aggregate([])
    return found["group"].combine_chunks(), found["owner"].combine_chunks()
