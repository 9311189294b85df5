"""Curate a corpus: from raw text to documents that are fit for training, with a datasheet."""

from __future__ import annotations

from hallmark.flows.config import Config
from hallmark.flows.corpus import EMPTY_CORPUS, Corpus
from hallmark.reports.datasheet import build_datasheet
from hallmark.tasks.contract import Artifact
from hallmark.tasks.corpus.contamination import find_contamination
from hallmark.tasks.corpus.deduplicate import deduplicate
from hallmark.tasks.corpus.deduplicate_near import deduplicate_near
from hallmark.tasks.corpus.evaluate_curation import evaluate_curation
from hallmark.tasks.corpus.evaluate_detectors import evaluate_detectors
from hallmark.tasks.corpus.evaluate_near_duplicates import evaluate_near_duplicates
from hallmark.tasks.corpus.find_personal_data import find_personal_data
from hallmark.tasks.corpus.find_repeats import find_repeats
from hallmark.tasks.corpus.find_toxic_spans import find_toxic_spans
from hallmark.tasks.corpus.identities import find_identities
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.language import identify_languages
from hallmark.tasks.corpus.plant_canaries import plant_canaries
from hallmark.tasks.corpus.profile import profile_corpus
from hallmark.tasks.corpus.quality import measure_quality
from hallmark.tasks.corpus.reading.town_source import list_town_sources
from hallmark.tasks.corpus.redact_spans import redact_spans
from hallmark.tasks.corpus.removal_effects import measure_removal_effects
from hallmark.tasks.corpus.score_toxicity import score_toxicity
from hallmark.tasks.corpus.select import select_documents
from hallmark.tasks.corpus.split import split_corpus

#: Redaction can make documents equal that were not equal before.
deduplicate_redacted = deduplicate.with_label("deduplicate_redacted")
select_scored = select_documents.with_label("select_scored")
cut_repeats = redact_spans.with_label("cut_repeats")
cut_toxic = redact_spans.with_label("cut_toxic")


def curate_corpus(config: Config, earlier: Corpus = EMPTY_CORPUS) -> Corpus:
    """Curate the sources of a config, as an addition to an earlier corpus if there is one."""
    artifacts: dict[str, Artifact] = {}
    artifacts["ingest"] = raw_documents = ingest(config.ingest)
    artifacts["deduplicate"] = documents = deduplicate(
        documents=raw_documents,
        earlier_corpora=earlier.collect_by_numbered_label("deduplicate"),
        config=config.deduplicate,
    )
    artifacts["language"] = languages = identify_languages(documents, config.language)
    artifacts["quality"] = quality_signals = measure_quality(documents, config.quality)
    artifacts["identities"] = identities = find_identities(documents, config.identities)
    artifacts["select"] = documents = select_documents(
        documents=documents,
        signals={"language": languages, "quality": quality_signals, "identities": identities},
        config=config.select,
    )
    artifacts["deduplicate_near"] = documents = deduplicate_near(
        documents=documents,
        earlier_corpora=earlier.collect_by_numbered_label("deduplicate_near"),
        config=config.deduplicate_near,
    )
    artifacts["evaluate_near_duplicates"] = evaluate_near_duplicates(config.deduplicate_near)
    if config.find_repeats.enabled:
        artifacts["find_repeats"] = repeated_spans = find_repeats(
            documents=documents,
            earlier_corpora=earlier.collect_by_numbered_label("deduplicate_near"),
            config=config.find_repeats,
        )
        artifacts["cut_repeats"] = documents = cut_repeats(
            documents=documents, spans={"repeats": repeated_spans}, config=config.cut_repeats
        )
    artifacts["evaluate_detectors"] = evaluate_detectors(config.find_personal_data)
    artifacts["find_personal_data"] = personal_spans = find_personal_data(
        documents, config.find_personal_data
    )
    artifacts["redact_spans"] = documents = redact_spans(
        documents=documents, spans={"personal": personal_spans}, config=config.redact_spans
    )
    artifacts["deduplicate_redacted"] = unique_documents = deduplicate_redacted(
        documents=documents,
        earlier_corpora=earlier.collect_by_numbered_label("deduplicate_redacted"),
        config=config.deduplicate_redacted,
    )
    artifacts["score_toxicity"] = toxicity_scores = score_toxicity(
        documents=unique_documents, signals=languages, config=config.score_toxicity
    )
    artifacts["contamination"] = overlaps = find_contamination(
        unique_documents, config.contamination
    )
    artifacts["select_scored"] = documents = select_scored(
        documents=unique_documents,
        signals={"toxicity": toxicity_scores, "contamination": overlaps},
        config=config.select_scored,
    )
    if config.find_toxic_spans.enabled:
        artifacts["find_toxic_spans"] = toxic_spans = find_toxic_spans(
            documents=documents, windows=toxicity_scores, config=config.find_toxic_spans
        )
        artifacts["cut_toxic"] = documents = cut_toxic(
            documents=documents, spans={"toxic": toxic_spans}, config=config.cut_toxic
        )
    artifacts["split"] = documents = split_corpus(documents, config.split)
    filter_artifacts = dict(artifacts)  # documents that planting withholds were not filtered out
    artifacts["plant_canaries"] = plant_canaries(documents, config.plant_canaries)
    profiled_artifacts = dict(artifacts)
    corpus = earlier.with_addition(artifacts)  # grows with the artifacts below
    artifacts["profile"] = corpus_profile = profile_corpus(
        documents=corpus.documents,
        canaries=corpus.documents,
        corpus_artifacts=profiled_artifacts,
        earlier_corpora=earlier.collect_by_numbered_label("ingest", "language", "identities"),
        config=config.profile,
    )
    artifacts["removal_effects"] = measure_removal_effects(
        documents=unique_documents,
        corpus_artifacts=filter_artifacts,
        config=config.removal_effects,
    )
    if list_town_sources(config.ingest.sources):  # the truth about a town is known
        artifacts["evaluate_curation"] = evaluate_curation(
            dict(artifacts), config.evaluate_curation
        )
    datasheet_inputs = corpus.collect_card_inputs("ingest", "plant_canaries")
    del datasheet_inputs["profile"]
    artifacts["datasheet"] = build_datasheet(
        profile=corpus_profile, corpus_artifacts=datasheet_inputs, config=config.datasheet
    )
    return corpus
