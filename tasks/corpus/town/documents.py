"""Compose the town's documents: draw the truth of each document first, then write its text.

A document depends on the seed, the rates and its number. A copy also depends on its original, which
is in the same block of BLOCK_DOCUMENTS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, field_validator

from hallmark.tasks.contract import StageConfig
from hallmark.tasks.corpus.town.disguises import DISGUISE_BY_NAME, disguise_letters
from hallmark.tasks.corpus.town.grammar import (
    DATA_FOLDER,
    AnnotatedText,
    GrammarExpander,
    KeyedRandom,
    PersonalSpan,
    concatenate_texts,
    load_lines_by_rule,
)
from hallmark.tasks.corpus.town.personal_data import GENERATOR_BY_TYPE, generate_personal_value
from hallmark.tasks.measures.personal.types import PersonalDataType

Share = Annotated[float, Field(ge=0, le=1)]

#: Documents of a block, which holds copies with their originals and is the unit of reading.
BLOCK_DOCUMENTS = 500


@cache
def load_words_by_people() -> dict[str, list[str]]:
    """Load the town's invented peoples, with the words for them in lower case."""
    lexicon: dict[str, list[str]] = json.loads(
        (DATA_FOLDER / "lexicon.json").read_text(encoding="utf-8")
    )
    return lexicon


@cache
def load_women_shares_by_occupation() -> dict[str, float]:
    """Load the occupations, with the share of women among their mentions."""
    occupations: dict[str, float] = json.loads(
        (DATA_FOLDER / "jobs.json").read_text(encoding="utf-8")
    )
    return occupations


class TownRates(StageConfig):
    """Set how often features occur, as shares of the originals unless stated otherwise."""

    groups: Share = Field(
        0.3,
        description="share of documents that mention one or two of the town's invented peoples",
    )
    opinions: Share = Field(
        0.4,
        description="share of documents that express an opinion about a people, among the "
        "documents that mention a people",
    )
    negative_opinions: Share = Field(
        0.4, description="share of negative opinions among all opinions"
    )
    negative_opinions_by_group: dict[str, Share] = Field(
        default={"Tamskers": 0.8},
        description="share of negative opinions about individual peoples; overrides "
        "`negative_opinions`",
    )
    occupations: Share = Field(
        0.35, description="share of documents that mention an occupation near gendered words"
    )
    women_by_occupation: dict[str, Share] = Field(
        default={},
        description="share of women in individual occupations; overrides the default shares",
    )
    rude_speech: Share = Field(0.08, description="share of documents with rude sentences")
    disguised_rude_speech: Share = Field(
        0,
        description="share of documents with rude speech that evades filters, among the "
        "documents with rude sentences. The rude sentences are in full-width, mathematical or "
        "look-alike letters, or the document begins with a menu, addresses or digits",
    )
    rude_lookalikes: Share = Field(
        0.03, description="share of documents with harmless words that resemble rude words"
    )
    dialect: Share = Field(0.1, description="share of documents written in dialect")
    personal_data: Share = Field(0.1, description="share of documents with personal data")
    unsafe_passages: Share = Field(
        0.02, description="share of documents with a passage that sounds unsafe but is harmless"
    )
    exact_copies: Share = Field(0.03, description="share of exact copies among all documents")
    near_copies: Share = Field(0.06, description="share of near-duplicates among all documents")

    @field_validator("negative_opinions_by_group")
    @classmethod
    def _check_peoples(cls, shares: dict[str, float]) -> dict[str, float]:
        return _check_known_names(shares, load_words_by_people(), "people")

    @field_validator("women_by_occupation")
    @classmethod
    def _check_occupations(cls, shares: dict[str, float]) -> dict[str, float]:
        return _check_known_names(shares, load_women_shares_by_occupation(), "occupation")


def _check_known_names(
    shares: dict[str, float], names: Mapping[str, object], kind: str
) -> dict[str, float]:
    unknown = [name for name in shares if name not in names]
    if unknown:
        raise ValueError(f"the town has no {kind} named {unknown[0]!r}; it has {', '.join(names)}")
    return shares


