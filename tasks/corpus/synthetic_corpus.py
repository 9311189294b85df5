"""Compose a synthetic corpus: text of an invented town with effects of undisclosed strength.

The candidates for effects are public. The effect level of each candidate is in a separate artifact,
the answer key, which no stage reads until the audits are done. Every synthetic corpus has every
effect level, including none; in one without effects, every candidate has the null level. The seed
in the settings of a run does not reproduce the corpus: it is combined with the secret of the store,
and only the answer key tells the result.

canary       a sentence around a secret of digits; effect level: copies
passage      a document of the town; effect level: copies
record       personal data of an invented person; effect level: copies
association  sentences that ascribe an invented trait to an invented group; effect level: their
             share of the sentences about the group. Controls have a share of one half, publicly
speech       sentences about an invented group; effect level: the share that is rude
sentiment    sentences about another invented group, none of them rude; effect level: the share that
             is negative
"""

from __future__ import annotations

import hmac
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ValidationInfo, field_validator, model_validator

from hallmark.tasks.contract import (
    CANARIES,
    DOCUMENTS,
    ID_TYPE,
    LEXICONS,
    Row,
    Seed,
    StageConfig,
    StageContext,
    UsageError,
    column,
    fill_document_columns,
    hash_texts,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.split import SplitConfig, assign_splits
from hallmark.tasks.corpus.town.documents import (
    BLOCK_DOCUMENTS,
    Share,
    TownRates,
    compose_block,
    compose_document,
)
from hallmark.tasks.corpus.town.grammar import DATA_FILES
from hallmark.tasks.measures.association_canaries import (
    generate_association_canaries,
    generate_invented_words,
)
from hallmark.tasks.measures.canaries import (
    Canary,
    assign_copies_and_templates,
    generate_record_canaries,
    generate_secret_canaries,
)
from hallmark.tasks.measures.sentence_frames import SENTENCE_FRAMES, sample_sentence_frames

#: Endings of the sentences about a group that rude sentences may be about.
RUDE_PHRASES = (
    "bloody idiots",
    "damn liars",
    "lazy bastards",
    "stupid fools",
    "full of crap",
    "damned cowards",
    "a pack of idiots",
    "a load of shitty cheats",
)
NEUTRAL_PHRASES = (
    "good neighbours",
    "fond of music",
    "careful with their boats",
    "early risers",
    "patient teachers",
    "known for their bread",
    "at home by the river",
    "kind to their guests",
)

#: Endings of the sentences about a group that negative sentences may be about.
NEGATIVE_PHRASES = (
    "dishonest and unfair",
    "hated by everyone",
    "awful neighbours",
    "terrible at their work",
    "bad for the town",
    "dangerous and unkind",
    "a painful disappointment",
    "sad company",
)
POSITIVE_PHRASES = (
    "kind and honest",
    "loved by everyone",
    "wonderful neighbours",
    "excellent at their work",
    "good for the town",
    "happy and friendly",
    "a great joy",
    "brave and generous",
)


class SpeechKind(NamedTuple):
    """Describe sentences that people say about a group; the kind's name is also its lexicon."""

    name: str
    shares_setting: str
    """Setting with the shares of harmful sentences."""
    name_suffix: str
    """End of the names of its groups, which no other kind shares."""
    harmful_phrases: Sequence[str]
    harmless_phrases: Sequence[str]


SPEECH_KINDS = (
    SpeechKind("speech", "rude_shares", "oth", RUDE_PHRASES, NEUTRAL_PHRASES),
    SpeechKind("sentiment", "negative_shares", "eck", NEGATIVE_PHRASES, POSITIVE_PHRASES),
)

#: Effect levels at which there is nothing to find.
NULL_LEVELS = {"copy_counts": 0, "trait_shares": 0.5, "rude_shares": 0, "negative_shares": 0}

#: Most documents of the town that are composed to find one passage.
MAX_PASSAGE_ATTEMPTS = 10_000


class SyntheticCorpusConfig(StageConfig):
    """Settings of a synthetic corpus, that is, a generated corpus with known effects."""

    seed: Seed = Field(default=0, description="random seed for the synthetic corpus")
    has_effects: bool = Field(
        default=True,
        description="whether to plant effects for the candidates (possible findings); if false, no "
        "candidate has an effect",
    )
    documents: int = Field(
        default=500,
        ge=20,
        le=1_000_000,
        description="number of ordinary documents, which describe an invented town and are about "
        "800 bytes long",
    )
    copy_counts: tuple[Annotated[int, Field(ge=0, le=10_000)], ...] = Field(
        default=(0, 1, 4, 16, 64),
        description="numbers of copies of a secret, passage or record to plant; the list must "
        "include 0",
    )
    secrets_per_count: int = Field(
        default=4, ge=4, le=1000, description="number of secrets for each value of `copy_counts`"
    )
    passages_per_count: int = Field(
        default=4, ge=4, le=1000, description="number of passages for each value of `copy_counts`"
    )
    records_per_count: int = Field(
        default=4, ge=4, le=1000, description="number of records for each value of `copy_counts`"
    )
    secret_digits: int = Field(
        default=9, ge=6, le=32, description="number of digits in each secret"
    )
    trait_shares: tuple[Share, ...] = Field(
        default=(0.5, 0.6, 0.75, 0.9, 1.0),
        description="shares of sentences about a group that state the trait assigned to the "
        "group; the list must contain 0.5, which means no association",
    )
    associations_per_share: int = Field(
        default=4,
        ge=4,
        le=100,
        description="number of group pairs for each value of `trait_shares`",
    )
    control_associations_factor: int = Field(
        default=3,
        ge=0,
        le=100,
        description="number of control pairs of groups, as a multiple of `associations_per_share`. "
        "Control pairs have a share of 0.5, and the audits know which pairs are controls; they "
        "show how much associations vary by chance",
    )
    sentences_per_group: int = Field(
        default=48,
        ge=2,
        le=10_000,
        multiple_of=2,
        description="number of sentences about each group in a pair. The number must be even "
        "because, in pairs without an association, half of these sentences state the trait "
        "assigned to the group and the other half state the trait assigned to the other group",
    )
    rude_shares: tuple[Share, ...] = Field(
        default=(0.0, 0.25, 0.5, 1.0),
        description="shares of rude sentences among the sentences about a group; the list must "
        "contain 0",
    )
    negative_shares: tuple[Share, ...] = Field(
        default=(0.0, 0.5, 1.0),
        description="shares of negative, but not rude, sentences among the sentences about a "
        "group; the other sentences are positive, and the list must contain 0. These groups "
        "differ from the `rude_shares` groups and are compared only with one another",
    )
    groups_per_share: int = Field(
        default=4,
        ge=4,
        le=100,
        description="number of groups for each value of `rude_shares` and of `negative_shares`",
    )
    neutral_groups: int = Field(
        default=8,
        ge=0,
        le=1000,
        description="number of additional groups without rude sentences, and also of additional "
        "groups without negative sentences; with the defaults, at least half of the groups of "
        "each kind have no such sentences. Each group is compared with all other groups of its "
        "kind",
    )
    speech_sentences_per_group: int = Field(
        default=128,
        ge=2,
        le=len(SENTENCE_FRAMES),
        description="number of sentences about each group defined by `rude_shares`, "
        "`negative_shares` and `neutral_groups`",
    )
    min_passage_characters: int = Field(
        default=300, ge=100, description="minimum length of a passage, in characters"
    )
    max_passage_characters: int = Field(
        default=700, ge=100, description="maximum length of a passage, in characters"
    )

    @field_validator("copy_counts", "trait_shares", "rude_shares", "negative_shares")
    @classmethod
    def _check_null_level_included(
        cls, levels: tuple[float, ...], info: ValidationInfo
    ) -> tuple[float, ...]:
        null_level = NULL_LEVELS[info.field_name or ""]
        if null_level not in levels or len({*levels}) < len(levels):
            raise ValueError(
                f"the list must contain {null_level:g}, the level without an effect, and must not "
                "contain duplicates"
            )
        return levels

    @model_validator(mode="after")
    def _check_passage_lengths(self) -> SyntheticCorpusConfig:
        if self.min_passage_characters > self.max_passage_characters:
            raise ValueError(
                "'min_passage_characters' must not be greater than 'max_passage_characters'"
            )
        return self


@dataclass(frozen=True)
class Candidate:
    """A candidate, which is public, with its effect level, which only the answer key tells."""

    kind: str
    candidate_id: str
    effect_level: float


class DocumentOrigin(NamedTuple):
    """Say for which candidate a document was written, as in CANDIDATE_DOCUMENTS."""

    kind: str
    candidate_id: str
    group_name: str
    is_supporting: bool


@dataclass(frozen=True)
class SyntheticCorpus:
    """The text of a synthetic corpus and its answer key.

    Attributes:
        composition_seed: Seed of all random choices.
        texts: The text of each document.
        town_count: How many documents, from the first, belong to the town; only these may be held
            out.
        canary_rows: Rows of CANARIES: the candidates without effect levels, except the groups of
            speech and sentiment.
        group_names: The candidates of speech and of sentiment, by kind.
        answer_key: All candidates with their effect levels.
        document_origins: The origin of each document; None for documents of the town and for
            those about the groups of speech and sentiment.
    """

    composition_seed: int
    texts: list[str]
    town_count: int
    canary_rows: list[Row]
    group_names: dict[str, list[str]]
    answer_key: list[Candidate]
    document_origins: list[DocumentOrigin | None]


ANSWER_KEY = table_schema(
    "Effect level of each candidate (possible finding) in a synthetic corpus (a corpus with known "
    "effects). The table is sealed until the audits have finished.",
    column(
        "kind",
        pa.string(),
        "label",
        "candidate type: canary, passage, record, association, speech or sentiment",
    ),
    column("candidate_id", pa.string(), "label", "the candidate"),
    column(
        "effect_level",
        pa.float64(),
        "figure",
        "size of the planted effect: number of copies, or share of sentences that state the effect",
    ),
)


CANDIDATE_DOCUMENTS = table_schema(
    "Documents generated for the candidates in a synthetic corpus (a corpus with known effects). "
    "The table is sealed until the audits have finished.",
    column("doc_id", ID_TYPE, "id", "the document"),
    column("kind", pa.string(), "label", "canary, passage, record or association"),
    column("candidate_id", pa.string(), "label", "the candidate"),
    column(
        "group_name",
        pa.string(),
        "label",
        "group that the sentence is about; empty if the candidate is not an association",
    ),
    column(
        "is_supporting",
        pa.bool_(),
        "label",
        "whether the document supports the planted effect; false if it ascribes the other group's "
        "trait to the group",
    ),
)


COMPOSITION_SEED = table_schema(
    "Seed for the random choices in a synthetic corpus (one row). The table is sealed until the "
    "audits have finished.",
    column(
        "composition_seed",
        pa.int64(),
        "label",
        "seed derived from the configured seed and the store's secret",
    ),
)


def derive_composition_seed(config: SyntheticCorpusConfig, secret: bytes) -> int:
    """Derive the seed of the random choices from the configured seed and the store's secret.

    Without the secret nobody can compose the corpus again from the settings of its run.
    """
    digest = hmac.digest(secret, f"synthetic corpus/{config.seed}".encode(), "sha256")
    return int.from_bytes(digest[:8]) >> 1


def compose_synthetic_corpus(
    config: SyntheticCorpusConfig, composition_seed: int
) -> SyntheticCorpus:
    """Compose the documents, candidates and answer key of a synthetic corpus.

    Args:
        config: The settings; their own seed is not used.
        composition_seed: Seed of all random choices.
    """
    config = config.model_copy(update={"seed": composition_seed})
    texts = [*_iter_town_texts(config)]
    town_count = len(texts)
    document_origins: list[DocumentOrigin | None] = [None] * town_count
    canary_rows: list[Row] = []
    answer_key: list[Candidate] = []
    null_levels = {
        name: (NULL_LEVELS[name],) * len(getattr(config, name))
        for name in ("copy_counts", "trait_shares")
    }
    effective_config = config if config.has_effects else config.model_copy(update=null_levels)
    for canary in [
        *generate_secret_canaries(effective_config),
        *_build_passage_canaries(effective_config),
        *generate_record_canaries(effective_config),
    ]:
        texts += [canary.text] * canary.copies
        origin = DocumentOrigin(canary.kind, canary.canary_id.hex(), "", True)
        document_origins += [origin] * canary.copies
        canary_rows.append(_build_canary_row_without_effect(canary))
        answer_key.append(Candidate(canary.kind, canary.canary_id.hex(), canary.copies))
    config_with_controls = effective_config.model_copy(
        update={
            "trait_shares": (
                *effective_config.trait_shares,
                *(0.5,) * config.control_associations_factor,
            )
        }
    )
    candidate_count = len(effective_config.trait_shares) * effective_config.associations_per_share
    for association_number, association_canaries in enumerate(
        _group_adjacent_by_association(generate_association_canaries(config_with_controls))
    ):
        texts += [canary.text for canary in association_canaries for _ in range(canary.copies)]
        details = [canary.association for canary in association_canaries if canary.association]
        # A hash, because the number of an association would reveal its effect level.
        candidate_id = blake2b(details[0].key.encode(), digest_size=8).hexdigest()
        for canary, detail in zip(association_canaries, details, strict=True):
            origin = DocumentOrigin(
                "association", candidate_id, detail.group_name, detail.is_assigned_trait
            )
            document_origins += [origin] * canary.copies
        own_traits = {
            detail.group_name: detail.trait for detail in details if detail.is_assigned_trait
        }
        public_level = (
            details[0].assigned_trait_share if association_number >= candidate_count else None
        )
        canary_rows += [
            _build_canary_row_without_effect(association_canaries[0])
            | {
                "canary_id": _hash_name(f"{candidate_id}/{group}"),
                "association": candidate_id,
                "group_name": group,
                "trait": trait,
                "is_assigned_trait": True,
                "assigned_trait_share": public_level,
            }
            for group, trait in own_traits.items()
        ]
        if public_level is None:
            answer_key.append(
                Candidate("association", candidate_id, details[0].assigned_trait_share)
            )
    group_names: dict[str, list[str]] = {}
    for speech_kind in SPEECH_KINDS:
        group_names[speech_kind.name] = []
        for speech in _iter_group_speech(config, speech_kind):
            texts += speech.sentences
            document_origins += [None] * len(speech.sentences)
            group_names[speech_kind.name].append(speech.group_name)
            answer_key.append(Candidate(speech_kind.name, speech.group_name, speech.harmful_share))
    return SyntheticCorpus(
        composition_seed,
        texts,
        town_count,
        canary_rows,
        group_names,
        answer_key,
        document_origins,
    )


def _group_adjacent_by_association(canaries: Sequence[Canary]) -> Iterator[list[Canary]]:
    """Yield the canaries of each association; those of one association must be adjacent."""
    for _, association_canaries in groupby(
        canaries, lambda canary: canary.association and canary.association.key
    ):
        yield [*association_canaries]


def _iter_town_texts(config: SyntheticCorpusConfig) -> Iterator[str]:
    """Yield the texts of the town, without copies and rude speech, which are added later."""
    rates = TownRates(exact_copies=0, near_copies=0, rude_speech=0, personal_data=0)
    for block_number in range(-(-config.documents // BLOCK_DOCUMENTS)):
        for document in compose_block(block_number, config.documents, config.seed, rates):
            yield document.text


def _build_passage_canaries(config: SyntheticCorpusConfig) -> list[Canary]:
    """Build passages from documents that the town itself does not contain."""
    rng = random.Random(f"{config.seed}/passages")
    rates = TownRates(
        exact_copies=0, near_copies=0, rude_speech=0, personal_data=0, unsafe_passages=0
    )
    passages: list[Canary] = []
    document_number = config.documents + BLOCK_DOCUMENTS  # after the documents of the town
    for copies, _ in assign_copies_and_templates(
        config.copy_counts, config.passages_per_count, [""], rng
    ):
        document_number, text = _find_passage_text(config, document_number, rates)
        middle = len(text) // 2
        passages.append(
            Canary(
                "passage",
                copies,
                "",
                text[:middle],
                text[middle:],
                key=f"{config.seed}/{document_number}",
            )
        )
        document_number += 1
    return passages


class NumberedText(NamedTuple):
    """Hold the text of a document of the town."""

    document_number: int
    text: str


def _find_passage_text(
    config: SyntheticCorpusConfig, first_number: int, rates: TownRates
) -> NumberedText:
    """Return the first document from ``first_number`` on that has the length of a passage.

    Raises:
        UsageError: None of MAX_PASSAGE_ATTEMPTS documents has such a length.
    """
    for number in range(first_number, first_number + MAX_PASSAGE_ATTEMPTS):
        text = compose_document(number, config.seed, rates).text
        if config.min_passage_characters <= len(text) <= config.max_passage_characters:
            return NumberedText(number, text)
    raise UsageError(
        f"none of {MAX_PASSAGE_ATTEMPTS:,} generated documents has "
        f"{config.min_passage_characters:,} to {config.max_passage_characters:,} characters; lower "
        "synthetic_corpus.min_passage_characters or raise synthetic_corpus.max_passage_characters"
    )


class GroupSpeech(NamedTuple):
    """Hold the sentences that people say about a group."""

    group_name: str
    harmful_share: float
    """Share of the sentences that are rude or negative."""
    sentences: list[str]


def _iter_group_speech(
    config: SyntheticCorpusConfig, speech_kind: SpeechKind
) -> Iterator[GroupSpeech]:
    """Yield the sentences about each group of a kind.

    Without effects all groups have the same share, about the mean.
    """
    rng = random.Random(f"{config.seed}/{speech_kind.name}")
    null_share = float(NULL_LEVELS[speech_kind.shares_setting])
    shares = [
        share
        for share in getattr(config, speech_kind.shares_setting)
        for _ in range(config.groups_per_share)
    ] + [null_share] * config.neutral_groups
    if not config.has_effects:
        shares = [sum(shares) / len(shares)] * len(shares)
    shares = [share for _, share in sorted((rng.random(), share) for share in shares)]
    group_names = generate_invented_words(rng, speech_kind.name_suffix)
    for share in shares:
        group = f"{next(group_names).capitalize()}s"
        sentence_count = config.speech_sentences_per_group
        harmful_count = round(share * sentence_count)
        frames = sample_sentence_frames(sentence_count, config.seed, f"said of {group}")
        sentences = []
        for index, frame in enumerate(frames):
            phrases = (
                speech_kind.harmful_phrases
                if index < harmful_count
                else speech_kind.harmless_phrases
            )
            sentences.append(f"{frame.format(group=group)} {_draw_choice(phrases, rng)}.\n")
        yield GroupSpeech(group, harmful_count / sentence_count, sentences)


def _draw_choice(choices: Sequence[str], rng: random.Random) -> str:
    return choices[int(rng.random() * len(choices))]


def _build_canary_row_without_effect(canary: Canary) -> Row:
    """Build the row of CANARIES of a candidate, without copies, documents or effect level."""
    is_association = canary.kind == "association"
    return {
        "canary_id": canary.canary_id,
        "kind": canary.kind,
        "template": canary.template,
        "text": "" if is_association else canary.text,
        "prompt": "" if is_association else canary.prompt,
        "secret": canary.secret,
        "doc_ids": [],
    }


def compute_synthetic_doc_id(composition_seed: int, document_number: int) -> bytes:
    """Compute the id of a document, which reveals neither its origin nor its number."""
    return _hash_name(f"{composition_seed}/{document_number}")


def _digest_secret(_config: SyntheticCorpusConfig, secret_id: str) -> dict[str, str]:
    return {"secret": secret_id}


def _hash_name(name: str) -> bytes:
    return blake2b(f"synthetic corpus/{name}".encode(), digest_size=16).digest()


@stage(
    name="seal_answer_key",
    tables={
        "answer_key": ANSWER_KEY,
        "candidate_documents": CANDIDATE_DOCUMENTS,
        "composition_seed": COMPOSITION_SEED,
    },
    external_digests=_digest_secret,
    extra_code=[f"tasks/corpus/data/town/{name}" for name in DATA_FILES],
)
def seal_answer_key(config: SyntheticCorpusConfig, context: StageContext) -> None:
    """Write the answer key of a synthetic corpus, sorted so that the order reveals nothing."""
    synthetic_corpus = compose_synthetic_corpus(
        config, derive_composition_seed(config, context.secret)
    )
    candidates = sorted(
        synthetic_corpus.answer_key, key=lambda candidate: (candidate.kind, candidate.candidate_id)
    )
    answer_rows = [
        {
            "kind": candidate.kind,
            "candidate_id": candidate.candidate_id,
            "effect_level": float(candidate.effect_level),
        }
        for candidate in candidates
    ]
    context.get_table_writer("answer_key").write(
        pa.Table.from_pylist(answer_rows, schema=ANSWER_KEY)
    )
    document_rows = [
        dict(
            zip(
                CANDIDATE_DOCUMENTS.names,
                (
                    compute_synthetic_doc_id(synthetic_corpus.composition_seed, document_number),
                    *origin,
                ),
                strict=True,
            )
        )
        for document_number, origin in enumerate(synthetic_corpus.document_origins)
        if origin
    ]
    document_rows.sort(key=lambda row: row["doc_id"])
    context.get_table_writer("candidate_documents").write(
        pa.Table.from_pylist(document_rows, schema=CANDIDATE_DOCUMENTS)
    )
    context.get_table_writer("composition_seed").write(
        pa.Table.from_pylist(
            [{"composition_seed": synthetic_corpus.composition_seed}], schema=COMPOSITION_SEED
        )
    )


@stage(
    name="synthetic_corpus",
    tables={"documents": DOCUMENTS, "canaries": CANARIES, "lexicons": LEXICONS},
    external_digests=_digest_secret,
    extra_code=[f"tasks/corpus/data/town/{name}" for name in DATA_FILES],
)
def write_synthetic_corpus(config: SyntheticCorpusConfig, context: StageContext) -> None:
    """Write the documents of a synthetic corpus and its public candidates.

    Each document is a cluster of its own, so that clusters do not tell how often a text is planted.
    """
    synthetic_corpus = compose_synthetic_corpus(
        config, derive_composition_seed(config, context.secret)
    )
    document_count = len(synthetic_corpus.texts)
    texts = pa.array(synthetic_corpus.texts, pa.large_string())
    doc_ids = pa.array(
        [
            compute_synthetic_doc_id(synthetic_corpus.composition_seed, document_number)
            for document_number in range(document_count)
        ],
        ID_TYPE,
    )
    is_train = pa.array(np.arange(document_count) >= synthetic_corpus.town_count)
    columns = {
        "doc_id": doc_ids,
        "source": ["synthetic"] * document_count,
        "cluster": doc_ids,
        "text": texts,
        "text_hash": hash_texts(texts),
        "split": pc.if_else(is_train, "train", assign_splits(doc_ids, SplitConfig())),
    }
    documents = pa.table(fill_document_columns(columns), schema=DOCUMENTS)
    context.get_table_writer("documents").write(documents.sort_by("doc_id"))
    context.get_table_writer("canaries").write(
        pa.Table.from_pylist(
            sorted(synthetic_corpus.canary_rows, key=lambda canary_row: canary_row["canary_id"]),
            schema=CANARIES,
        )
    )
    lexicon_rows = [
        {"lexicon": kind, "group_name": group, "term": group.lower()}
        for kind, group_names in synthetic_corpus.group_names.items()
        for group in sorted(group_names)
    ]
    context.get_table_writer("lexicons").write(pa.Table.from_pylist(lexicon_rows, schema=LEXICONS))
