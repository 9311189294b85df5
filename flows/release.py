"""Release a checkpoint: check that its cards are approved, and write one folder that verifies.

``hallmark.reports.review.release_folder`` describes the folder and verifies it.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from hallmark.flows.card_export import write_card_exports
from hallmark.flows.card_review import describe_card_artifact
from hallmark.flows.checkpoint_comparison import find_checkpoint_audits
from hallmark.flows.checkpoint_resolution import (
    get_checkpoint_artifact_name,
    resolve_checkpoint,
)
from hallmark.flows.output_folders import check_can_be_created, resolve_new_folder
from hallmark.flows.run_order import list_run_ids
from hallmark.flows.runs import Run, find_artifact, read_all_runs, read_run_record
from hallmark.model.interchange.atomic_files import sync_to_disk, write_folder_atomically
from hallmark.reports.cards import list_evidence_problems, read_card
from hallmark.reports.page.card_pages import write_card_pages
from hallmark.reports.page.card_tables import read_stated_status
from hallmark.reports.page.document import POLICY_VERDICT_BY_STATUS
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
    REVOKED_KEYS_NAME,
    TABLES_FOLDER,
    build_manifest_entries,
    format_manifest,
    verify_release_folder,
)
from hallmark.reports.review.released_versions import record_released_version
from hallmark.reports.review.review_store import (
    REVIEWS_FOLDER,
    SIGNATURE_SUFFIX,
    StoredReview,
    parse_stored_review,
    read_reviews,
)
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

#: Maximum number of characters shown of the error with which an audit failed.
MAX_REASON_CHARACTERS = 200

#: Maximum number of tables that an error about missing rows names.
MAX_EVIDENCE_PROBLEMS = 3


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
        _check_model_cards_are_readable(store, checkpoint_name)
        raise UsageError(
            f"{checkpoint_name} has not been audited in this store, so it has no model card; run: "
            f"hallmark audit {checkpoint_name}"
        )
    run, reasons = audits.audit_run, list[str]()
    # An audit records a folder outside the store by its path, as it was named.
    checkpoint = resolve_checkpoint(store, run.audited_checkpoint).checkpoint
    model_card = run["model_card"]
    artifacts: dict[CardStage, Artifact] = {"model_card": model_card}
    datasheet_name = model_card.get_input_names_by_key("corpus_artifacts").get("datasheet")
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
        if evidence_problems := list_evidence_problems(run.store, artifact):
            reasons.append(
                f"the {format_card_kind(kind)} cites rows that cannot be shown: "
                f"{'; '.join(evidence_problems[:MAX_EVIDENCE_PROBLEMS])}; restore the artifacts, "
                "or remove them and run again"
            )
        if kind == "model_card" and card.checkpoint != checkpoint.content_digest:
            reasons.append("the model card describes a checkpoint with different files")
    for label in ("policy", "missing_audits"):
        if label in run.stages:
            run[label].verify_tables()
    policy = judge_policy(run.list_verdicts())
    is_policy_unmet = policy.verdict in ("fail", "not_shown")
    if is_policy_unmet:
        rules = ", ".join([*policy.failed_rules, *policy.not_shown_rules])
        reasons.append(f"{policy.describe()} ({rules})")
    # The verdicts are not signed, the model card is.
    status = read_stated_status(model_card["sections"].read())
    stated_verdict = POLICY_VERDICT_BY_STATUS.get(status)
    if stated_verdict != policy.verdict:
        is_policy_unmet |= stated_verdict in ("fail", "not_shown")
        reasons.append(
            f"the model card has the status “{status}”, which contradicts the verdicts recorded by "
            f"run {run.id}; repeat the audit"
        )
    for audit, reason in run.read_failure_reason_by_audit().items():
        reasons.append(f"{audit} failed ({_shorten_reason(reason)})")
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


def _check_model_cards_are_readable(store: Store, checkpoint_name: str) -> None:
    """Check that no damaged model card is about a checkpoint for which no card was found.

    Raises:
        HallmarkError: One is.
    """
    checkpoint = resolve_checkpoint(store, checkpoint_name).checkpoint
    for run in reversed(read_all_runs(store)):
        audited_name = ""
        with suppress(HallmarkError, OSError):  # its checkpoint no longer exists
            if "model_card" in run.stages:
                audited_name = get_checkpoint_artifact_name(store, run.audited_checkpoint)
        if audited_name == checkpoint.name:
            try:
                run["model_card"].get_input_name("checkpoint")
            except HallmarkError as error:
                raise HallmarkError(f"{checkpoint_name} was not released: {error}") from error


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
            reasons.append(f"{error}; the run may be a newer audit of this checkpoint")
            continue
        has_ended = other_run.flow == "audit" and other_run.status != "running"
        if not has_ended:
            continue
        with suppress(HallmarkError, OSError):  # its checkpoint no longer exists
            name = str(other_run.record["checkpoint"])
            if get_checkpoint_artifact_name(store, name) == checkpoint.name:
                error_text = _shorten_reason(other_run.record["error"] or "")
                problem = f"has the status {other_run.status}" + (
                    f" ({error_text})" if error_text else ""
                )
                if other_run.status == "completed":
                    problem = "has no readable model card"
                reasons.append(
                    f"the newer audit, run {other_run.id}, {problem}; repeat it with: hallmark "
                    f"audit {shlex.quote(name)}"
                )
    return reasons


def _shorten_reason(text: str) -> str:
    """Write why something failed on one line, cut to ``MAX_REASON_CHARACTERS``."""
    line = " ".join(text.split())
    is_short = len(line) <= MAX_REASON_CHARACTERS
    return escape_invisible(line if is_short else f"{line[: MAX_REASON_CHARACTERS - 3]}...")


def write_release(candidate: ReleaseCandidate, folder_name: str) -> None:
    """Write the folder of a release; a killed process leaves no folder of this name.

    Raises:
        UsageError: The folder is not empty, is inside of a store or a release, or cannot be
            created.
        PolicyViolationError: The policy is not met.
        HallmarkError: Something else prevents the release, or a file is damaged.
    """
    folder = resolve_new_folder(folder_name, "release")
    if candidate.refusal_reasons:
        error_type = PolicyViolationError if candidate.is_policy_unmet else HallmarkError
        raise error_type(
            f"{candidate.checkpoint_name}, audited by run {candidate.run.id}, was not released: "
            + "; ".join(candidate.refusal_reasons)
        )
    check_can_be_created(folder, "release")
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
                f"{candidate.checkpoint_name} was not released, because the written folder is "
                f"not valid: {'; '.join(problems)}; run the command again when nothing else is "
                "changing the store"
            )
        # Before the folder gets its name: a release that the store does not know is none.
        _record_released_version(candidate)


def _record_released_version(candidate: ReleaseCandidate) -> None:
    """Record the release in the store, so that later versions of this name are compared with it."""
    model_card = next(card.artifact for card in candidate.cards if card.kind == "model_card")
    record_released_version(
        candidate.run.store,
        name=model_card.get_setting("title") or "",
        version=model_card.get_setting("version") or "",
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
        statement = parse_stored_review(review)
        if any(is_about_card(statement, card.approval.card) for card in candidate.cards):
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