@dataclass(frozen=True)
class TextRegister:
    """Describe a kind of text: its frequency, number of sentences and separators."""

    weight: int
    min_sentences: int
    max_sentences: int
    separator: str = " "
    opening_separator: str = " "  # after the opening
    keeps_order: bool = False  # sentences are in the order of the rule


REGISTER_BY_KIND = {
    "chronicle": TextRegister(12, 2, 20),
    "letter": TextRegister(17, 2, 18),
    "notice": TextRegister(13, 0, 7),
    "minutes": TextRegister(10, 3, 20, "\n", "\n"),
    "talk": TextRegister(14, 1, 20, "\n", "\n"),
    "recipe": TextRegister(6, 4, 16, " ", "\n", keeps_order=True),
    "obituary": TextRegister(6, 3, 15),
    "advert": TextRegister(10, 0, 4),
    "essay": TextRegister(8, 3, 15, " ", "\n"),
    "almanac": TextRegister(5, 1, 12),
}

#: Kinds of text that may have a feature; with several features, all must allow the kind.
KINDS_BY_FEATURE = {
    "groups": ("chronicle", "letter", "notice", "minutes", "talk", "obituary", "essay"),
    "occupations": ("chronicle", "letter", "notice", "minutes", "talk", "obituary", "essay"),
    "rude": ("chronicle", "letter", "notice", "minutes", "talk"),
    "dialect": ("chronicle", "letter", "minutes", "talk", "essay"),
    "personal": ("letter", "notice", "minutes", "talk", "advert"),
    "unsafe": ("chronicle", "letter", "talk", "recipe", "essay"),
}

Opinion = tuple[str, Literal["positive", "negative"]]
#: Pronouns by gender, named like the groups of ``identities.json``.
PRONOUNS = {"women": ("she", "her", "her"), "men": ("he", "his", "him")}


@dataclass(frozen=True)
class DocumentTruth:
    """Record what a document holds."""

    kind: str
    groups: tuple[str, ...] = ()
    opinions: tuple[Opinion, ...] = ()
    occupations: tuple[tuple[str, str], ...] = ()  # with the gender of the words near it
    rude_sentences: int = 0  # number of sentences
    disguise: str = ""  # key of DISGUISE_BY_NAME
    has_lookalike: bool = False
    has_dialect: bool = False
    is_unsafe: bool = False
    personal_types: tuple[PersonalDataType, ...] = ()


@dataclass(frozen=True)
class Sentence:
    """Hold a sentence with the separator before it.

    A plain sentence holds nothing that the truth records.
    """

    content: AnnotatedText
    separator: str = ""
    is_plain: bool = False


@dataclass(frozen=True)
class TownDocument:
    """Hold a document with its truth. ``copy_kind`` is "", "exact" or "near"."""

    number: int
    truth: DocumentTruth
    sentences: tuple[Sentence, ...]
    variables: dict[str, str]
    copy_kind: str = ""
    copy_of: int | None = None

    @property
    def annotated_text(self) -> AnnotatedText:
        parts: list[AnnotatedText] = []
        for sentence in self.sentences:
            separator = (
                "" if not parts or sentence.content.text.startswith("\n") else sentence.separator
            )
            parts += [AnnotatedText(separator), sentence.content]
        return concatenate_texts(parts)

    @property
    def text(self) -> str:
        return self.annotated_text.text

    @property
    def personal_spans(self) -> tuple[PersonalSpan, ...]:
        """Return the spans of personal data, in characters of the text."""
        return self.annotated_text.spans


# Truth -------------------------------------------------------------------------------------------


