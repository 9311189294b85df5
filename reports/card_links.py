"""Link the datasheet of a corpus and the model cards of the models trained on it.

Both name the profile of the corpus in their lineage. The links are no part of the cards: they
depend on which runs the store has.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from hallmark.reports.artifact_lookup import find_artifact_by_name
from hallmark.reports.page.redaction import escape_invisible
from hallmark.tasks.contract import Store

#: The cards that are linked with each other.
DATASHEET, MODEL_CARD = "datasheet", "model_card"
OTHER_CARD = {DATASHEET: MODEL_CARD, MODEL_CARD: DATASHEET}

#: Largest number of model cards that a datasheet links to.
MAX_MODEL_CARDS = 5

#: Around the links on a page of the site, so that they can be replaced.
LINKS_START, LINKS_END = '<span class="related">', "</span>"

#: The first line of a card on the site: all before these links, and the end of the line.
_NAVIGATION = re.compile(
    rf'(<p class="kind">.*?)(?:{LINKS_START}.*?{LINKS_END})?(</p>)', flags=re.DOTALL
)


@dataclass(frozen=True)
class CardLink:
    """A link to a card of a run.

    Attributes:
        text: The text of the link.
        run_id: The run.
        card: The name of the card's stage.
    """

    text: str
    run_id: str
    card: str

    @property
    def path(self) -> str:
        """Return the path of the card from the folder of all runs."""
        return f"{quote(self.run_id)}/{self.card}/{self.card}.html"


def identify_corpus(store: Store, card_name: str) -> str | None:
    """Return what identifies the corpus of a datasheet or a model card; None if it is not known.

    This is the content of its profile: a stage that computes the same content again gives it
    another name.
    """
    card = find_artifact_by_name(store, card_name)
    lineage = card.manifest.get("lineage") if card is not None else None
    if not isinstance(lineage, Mapping):
        return None
    corpus_artifacts = lineage.get("corpus_artifacts")
    name = lineage.get("profile")
    if name is None and isinstance(corpus_artifacts, Mapping):
        name = corpus_artifacts.get("profile")
    if not isinstance(name, str):
        return None
    profile = find_artifact_by_name(store, name)
    return name if profile is None else profile.content_digest


def find_related_cards(
    run_id: str,
    card: str,
    card_names_by_run: Mapping[str, Mapping[str, str]],
    identify: Callable[[str], str | None],
) -> list[CardLink]:
    """Find the datasheet of a model card's corpus, or the model cards of a datasheet's corpus.

    A card of the same run comes first, then those of other runs in the given order.

    Args:
        run_id: The run of the card.
        card: The name of the card's stage.
        card_names_by_run: The names of the cards that can be linked to, by run and stage.
        identify: Returns what identifies the corpus of a card, by the name of the card.
    """
    artifact_name = card_names_by_run.get(run_id, {}).get(card)
    corpus = identify(artifact_name) if artifact_name and card in OTHER_CARD else None
    if corpus is None:
        return []
    run_by_card: dict[str, str] = {}
    for other_id in [run_id, *(other_id for other_id in card_names_by_run if other_id != run_id)]:
        name = card_names_by_run[other_id].get(OTHER_CARD[card])
        if name and name not in run_by_card and identify(name) == corpus:
            run_by_card[name] = other_id
    runs = [*run_by_card.values()]
    if card == MODEL_CARD:
        return [CardLink("Datasheet for the training corpus", run, DATASHEET) for run in runs[:1]]
    if len(runs) == 1:
        return [CardLink("Model card for the trained model", runs[0], MODEL_CARD)]
    return [
        CardLink(f"Model card for run {run}", run, MODEL_CARD) for run in runs[:MAX_MODEL_CARDS]
    ]


def insert_related_links(page: Path, links: Sequence[CardLink]) -> None:
    """Show the links on the page of a card of the site, instead of those that it has.

    The file is replaced, because other sites may have a hard link to it.
    """
    text = page.read_text(encoding="utf-8")
    anchors = "".join(
        f' · <a href="../../{link.path}">{html.escape(escape_invisible(link.text))}</a>'
        for link in links
    )
    related = f"{LINKS_START}{anchors}{LINKS_END}" if links else ""
    new_text = _NAVIGATION.sub(lambda match: f"{match[1]}{related}{match[2]}", text, count=1)
    if new_text != text:
        page.unlink()
        page.write_text(new_text, encoding="utf-8")
