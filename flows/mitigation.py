"""Prepare and compare two trainings: without the documents of findings, and a control.

The control lacks as many random documents. The command mitigate runs the two trainings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.flows.checkpoint_comparison import (
    CheckpointAudits,
    compare_checkpoints,
    find_checkpoint_audits,
)
from hallmark.flows.checkpoint_resolution import ResolvedCheckpoint, resolve_checkpoint
from hallmark.flows.corpus import Corpus
from hallmark.flows.finding_trace import (
    find_finding_document_ids,
    format_finding_name,
    parse_finding_audit,
)
from hallmark.flows.runs import Run, read_artifact_seconds
from hallmark.tasks.audits.experiments.removal_experiment import (
    read_last_validation_by_kind_and_name,
)
from hallmark.tasks.contract import Store, Table, UsageError

Report = dict[str, Any]

#: The two arms, and whether the documents that they lack are random.
IS_CONTROL_BY_ARM = {"control": True, "treatment": False}

#: How much of a document a dry run shows.
MAX_SHOWN_CHARACTERS = 100


def resolve_trained_checkpoint(store: Store, checkpoint_name: str) -> ResolvedCheckpoint:
    """Resolve a checkpoint whose training, corpus and config are in the store.

    Raises:
        UsageError: If one of these is unknown.
    """
    resolved = resolve_checkpoint(store, checkpoint_name)
    if resolved.training_run is None or resolved.corpus is None or resolved.source_run is None:
        raise UsageError(
            f"the training documents of {checkpoint_name} are not in the store, so none can be "
            "removed; choose a checkpoint from a run in this store"
        )
    return resolved


def find_source_document_ids(
    store: Store, checkpoint_name: str, finding_names: Sequence[str], max_rows: int
) -> list[bytes]:
    """Find the training documents of the worst rows of findings, with their near-duplicates.

    Documents that the training of the checkpoint already excluded are included.

    Raises:
        UsageError: If the checkpoint was not audited, or no such document was trained on.
    """
    checkpoint_audits = find_checkpoint_audits(store, checkpoint_name)
    if checkpoint_audits is None:
        raise UsageError(
            f"{checkpoint_name} has not been audited yet; run: hallmark audit {checkpoint_name}"
        )
    for finding_name in finding_names:
        parse_finding_audit(finding_name)
    resolved = resolve_trained_checkpoint(store, checkpoint_name)
    assert resolved.corpus is not None
    runs_by_finding = {
        finding_name: checkpoint_audits.find_audit_run(finding_name.partition(".")[0])
        or checkpoint_audits.audit_run
        for finding_name in finding_names
    }
    document_ids = {
        doc_id
        for finding_name, run in runs_by_finding.items()
        for doc_id in find_finding_document_ids(run, finding_name, max_rows)
    }
    if not document_ids:
        raise UsageError(
            f"{', '.join(finding_names)} cannot be traced to any training document, because the "
            "rows of these findings refer to no documents and the training text does not contain "
            "the generated text; choose another finding, or use only --toxicity-threshold"
        )
    if "leave_out" in resolved.corpus.latest_addition:  # documents excluded before stay excluded
        excluded_earlier = (
            resolved.corpus.latest_addition["leave_out"]["ledger"]
            .read(["doc_id"])["doc_id"]
            .to_pylist()
        )
        document_ids |= {doc_id for doc_id in excluded_earlier if doc_id is not None}
    documents = Table((resolved.corpus.latest_addition["plant_canaries"],), "documents")
    document_rows = documents.find_document_rows(
        sorted(document_ids), ["doc_id", "cluster", "split"]
    )
    if len(document_rows) and not pc.any(pc.equal(document_rows["split"], "train")).as_py():
        raise UsageError(
            f"{', '.join(finding_names)} can be traced only to held-out documents, which were not "
            "used in training, so there is nothing to remove; choose another finding, or use "
            "only --toxicity-threshold"
        )
    source_ids = pa.array(sorted(document_ids), pa.binary(16))
    clusters = pc.unique(document_rows["cluster"])
    near_duplicate_ids = [
        batch["doc_id"].filter(pc.is_in(batch["cluster"], value_set=clusters))
        for batch in documents.iter_batches(["doc_id", "cluster"])
    ]
    return sorted(
        {
            *source_ids.to_pylist(),
            *(doc_id for batch_ids in near_duplicate_ids for doc_id in batch_ids.to_pylist()),
        }
    )


def get_removal_list_folder(store: Store) -> Path:
    """Return the folder for lists of removed documents."""
    return store.local_folder / "removed-documents"


def write_document_id_list(doc_ids: Sequence[bytes], folder: Path) -> Path:
    """Write ids to a file whose name is a hash of its content, and return its path."""
    text = "".join(f"{doc_id.hex()}\n" for doc_id in doc_ids)
    path = folder / f"removed-{blake2b(text.encode(), digest_size=4).hexdigest()}.txt"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path.resolve()


def build_arm_overrides(
    arm: str, doc_ids_file: Path | None, min_toxicity: float | None, steps: int | None
) -> list[str]:
    """Build the overrides that make a training one of the two arms."""
    overrides = [f"leave_out.random_control={str(IS_CONTROL_BY_ARM[arm]).lower()}"]
    overrides += [f"leave_out.doc_ids_file={json.dumps(str(doc_ids_file))}"] if doc_ids_file else []
    if min_toxicity is not None:
        overrides.append(f"leave_out.toxicity_threshold={min_toxicity}")
    return overrides + ([f"pretrain.train.steps={steps}"] if steps is not None else [])


def describe_removed_documents(
    corpus: Corpus, source_document_ids: Sequence[bytes], min_toxicity: float | None
) -> list[Report]:
    """Describe the training documents that the treatment arm would lack, in the order of their ids.

    Args:
        corpus: The corpus of the checkpoint.
        source_document_ids: Documents to remove, of which only training documents count.
        min_toxicity: Documents with at least this score are removed, too; None for none.
    """
    listed_ids = pa.array(source_document_ids, pa.binary(16))
    descriptions = []
    documents = Table((corpus.latest_addition["plant_canaries"],), "documents")
    for batch in documents.iter_batches(["doc_id", "source", "split", "toxicity", "text"]):
        is_removed = pc.is_in(batch["doc_id"], value_set=listed_ids)
        if min_toxicity is not None:
            is_toxic = pc.fill_null(pc.greater_equal(batch["toxicity"], min_toxicity), False)
            is_removed = pc.or_(is_removed, is_toxic)
        is_removed = pc.and_(is_removed, pc.equal(batch["split"], "train"))
        descriptions += [
            {
                "doc_id": row["doc_id"].hex(),
                "source": row["source"],
                "toxicity": row["toxicity"],
                "bytes": len(row["text"].encode()),
                "text": row["text"][:MAX_SHOWN_CHARACTERS],
            }
            for row in batch.filter(is_removed).to_pylist()
        ]
    return sorted(descriptions, key=lambda description: description["doc_id"])


def estimate_arm_seconds(run: Run, steps: int) -> dict[str, float]:
    """Estimate the seconds of one arm from the stages of the run that it repeats.

    Args:
        run: The run whose training is repeated.
        steps: Training steps of the arm.

    Returns:
        The seconds of ``training``, and of ``audits`` with the card. They are those of the stages
        when they were computed, on the machine that computed them.
    """
    labels = list(run.stages)
    seconds_by_label = {
        label: read_artifact_seconds(run[label]) or 0.0 for label in labels[labels.index("pack") :]
    }
    steps_ratio = steps / run.config.pretrain.train.steps
    return {
        "training": seconds_by_label.pop("pretrain") * steps_ratio,
        "audits": sum(seconds_by_label.values()),
    }


def build_mitigation_report(
    runs: Sequence[Run], start_audits: CheckpointAudits | None, finding_names: Sequence[str] = ()
) -> Report:
    """Compare the findings and the held-out loss of the arms, the control first.

    Args:
        runs: The runs of the arms, in the order of ``IS_CONTROL_BY_ARM``.
        start_audits: The audits of the checkpoint from which both continued; None without one.
        finding_names: The findings whose documents were removed.

    Returns:
        The comparison of ``compare_checkpoints``; ``arms``, each with its run, the page of its card
        and the number of ``removed_documents``; ``findings``, the compared rows of the named
        findings (None for one that cannot be compared); and ``heldout_loss``.
    """
    arm_audits = [
        CheckpointAudits(f"{arm} arm, run {run.id}", run)
        for arm, run in zip(IS_CONTROL_BY_ARM, runs, strict=True)
    ]
    comparison = compare_checkpoints([*arm_audits, *([start_audits] if start_audits else [])])
    compared_rows = {format_finding_name(row): row for row in comparison["rows"]}
    return comparison | {
        "arms": [
            {
                "arm": arm,
                "run": run.id,
                "page": str(run.page) if run.page else None,
                "removed_documents": run["leave_out"]["ledger"].row_count,
            }
            for arm, run in zip(IS_CONTROL_BY_ARM, runs, strict=True)
        ],
        "findings": {name: compared_rows.get(name) for name in finding_names},
        "heldout_loss": compare_heldout_loss(runs),
    }


def compare_heldout_loss(runs: Sequence[Run]) -> list[Report]:
    """Compare the bits per byte of held-out text of the last checkpoints of runs.

    Returns:
        One row for each source and identity group, with its bytes and the value of each run; None
        for a value that a run lacks. There are no intervals.
    """
    losses_by_run = [read_last_validation_by_kind_and_name(run["pretrain"]) for run in runs]
    return [
        {
            "kind": kind,
            "name": group_name,
            "bytes": loss_row["bytes"],
            "values": [
                run_losses.get((kind, group_name), {}).get("bits_per_byte")
                for run_losses in losses_by_run
            ],
        }
        for (kind, group_name), loss_row in losses_by_run[0].items()
    ]