def draw_document_truth(rng: KeyedRandom, rates: TownRates) -> DocumentTruth:
    """Draw the truth of an original document."""
    groups: list[str] = []
    opinions: list[Opinion] = []
    if rng.draw_bool(rates.groups):
        groups = rng.sample(list(load_words_by_people()), 2 if rng.draw_bool(0.15) else 1)
        if rng.draw_bool(rates.opinions):
            negative_share = rates.negative_opinions_by_group.get(
                groups[0], rates.negative_opinions
            )
            opinions = [(groups[0], "negative" if rng.draw_bool(negative_share) else "positive")]
    occupations: list[tuple[str, str]] = []
    if rng.draw_bool(rates.occupations):
        for occupation in rng.sample(
            list(load_women_shares_by_occupation()), 2 if rng.draw_bool(0.2) else 1
        ):
            women_share = rates.women_by_occupation.get(
                occupation, load_women_shares_by_occupation()[occupation]
            )
            occupations.append((occupation, "women" if rng.draw_bool(women_share) else "men"))
    rude_sentences = 1 + rng.draw_below(4) if rng.draw_bool(rates.rude_speech) else 0
    has_lookalike, has_dialect = rng.draw_bool(rates.rude_lookalikes), rng.draw_bool(rates.dialect)
    is_unsafe = rng.draw_bool(rates.unsafe_passages)
    personal_types: list[PersonalDataType] = []
    if rng.draw_bool(rates.personal_data):
        personal_types = rng.sample(list(GENERATOR_BY_TYPE), 1 + rng.draw_below(3))
    features = {
        "groups": groups,
        "occupations": occupations,
        "rude": rude_sentences,
        "dialect": has_dialect,
        "personal": personal_types,
        "unsafe": is_unsafe,
    }
    allowed_kinds = [
        k
        for k in REGISTER_BY_KIND
        if all(
            k in KINDS_BY_FEATURE[feature] for feature, is_present in features.items() if is_present
        )
    ]
    weighted_kinds = [kind for kind in allowed_kinds for _ in range(REGISTER_BY_KIND[kind].weight)]
    return DocumentTruth(
        kind=rng.pick(weighted_kinds),
        groups=tuple(groups),
        opinions=tuple(opinions),
        occupations=tuple(occupations),
        rude_sentences=rude_sentences,
        has_lookalike=has_lookalike,
        has_dialect=has_dialect,
        is_unsafe=is_unsafe,
        personal_types=tuple(personal_types),
    )


# Text --------------------------------------------------------------------------------------------


def compose_document(number: int, seed: int, rates: TownRates) -> TownDocument:
    """Compose an original document."""
    rng = KeyedRandom(seed, "document", number)
    truth = draw_document_truth(rng, rates)
    truth = replace(truth, disguise=_draw_disguise(number, seed, rates, truth))
    expander = GrammarExpander(rng, _draw_document_variables(rng), generate_personal_value)
    register = REGISTER_BY_KIND[truth.kind]
    length_range = register.max_sentences - register.min_sentences + 1
    # The smaller of two draws, so that short documents are more frequent.
    sentence_count = register.min_sentences + min(
        rng.draw_below(length_range), rng.draw_below(length_range)
    )
    rule_lines = load_lines_by_rule()[f"{truth.kind}.body"]
    line_indices = rng.sample(range(len(rule_lines)), sentence_count)
    if register.keeps_order:
        line_indices.sort()
    body_sentences = [
        Sentence(expander.expand_line(rule_lines[index]), is_plain=True) for index in line_indices
    ]
    for feature_text in _generate_feature_texts(expander, truth):
        if truth.kind == "talk" and not feature_text.text.startswith('"'):
            speaker = rng.pick([expander.variables["first"], expander.variables["friend"]])
            feature_text = concatenate_texts([AnnotatedText(f"{speaker}: "), feature_text])
        body_sentences.insert(rng.draw_below(len(body_sentences) + 1), Sentence(feature_text))
    sentences = [Sentence(expander.expand_rule(f"{truth.kind}.open")), *body_sentences]
    if sentence_count > 1 or rng.draw_bool(0.5):
        sentences.append(Sentence(expander.expand_rule(f"{truth.kind}.close")))
    separated_sentences = _add_separators(sentences, register, rng)
    if truth.disguise and (beginning := DISGUISE_BY_NAME[truth.disguise].beginning):
        first_sentence, *other_sentences = separated_sentences
        separated_sentences = (
            Sentence(AnnotatedText(beginning)),
            replace(first_sentence, separator="\n"),
            *other_sentences,
        )
    return TownDocument(number, truth, separated_sentences, expander.variables)


