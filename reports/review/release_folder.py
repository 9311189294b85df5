"""Describe the folder of a release, and verify it without a store.

    release.json                          names, sizes and SHA-256 of all other files; written last
    checkpoint/                           weights, config and tokenizer
    cards/<kind>/                         the pages of each card
    tables/<kind>/<table>/00000.parquet   the tables of each card
    exports/                              the cards in machine-readable forms
    reviews/<review id>.json, .json.sig   statements of the reviewers, with their signatures
    allowed_signers, revoked_keys         whose signatures counted when the release was written

``release.json`` shows accidental changes. The signatures show all others: a statement has the
digest of the checkpoint and the hash of the tables, and both are computed here from the files.
Pages and exports are not signed, so the tables count where one differs from them. The other fields
of ``release.json`` are not signed either. A statement names the run whose card was reviewed. This
may be another run than that of the release, if both have the same evidence about the same files.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from hallmark.reports.page.card_tables import read_stated_status
from hallmark.reports.page.document import POLICY_VERDICT_BY_STATUS
from hallmark.reports.review.approval import Approval, judge_card
from hallmark.reports.review.evidence_hash import EVIDENCE_TABLES, hash_evidence_tables
from hallmark.reports.review.released_tables import read_released_table
from hallmark.reports.review.review_store import (
    REVIEWS_FOLDER,
    StoredReview,
    read_stored_review,
)
from hallmark.reports.review.signatures import SignerFiles
from hallmark.reports.review.statements import (
    CARD_STAGES,
    CardStage,
    ReviewedCard,
    format_card_kind,
)
from hallmark.tasks.contract import (
    HallmarkError,
    UsageError,
    compute_content_digest,
    describe_file_type,
    escape_name,
    format_count,
    get_short_error_line,
    hash_file,
    is_safe_relative_path,
    to_canonical_json,
)

RELEASE_FORMAT = "hallmark-release-1"
MANIFEST_NAME = "release.json"
CHECKPOINT_FOLDER = "checkpoint"
CARDS_FOLDER, TABLES_FOLDER, EXPORTS_FOLDER = "cards", "tables", "exports"
ALLOWED_SIGNERS_NAME, REVOKED_KEYS_NAME = "allowed_signers", "revoked_keys"

#: The files that a release may have next to its manifest.
_FILE_PATTERN = re.compile(
    rf"{CHECKPOINT_FOLDER}/.+"
    rf"|{CARDS_FOLDER}/({'|'.join(CARD_STAGES)})/.+"
    rf"|{TABLES_FOLDER}/({'|'.join(CARD_STAGES)})/({'|'.join(EVIDENCE_TABLES)})/[0-9]{{5}}\.parquet"
    rf"|{EXPORTS_FOLDER}/((model|dataset)/)?[\w-]+(\.cdx)?\.(md|json)"
    rf"|{REVIEWS_FOLDER}/[0-9a-f]{{32}}\.json(\.sig)?"
    rf"|{ALLOWED_SIGNERS_NAME}|{REVOKED_KEYS_NAME}",
    re.DOTALL,
)

#: The card that every release has: it is about the checkpoint.
MODEL_CARD = "model_card"

#: The card of the corpus, and the stage whose rows both cards cite if the corpus is known.
DATASHEET, CORPUS_STAGE = "datasheet", "profile"

MAX_MANIFEST_BYTES = 1 << 26

#: Largest size of a file that file systems know.
MAX_FILE_BYTES = (1 << 63) - 1

#: Maximum number of reviews in a release, each of whose signatures is checked.
MAX_REVIEWS = 1_000

#: Maximum number of problems that are listed, such as missing or additional files.
MAX_LISTED_PROBLEMS = 20

#: Maximum number of characters that a problem shows of the name of a file.
MAX_SHOWN_NAME_CHARACTERS = 200

_RUN_ID_PATTERN = re.compile(r"[\w-]{1,100}")


#: What the conversion of a table to Python values raises: dates after the year 9999, unknown time
#: zones, repeated fields, texts that are not UTF-8, deep nesting.
_WRONG_VALUE_ERRORS = (ValueError, OverflowError, KeyError, RecursionError)


@dataclass
class ReleaseVerification:
    """What was verified of a release, and what is wrong with it."""

    folder: str
    run: str = ""
    """The run that ``release.json`` names; see ``reviewed_runs``."""
    reviewed_runs: list[str] = field(default_factory=list)
    """The runs that the approvals of the model card name, which are signed."""
    checkpoint_digest: str = ""
    """Content digest of the files in ``checkpoint``, as computed from them."""
    file_count: int = 0
    byte_count: int = 0
    problems: list[str] = field(default_factory=list)
    """One sentence for each problem; a release without problems is valid."""
    approvals: list[Approval] = field(default_factory=list)
    has_own_signers: bool = False
    """Whether the list of allowed signers is the one in the folder, which its writer chose."""

    def to_json_fields(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        approvals = [approval.to_json_fields() for approval in self.approvals]
        return {
            **vars(self),
            "is_run_signed": self.run in self.reviewed_runs,
            "is_valid": not self.problems,
            "approvals": approvals,
        }


def verify_release_folder(
    folder: Path, signer_files: SignerFiles, now: datetime | None = None
) -> ReleaseVerification:
    """Verify a release: its files, its signatures, and what these are about.

    Args:
        folder: The folder of the release.
        signer_files: Whose signatures count; the files in the release where one is None.
        now: The time at which approvals must be valid; by default the present.

    Raises:
        HallmarkError: The folder is not a release, or ssh-keygen is missing.
    """
    manifest = _read_manifest(folder)
    verification = ReleaseVerification(str(folder), run=manifest["run"])
    entries = manifest["files"]
    verification.problems += _limit_problems(_find_file_problems(folder, entries))
    verification.file_count = len(entries)
    verification.byte_count = sum(entry["size"] for entry in entries.values())
    if verification.problems:  # nothing else can be said about other files
        return verification
    verification.has_own_signers = signer_files.allowed_signers is None
    are_revoked_keys_own = signer_files.revoked_keys is None
    signer_files.check_readable()
    signer_files = SignerFiles(
        signer_files.allowed_signers or _find_own_file(folder, entries, ALLOWED_SIGNERS_NAME),
        signer_files.revoked_keys or _find_own_file(folder, entries, REVOKED_KEYS_NAME),
    )
    try:
        signer_files.check_readable()
    except UsageError as error:  # a file of the release, since the others were checked above
        verification.problems.append(str(error))
        return verification
    verification.checkpoint_digest = compute_checkpoint_digest(entries)
    reviews = _read_reviews(folder, entries)
    if len(reviews) > MAX_REVIEWS:
        verification.problems.append(f"the release has more than {MAX_REVIEWS:,} reviews")
        return verification
    kinds = [
        kind
        for kind in CARD_STAGES
        if any(_list_names(entries, folder, kind) for folder in (CARDS_FOLDER, TABLES_FOLDER))
    ]
    if MODEL_CARD not in kinds:
        verification.problems.append("the release has no model card")
    corpus_digests: dict[str, set[str]] = {}
    for kind in kinds:
        checkpoint_digest = verification.checkpoint_digest if kind == MODEL_CARD else None
        try:
            tables = _read_card_tables(folder, entries, kind)
            card = ReviewedCard(
                kind=kind,
                run=verification.run,
                checkpoint=checkpoint_digest,
                evidence_hash=hash_evidence_tables(tables, f"the {format_card_kind(kind)}"),
            )
        # Tables of strangers may contain values that Python's types do not have.
        except (HallmarkError, OSError, pa.ArrowException, *_WRONG_VALUE_ERRORS) as error:
            problem = f"the {format_card_kind(kind)}'s tables cannot be read"
            verification.problems.append(f"{problem} ({get_short_error_line(error)})")
            continue
        try:
            approval = judge_card(card, reviews, signer_files, now)
        except UsageError as error:
            if are_revoked_keys_own:
                verification.problems.append(str(error))
                return verification
            raise
        verification.approvals.append(approval)
        if kind == MODEL_CARD:
            verification.reviewed_runs = approval.list_reviewed_runs()
            verification.problems += _find_policy_problems(tables, manifest.get("policy"))
        if approval.is_approved:
            corpus_digests[kind] = _list_corpus_digests(tables)
        else:
            verification.problems.append(
                f"the {format_card_kind(kind)} is not approved ({approval.describe()})"
            )
    verification.problems += _find_corpus_problems(kinds, corpus_digests)
    return verification


def _find_corpus_problems(
    kinds: Sequence[CardStage], corpus_digests: Mapping[str, set[str]]
) -> list[str]:
    """Check that the datasheet is that of the corpus which the approved model card describes.

    Args:
        kinds: The cards of the release.
        corpus_digests: The corpus profiles that each approved card cites.
    """
    model_digests = corpus_digests.get(MODEL_CARD, set())
    datasheet_digests = corpus_digests.get(DATASHEET) or model_digests
    if model_digests and DATASHEET not in kinds:
        return ["the release has no datasheet, but its model card describes the training text"]
    if model_digests and model_digests.isdisjoint(datasheet_digests):
        return ["the datasheet and the model card describe different corpora"]
    return []


def _find_policy_problems(tables: Mapping[str, pa.Table], verdict: Any) -> list[str]:
    """Check that the signed model card states the policy verdict of the release, and no failure.

    Args:
        tables: The tables of the model card.
        verdict: The verdict according to release.json, which no signature covers.
    """
    sections = tables.get("sections")
    status = "" if sections is None else read_stated_status(sections)
    if status not in POLICY_VERDICT_BY_STATUS:
        return ["the model card has no status"]
    if (stated := POLICY_VERDICT_BY_STATUS[status]) in ("fail", "not_shown"):
        return [f"the model card has the status “{status}”, so its policy is not met"]
    if stated != verdict:
        return [
            f"release.json contains {verdict!r:.40} as the policy result, but the model card has "
            f"the status “{status}”"
        ]
    return []


def build_manifest_entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the size and SHA-256 of every file below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): {
            "size": path.stat().st_size,
            "sha256": hash_file(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def compute_checkpoint_digest(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Compute the content digest of the checkpoint in a release, from its manifest entries."""
    checkpoint_files = {
        name.removeprefix(f"{CHECKPOINT_FOLDER}/"): dict(entries[name])
        for name in _list_names(entries, CHECKPOINT_FOLDER)
    }
    return compute_content_digest({}, checkpoint_files)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST_NAME
    try:
        status = path.lstat()
        if problem := _find_manifest_problem(status):
            raise HallmarkError(f"{path} {problem}; copy the release again")
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise HallmarkError(
            f"{folder} is not a complete release: it has no {MANIFEST_NAME}; copy the release "
            "again, or create it with: hallmark release CHECKPOINT FOLDER"
        ) from error
    try:
        manifest = json.loads(content)
        is_valid = _is_valid_manifest(manifest) and format_manifest(manifest) == content
    except (ValueError, RecursionError):
        is_valid = False
    if not is_valid:
        raise HallmarkError(
            f"{path} is damaged, or it was written by another version of Hallmark; copy the "
            "release again"
        )
    return dict(manifest)


