"""Minimal pairs over a distance, of agreement and of garden paths, and what readers prefer.

**Agreement** (Linzen, Dupoux & Goldberg 2016; Warstadt et al. 2020): of *The keys to the cabinet
are here.* and *The keys to the cabinet is here.* a reader prefers the first. Every frame stands in
the singular and in the plural, so who knows only the words just before the verb is right in exactly
half of the pairs.

**Garden paths** (Futrell et al. 2019): *tripped* costs more behind *The horse raced past the barn*
than behind *The horse that was raced past the barn*, where it was to be expected.

The distance is the number of words between the two that depend on each other. A reader is the
subject, or a baseline: what it prefers is the text of the higher probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.audits.subjects.reader import Reader as Tokens
from tasks.audits.subjects.reader import shared_prefix
from tasks.contract import column, table

Float64 = NDArray[np.float64]
#: log p of texts behind contexts, in nats.
Reader = Callable[[Sequence[str], Sequence[str]], Float64]

AGREEMENT, GARDEN_PATH = "agreement", "garden path"
SUBJECT = "model"

NOUNS = (("key", "keys"), ("letter", "letters"), ("box", "boxes"), ("lamp", "lamps"),
         ("dog", "dogs"), ("child", "children"), ("book", "books"), ("picture", "pictures"),
         ("friend", "friends"), ("woman", "women"), ("man", "men"), ("tree", "trees"))  # fmt: skip
PHRASES = (("to the cabinet", "to the cabinets"), ("near the door", "near the doors"),
           ("behind the house", "behind the houses"), ("on the table", "on the tables"),
           ("from the village", "from the villages"))  # fmt: skip
VERBS = (("is", "are", "here"), ("was", "were", "there"), ("has", "have", "gone"))

#: A beginning that a participle makes ambiguous, and the verb that comes too late.
PATHS = (("horse", "raced past the barn", "tripped"), ("boat", "floated down the river", "sank"),
         ("dog", "walked to the park", "slept"), ("soldier", "marched across the field", "fell"),
         ("child", "washed in the river", "laughed"), ("ball", "rolled down the hill", "burst"),
         ("man", "moved to the city", "died"), ("cart", "turned towards the gate", "broke"),
         ("woman", "dropped off the boat", "swam"), ("cat", "fed in the kitchen", "ran"),
         ("bird", "hunted in the wood", "sang"), ("bell", "moved to a tower", "rang"))  # fmt: skip
BETWEEN = ("", "near the old mill", "near the old mill behind the trees")

PAIRS = table(
    "A minimal pair as one reader reads it: which of two texts is the more probable.",
    column("pair", pa.int32(), "id", "number of the pair"),
    column("reader", pa.string(), "label", "the subject (model), or a baseline"),
    column("phenomenon", pa.string(), "label", "agreement or garden path"),
    column("distance", pa.int32(), "figure", "words between what depends on each other",
           unit="words"),
    column("cluster", pa.string(), "label", "what pairs share: the noun"),
    column("expected", pa.string(), "project text", "the text that should be the more probable"),
    column("other", pa.string(), "project text", "the other one"),
    column("judged", pa.string(), "project text", "the words whose probability is compared"),
    column("difference", pa.float64(), "figure", "log p of the expected less that of the other",
           unit="nats"),
    column("correct", pa.float64(), "figure", "1 where it prefers the expected, 0.5 where neither",
           unit="share"),
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two texts, judged by their last words behind what stands before them."""

    phenomenon: str
    distance: int
    cluster: str
    before: tuple[str, str]  # of the expected text and of the other
    judged: tuple[str, str]


def agreement() -> Iterator[Pair]:
    """Twelve nouns x three verbs x zero to three phrases x two numbers."""
    for n, noun in enumerate(NOUNS):
        for v, (*verbs, rest) in enumerate(VERBS):
            for count in range(4):
                # Other phrases for each noun and verb; half of all attractors are plural.
                phrases = [PHRASES[(n + v + i) % 5][(n + v + i + count) % 2] for i in range(count)]
                for number in (0, 1):
                    beginning = " ".join(["The", noun[number], *phrases])
                    good, bad = (f"{beginning} {verbs[i]} {rest}." for i in (number, 1 - number))
                    yield Pair(AGREEMENT, 3 * count, noun[0], ("", ""), (good, bad))


def garden_paths() -> Iterator[Pair]:
    """Twelve beginnings x three distances."""
    for noun, participle, verb in PATHS:
        for words in BETWEEN:
            path = f"{participle} {words}".strip()
            clear, ambiguous = f"The {noun} that was {path}", f"The {noun} {path}"
            distance = len(path.split()) - 1
            yield Pair(GARDEN_PATH, distance, noun, (clear, ambiguous), (f" {verb}", f" {verb}"))


class Baseline(Protocol):
    def bits(self, documents: Sequence[Sequence[int]]) -> Float64: ...


def reader_of(baseline: Baseline, subject: Tokens) -> Reader:
    """How a baseline reads, over the subject's tokens."""

    def read(texts: Sequence[str], contexts: Sequence[str]) -> Float64:
        alone = subject.encode_batch(contexts)
        pairs = zip(contexts, texts, strict=True)
        both = subject.encode_batch([context + text for context, text in pairs])
        before = [b[: shared_prefix([a, b])] for a, b in zip(alone, both, strict=True)]
        return (baseline.bits(before) - baseline.bits(both)) * np.log(2)

    return read


def prefer(pairs: Sequence[Pair], readers: Mapping[str, Reader]) -> list[dict[str, Any]]:
    """Rows of PAIRS: what each reader prefers."""
    rows = []
    for name, read in readers.items():
        sides = [read([p.judged[i] for p in pairs], [p.before[i] for p in pairs]) for i in (0, 1)]
        for number, (pair, difference) in enumerate(zip(pairs, sides[0] - sides[1], strict=True)):
            expected, other = (b + j for b, j in zip(pair.before, pair.judged, strict=True))
            rows.append(
                {
                    **{k: v for k, v in asdict(pair).items() if k not in ("before", "judged")},
                    "pair": number,
                    "reader": name,
                    "expected": expected,
                    "other": other,
                    "judged": pair.judged[0].strip(),
                    "difference": float(difference),
                    "correct": (1 + float(np.sign(round(float(difference), 9)))) / 2,
                }
            )
    return rows
