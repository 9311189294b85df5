"""Look up documents of the corpus by id, with what decides whether their texts may be shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hallmark.reports.page.redaction import Redactor
from hallmark.tasks.contract import Artifact
from hallmark.tasks.corpus.reading.metadata import LICENCE_FIELD

_MAX_LABEL_CHARACTERS = 160

#: The kind of canaries that were documents of the corpus; all others are invented.
_NATURAL_CANARY = "passage"


@dataclass(frozen=True)
class ShownDocument:
    """A document and what decides whether it may be shown.

    Attributes:
        text: The text, not redacted.
        kind: The kind of text: corpus text, or audit text if the project invented it.
        toxicity: Its toxicity score; None if it has none.
        source: The redacted name of its source.
        licence: Its licence, redacted; empty if it is not known.
        stage: The last stage that contains it.
        split: Its split; empty if it has none yet.
    """

    text: str
    kind: str
    toxicity: float | None
    source: str = ""
    licence: str = ""
    stage: str = ""
    split: str = ""


@dataclass
class DocumentLookup:
    """Looks up documents by id in the artifacts of the corpus stages, the last stage first.

    A document without a toxicity score, because it was removed before scoring, gets the score of a
    document with the same words that was loaded with it. The SHA-256 of each file is compared with
    its manifest before a row of it is used.
    """

    corpus_artifacts: Mapping[str, Artifact]
    redactor: Redactor

    def read_documents(self, doc_ids: set[bytes]) -> dict[bytes, ShownDocument]:
        """Read documents by id, with one scan of each artifact.

        Raises:
            HallmarkError: If a file is missing or damaged.
        """
        scores = self._read_toxicity_scores(doc_ids)
        rows: dict[bytes, dict[str, Any]] = {}
        for stage, artifact in reversed([*self.corpus_artifacts.items()]):
            missing_ids = doc_ids - rows.keys()
            if not missing_ids:
                break
            if "documents" not in artifact.tables:
                continue
            columns = ["doc_id", "source", "text", "metadata", "toxicity", "split"]
            table = artifact["documents"].find_document_rows(sorted(missing_ids), columns)
            for row in table.to_pylist():
                rows[row["doc_id"]] = row | {"stage": stage}
        scores |= {i: row["toxicity"] for i, row in rows.items() if _is_score(row["toxicity"])}
        score_by_words: dict[tuple[str, ...], float] = {}
        for doc_id, score in scores.items():
            if doc_id in rows:
                words = tuple(rows[doc_id]["text"].split())
                score_by_words[words] = max(score, score_by_words.get(words, score))
        documents: dict[bytes, ShownDocument] = {}
        for doc_id, row in rows.items():
            toxicity = scores.get(doc_id)
            if toxicity is None and score_by_words:
                toxicity = score_by_words.get(tuple(row["text"].split()))
            documents[doc_id] = ShownDocument(
                row["text"],
                "audit text" if doc_id in self._invented_doc_ids else "corpus text",
                toxicity,
                self._redact_label(row["source"]),
                self._redact_label(self._find_licence(row) or ""),
                row["stage"],
                row["split"] or "",
            )
        return documents

    def list_invented_texts(self, canary_ids: Iterable[bytes]) -> list[ShownDocument]:
        """Return the planted texts with these ids that the project invented."""
        return [
            ShownDocument(self._invented_texts_by_id[i], "audit text", None)
            for i in canary_ids
            if i in self._invented_texts_by_id
        ]

    def _read_toxicity_scores(self, doc_ids: set[bytes]) -> dict[bytes, float]:
        scores: dict[bytes, float] = {}
        for artifact in self.corpus_artifacts.values():
            signals = artifact.tables.get("signals")
            if signals is None or "toxicity" not in signals.columns:
                continue
            table = signals.find_document_rows(sorted(doc_ids), ["doc_id", "toxicity"])
            scores |= {
                row["doc_id"]: row["toxicity"]
                for row in table.to_pylist()
                if _is_score(row["toxicity"])
            }
        return scores

    @cached_property
    def _licence_by_source(self) -> dict[str, str | None]:
        for artifact in self.corpus_artifacts.values():
            if artifact.stage == "ingest" and "sources" in artifact.tables:
                artifact["sources"].verify()
        return read_licences_by_source(self.corpus_artifacts.values())

    def _find_licence(self, row: Mapping[str, Any]) -> str | None:
        return find_document_licence(row, self._licence_by_source)

    @cached_property
    def _invented_canaries(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for artifact in self.corpus_artifacts.values():
            if artifact.stage == "plant_canaries" and "canaries" in artifact.tables:
                artifact["canaries"].verify()
                columns = ["canary_id", "kind", "text", "doc_ids"]
                rows += artifact["canaries"].read(columns).to_pylist()
        return [row for row in rows if row["kind"] != _NATURAL_CANARY]

    @cached_property
    def _invented_doc_ids(self) -> frozenset[bytes]:
        return frozenset(i for canary in self._invented_canaries for i in canary["doc_ids"] or ())

    @cached_property
    def _invented_texts_by_id(self) -> dict[bytes, str]:
        return {row["canary_id"]: row["text"] for row in self._invented_canaries}

    def _redact_label(self, text: str) -> str:
        return self.redactor.redact_by_kind(text, "label", max_characters=_MAX_LABEL_CHARACTERS)


def read_licences_by_source(artifacts: Iterable[Artifact]) -> dict[str, str | None]:
    """Return the licence that each source declares; None if it declares none."""
    return {
        row["source"]: row["licence"]
        for artifact in artifacts
        if artifact.stage == "ingest" and "sources" in artifact.tables
        for row in artifact["sources"].read(["source", "licence"]).to_pylist()
    }


def find_document_licence(
    document: Mapping[str, Any], licence_by_source: Mapping[str, str | None]
) -> str | None:
    """Return the licence of a document, or else the one that its source declares."""
    licence: str | None = dict(document["metadata"] or ()).get(LICENCE_FIELD)
    return licence_by_source.get(document["source"]) if licence is None else licence


def _is_score(value: float | None) -> bool:
    return value is not None and not math.isnan(value)
