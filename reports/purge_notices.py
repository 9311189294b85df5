"""Notices on pages about purged documents.

A card is an artifact: a purge removes only the quoted text from it, and the figures stay as
computed. The notice is therefore added to its pages when they are copied into a site.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hallmark.reports.artifact_lookup import find_artifact_by_name
from hallmark.reports.page.rendering import get_template_environment
from hallmark.tasks.contract import Artifact, HallmarkError, Store, read_purged_documents

#: Outputs of studies: their trials are the corpora of other models.
STUDY_PREFIX = "error_rates/"


class PurgeRecord(NamedTuple):
    """What a notice needs to know about an artifact.

    Attributes:
        purged_ids: The ids of the documents that were purged from it.
        input_names: The names of its inputs, as "stage/fingerprint".
    """

    purged_ids: frozenset[str] = frozenset()
    input_names: tuple[str, ...] = ()


def collect_purged_document_ids(
    store: Store,
    card: Artifact,
    purge_record_by_artifact_name: dict[str, PurgeRecord] | None = None,
) -> frozenset[str]:
    """Return the ids of documents purged from any input of a card, back to the corpus.

    Args:
        store: The store of the artifacts.
        card: The card.
        purge_record_by_artifact_name: A cache of purge records by artifact name, which is extended.
    """
    purge_record_by_artifact_name, has_purges = (
        {} if purge_record_by_artifact_name is None else purge_record_by_artifact_name,
        _has_purged_documents(store),
    )
    purged_ids, visited_names = set[str](), set[str]()
    pending_names = [*iter_artifact_names(card.lineage)]
    while pending_names:
        artifact_name = pending_names.pop().partition("#")[0]
        if artifact_name in visited_names or (
            artifact_name.startswith(STUDY_PREFIX) and card.stage != "study_card"
        ):
            continue
        visited_names.add(artifact_name)
        if artifact_name not in purge_record_by_artifact_name:
            # A study has thousands of inputs: none is read if nothing was ever purged.
            artifact = find_artifact_by_name(store, artifact_name) if has_purges else None
            purge_record_by_artifact_name[artifact_name] = (
                PurgeRecord() if artifact is None else read_purge_record(artifact)
            )
        purged_ids |= purge_record_by_artifact_name[artifact_name].purged_ids
        pending_names += purge_record_by_artifact_name[artifact_name].input_names
    return frozenset(purged_ids)


def _has_purged_documents(store: Store) -> bool:
    """Return whether anything was ever purged; an unreadable list counts as yes."""
    try:
        return bool(read_purged_documents(store)["documents"])
    except HallmarkError:
        return True


def read_purge_record(artifact: Artifact) -> PurgeRecord:
    """Return the documents purged from an artifact, and the names of its inputs."""
    return PurgeRecord(
        frozenset(artifact.purge_time_by_doc_id),
        tuple(iter_artifact_names(artifact.lineage)),
    )


def iter_artifact_names(lineage: Any) -> Iterator[str]:
    """Yield the names in a lineage, or in a part of one."""
    if isinstance(lineage, str):
        yield lineage
    elif isinstance(lineage, dict | list):
        for value in lineage.values() if isinstance(lineage, dict) else lineage:
            yield from iter_artifact_names(value)


def format_purge_notice(doc_ids: Iterable[str]) -> str:
    """Return the notice about purged documents; empty if there are none."""
    document_count = len(set(doc_ids))
    if not document_count:
        return ""
    document_phrase, verb, text_phrase, pronoun = "1 document", "was", "its text is", "it"
    if document_count > 1:
        document_phrase, verb, text_phrase, pronoun = (
            f"{document_count:,} documents",
            "were",
            "their texts are",
            "them",
        )
    return (
        f"{document_phrase} from the corpus {verb} purged: {text_phrase} no longer in the store, "
        f"but figures computed before the purge still include {pronoun}, and a model trained on "
        f"{pronoun} retains what it learnt."
    )


def insert_purge_notice(card_folder: Path, notice: str) -> None:
    """Insert a notice at the top of the pages of a card and of its evidence."""
    notice_template = get_template_environment().from_string(
        '<p class="callout note">{{ sentence }}</p>'
    )
    html = notice_template.render(sentence=notice)
    for path in sorted(card_folder.rglob("*.html")):
        page = path.read_text(encoding="utf-8")
        main_tag = re.search("<main[^>]*>", page)  # None if a purge emptied the page
        position = main_tag.end() if main_tag else len(page)
        path.write_text(f"{page[:position]}\n{html}{page[position:]}", encoding="utf-8")
    for path in sorted(card_folder.rglob("*.md")):
        text_parts = path.read_text(encoding="utf-8").split("\n\n", 2)  # title, kind, content
        marked_parts = [*text_parts[:2], f"> {notice}", *text_parts[2:]]
        path.write_text("\n\n".join(marked_parts), encoding="utf-8")
