"""Generate minimal pairs of agreement and of garden paths, and compare their probabilities.

**Agreement** (Linzen, Dupoux & Goldberg 2016; Warstadt et al. 2020): *The keys to the cabinet are
here.* should be more probable than *The keys to the cabinet is here.* Every sentence occurs in
singular and plural, so a system that knows only the words just before the verb is correct in
exactly half of the pairs.

**Garden paths** (Futrell et al. 2019): *tripped* should be less probable after *The horse raced
past the barn* than after *The horse that was raced past the barn*, where it is expected.

The distance is the number of words between the two dependent words. A system is the audited model
or a baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hallmark.tasks.audits.audited_models.audited_tokenizer import (
    AuditedTokenizer,
    count_shared_prefix_tokens,
)
from hallmark.tasks.contract import Row, column, table_schema

Float64 = NDArray[np.float64]
#: Returns log probabilities in nats, for texts and the contexts before them.
ContinuationScorer = Callable[[Sequence[str], Sequence[str]], Float64]

AGREEMENT, GARDEN_PATH = "agreement", "garden path"
MODEL = "model"

NOUNS = (
    ("key", "keys"),
    ("letter", "letters"),
    ("box", "boxes"),
    ("lamp", "lamps"),
    ("dog", "dogs"),
    ("child", "children"),
    ("book", "books"),
    ("picture", "pictures"),
    ("friend", "friends"),
    ("woman", "women"),
    ("man", "men"),
    ("tree", "trees"),
)
ATTRACTOR_PHRASES = (
    ("to the cabinet", "to the cabinets"),
    ("near the door", "near the doors"),
    ("behind the house", "behind the houses"),
    ("on the table", "on the tables"),
    ("from the village", "from the villages"),
)
VERBS = (("is", "are", "here"), ("was", "were", "there"), ("has", "have", "gone"))

#: Noun, ambiguous participle phrase, and the verb that comes too late.
GARDEN_PATH_PARTS = (
    ("horse", "raced past the barn", "tripped"),
    ("boat", "floated down the river", "sank"),
    ("dog", "walked to the park", "slept"),
    ("soldier", "marched across the field", "fell"),
    ("child", "washed in the river", "laughed"),
    ("ball", "rolled down the hill", "burst"),
    ("man", "moved to the city", "died"),
    ("cart", "turned towards the gate", "broke"),
    ("woman", "dropped off the boat", "swam"),
    ("cat", "fed in the kitchen", "ran"),
    ("bird", "hunted in the wood", "sang"),
    ("bell", "moved to a tower", "rang"),
)
INTERVENING_PHRASES = ("", "near the old mill", "near the old mill behind the trees")

PAIRS = table_schema(
    "Minimal pairs of texts. Each row shows which text in the pair is more probable according to "
    "the model or a baseline.",
    column("pair_id", pa.int32(), "id", "pair number"),
    column(
        "system",
        pa.string(),
        "label",
        "system that scored the pair: model (the audited model) or the name of a baseline",
    ),
    column(
        "phenomenon",
        pa.string(),
        "label",
        "phenomenon tested by the pair: agreement or garden path",
    ),
    column(
        "distance",
        pa.int32(),
        "figure",
        "number of words between the two dependent words",
        unit="words",
    ),
    column(
        "cluster",
        pa.string(),
        "label",
        "noun in the pair; pairs with the same noun form one cluster",
    ),
    column("expected_text", pa.string(), "project text", "the text that should be more probable"),
    column("other_text", pa.string(), "project text", "the other text"),
    column(
        "judged_words",
        pa.string(),
        "project text",
        "words in the expected text whose probabilities are compared",
    ),
    column(
        "log_prob_difference",
        pa.float64(),
        "figure",
        "log probability of the expected text minus log probability of the other text",
        unit="nats",
    ),
    column(
        "preference_score",
        pa.float64(),
        "figure",
        "1 if the expected text is more probable, 0.5 if both texts are equally probable, 0 if "
        "the other text is more probable",
        unit="share",
    ),
)


@dataclass(frozen=True)
class MinimalPair:
    """Hold two texts, each judged by its last words after a context.

    Attributes:
        phenomenon: AGREEMENT or GARDEN_PATH.
        distance: Number of words between the two words that depend on each other.
        cluster: Noun of the pair.
        contexts: Context in the expected text and in the other.
        continuations: Judged words of the expected text and of the other.
    """

    phenomenon: str
    distance: int
    cluster: str
    contexts: tuple[str, str]
    continuations: tuple[str, str]


def generate_agreement_pairs() -> Iterator[MinimalPair]:
    """Yield pairs for twelve nouns, three verbs, zero to three phrases, singular and plural."""
    for noun_index, noun_forms in enumerate(NOUNS):
        for verb_index, (*verb_forms, sentence_end) in enumerate(VERBS):
            for phrase_count in range(4):
                # Other phrases for each noun and verb, so that half of all attractors are plural.
                phrases = [
                    ATTRACTOR_PHRASES[(noun_index + verb_index + i) % 5][
                        (noun_index + verb_index + i + phrase_count) % 2
                    ]
                    for i in range(phrase_count)
                ]
                for form in (0, 1):
                    beginning = " ".join(["The", noun_forms[form], *phrases])
                    grammatical, ungrammatical = (
                        f"{beginning} {verb_forms[i]} {sentence_end}." for i in (form, 1 - form)
                    )
                    yield MinimalPair(
                        AGREEMENT,
                        3 * phrase_count,
                        noun_forms[0],
                        ("", ""),
                        (grammatical, ungrammatical),
                    )


def generate_garden_path_pairs() -> Iterator[MinimalPair]:
    """Yield pairs for twelve beginnings and three distances."""
    for noun, participle, verb in GARDEN_PATH_PARTS:
        for intervening in INTERVENING_PHRASES:
            participle_phrase = f"{participle} {intervening}".strip()
            unambiguous, ambiguous = (
                f"The {noun} that was {participle_phrase}",
                f"The {noun} {participle_phrase}",
            )
            distance = len(participle_phrase.split()) - 1
            yield MinimalPair(
                GARDEN_PATH, distance, noun, (unambiguous, ambiguous), (f" {verb}", f" {verb}")
            )


class Baseline(Protocol):
    def compute_document_bits(self, documents: Sequence[Sequence[int]]) -> Float64: ...


def make_baseline_scorer(baseline: Baseline, tokenizer: AuditedTokenizer) -> ContinuationScorer:
    """Make a scorer of continuations from a baseline over the audited model's tokens."""

    def score_continuations(continuations: Sequence[str], contexts: Sequence[str]) -> Float64:
        context_ids = tokenizer.encode_batch(contexts)
        text_pairs = zip(contexts, continuations, strict=True)
        full_ids = tokenizer.encode_batch(
            [context + continuation for context, continuation in text_pairs]
        )
        prefix_ids = [
            ids_of_text[: count_shared_prefix_tokens([ids_of_context, ids_of_text])]
            for ids_of_context, ids_of_text in zip(context_ids, full_ids, strict=True)
        ]
        scores: Float64 = (
            baseline.compute_document_bits(prefix_ids) - baseline.compute_document_bits(full_ids)
        ) * np.log(2)
        return scores

    return score_continuations


def build_minimal_pair_rows(
    pairs: Sequence[MinimalPair], scorers: Mapping[str, ContinuationScorer]
) -> list[Row]:
    """Score pairs, and build rows of PAIRS: the preference of each system in each pair."""
    rows = []
    for system, score in scorers.items():
        side_log_probs = [
            score([p.continuations[i] for p in pairs], [p.contexts[i] for p in pairs])
            for i in (0, 1)
        ]
        for pair_id, (pair, difference) in enumerate(
            zip(pairs, side_log_probs[0] - side_log_probs[1], strict=True)
        ):
            expected_text, other_text = (
                pair_context + continuation
                for pair_context, continuation in zip(
                    pair.contexts, pair.continuations, strict=True
                )
            )
            rows.append(
                {
                    **{
                        k: v
                        for k, v in asdict(pair).items()
                        if k not in ("contexts", "continuations")
                    },
                    "pair_id": pair_id,
                    "system": system,
                    "expected_text": expected_text,
                    "other_text": other_text,
                    "judged_words": pair.continuations[0].strip(),
                    "log_prob_difference": float(difference),
                    "preference_score": (1 + float(np.sign(round(float(difference), 9)))) / 2,
                }
            )
    return rows
