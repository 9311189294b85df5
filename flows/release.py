"""Release a checkpoint: check that its cards are approved, and write one folder that verifies.

``hallmark.reports.review.release_folder`` describes the folder and verifies it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from hallmark.flows.card_export import write_card_exports
from hallmark.flows.card_review import describe_card_artifact
from hallmark.flows.checkpoint_comparison import find_checkpoint_audits
from hallmark.flows.checkpoint_resolution import resolve_checkpoint
from hallmark.flows.run_order import list_run_ids
from hallmark.flows.runs import Run, find_artifact, read_all_runs, read_run_record
from hallmark.model.interchange.atomic_files import sync_to_disk, write_folder_atomically
from hallmark.reports.cards import read_card
from hallmark.reports.page.card_pages import write_card_pages
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.review.approval import Approval, is_about_card, judge_card
from hallmark.reports.review.evidence_hash import EVIDENCE_TABLES
from hallmark.reports.review.release_folder import (
    ALLOWED_SIGNERS_NAME,
    CARDS_FOLDER,
    CHECKPOINT_FOLDER,
    EXPORTS_FOLDER,
    MANIFEST_NAME,
    RELEASE_FORMAT,
    REVIEWS_FOLDER,
    REVOKED_KEYS_NAME,
    TABLES_FOLDER,
    build_manifest_entries,
    format_manifest,
    verify_release_folder,
)
from hallmark.reports.review.released_versions import record_released_version
from hallmark.reports.review.review_store import SIGNATURE_SUFFIX, StoredReview, read_reviews
from hallmark.reports.review.signatures import SignerFiles
from hallmark.reports.review.statements import CardStage, format_card_kind
from hallmark.tasks.audits.judging.policy_outcome import judge_policy
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    PolicyViolationError,
    Store,
    UsageError,
    format_current_time,
)


@dataclass(frozen=True)
class ReleasedCard:
    """A card of a release, with its approval."""

    kind: CardStage
    artifact: Artifact
    approval: Approval


@dataclass(frozen=True)
class ReleaseCandidate:
    """A checkpoint with the run that audited it, its cards, and what prevents a release."""

    checkpoint_name: str
    checkpoint: Artifact
    run: Run
    cards: Sequence[ReleasedCard]
    reviews: Sequence[StoredReview]
    signer_files: SignerFiles
    refusal_reasons: Sequence[str]
    is_policy_unmet: bool


def find_release_candidate(
    store: Store, checkpoint_name: str, signer_files: SignerFiles
) -> ReleaseCandidate:
    """Find a checkpoint and its cards, and list everything that prevents a release.

    Args:
        store: The store.
        checkpoint_name: A checkpoint, as for the command audit; its newest audit counts. Or a run
            that audited one.
        signer_files: Whose signatures count.

    Raises:
        UsageError: There is no such checkpoint, or it was never audited.
        HallmarkError: An artifact is missing or damaged, or ssh-keygen is needed and missing.
    """
    signer_files.check_readable()
    audits = find_checkpoint_audits(store, checkpoint_name)
    if audits is None:
        raise UsageError(
            f"{checkpoint_name} has not been audited in this store, so it has no model card; run: "
            f"hallmark audit {checkpoint_name}"
        )
    run, reasons = audits.audit_run, list[str]()
    # An audit records a folder outside the store by its path, as it was named.
    checkpoint = resolve_checkpoint(store, run.audited_checkpoint).checkpoint
    model_card = run["model_card"]
    artifacts: dict[CardStage, Artifact] = {"model_card": model_card}
    datasheet_name = model_card.manifest["lineage"]["corpus_artifacts"].get("datasheet")
    if datasheet_name is not None:
        artifacts["datasheet"] = find_artifact(store, datasheet_name)
    reviews, cards = read_reviews(store), list[ReleasedCard]()
    for kind, artifact in artifacts.items():
        try:
            artifact.verify_files()
            card = describe_card_artifact(artifact, kind, _find_run_of_card(run, kind, artifact))
        except HallmarkError as error:
            reasons.append(str(error))
            continue
        approval = judge_card(card, reviews, signer_files)
        cards.append(ReleasedCard(kind, artifact, approval))
        if not approval.is_approved:
            reasons.append(f"the {format_card_kind(kind)} is not approved ({approval.describe()})")
        if kind == "model_card" and card.checkpoint != checkpoint.content_digest:
            reasons.append("the model card describes a checkpoint with other files")
    for label in ("policy", "missing_audits"):
        if label in run.stages:
            run[label].verify_tables()
    policy = judge_policy(run.list_verdicts())
    is_policy_unmet = policy.verdict in ("fail", "not_shown")
    if is_policy_unmet:
        rules = ", ".join([*policy.failed_rules, *policy.not_shown_rules])
        reasons.append(f"{policy.describe()} ({rules})")
    for audit, reason in run.read_failure_reason_by_audit().items():
        reasons.append(f"{audit} failed ({reason})")
    if run.status != "completed" and not run.read_failure_reason_by_audit():
        reasons.append(f"its run has the status {run.status}")
    is_named_by_run = run.flow == "audit" and run.id.startswith(checkpoint_name)
    if not is_named_by_run:
        reasons += _describe_newer_audits_without_card(store, run, checkpoint)
    return ReleaseCandidate(
        run.audited_checkpoint,
        checkpoint,
        run,
        cards,
        reviews,
        signer_files,
        reasons,
        is_policy_unmet,
    )


def _describe_newer_audits_without_card(store: Store, run: Run, checkpoint: Artifact) -> list[str]:
    """Describe the audits of a checkpoint after the newest one whose model card can be read.

    A damaged run may be one of them.
    """
    reasons = []
    run_ids = list_run_ids(store)
    for run_id in run_ids[run_ids.index(run.id) + 1 :]:
        try:
            other_run = Run(store, read_run_record(store, run_id))
        except HallmarkError as error:
            reasons.append(f"{error}; it may be a newer audit of this checkpoint")
            continue
        has_ended = other_run.flow == "audit" and other_run.status != "running"
        if not has_ended:
            continue
        with suppress(HallmarkError, OSError):  # its checkpoint no longer exists
            name = str(other_run.record["checkpoint"])
            if resolve_checkpoint(store, name).checkpoint.name == checkpoint.name:
                error_text = escape_invisible(" ".join((other_run.record["error"] or "").split()))
                problem = f"has the status {other_run.status}" + (
                    f" ({error_text})" if error_text else ""
                )
                if other_run.status == "completed":
                    problem = "has no model card that can be read"
                reasons.append(
                    f"the newer audit, run {other_run.id}, {problem}; repeat it with: hallmark "
                    f"audit {name}"
                )
    return reasons


def write_release(candidate: ReleaseCandidate, folder: Path) -> None:
    """Write the folder of a release; a killed process leaves no folder of this name.

    Raises:
        UsageError: The folder exists and is not empty.
        PolicyViolationError: The policy is not met.
        HallmarkError: Something else prevents the release, or a file is damaged.
    """
    # Links in the path are followed once, so that the folder is renamed where it is written.
    folder = Path(os.path.realpath(folder))
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        problem = "exists and is not empty" if folder.is_dir() else "is not a folder"
        raise UsageError(f"{folder} {problem}; choose a new folder for the release")
    if candidate.refusal_reasons:
        error_type = PolicyViolationError if candidate.is_policy_unmet else HallmarkError
        raise error_type(
            f"{candidate.checkpoint_name}, audited by run {candidate.run.id}, is not released: "
            + "; ".join(candidate.refusal_reasons)
        )
    with write_folder_atomically(folder) as new_folder:
        _copy_files(candidate.checkpoint, new_folder / CHECKPOINT_FOLDER)
        for card in candidate.cards:
            content = read_card(candidate.run.store, card.artifact)
            write_card_pages(content, new_folder / CARDS_FOLDER / card.kind)
            for table in EVIDENCE_TABLES:
                if table in card.artifact.tables:
                    _copy_table(
                        card.artifact, table, new_folder / TABLES_FOLDER / card.kind / table
                    )
        cards = {card.kind: card.artifact for card in candidate.cards}
        write_card_exports(
            candidate.run.store,
            cards.get("model_card"),
            cards.get("datasheet"),
            new_folder / EXPORTS_FOLDER,
        )
        _write_reviews(candidate, new_folder / REVIEWS_FOLDER)
        _copy_signer_files(candidate.signer_files, new_folder)
        entries = build_manifest_entries(new_folder)
        manifest = {
            "format": RELEASE_FORMAT,
            "hallmark": version("hallmark"),
            "created": format_current_time(),
            "run": candidate.run.id,
            "checkpoint": candidate.checkpoint.name,
            "policy": judge_policy(candidate.run.list_verdicts()).verdict,
            "files": entries,
        }
        for path in new_folder.rglob("*"):
            sync_to_disk(path)
        (new_folder / MANIFEST_NAME).write_bytes(format_manifest(manifest))
        problems = verify_release_folder(new_folder, candidate.signer_files).problems
        if problems:
            raise HallmarkError(
                f"{candidate.checkpoint_name} is not released, because the written folder is not "
                f"valid: {'; '.join(problems)}; run the command again when nothing else changes "
                "the store"
            )
        # Before the folder gets its name: a release that the store does not know is none.
        _record_released_version(candidate)


def _record_released_version(candidate: ReleaseCandidate) -> None:
    """Record the release in the store, so that later versions of this name are compared with it."""
    model_card = next(card.artifact for card in candidate.cards if card.kind == "model_card")
    settings = model_card.manifest["parts"]["config"]
    record_released_version(
        candidate.run.store,
        name=settings["title"] or "",
        version=settings["version"] or "",
        run=candidate.run.id,
        checkpoint=candidate.checkpoint.content_digest,
    )


def _find_run_of_card(run: Run, kind: CardStage, artifact: Artifact) -> str:
    """Return the id of the newest run that has this card; an audit uses that of the corpus."""
    if run.stages.get(kind, {}).get("artifact") == artifact.name:
        return run.id
    for other_run in reversed(read_all_runs(run.store)):
        if other_run.stages.get(kind, {}).get("artifact") == artifact.name:
            return other_run.id
    return run.id


def _copy_files(artifact: Artifact, folder: Path) -> None:
    for name in artifact.manifest["files"]:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact.fetch_file(name), target)


def _copy_table(artifact: Artifact, table: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, part in enumerate(artifact[table].parts):
        shutil.copyfile(part.path, folder / f"{number:05}.parquet")


def _write_reviews(candidate: ReleaseCandidate, folder: Path) -> None:
    """Write all reviews about the cards, also those that do not count."""
    folder.mkdir()
    for review in candidate.reviews:
        if any(is_about_card(review, card.approval.card) for card in candidate.cards):
            (folder / review.file_name).write_bytes(review.statement)
            if review.signature is not None:
                signature_name = f"{review.file_name}{SIGNATURE_SUFFIX}"
                (folder / signature_name).write_bytes(review.signature)


def _copy_signer_files(signer_files: SignerFiles, folder: Path) -> None:
    for path, name in (
        (signer_files.allowed_signers, ALLOWED_SIGNERS_NAME),
        (signer_files.revoked_keys, REVOKED_KEYS_NAME),
    ):
        if path is not None:
            shutil.copyfile(path, folder / name)
