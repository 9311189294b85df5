"""Write the folder of a release: the checkpoint, its approved cards, and their signed reviews."""

from __future__ import annotations

import shlex
from typing import Any

from hallmark.flows.commands.options import (
    AllowedSignersOption,
    JsonOption,
    RevokedKeysOption,
    StoreOption,
    print_result,
)
from hallmark.flows.release import find_release_candidate, write_release
from hallmark.flows.runs import open_store
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.review.signatures import SignerFiles
from hallmark.reports.review.statements import format_card_kind


def release(
    checkpoint: str,
    folder: str,
    *,
    allowed_signers: AllowedSignersOption = None,
    revoked_keys: RevokedKeysOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a checkpoint with its approved cards and signed reviews to a folder that can be
    verified elsewhere.

    Ends with exit code 1 if a card is not approved or an audit failed, and with 3 if the policy
    fails or is not shown to pass.

    Parameters
    ----------
    checkpoint
        A checkpoint, specified as for the command audit (its newest audit is used), or a run that
        audited a checkpoint.
    folder
        New folder for the release.
    """
    opened_store = open_store(store, create=False)
    with opened_store.shared_lock():
        candidate = find_release_candidate(
            opened_store, checkpoint, SignerFiles(allowed_signers, revoked_keys)
        )
        write_release(candidate, folder)
    report = {
        "folder": folder,
        "checkpoint": candidate.checkpoint_name,
        "run": candidate.run.id,
        "cards": [card.approval.to_json_fields() for card in candidate.cards],
    }
    print_result(report, as_json, _render_release)


def _render_release(report: dict[str, Any]) -> str:
    lines = [f"{report['folder']}: released {escape_invisible(report['checkpoint'])}"]
    lines += [
        f"{format_card_kind(card['card']['kind'])}: {card['description']}"
        for card in report["cards"]
    ]
    return "\n".join(
        [
            *lines,
            f"verify the release with: hallmark verify-release {shlex.quote(report['folder'])}",
        ]
    )
