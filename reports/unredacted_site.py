"""Write an unredacted site of one run for local use, with cards rendered from their inputs.

Artifacts hold only redacted cards. This site is outside of the store's artifacts, in a folder that
only its owner can open.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from hallmark.reports.cards import (
    CARD_KINDS,
    find_required_artifact,
    insert_dates,
    load_card_inputs,
    read_card_settings,
)
from hallmark.reports.page.card_pages import write_card_pages
from hallmark.reports.page.card_tables import CardContent
from hallmark.reports.page.redaction import PassthroughRedactor
from hallmark.reports.purge_notices import (
    collect_purged_document_ids,
    format_purge_notice,
    insert_purge_notice,
)
from hallmark.reports.site import JsonRecord, build_site
from hallmark.tasks.contract import Artifact, HallmarkError, Store, UsageError

#: Marks a folder that this module created; no other folder is removed.
MARKER_FILE = "UNMASKED"


def write_unredacted_site(store: Store, record: JsonRecord, output_folder: Path) -> Path:
    """Write the unredacted site of one run and return the page of the run.

    An earlier unredacted site in ``output_folder`` is removed.

    Raises:
        UsageError: If ``output_folder`` holds anything else.
        HallmarkError: If an input of a card is missing.
    """
    create_private_folder(output_folder)
    run_page: Path = (
        build_site(store, [record], output_folder).parent / "runs" / record["run"] / "index.html"
    )
    for entry in record["stages"]:
        if entry["label"] in CARD_KINDS:
            card_folder = run_page.parent / entry["label"]
            shutil.rmtree(card_folder, ignore_errors=True)  # the redacted card
            try:
                card = find_required_artifact(store, entry["artifact"])
                write_card_pages(_compose_unredacted_card(store, card), card_folder)
            except HallmarkError as error:
                raise HallmarkError(f"run {record['run']}: {error}") from error
            if purged_ids := collect_purged_document_ids(store, card):
                insert_purge_notice(card_folder, format_purge_notice(purged_ids))
    return run_page


def create_private_folder(folder: Path) -> None:
    """Create an empty folder that only its owner can open.

    Raises:
        UsageError: If the folder holds anything but an earlier unredacted site.
    """
    if folder.exists() and (
        not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARKER_FILE).exists())
    ):
        raise UsageError(
            f"{folder} contains other files, but unredacted pages need their own folder; specify "
            "a folder that is empty or does not exist"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)  # independent of the umask
    (folder / MARKER_FILE).write_text(
        "Unredacted personal data and offensive text. Do not publish.\n"
    )


def _compose_unredacted_card(store: Store, card: Artifact) -> CardContent:
    """Compose a card again from its inputs, without redaction."""
    inputs = load_card_inputs(store, card, are_all_required=True)
    content = CARD_KINDS[card.stage].compose(
        inputs, read_card_settings(card), PassthroughRedactor()
    )
    return replace(content, document=insert_dates(content.document, inputs))
