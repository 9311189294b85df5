"""Which artifacts, runs and models hold a document; its text taken out of what can be cleaned."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.commands.trace import find_training_steps, parse_doc_id
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
from hallmark.tasks.contract import Artifact, Store, UsageError, read_purged_documents

Report = dict[str, Any]

#: Names that a terminal shows of a list.
MAX_SHOWN_NAMES = 12


def purge(
    doc_id: str,
    *,
    copies: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a document's text out of the whole store, for good, and name the models that read it.

    Parameters
    ----------
    doc_id
        32 hexadecimal digits, as the column doc_id of every table has them.
    copies
        Purge its exact copies under other ids, too.
    dry_run
        Change nothing, only list what holds it.
    """
    print_result(
        purge_document(open_store(store, create=False), doc_id, copies, dry_run),
        as_json,
        render_purge,
    )


def purge_document(
    store: Store, doc_id: str, include_copies: bool = False, dry_run: bool = False
) -> Report:
    """What held a document and was taken out, or with ``dry_run`` would be."""
    with store.exclusive_lock() as is_exclusive:
        if not dry_run:
            check_store_is_idle(store, is_exclusive)
        artifacts = read_all_artifacts(store)
        requested_ids = {parse_doc_id(doc_id)} - {REMOVED_ID}
        document_purge = DocumentPurge.from_doc_ids(requested_ids, artifacts)
        is_known, related_ids = document_purge.find_related_documents(artifacts)
        purge_list = read_purged_documents(store)
        if not is_known and doc_id.lower() not in purge_list["documents"]:
            raise UsageError(
                f"no artifact of the store {store.uri} knows a document {doc_id}; ids stand in the "
                f"column doc_id of its tables"
            )
        if has_planted_documents(requested_ids, artifacts):
            raise UsageError(
                f"{doc_id} was planted: nobody wrote it, and it would be planted again; set "
                f"plant_canaries.enabled=false or another plant_canaries.seed, or purge the "
                f"document that it copies"
            )
        requested_ids |= set(map(bytes.fromhex, purge_list["unfinished"]))  # by one that was killed
        copy_ids = find_identical_documents(requested_ids, artifacts)
        if len(document_purge.doc_ids) < len(
            ids_to_purge := requested_ids | copy_ids if include_copies else requested_ids
        ):
            document_purge = DocumentPurge.from_doc_ids(ids_to_purge, artifacts)
            _, related_ids = document_purge.find_related_documents(artifacts)
        affected_checkpoints, affected_tokenizers = (
            _find_affected_checkpoints(store, document_purge, artifacts),
            _find_affected_tokenizers(document_purge, artifacts),
        )
        doc_ids = set(document_purge.doc_ids.to_pylist())
        unreadable_counts = document_purge.count_unreadable_records(artifacts)
        if dry_run:
            changed_artifacts = preview_rewrites(document_purge, artifacts)
        else:
            record_purged_documents(store, doc_ids, is_unfinished=True)
            changed_artifacts = remove_documents(store, document_purge, artifacts)
        # By an earlier purge of the same documents, too, which may have been killed.
        previously_purged = {
            artifact.name
            for artifact in artifacts
            if artifact.purged_documents.keys() & set(_format_doc_ids(doc_ids))
        }
        affected_names = previously_purged | changed_artifacts.keys()
        work_areas = remove_unfinished_work(store, affected_names, dry_run)
        pages, unredacted_pages = clear_rendered_pages(store, dry_run)
        if not dry_run:
            record_purged_documents(store, doc_ids, is_unfinished=False)
    return {
        "store": store.uri,
        "dry_run": dry_run,
        "documents": _format_doc_ids(doc_ids),
        "copies": _format_doc_ids(copy_ids),
        "copies_purged": include_copies,
        "related_documents": _format_doc_ids(related_ids - copy_ids - doc_ids),
        "artifacts": changed_artifacts,
        "runs": _find_affected_runs(store, affected_names),
        "checkpoints": affected_checkpoints,
        "tokenizers": affected_tokenizers,
        "work_areas": work_areas,
        "pages": pages,
        "unredacted_pages": unredacted_pages,
        "unreadable_records": unreadable_counts,
    }


def _find_affected_runs(store: Store, artifact_names: set[str]) -> list[str]:
    """The runs with any of the artifacts, and those that add to the corpus of one of them."""
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


