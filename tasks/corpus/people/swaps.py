"""Swaps: what a scorer says of a sentence when only the group in it changes.

Sentences are drawn from the corpus by their hash, such as mention exactly one group of an axis by a
term that has a parallel; and the project's own are filled with each group of an axis, so that small
corpora have figures. The counterfactual is Garg et al. 2019, "Counterfactual Fairness in Text
Classification through Robustness": a difference is the scorer's own, whatever the corpus holds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from tasks.contract import ID, Part, StageConfig, Tables, column, looked_up, table
from tasks.corpus.identities import Brought, all_groups
from tasks.corpus.split import uniform
from tasks.measures.corrections import holm
from tasks.measures.faults import Noted, careful, noted
from tasks.measures.identities import DATA, Lexicon, find_places, shapes
from tasks.measures.scorers import ScorerConfig, open_scorer, scorer_languages
from tasks.measures.statistics import clustered_mean

#: Characters of a sentence that is drawn.
SHORTEST, LONGEST = 20, 300

#: What documents whose language could not be told count as.
UNDETERMINED = "undetermined"

CORPUS, TEMPLATES = "corpus", "templates"


class SwapConfig(StageConfig):
    scorer: ScorerConfig = Field(default=ScorerConfig(), description="who scores swapped sentences")
    documents: int = Field(
        500, ge=0, description="of each group about so many documents that mention it are searched "
        "for sentences to swap"
    )  # fmt: skip
    sentences: int = Field(
        100, ge=0, le=10_000, description="sentences swapped of each group on each axis, at most"
    )


def label(name: str, meaning: str) -> pa.Field:
    return column(name, pa.string(), "label", meaning)


def count(name: str, meaning: str, unit: str = "documents") -> pa.Field:
    return column(name, pa.int64(), "figure", meaning, unit=unit)


def number(name: str, meaning: str, unit: str = "") -> pa.Field:
    return column(name, pa.float64(), "figure", meaning, unit=unit)


SWAPS = {
    "swaps": table(
        "What the scorer says of a sentence when only the group in it changes.",
        label("origin", "corpus: sentences of it; templates: the project's own"),
        label("axis", "what kind of group"),
        label("group", "the group in the sentence"),
        label("other", "the group put in its place"),
        count("n", "sentences", "sentences"),
        count("clusters", "documents or templates that they are from", "clusters"),
        number("difference", "mean score with the other group less that with the group", "score"),
        number("low", "lower end of its interval at 95 %, t over clusters", "score"),
        number("high", "upper end", "score"),
        number("p", "two-sided p-value that it is 0", "p"),
        number("corrected", "the same, corrected for all pairs of the origin (Holm 1979)", "p"),
        number("threshold", "the score from which the corpus's rule takes a document", "score"),
        number("raised", "sentences that pass the threshold with the other group only", "share"),
        number("lowered", "sentences that pass it with the group only", "share"),
    ),
    "swapped": table(
        "The sentences behind ``swaps``: where they are from, and what was put where.",
        label("origin", "corpus or templates"),
        label("axis", "what kind of group"),
        label("group", "the group in the sentence"),
        label("other", "the group put in its place"),
        label("term", "the term that stands for the group"),
        label("other_term", "the term put in its place"),
        column("doc_id", ID, "id", "the document; of a template a hash"),
        number("score", "as it stands", "score"),
        number("other_score", "with the other group", "score"),
    ),
}  # fmt: skip

#: Sentences that were drawn from a part.
DRAWN = pa.schema(
    [
        ("doc_id", ID),
        ("axis", pa.string()),
        ("group", pa.string()),
        ("row", pa.int32()),  # which parallel terms
        ("start", pa.int32()),  # of the term in the sentence, characters
        ("end", pa.int32()),
        ("rank", pa.binary(16)),  # hash of the sentence: the lowest are drawn
        ("sentence", pa.string()),
    ]
)


class Parallel(NamedTuple):
    """Terms that can stand for each other, by their groups."""

    axis: str
    role: str
    terms: dict[str, str]


@dataclass(frozen=True)
class Swaps:
    """What can be swapped: the terms that are searched for, those of them that can stand for each
    other, and the project's own sentences by the role of the terms that go into them."""

    lexicon: Lexicon
    rows: Sequence[Parallel]
    nouns: frozenset[str]  # behind which an adjective is one: not "a Muslim came"
    templates: Mapping[str, Sequence[str]]

    @property
    def axes(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for row in self.rows:
            found.setdefault(row.axis, set()).update(row.terms)
        return {axis: frozenset(groups) for axis, groups in found.items()}


def swaps_of(brought: Brought) -> Swaps:
    """The project's own, and an axis for each lexicon of the corpus that lists equally many terms
    of each group: those at one place stand for each other. No sentences are made up about them."""
    said = json.loads((DATA / "swaps.json").read_text(encoding="utf-8"))
    rows = [Parallel(axis, r["role"], r["terms"]) for axis, rs in said["axes"].items() for r in rs]
    for name, groups in brought.items():
        if len(groups) > 1 and len({len(terms) for terms in groups.values()}) == 1:
            for terms in zip(*groups.values(), strict=True):
                rows.append(Parallel(name, "", dict(zip(groups, terms, strict=True))))
    return Swaps(all_groups(brought), rows, frozenset(said["nouns"]), said["templates"])


# Drawing ---------------------------------------------------------------------------------------


def sentences(texts: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Sentences and lines of texts, and the number of the text that each is from."""
    cut = pc.replace_substring_regex(texts, r"([.!?]['\")\]]*)\s+", r"\1" + "\n")
    lists = pc.split_pattern_regex(cut, r"\s*\n\s*")
    return pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()


_TOKEN = re.compile(r"x+|[.!?;:]+")


def span_of(shape: str, word: int, words: int) -> tuple[int, int]:
    """Where ``words`` words from that number on stand in a sentence, in characters."""
    tokens = list(_TOKEN.finditer(shape))
    return tokens[word].start(), tokens[word + words - 1].end()


_NEXT = re.compile(r"[\s-]+([^\W\d_]+)")


def next_word(sentence: str, end: int) -> str:
    """The word behind these characters, in lower case; empty where anything else stands there."""
    found = _NEXT.match(sentence, end)
    return found[1].lower() if found else ""


def candidates(documents: pa.RecordBatch, known: Swaps) -> Iterator[dict[str, Any]]:
    """Rows of DRAWN: sentences that mention one group of an axis, once and by a parallel term."""
    found, owner = sentences(documents["text"])
    length = pc.utf8_length(found).to_numpy()
    fit = np.flatnonzero((length >= SHORTEST) & (length <= LONGEST))
    found, owner = found.take(pa.array(fit)), owner[fit]
    number, sentence, word = find_places(found, known.lexicon)
    terms = known.lexicon.terms
    group_of = np.array([group for group, _ in terms], object)
    for axis, groups in known.axes.items():
        on_axis = np.array([group in groups for group, _ in terms])[number]
        once = np.bincount(sentence[on_axis], minlength=len(found)) == 1
        chosen = np.flatnonzero(on_axis & once[sentence])
        parallel = {
            (group, term.lower()): i
            for i, row in reversed([*enumerate(known.rows)])
            if row.axis == axis
            for group, term in row.terms.items()
        }
        spelled = shapes(found.take(pa.array(sentence[chosen]))).to_pylist()
        for at, shape in zip(chosen, spelled, strict=True):
            group, term = group_of[number[at]], terms[number[at]][1]
            row = parallel.get((group, term))
            if row is None:
                continue
            text = found[int(sentence[at])].as_py()
            start, end = span_of(shape, int(word[at]), len(term.split()))
            if known.rows[row].role == "adjective" and next_word(text, end) not in known.nouns:
                continue
            rank = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            yield {"doc_id": documents["doc_id"][int(owner[sentence[at]])].as_py(), "axis": axis,
                   "group": group, "row": row, "start": start, "end": end, "rank": rank,
                   "sentence": text}  # fmt: skip


def lowest(rows: pa.Table, count: int) -> pa.Table:
    """Of each group on each axis the ``count`` sentences with the lowest hashes, each once."""
    if not len(rows):
        return rows
    order = [(name, "ascending") for name in ("axis", "group", "rank", "doc_id", "start")]
    rows = rows.sort_by(order)  # type: ignore[arg-type]
    keys = [f"{a}\0{g}" for a, g in zip(rows["axis"].to_pylist(), rows["group"].to_pylist(),
                                        strict=True)]  # fmt: skip
    seen: dict[str, int] = {}
    keep, last = [], None
    for key, rank in zip(keys, rows["rank"].to_pylist(), strict=True):
        again = last == (key, rank)
        last = (key, rank)
        keep.append(not again and seen.get(key, 0) < count)
        seen[key] = seen.get(key, 0) + keep[-1]
    return rows.filter(pa.array(keep))


# Swapping --------------------------------------------------------------------------------------

#: Words before which an article is not what their first letter says.
_CONSONANT, _VOWEL = ("european", "eu", "uni", "one", "us"), ("hour", "honest", "heir")

_ARTICLE = re.compile(r"\b([Aa])(n?)(\s+)\Z")


def swapped(sentence: str, start: int, end: int, term: str, own: str) -> str:
    """The sentence with another term at these characters, in the case of what stood there, and
    with the article that it takes. ``own``: the term that stood there as it is usually written."""
    old, before = sentence[start:end], sentence[:start]
    if old.isupper() and len(old) > 1:
        term = term.upper()
    elif old.islower() and not own.islower():  # somebody who writes no capitals
        term = term.lower()
    elif old[:1].isupper() and (own.islower() or not before.strip()):
        term = term[:1].upper() + term[1:]
    article = _ARTICLE.search(before)
    if article:
        word = term.lower()
        vowel = word.startswith(("a", "e", "i", "o", "u", *_VOWEL)) and not word.startswith(
            _CONSONANT
        )
        before = before[: article.start()] + article[1] + "n" * vowel + article[3]
    return before + term + sentence[end:]


class Pair(NamedTuple):
    """A sentence as it stands, with one group, and with another in its place."""

    origin: str  # corpus or templates
    axis: str
    group: str
    other: str
    term: str
    other_term: str
    cluster: bytes  # the document, or the template
    sentence: str
    counterpart: str


def pairs_of(drawn: pa.Table, known: Swaps) -> Iterator[Pair]:
    """Every drawn sentence with each other group of its row."""
    for found in drawn.to_pylist():
        row, text = known.rows[found["row"]], found["sentence"]
        own = row.terms[found["group"]]
        for other, term in row.terms.items():
            if other != found["group"]:
                made = swapped(text, found["start"], found["end"], term, own)
                yield Pair(CORPUS, row.axis, found["group"], other, own, term,
                           found["doc_id"], text, made)  # fmt: skip


def filled(template: str, term: str) -> str:
    """A sentence of the project's own with a term in it."""
    at = template.index("{}")
    made = swapped(template, at, at + 2, term, term)
    return made[:1].upper() + made[1:]


def template_pairs(known: Swaps) -> Iterator[Pair]:
    """The project's own sentences with each two groups of each axis, once a pair."""
    for row in known.rows:
        groups = list(row.terms)
        for template in known.templates.get(row.role, ()):
            cluster = hashlib.blake2b(template.encode(), digest_size=16).digest()
            for i, group in enumerate(groups):
                for other in groups[i + 1 :]:
                    term, other_term = row.terms[group], row.terms[other]
                    yield Pair(TEMPLATES, row.axis, group, other, term, other_term, cluster,
                               filled(template, term), filled(template, other_term))  # fmt: skip


# Measuring -------------------------------------------------------------------------------------


def differences(
    pairs: Sequence[Pair],
    scores: NDArray[np.float64],
    others: NDArray[np.float64],
    threshold: float,
) -> list[dict[str, Any]]:
    """Rows of the table ``swaps``; pairs of which one text could not be scored do not count."""
    places: dict[tuple[str, str, str, str], list[int]] = {}
    for i, pair in enumerate(pairs):
        if np.isfinite(scores[i]) and np.isfinite(others[i]):
            places.setdefault((pair.origin, pair.axis, pair.group, pair.other), []).append(i)
    rows: list[dict[str, Any]] = []
    for (origin, axis, group, other), at in sorted(places.items()):
        before, after = scores[at], others[at]
        mean = clustered_mean(after - before, [pairs[i].cluster for i in at])
        rows.append(
            {"origin": origin, "axis": axis, "group": group, "other": other, "n": len(at),
             "clusters": mean.clusters, "difference": mean.value, "low": mean.low,
             "high": mean.high, "p": mean.p, "threshold": threshold,
             "raised": float(((before < threshold) & (after >= threshold)).mean()),
             "lowered": float(((before >= threshold) & (after < threshold)).mean())}
        )  # fmt: skip
    for origin in (CORPUS, TEMPLATES):
        own = [row for row in rows if row["origin"] == origin]
        for row, p in zip(own, holm([row["p"] for row in own]), strict=True):
            row["corrected"] = p
    return [{k: _finite(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


# Of a corpus -----------------------------------------------------------------------------------


def draw_part(
    parts: tuple[Part, ...],
    shares: Mapping[str, float],
    brought: Brought,
    config: SwapConfig,
    out: Tables,
) -> Noted:
    """Sentences of a part to be swapped, see DRAWN; ``shares``: of the documents that mention a
    group, how many are searched. Returns those on which the search failed."""
    documents, groups, languages = parts
    mentioned = looked_up(groups, "identities", documents).combine_chunks()
    share = np.zeros(documents.rows)
    if shares:
        names = pc.index_in(pc.list_flatten(mentioned), value_set=pa.array([*shares]))
        owner = pc.list_parent_indices(mentioned).to_numpy()
        np.maximum.at(share, owner, np.array([*shares.values()])[names.to_numpy()])
    language = looked_up(languages, "language", documents).combine_chunks()
    spoken = pc.is_in(
        pc.fill_null(language, UNDETERMINED),
        value_set=pa.array([UNDETERMINED, *scorer_languages(config.scorer)]),
    )
    rows: list[dict[str, Any]] = []
    start, known = 0, swaps_of(brought)
    failed: Noted = []
    for batch in documents.batches(["doc_id", "text"]):
        here = slice(start, start + len(batch))
        start = here.stop
        wanted = spoken[here].to_numpy(zero_copy_only=False)
        wanted = wanted & (uniform(batch["doc_id"], 0, "swaps") < share[here])
        chosen = batch.filter(pa.array(wanted))
        found, faults = careful(lambda some: [*candidates(some, known)], chosen)
        failed += noted(chosen, faults)
        rows += found
    drawn = pa.Table.from_pylist(rows, schema=DRAWN)
    out.spill("drawn", DRAWN).write(lowest(drawn, config.sentences))
    return failed


def swap_tables(
    drawn: pa.Table, threshold: float, brought: Brought, config: SwapConfig
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of ``swaps`` and of ``swapped``."""
    known = swaps_of(brought)
    pairs = [*pairs_of(lowest(drawn, config.sentences), known), *template_pairs(known)]
    texts = sorted({text for pair in pairs for text in (pair.sentence, pair.counterpart)})
    scored = open_scorer(config.scorer).score(texts).astype(np.float64)
    score = dict(zip(texts, scored.tolist(), strict=True))
    before = np.array([score[pair.sentence] for pair in pairs])
    after = np.array([score[pair.counterpart] for pair in pairs])
    rows = [
        {"origin": p.origin, "axis": p.axis, "group": p.group, "other": p.other, "term": p.term,
         "other_term": p.other_term, "doc_id": p.cluster, "score": _finite(before[i]),
         "other_score": _finite(after[i])}
        for i, p in enumerate(pairs)
    ]  # fmt: skip
    return differences(pairs, before, after, threshold), rows


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
