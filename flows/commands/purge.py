"""Remove the text of a document from the store, and name the runs and models that contain it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, TypedDict

from cyclopts import Parameter

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.commands.trace import find_steps_reading_sequences, parse_doc_id
from hallmark.flows.document_purge import (
    DocumentPurge,
    check_store_is_idle,
    clear_rendered_pages,
    find_identical_documents,
    has_planted_documents,
    preview_rewrites,
    read_all_artifacts,
    record_purged_documents,
    remove_documents,
    remove_unfinished_work,
)
from hallmark.flows.quotation_removal import REMOVED_ID
from hallmark.flows.runs import Run, open_store, read_all_runs
from hallmark.flows.store_use import announce_use
from hallmark.tasks.contract import Artifact, Store, UsageError, read_purged_documents


class AffectedCheckpoint(TypedDict):
    """A checkpoint that was trained on purged documents."""

    checkpoint: str
    step: int | None
    steps: list[int] | None
    """Steps up to it that read a document; None if no run shows how it was trained."""
    start_checkpoint: str | None
    """The affected checkpoint from which it continues."""


class PurgeReport(TypedDict):
    """The purged documents, and what was, or would be, rewritten, removed or affected."""

    store: str
    dry_run: bool
    documents: list[str]
    copies: list[str]
    """Exact copies under other ids."""
    copies_purged: bool
    related_documents: list[str]
    """Other documents that a table lists as matches."""
    artifacts: dict[str, list[str]]
    """Rewritten parts by artifact."""
    runs: list[str]
    checkpoints: list[AffectedCheckpoint]
    tokenizers: list[str]
    work_areas: list[str]
    """Removed folders of unfinished work."""
    pages: list[str]
    unredacted_pages: list[str]
    """Pages outside the store, which are not changed."""
    unreadable_records: dict[str, int]
    """Quarantined records that could not be searched reliably, by artifact."""


#: Number of names of a list that a terminal shows.
MAX_SHOWN_NAMES = 12


def purge(
    doc_id: str,
    *,
    include_copies: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Permanently remove a document's text from the whole store, and list the models that were
    trained on it.

    Parameters
    ----------
    doc_id
        The id of the document: 32 hexadecimal digits, as in the column doc_id of the tables.
    include_copies
        Also purge exact copies of the document, which have other ids.
    dry_run
        Change nothing; only list what contains the document.
    """
    print_result(
        purge_document(open_store(store, create=False), doc_id, include_copies, dry_run),
        as_json,
        render_purge,
    )


def purge_document(
    store: Store, doc_id: str, include_copies: bool = False, dry_run: bool = False
) -> PurgeReport:
    """Remove a document from every artifact of a store, or report what that would change.

    Args:
        store: The store; no run may be using it, unless ``dry_run``.
        doc_id: 32 hexadecimal digits.
        include_copies: Whether to purge exact copies under other ids, too.
        dry_run: Whether to change nothing.

    Returns:
        The purged documents and what was, or would be, rewritten, removed or affected.

    Raises:
        UsageError: If the id is malformed, unknown, or that of a planted document.
    """
    with ExitStack() as stack:
        own_token = "" if dry_run else stack.enter_context(announce_use(store, "purge"))
        is_exclusive = stack.enter_context(store.try_exclusive_lock())
        if not dry_run:
            check_store_is_idle(store, is_exclusive, own_token)
        artifacts = read_all_artifacts(store)
        requested_ids = {parse_doc_id(doc_id)} - {REMOVED_ID}
        document_purge = DocumentPurge.from_doc_ids(requested_ids, artifacts)
        mentions = document_purge.find_mentions(artifacts)
        purge_list = read_purged_documents(store)
        if not mentions.is_mentioned and doc_id.lower() not in purge_list["documents"]:
            raise UsageError(
                f"no artifact in the store {store.uri} contains the document {doc_id}; document "
                "ids are listed in the tables' 'doc_id' columns"
            )
        if has_planted_documents(requested_ids, artifacts):
            raise UsageError(
                f"{doc_id} was planted by Hallmark, and the next run would plant it again; set "
                "plant_canaries.enabled=false, change plant_canaries.seed, or purge the document "
                "from which it was copied"
            )
        requested_ids |= set(
            map(bytes.fromhex, purge_list["unfinished"])
        )  # of an interrupted purge
        copy_ids = find_identical_documents(requested_ids, artifacts)
        if len(document_purge.doc_ids) < len(
            ids_to_purge := requested_ids | copy_ids if include_copies else requested_ids
        ):
            document_purge = DocumentPurge.from_doc_ids(ids_to_purge, artifacts)
            mentions = document_purge.find_mentions(artifacts)
        affected_checkpoints, affected_tokenizers = (
            _find_affected_checkpoints_and_descendants(store, document_purge, artifacts),
            _find_affected_tokenizers(document_purge, artifacts),
        )
        doc_ids = set(document_purge.doc_ids.to_pylist())
        unreadable_counts = document_purge.count_unreadable_records(artifacts)
        if dry_run:
            changed_artifacts = preview_rewrites(document_purge, artifacts)
        else:
            record_purged_documents(store, doc_ids, is_unfinished=True)
            changed_artifacts = remove_documents(store, document_purge, artifacts)
        # An earlier purge of the same documents may have been interrupted after changing these.
        previously_purged = {
            artifact.name
            for artifact in artifacts
            if artifact.purge_time_by_doc_id.keys() & set(_format_doc_ids(doc_ids))
        }
        affected_names = previously_purged | changed_artifacts.keys()
        work_areas = remove_unfinished_work(store, affected_names, dry_run)
        cleared_pages = clear_rendered_pages(store, dry_run)
        if not dry_run:
            record_purged_documents(store, doc_ids, is_unfinished=False)
    return {
        "store": store.uri,
        "dry_run": dry_run,
        "documents": _format_doc_ids(doc_ids),
        "copies": _format_doc_ids(copy_ids),
        "copies_purged": include_copies,
        "related_documents": _format_doc_ids(mentions.related_ids - copy_ids - doc_ids),
        "artifacts": changed_artifacts,
        "runs": _find_affected_runs(store, affected_names),
        "checkpoints": affected_checkpoints,
        "tokenizers": affected_tokenizers,
        "work_areas": work_areas,
        "pages": cleared_pages.changed_folders,
        "unredacted_pages": cleared_pages.external_folders,
        "unreadable_records": unreadable_counts,
    }


