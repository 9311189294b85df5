"""The corpus stages as functions on plain tables, for notebooks and scripts.

    import hallmark

    unique = hallmark.deduplicate_near(table)  # a column "text" is all it needs
    unique["documents"], unique["ledger"].to_pandas()

No session, store or config is needed: the functions keep what they compute in a temporary folder
until Python ends, and answer the same call from there. A result is accepted wherever a table is.
Keyword arguments are the settings of the stage, as ``hallmark settings STAGE`` lists them.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from hallmark.tasks.contract import Artifact, Session, Stage, Store, open_session, sha256_hex

if TYPE_CHECKING:
    import pandas as pd


class StageResult(Mapping[str, pa.Table]):
    """The tables that a stage wrote, by name."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    def __getitem__(self, table_name: str) -> pa.Table:
        return self.artifact[table_name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.artifact.tables)

    def __len__(self) -> int:
        return len(self.artifact.tables)

    def __repr__(self) -> str:
        tables = self.artifact.tables
        row_counts = ", ".join(f"{name}: {tables[name].row_count:,}" for name in tables)
        return f"StageResult({self.artifact.stage}; rows: {row_counts})"


#: A table with a text column, the data frame of one, or the result of a stage.
Documents: TypeAlias = "pa.Table | pd.DataFrame | StageResult"


def import_documents(
    table: pa.Table | pd.DataFrame,
    *,
    text_field: str = "text",
    key_field: str | None = None,
    source: str = "table",
) -> StageResult:
    """Import a table of texts as documents.

    Args:
        table: A table or data frame with one row per document.
        text_field: The column with the texts.
        key_field: A column with a permanent key of each document, from which its ``doc_id`` is
            made; without one the id is made from the text.
        source: A name for the source of the documents.

    Returns:
        The tables of the ``ingest`` stage: ``documents``, and in ``quarantine`` the rows that are
        no usable text.
    """
    from hallmark.tasks.corpus.ingest import ingest
    from hallmark.tasks.corpus.reading.inputs import IngestConfig

    if not isinstance(table, pa.Table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    file_bytes = sink.getvalue().to_pybytes()
    path = _get_scratch_folder() / f"{sha256_hex(file_bytes)}.parquet"
    path.write_bytes(file_bytes)
    source_settings = {
        "kind": "parquet",
        "name": source,
        "path": str(path),
        "text_field": text_field,
        "key_field": key_field,
    }
    config = IngestConfig.model_validate({"sources": [source_settings]})
    with open_session(Session(_get_scratch_store())):
        return StageResult(ingest(config))


def deduplicate(documents: Documents, **settings: Any) -> StageResult:
    """Remove exact duplicates; ``ledger`` names the document that was kept for each of them."""
    from hallmark.tasks.corpus.deduplicate import deduplicate as stage

    return _run_stage(stage, settings, documents=documents, earlier_corpora={})


def deduplicate_near(documents: Documents, **settings: Any) -> StageResult:
    """Remove near duplicates; ``ledger`` has the kept document and the similarity of each."""
    from hallmark.tasks.corpus.deduplicate_near import deduplicate_near as stage

    return _run_stage(stage, settings, documents=documents, earlier_corpora={})


def find_repeats(documents: Documents, **settings: Any) -> StageResult:
    """Find long substrings that occur more than once; ``spans`` says where."""
    from hallmark.tasks.corpus.find_repeats import find_repeats as stage

    return _run_stage(stage, settings, documents=documents, earlier_corpora={})


def identify_languages(documents: Documents, **settings: Any) -> StageResult:
    """Identify the language of each document; ``signals`` has it with its probability."""
    from hallmark.tasks.corpus.language import identify_languages as stage

    return _run_stage(stage, settings, documents=documents)


def measure_quality(documents: Documents, **settings: Any) -> StageResult:
    """Measure quality signals of each document, such as those of Gopher, C4 and FineWeb."""
    from hallmark.tasks.corpus.quality import measure_quality as stage

    return _run_stage(stage, settings, documents=documents)


def find_identities(documents: Documents, **settings: Any) -> StageResult:
    """Find which identity groups each document mentions."""
    from hallmark.tasks.corpus.identities import find_identities as stage

    return _run_stage(stage, settings, documents=documents)


def find_personal_data(documents: Documents, **settings: Any) -> StageResult:
    """Find personal data and credentials; ``spans`` says where, by type."""
    from hallmark.tasks.corpus.find_personal_data import find_personal_data as stage

    return _run_stage(stage, settings, documents=documents)


def redact_spans(
    documents: Documents, spans: Mapping[str, StageResult], **settings: Any
) -> StageResult:
    """Redact, cut or drop spans that other stages found, such as ``{"personal": result}``."""
    from hallmark.tasks.corpus.redact_spans import redact_spans as stage

    return _run_stage(stage, settings, documents=documents, spans=_get_artifacts_by_name(spans))


def score_toxicity(documents: Documents, **settings: Any) -> StageResult:
    """Score the toxicity of each document; ``windows`` has the scores of its parts."""
    from hallmark.tasks.corpus.score_toxicity import score_toxicity as stage

    return _run_stage(stage, settings, documents=documents, signals=None)


def select_documents(
    documents: Documents, signals: Mapping[str, StageResult], **settings: Any
) -> StageResult:
    """Apply rules to signals of documents, such as ``{"quality": result}``."""
    from hallmark.tasks.corpus.select import select_documents as stage

    return _run_stage(stage, settings, documents=documents, signals=_get_artifacts_by_name(signals))


def split_corpus(documents: Documents, **settings: Any) -> StageResult:
    """Split documents into train, validation and holdout, near duplicates together."""
    from hallmark.tasks.corpus.split import split_corpus as stage

    return _run_stage(stage, settings, documents=documents)


def _run_stage(
    stage: Stage, settings: Mapping[str, Any], *, documents: Documents, **inputs: Any
) -> StageResult:
    if not isinstance(documents, StageResult):
        documents = import_documents(documents)
    config = stage.parameter_types["config"].model_validate(dict(settings))
    with open_session(Session(_get_scratch_store())):
        return StageResult(stage(documents=documents.artifact, **inputs, config=config))


def _get_artifacts_by_name(results: Mapping[str, StageResult]) -> dict[str, Artifact]:
    return {name: result.artifact for name, result in results.items()}


@cache
def _get_scratch_folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="hallmark-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@cache
def _get_scratch_store() -> Store:
    return Store(_get_scratch_folder() / "store", create_missing=True)
