"""Verify the folder of a release on any machine, without a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hallmark.flows.commands.options import (
    AllowedSignersOption,
    JsonOption,
    RevokedKeysOption,
    print_result,
)
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.review.release_folder import MANIFEST_NAME, verify_release_folder
from hallmark.reports.review.signatures import SignerFiles
from hallmark.reports.review.statements import format_card_kind
from hallmark.tasks.contract import format_count


def verify_release(
    folder: Path,
    *,
    allowed_signers: AllowedSignersOption = None,
    revoked_keys: RevokedKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a release's files, signatures and card approvals without access to the store.

    Ends with exit code 1 if the release is not valid. Without --allowed-signers, the list of
    signers in the folder is used; in this case, compare the printed keys with keys that you know.

    Parameters
    ----------
    folder
        The folder that the command release wrote.
    """
    verification = verify_release_folder(folder, SignerFiles(allowed_signers, revoked_keys))
    print_result(verification.to_json_fields(), as_json, render_verification)
    if verification.problems:
        raise SystemExit(1)


def render_verification(report: dict[str, Any]) -> str:
    """Format the result for a terminal."""
    lines = [
        f"{report['folder']}: {format_count(report['file_count'], 'file')}, "
        f"{report['byte_count'] / 1e6:,.1f} MB"
        + (f", from run {report['run']}" if report["is_run_signed"] else "")
    ]
    if not report["is_run_signed"] and not report["approvals"]:
        lines.append(
            f"signatures were not checked because of the problems below; {MANIFEST_NAME} specifies "
            f"run {report['run']}"
        )
    elif not report["is_run_signed"]:
        reviewed_runs = ", ".join(report["reviewed_runs"])
        lines.append(
            f"release.json specifies run {report['run']}, but no signature confirms "
            f"this{f'; the approvals refer to run {reviewed_runs}' if reviewed_runs else ''}"
        )
    for approval in report["approvals"]:
        lines.append(f"{format_card_kind(approval['card']['kind'])}: {approval['description']}")
        lines += [
            f"    {review['signer']} {review['key']}"
            for review in approval["reviews"]
            if review["state"] in ("approved", "approved_with_conditions")
        ]
    if report["has_own_signers"] and not report["problems"]:
        lines.append(
            "the list of signers is part of the release itself; compare the signers' keys with "
            "keys that you know, or specify your own list with --allowed-signers"
        )
    lines += report["problems"]
    lines.append("the release is NOT valid" if report["problems"] else "the release is valid")
    return escape_invisible("\n".join(lines))