def _find_affected_runs(store: Store, artifact_names: set[str]) -> list[str]:
    """Return the ids of runs with any of the artifacts, and of runs that extend their corpus."""
    runs = read_all_runs(store)
    affected_ids = {
        run.id
        for run in runs
        if any(entry["artifact"] in artifact_names for entry in run.stages.values())
    }
    while (
        dependent_ids := {run.id for run in runs if run.earlier_run_name in affected_ids}
        - affected_ids
    ):
        affected_ids |= dependent_ids
    return [run.id for run in runs if run.id in affected_ids]


def _format_doc_ids(doc_ids: set[bytes]) -> list[str]:
    return sorted(doc_id.hex() for doc_id in doc_ids)


def _find_affected_checkpoints_and_descendants(
    store: Store, document_purge: DocumentPurge, artifacts: list[Artifact]
) -> list[AffectedCheckpoint]:
    """Find the checkpoints that were trained on any of the documents.

    Checkpoints that continue from one of them are affected, too.

    Returns:
        One row for each checkpoint: its step; the ``steps`` up to it that read a document, None if
        no run shows how it was trained; and the ``start_checkpoint`` through which it is affected.
    """
    sequences_by_pack: dict[str, set[int]] = {}  # training sequences by packed artifact
    for artifact in artifacts:
        spans = document_purge.read_packed_spans(artifact)
        if spans is not None and len(spans):
            span_locations = zip(
                spans["split"].to_pylist(), spans["sequence"].to_pylist(), strict=True
            )
            sequences_by_pack[artifact.name] = {
                sequence for split, sequence in span_locations if split == "train"
            }
    steps_by_training = {
        run.stages["pretrain"]["fingerprint"]: find_steps_reading_sequences(
            run, sequences_by_pack[packed_name]
        )
        for run in read_all_runs(store)
        if "pretrain" in run.stages
        and (packed_name := _get_packed_artifact_name(run)) in sequences_by_pack
    }
    affected: dict[str, AffectedCheckpoint] = {}
    checkpoints = [a for a in artifacts if a.stage == "checkpoint"]
    for checkpoint in checkpoints:
        step = checkpoint.training_step
        if checkpoint.find_input_name("packed_corpus") in sequences_by_pack:
            training_steps = steps_by_training.get(checkpoint.manifest["parts"].get("parent", ""))
            steps_before = (
                None
                if training_steps is None
                else [training_step for training_step in training_steps if training_step <= step]
            )
            if steps_before != []:
                affected[checkpoint.name] = {
                    "checkpoint": checkpoint.name,
                    "step": step,
                    "steps": steps_before,
                    "start_checkpoint": None,
                }
    while True:  # add checkpoints that continue from an affected one, until there are no more
        descendants: dict[str, AffectedCheckpoint] = {
            c.name: {
                "checkpoint": c.name,
                "step": c.training_step,
                "steps": None,
                "start_checkpoint": start_name,
            }
            for c in checkpoints
            if c.name not in affected and (start_name := _get_start_checkpoint_name(c)) in affected
        }
        if not descendants:
            return list(affected.values())
        affected |= descendants