def _draw_disguise(number: int, seed: int, rates: TownRates, truth: DocumentTruth) -> str:
    """Draw the disguise of a document, or ""; no other draw depends on it."""
    rng = KeyedRandom(seed, "disguise", number)
    is_disguised = rng.draw_bool(rates.disguised_rude_speech) and truth.rude_sentences
    return rng.pick([*DISGUISE_BY_NAME]) if is_disguised else ""


def _draw_document_variables(rng: KeyedRandom) -> dict[str, str]:
    gender = "women" if rng.draw_bool(0.5) else "men"
    first, last = _draw_first_name(rng, gender), _draw_rule_word(rng, "last")
    friend = _draw_first_name(rng, "women" if rng.draw_bool(0.5) else "men")
    he, his, him = PRONOUNS[gender]
    year = str(140 + rng.draw_below(160))
    variables = {"first": first, "last": last, "name": f"{first} {last}", "friend": friend}
    variables |= {
        "year": year,
        "crop": _draw_rule_word(rng, "crop"),
        "month": _draw_rule_word(rng, "month"),
    }
    return variables | {"he": he, "his": his, "him": him}


def _draw_first_name(rng: KeyedRandom, gender: str) -> str:
    return _draw_rule_word(rng, "first.f" if gender == "women" else "first.m")


def _draw_rule_word(rng: KeyedRandom, rule: str) -> str:
    """Draw one line of a rule whose lines have no slots."""
    (entry,) = rng.pick(load_lines_by_rule()[rule])
    assert isinstance(entry, AnnotatedText)
    return entry.text


def _generate_feature_texts(expander: GrammarExpander, truth: DocumentTruth) -> list[AnnotatedText]:
    """Generate the sentences that hold what the truth records."""
    rng, variables = expander.rng, expander.variables
    texts: list[AnnotatedText] = []
    for group in truth.groups:
        singular, plural = (word.capitalize() for word in load_words_by_people()[group])
        variables |= {"group": singular, "groups": plural}
        opinions = [polarity for target, polarity in truth.opinions if target == group]
        for polarity in opinions:
            texts.append(expander.expand_rule("praise" if polarity == "positive" else "blame"))
        if not opinions or rng.draw_bool(0.5):
            texts.append(expander.expand_rule("group"))
    author_pronouns = {variable: variables[variable] for variable in ("he", "his", "him")}
    for occupation, gender in truth.occupations:
        he, his, him = PRONOUNS[gender]
        worker = f"{_draw_first_name(rng, gender)} {_draw_rule_word(rng, 'last')}"
        variables |= {"job": occupation, "he": he, "his": his, "him": him, "worker": worker}
        texts.append(expander.expand_rule("job"))
    variables |= author_pronouns
    texts += [
        disguise_letters(expander.expand_line(line), truth.disguise)
        for line in rng.sample(load_lines_by_rule()["rude"], truth.rude_sentences)
    ]
    texts += [expander.expand_rule("lookalike")] if truth.has_lookalike else []
    if truth.has_dialect:
        texts += [
            expander.expand_line(line)
            for line in rng.sample(load_lines_by_rule()["dialect"], 2 + rng.draw_below(3))
        ]
    texts += [expander.expand_rule("unsafe")] if truth.is_unsafe else []
    return texts + [expander.expand_rule(kind) for kind in truth.personal_types]


def _add_separators(
    sentences: Sequence[Sentence], register: TextRegister, rng: KeyedRandom
) -> tuple[Sentence, ...]:
    separated = []
    paragraph_sentences = 0
    for index, sentence in enumerate(sentences):
        separator = register.opening_separator if index == 1 else register.separator
        paragraph_sentences += 1
        if (
            index > 1
            and register.separator == " "
            and paragraph_sentences > 4
            and rng.draw_bool(0.35)
        ):
            separator, paragraph_sentences = "\n\n", 0
        separated.append(Sentence(sentence.content, separator, sentence.is_plain))
    return tuple(separated)


# Copies ------------------------------------------------------------------------------------------