def _find_affected_checkpoints(
    store: Store, document_purge: DocumentPurge, artifacts: list[Artifact]
) -> list[Report]:
    """The checkpoints that read any of the documents, and those that go on from one; for each the
    steps before it that did, as far as a run says how it was trained."""
    sequences_by_pack: dict[str, set[int]] = {}  # sequences, by packed artifact
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
        run.stages["pretrain"]["fingerprint"]: find_training_steps(
            run, sequences_by_pack[packed_name]
        )
        for run in read_all_runs(store)
        if "pretrain" in run.stages
        and (packed_name := _get_packed_artifact_name(run)) in sequences_by_pack
    }
    affected: dict[str, Report] = {}
    checkpoints = [a for a in artifacts if a.stage == "checkpoint"]
    for checkpoint in checkpoints:
        step = checkpoint.manifest["parts"].get("key", {}).get("step")
        if checkpoint.manifest["lineage"].get("packed_corpus") in sequences_by_pack:
            training_steps = steps_by_training.get(checkpoint.manifest["parts"].get("parent", ""))
            steps_before = (
                None
                if training_steps is None or step is None
                else [training_step for training_step in training_steps if training_step <= step]
            )
            if steps_before != []:
                affected[checkpoint.name] = {
                    "checkpoint": checkpoint.name,
                    "step": step,
                    "steps": steps_before,
                    "start_checkpoint": None,
                }
    while True:  # what went on from one of them
        descendants = {
            c.name: {
                "checkpoint": c.name,
                "step": c.manifest["parts"].get("key", {}).get("step"),
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
    """The name of what its training read, which may be gone."""
    packed_name = run.stages.get("pad_removed_documents", run.stages.get("pack", {})).get(
        "artifact"
    )
    return packed_name if isinstance(packed_name, str) else None


def _get_start_checkpoint_name(checkpoint: Artifact) -> str | None:
    """The checkpoint that training, or fine-tuning, went on from."""
    lineage = checkpoint.manifest["lineage"]
    return lineage.get("start_checkpoint") or lineage.get("checkpoint")


def _find_affected_tokenizers(
    document_purge: DocumentPurge, artifacts: list[Artifact]
) -> list[str]:
    """The tokenizers that were trained on any of the documents, of which a token may be a word."""
    training_tables = {
        f"{a.name}#documents" for a in artifacts if document_purge.has_training_documents(a)
    }
    affected = []
    for artifact in artifacts:
        if artifact.stage == "train_tokenizer":
            document_inputs = artifact.manifest["lineage"]["documents"]
            if (
                training_tables & {document_inputs}
                if isinstance(document_inputs, str)
                else training_tables & {*document_inputs}
            ):
                affected.append(artifact.name)
    return affected


# For a terminal --------------------------------------------------------------------------------


def render_purge(report: Report) -> str:
    would_prefix = "would be " if report["dry_run"] else ""
    lines = [f"{', '.join(report['documents'])} in store {report['store']}", ""]
    for name, changed_parts in report["artifacts"].items():
        lines.append(f"{name}: {would_prefix}rewritten: {_join_first_names(changed_parts)}")
    if not report["artifacts"]:
        lines.append("no artifact holds anything of it")
    for title, names in (
        (
            "runs that hold it, or held it" if report["dry_run"] else "runs that held it",
            report["runs"],
        ),
        (f"work areas {would_prefix}removed", report["work_areas"]),
        ("pages", report["pages"]),
        (
            "exact copies, purged too"
            if report["copies_purged"]
            else "exact copies, which stay (--copies purges them, too)",
            report["copies"],
        ),
        ("documents that matched it, to be looked at", report["related_documents"]),
        ("unmasked pages out of the store, to be removed by hand", report["unredacted_pages"]),
        (
            "quarantined records of other sources that are no readable text and were searched by a "
            "guess at their encoding",
            [
                f"{record_count} of {name}"
                for name, record_count in report["unreadable_records"].items()
            ],
        ),
    ):
        if names:
            lines.append(f"{title}: {_join_first_names(names)}")
    lines += ["", *_render_affected_checkpoints(report["checkpoints"])]
    if report["tokenizers"]:
        lines.append(
            f"tokenizers trained on it, as they were: {_join_first_names(report['tokenizers'])}"
        )
    if report["dry_run"]:
        return "\n".join([*lines, "nothing has been changed"])
    return "\n".join(
        [
            *lines,
            "ingest takes it no more; its runs can be neither replayed nor gone on with. A "
            "site, a copy or a cache of this store elsewhere is not reached",
        ]
    )


def _render_affected_checkpoints(checkpoints: list[Report]) -> list[str]:
    if not checkpoints:
        return ["no checkpoint read it"]
    lines = ["checkpoints that read it, which nothing can clean:"]
    for row in checkpoints:
        description = (
            f"goes on from {row['start_checkpoint']}"
            if row["start_checkpoint"]
            else "steps not known"
        )
        if row["steps"] is not None:
            noun = "step" if len(row["steps"]) == 1 else "steps"
            description = f"read in {noun} {_join_first_names(list(map(str, row['steps'])))}"
        lines.append(f"    {row['checkpoint']}, step {row['step']}: {description}")
    return lines


def _join_first_names(names: list[str]) -> str:
    hidden_count = len(names) - MAX_SHOWN_NAMES
    return ", ".join(names[:MAX_SHOWN_NAMES]) + (
        f" and {hidden_count} more" if hidden_count > 0 else ""
    )