def _get_packed_artifact_name(run: Run) -> str | None:
    """Return the name of the packed corpus of a run; the artifact itself may be missing."""
    packed_name = run.stages.get("pad_removed_documents", run.stages.get("pack", {})).get(
        "artifact"
    )
    return packed_name if isinstance(packed_name, str) else None


def _get_start_checkpoint_name(checkpoint: Artifact) -> str | None:
    """Return the name of the checkpoint from which training or fine-tuning started."""
    start_name = checkpoint.find_input_name("start_checkpoint")
    return start_name or checkpoint.find_input_name("checkpoint")


def _find_affected_tokenizers(
    document_purge: DocumentPurge, artifacts: list[Artifact]
) -> list[str]:
    """Find the tokenizers that were trained on any of the documents."""
    corpus_names = {a.name for a in artifacts if document_purge.has_training_documents(a)}
    return [
        artifact.name
        for artifact in artifacts
        if artifact.stage == "train_tokenizer"
        and not corpus_names.isdisjoint(artifact.list_input_names("documents"))
    ]


def render_purge(report: PurgeReport) -> str:
    would_prefix = "would be " if report["dry_run"] else ""
    # The models come first: a purge cannot change them, and the list of files may be long.
    lines = [
        f"{', '.join(report['documents'])} in store {report['store']}",
        "",
        *_render_affected_checkpoints(report["checkpoints"]),
    ]
    if report["tokenizers"]:
        lines.append(
            "tokenizers that were trained on the document (not changed): "
            f"{join_first_names(report['tokenizers'])}"
        )
    lines.append("")
    for name, changed_parts in report["artifacts"].items():
        lines.append(f"{name}: {would_prefix}rewritten: {join_first_names(changed_parts)}")
    if not report["artifacts"]:
        lines.append("no artifact contains the document")
    for title, names in (
        (
            "runs that contain or contained the document"
            if report["dry_run"]
            else "runs that contained the document",
            report["runs"],
        ),
        (f"folders of unfinished work {would_prefix}removed", report["work_areas"]),
        ("pages", report["pages"]),
        (
            "exact copies, also purged"
            if report["copies_purged"]
            else "exact copies, not purged (--include-copies purges them)",
            report["copies"],
        ),
        (
            "other documents that a table lists as matches for this document; check them manually",
            report["related_documents"],
        ),
        (
            "unredacted pages outside the store; delete them manually",
            report["unredacted_pages"],
        ),
        (
            "quarantined records from other sources that are not valid UTF-8 and were searched "
            "using a guessed encoding",
            [
                f"{record_count} of {name}"
                for name, record_count in report["unreadable_records"].items()
            ],
        ),
    ):
        if names:
            lines.append(f"{title}: {join_first_names(names)}")
    lines.append("")
    if report["dry_run"]:
        return "\n".join([*lines, "nothing was changed"])
    return "\n".join(
        [
            *lines,
            "from now on, ingest skips the document; runs that contained it can no longer be "
            "replayed or continued. Sites, copies and caches of this store that are located "
            "elsewhere were not changed",
        ]
    )


def _render_affected_checkpoints(checkpoints: list[AffectedCheckpoint]) -> list[str]:
    if not checkpoints:
        return ["no checkpoint was trained on the document"]
    lines = [
        "checkpoints that were trained on the document; a purge cannot change what they have "
        "learned:"
    ]
    for row in checkpoints:
        description = (
            f"continues from {row['start_checkpoint']}"
            if row["start_checkpoint"]
            else "steps unknown"
        )
        if row["steps"] is not None:
            noun = "step" if len(row["steps"]) == 1 else "steps"
            description = f"read in {noun} {join_first_names(list(map(str, row['steps'])))}"
        lines.append(f"    {row['checkpoint']}, step {row['step']}: {description}")
    return lines


def join_first_names(names: list[str]) -> str:
    """Join the first names of a list, and say how many more there are."""
    hidden_count = len(names) - MAX_SHOWN_NAMES
    return ", ".join(names[:MAX_SHOWN_NAMES]) + (
        f" and {hidden_count} more" if hidden_count > 0 else ""
    )