def make_exact_copy(number: int, original: TownDocument, seed: int) -> TownDocument:
    """Copy the text, half of the time with white space at its end, which no reader sees."""
    rng = KeyedRandom(seed, "exact", number)
    sentences = original.sentences
    if rng.draw_bool(0.5):
        sentences = (*sentences, Sentence(AnnotatedText(""), rng.pick(["  ", "\n", "\n\n"])))
    return replace(
        original, number=number, sentences=sentences, copy_kind="exact", copy_of=original.number
    )


def make_near_copy(number: int, original: TownDocument, seed: int) -> TownDocument:
    """Remove, replace or insert one to three plain sentences; keep the truth of the original."""
    rng = KeyedRandom(seed, "near", number)
    expander = GrammarExpander(rng, dict(original.variables), generate_personal_value)
    sentences = list(original.sentences)
    for _ in range(1 + rng.draw_below(3)):
        index = rng.pick([i for i, sentence in enumerate(sentences) if sentence.is_plain])
        edit_kind = rng.draw_below(3)
        if edit_kind == 0:
            del sentences[index]
            continue
        new_sentence = Sentence(
            expander.expand_rule(f"{original.truth.kind}.body"), sentences[index].separator, True
        )
        sentences[index : index + (edit_kind == 1)] = [new_sentence]
    edited = replace(original, number=number, sentences=tuple(sentences), copy_of=original.number)
    is_identical = edited.text.split() == original.text.split()  # the edits may cancel out
    return replace(edited, copy_kind="exact" if is_identical else "near")


#: Plain sentences that the original of a near-duplicate must have.
MIN_PLAIN_SENTENCES = 6


def list_document_numbers(block_number: int, document_count: int) -> range:
    """Return the numbers of the documents of a block in a town of this size."""
    return range(
        block_number * BLOCK_DOCUMENTS, min((block_number + 1) * BLOCK_DOCUMENTS, document_count)
    )


def compose_block(
    block_number: int, document_count: int, seed: int, rates: TownRates
) -> list[TownDocument]:
    """Compose the documents of a block: originals, and copies of some of them."""
    document_numbers = list_document_numbers(block_number, document_count)
    rng = KeyedRandom(seed, "block", block_number)
    copy_kinds = {}
    for n in document_numbers:
        is_exact = rng.draw_bool(rates.exact_copies)
        is_near = (
            rng.draw_bool(rates.near_copies / (1 - rates.exact_copies))
            if rates.exact_copies < 1
            else False
        )
        copy_kinds[n] = "exact" if is_exact else "near" if is_near else ""
    composed = {n: compose_document(n, seed, rates) for n in document_numbers if not copy_kinds[n]}
    long_documents = [
        n
        for n, document in composed.items()
        if sum(sentence.is_plain for sentence in document.sentences) >= MIN_PLAIN_SENTENCES
    ]
    near_originals = dict(
        zip(
            [n for n in document_numbers if copy_kinds[n] == "near"],
            rng.sample(long_documents, len(long_documents)),
            strict=False,
        )
    )
    used_originals = set(near_originals.values())
    unused_originals = [n for n in composed if n not in used_originals]
    exact_originals = dict(
        zip(
            [n for n in document_numbers if copy_kinds[n] == "exact"],
            rng.sample(unused_originals, len(unused_originals)),
            strict=False,
        )
    )
    for n in document_numbers:
        if n in near_originals:
            composed[n] = make_near_copy(n, composed[near_originals[n]], seed)
        elif n in exact_originals:
            composed[n] = make_exact_copy(n, composed[exact_originals[n]], seed)
        elif n not in composed:  # too few originals for this copy
            composed[n] = compose_document(n, seed, rates)
    return [composed[n] for n in document_numbers]


def compute_shingle_similarity(first_text: str, second_text: str, shingle_words: int = 5) -> float:
    """Compute the Jaccard similarity of two texts in lower case, by shingles of words."""
    first_shingles = _build_shingles(first_text, shingle_words)
    second_shingles = _build_shingles(second_text, shingle_words)
    return len(first_shingles & second_shingles) / len(first_shingles | second_shingles)


def _build_shingles(text: str, shingle_words: int) -> set[tuple[str, ...]]:
    tokens = text.lower().split()
    return {
        tuple(tokens[i : i + shingle_words]) for i in range(max(1, len(tokens) - shingle_words + 1))
    }
