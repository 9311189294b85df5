"""Measure how many near-duplicates the search for them finds, in texts of many scripts.

``copies/script_examples.py`` invents the texts and their near-duplicates; none of them enters the
corpus. The search runs on them as on the documents of the corpus. The figures depend on code and
config alone, so they are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from hallmark.tasks.contract import (
    DOCUMENTS,
    Row,
    StageContext,
    column,
    hash_to_ids,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.copies.script_examples import CHANGES, SCRIPTS, invent_near_copies
from hallmark.tasks.corpus.deduplicate_near import (
    SIGNATURES,
    SKETCHES,
    DeduplicateNearConfig,
    ShingleStore,
    find_near_duplicates,
    sketch_batch,
)
from hallmark.tasks.measures.statistics import wilson_interval

NEAR_COPY_RECALL = table_schema(
    "Recall of the near-duplicate search on invented texts, per script and kind of difference "
    "between a text and its near-duplicate.",
    column("script", pa.string(), "label", "script of the texts"),
    column(
        "change",
        pa.string(),
        "label",
        "difference between a text and its near-duplicate: one of 16 to 20 sentences replaced, "
        "one in 100 words replaced, or line breaks and zero-width spaces inserted between words",
    ),
    column(
        "planted",
        pa.int64(),
        "figure",
        "number of texts with one near-duplicate each",
        unit="texts",
    ),
    column(
        "found",
        pa.int64(),
        "figure",
        "number of texts for which the search removed the text or its near-duplicate as a "
        "duplicate of the other",
        unit="texts",
    ),
    column("recall", pa.float64(), "figure", "found / planted", unit="share"),
    column(
        "recall_low", pa.float64(), "figure", "lower end of the 95 % confidence interval (Wilson)"
    ),
    column(
        "recall_high", pa.float64(), "figure", "upper end of the 95 % confidence interval (Wilson)"
    ),
    column(
        "false_matches",
        pa.int64(),
        "figure",
        "number of texts and near-duplicates that the search removed as duplicates of unrelated "
        "texts",
        unit="texts",
    ),
)


def find_duplicate_indices(texts: Sequence[str], config: DeduplicateNearConfig) -> np.ndarray:
    """Search texts for near-duplicates as ``deduplicate_near`` does.

    Returns:
        The index of the text that each text duplicates, or -1 if it is kept; (n,) int64.
    """
    ids = hash_to_ids(map(str, range(len(texts))))
    batch = pa.record_batch(
        {
            "doc_id": ids,
            "cluster": ids,
            "source": pa.repeat("invented", len(texts)),
            "text": pa.array(texts, DOCUMENTS.field("text").type),
        }
    )
    shingles, sketch_columns, _ = sketch_batch(batch, config)
    sketches = pa.table(sketch_columns, schema=SKETCHES)
    shingle_store = ShingleStore(pa.chunked_array([shingles]))
    assignment, *_ = find_near_duplicates(sketches, SIGNATURES.empty_table(), shingle_store, config)
    return assignment.duplicate_of


def build_recall_rows(change: str, config: DeduplicateNearConfig) -> list[Row]:
    """Run the search on the texts with this change and build their rows of NEAR_COPY_RECALL."""
    pairs = list(invent_near_copies(change))
    duplicate_of = find_duplicate_indices(
        [text for pair in pairs for text in (pair.original, pair.copy)], config
    )
    partner = np.arange(len(duplicate_of)) ^ 1  # an original and its copy are neighbours
    is_found = (duplicate_of == partner).reshape(-1, 2).any(axis=1)
    is_false = ((duplicate_of >= 0) & (duplicate_of != partner)).reshape(-1, 2).sum(axis=1)
    script_names = np.array([pair.script_name for pair in pairs])
    rows: list[Row] = []
    for script_name in SCRIPTS:
        in_script = script_names == script_name
        found, planted = int(is_found[in_script].sum()), int(in_script.sum())
        low, high = wilson_interval(found, planted)
        rows.append(
            {
                "script": script_name,
                "change": change,
                "planted": planted,
                "found": found,
                "recall": found / planted,
                "recall_low": low,
                "recall_high": high,
                "false_matches": int(is_false[in_script].sum()),
            }
        )
    return rows


@stage(
    name="evaluate_near_duplicates",
    tables={"near_copy_recall": NEAR_COPY_RECALL},
    libraries=["numpy", "scipy"],
    determinism="exact",
)
def evaluate_near_duplicates(config: DeduplicateNearConfig, context: StageContext) -> None:
    """Evaluate the search with the config of ``deduplicate_near``."""
    rows = [row for change in CHANGES for row in build_recall_rows(change, config)]
    context.get_table_writer("near_copy_recall").write(
        pa.Table.from_pylist(rows, schema=NEAR_COPY_RECALL)
    )