def _find_manifest_problem(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        is_too_large = status.st_size > MAX_MANIFEST_BYTES
        return f"has more than {MAX_MANIFEST_BYTES:,} bytes" if is_too_large else ""
    if stat.S_ISLNK(status.st_mode):
        return "is a link instead of a file"
    if stat.S_ISDIR(status.st_mode):
        return "is a folder instead of a file"
    return f"is {describe_file_type(status.st_mode)} instead of a file"


def format_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Return the text of ``release.json``, which is unique to its content."""
    return to_canonical_json(dict(manifest)) + b"\n"


def _is_valid_manifest(manifest: Any) -> bool:
    return (
        isinstance(manifest, dict)
        and manifest.get("format") == RELEASE_FORMAT
        and isinstance(manifest.get("run"), str)
        and _RUN_ID_PATTERN.fullmatch(manifest["run"]) is not None
        and isinstance(manifest.get("files"), dict)
        and all(
            isinstance(entry, dict)
            and entry.keys() == {"size", "sha256"}
            and type(entry["size"]) is int
            and 0 <= entry["size"] <= MAX_FILE_BYTES
            and isinstance(entry["sha256"], str)
            for entry in manifest["files"].values()
        )
    )


def _quote_name(name: str) -> str:
    return f"'{escape_name(name, MAX_SHOWN_NAME_CHARACTERS)}'"


def _limit_problems(problems: list[str]) -> list[str]:
    """Replace the problems that are too many to list by their number."""
    if len(problems) <= MAX_LISTED_PROBLEMS:
        return problems
    rest = len(problems) - MAX_LISTED_PROBLEMS
    return [*problems[:MAX_LISTED_PROBLEMS], f"and {format_count(rest, 'more problem')} of files"]


def _find_file_problems(folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Compare the files of a folder with the manifest."""
    unexpected_names = [
        name
        for name in entries
        if not is_safe_relative_path(name) or not _FILE_PATTERN.fullmatch(name)
    ]
    if unexpected_names:
        return [
            f"{MANIFEST_NAME} lists {_quote_name(name)}, which does not belong in a release"
            for name in unexpected_names
        ]
    present_names, problems = _list_files(folder)
    listed_names = set(entries)
    problems += [f"{_quote_name(name)} is missing" for name in sorted(listed_names - present_names)]
    extra_names = present_names - listed_names - {MANIFEST_NAME}
    problems += [
        f"{_quote_name(name)} is not listed in {MANIFEST_NAME}" for name in sorted(extra_names)
    ]
    for name in sorted(listed_names & present_names):
        path, entry = folder / name, entries[name]
        if path.stat().st_size != entry["size"] or hash_file(path) != entry["sha256"]:
            problems.append(
                f"the size or SHA-256 of {_quote_name(name)} does not match {MANIFEST_NAME}"
            )
    return problems


def _list_files(folder: Path) -> tuple[set[str], list[str]]:
    """List the regular files below a folder without following links.

    Returns:
        The relative paths, and a sentence for each link or other special file and each empty
        folder.
    """
    names: set[str] = set()
    problems: list[str] = []
    pending = [""]
    while pending:
        subfolder = pending.pop()
        try:
            with os.scandir(folder / subfolder) as scan:
                items = sorted(scan, key=lambda item: item.name)
        except OSError as error:  # such as a path that is too long
            problems.append(f"{_quote_name(subfolder)} cannot be read ({error.strerror})")
            continue
        if not items and subfolder:
            problems.append(f"{_quote_name(subfolder)} is an empty folder")
        for item in items:
            name = f"{subfolder}/{item.name}" if subfolder else item.name
            if item.is_symlink():
                problems.append(f"{_quote_name(name)} is a link")
            elif item.is_dir(follow_symlinks=False):
                pending.append(name)
            elif item.is_file(follow_symlinks=False):
                names.add(name)
            else:
                problems.append(f"{_quote_name(name)} is neither a file nor a folder")
    return names, problems


def _find_own_file(folder: Path, entries: Mapping[str, Any], name: str) -> Path | None:
    return folder / name if name in entries else None


def _read_reviews(folder: Path, entries: Mapping[str, Any]) -> list[StoredReview]:
    names = _list_names(entries, REVIEWS_FOLDER)
    size_by_name = {name: entries[name]["size"] for name in names}
    suffix = ".json"
    return [
        read_stored_review(
            name.removeprefix(f"{REVIEWS_FOLDER}/").removesuffix(suffix),
            size_by_name,
            lambda key: (folder / key).read_bytes(),
        )
        for name in names
        if name.endswith(suffix)
    ]


def _list_names(entries: Mapping[str, Any], *folders: str) -> list[str]:
    prefix = "/".join(folders) + "/"
    return sorted(name for name in entries if name.startswith(prefix))


def _list_corpus_digests(tables: Mapping[str, pa.Table]) -> set[str]:
    """Return the content digests of the corpus profiles whose rows a card cites."""
    evidence = tables.get("evidence")
    rows = [] if evidence is None else evidence.select(["stage", "content_digest"]).to_pylist()
    return {row["content_digest"] for row in rows if row["stage"] == CORPUS_STAGE}


def _read_card_tables(
    folder: Path, entries: Mapping[str, Any], kind: CardStage
) -> dict[str, pa.Table]:
    tables: dict[str, pa.Table] = {}
    for table_name in EVIDENCE_TABLES:
        names = _list_names(entries, TABLES_FOLDER, kind, table_name)
        if names:
            tables[table_name] = read_released_table([folder / name for name in names], table_name)
    return tables
