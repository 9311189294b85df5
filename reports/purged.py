"""What pages say of documents that were purged from what they were made of.

A card is an artifact: its figures stay as they were computed, and a purge takes out of it only what
it quotes. So the notice is laid over its pages where they are put into a site.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from reports.page.rendering import environment
from tasks.contract import Artifact, HallmarkError, Store, read_denied

#: What a study leaves: its worlds are the corpora of other models.
WORLDS = "error_rates/"

#: What an artifact tells of purges: the documents that were purged from it, and what it is made of.
Told = tuple[frozenset[str], tuple[str, ...]]


def purged_from(
    store: Store, card: Artifact, known: dict[str, Told] | None = None
) -> frozenset[str]:
    """The ids of the documents that were purged from what a card was made of, and from what that
    was made of, back to the corpus. ``known``: what was read for other cards, by name."""
    known, ever = {} if known is None else known, _ever(store)
    found, seen = set[str](), set[str]()
    waiting = [*named_in(card.manifest.get("lineage"))]
    while waiting:
        name = waiting.pop().partition("#")[0]
        if name in seen or (name.startswith(WORLDS) and card.stage != "study_card"):
            continue
        seen.add(name)
        if name not in known:
            # Where nothing was ever purged nobody is asked, of thousands behind a study's card.
            artifact = find(store, name) if ever else None
            known[name] = (frozenset(), ()) if artifact is None else told_of(artifact)
        found |= known[name][0]
        waiting += known[name][1]
    return frozenset(found)


def _ever(store: Store) -> bool:
    """Whether anything was ever purged; a list that cannot be read may name some."""
    try:
        return bool(read_denied(store)["documents"])
    except HallmarkError:
        return True


def told_of(artifact: Artifact) -> Told:
    return frozenset(artifact.purged), tuple(named_in(artifact.manifest.get("lineage")))


def find(store: Store, name: str) -> Artifact | None:
    """An artifact by a name that a file gives, which is not trusted; None where there is none, or
    none that can be read."""
    stage, _, digest = name.partition("/")
    if not stage.isidentifier() or not re.fullmatch("[0-9a-f]+", digest):
        return None
    try:
        return store.find(stage, digest)
    except HallmarkError:
        return None


def named_in(lineage: Any) -> Iterator[str]:
    """The names in a lineage, or in a part of one."""
    if isinstance(lineage, str):
        yield lineage
    elif isinstance(lineage, dict | list):
        for value in lineage.values() if isinstance(lineage, dict) else lineage:
            yield from named_in(value)


def notice(documents: Iterable[str]) -> str:
    """What pages say of purged documents; nothing where there are none."""
    n = len(set(documents))
    if not n:
        return ""
    who, was, its, it = "1 document", "was", "its text is", "it"
    if n > 1:
        who, was, its, it = f"{n:,} documents", "were", "their texts are", "them"
    return (
        f"{who} of the corpus {was} purged: {its} no longer in the store, but figures computed "
        f"before the purge still count {it}, and a model trained on {it} keeps what it learnt."
    )


def mark(folder: Path, sentence: str) -> None:
    """Let the pages of a card, and those of its evidence, begin with a notice."""
    made = environment().from_string('<p class="callout note">{{ sentence }}</p>')
    html = made.render(sentence=sentence)
    for path in sorted(folder.rglob("*.html")):
        page = path.read_text(encoding="utf-8")
        start = re.search("<main[^>]*>", page)  # none in a page that quoted too much, and is gone
        at = start.end() if start else len(page)
        path.write_text(f"{page[:at]}\n{html}{page[at:]}", encoding="utf-8")
    for path in sorted(folder.rglob("*.md")):
        parts = path.read_text(encoding="utf-8").split("\n\n", 2)  # title, kind, what it says
        marked = [*parts[:2], f"> {sentence}", *parts[2:]]
        path.write_text("\n\n".join(marked), encoding="utf-8")
