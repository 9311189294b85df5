"""Link the datasheet of a corpus and the model cards of the models trained on it.

A model card names the datasheet of its corpus in its lineage. The links are no part of the cards:
they depend on which runs the store has.
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


def read_datasheet_name(store: Store, model_card_name: str) -> str | None:
    """Return the name of the datasheet that a model card names; None without one."""
    card = find_artifact_by_name(store, model_card_name)
    lineage = card.manifest.get("lineage") if card is not None else None
    corpus_artifacts = lineage.get("corpus_artifacts") if isinstance(lineage, Mapping) else None
    name = corpus_artifacts.get(DATASHEET) if isinstance(corpus_artifacts, Mapping) else None
    return name if isinstance(name, str) else None


def find_related_cards(
    run_id: str,
    card: str,
    card_names_by_run: Mapping[str, Mapping[str, str]],
    find_datasheet_name: Callable[[str], str | None],
) -> list[CardLink]:
    """Find the datasheet of a model card's corpus, or the model cards of a datasheet's corpus.

    A card of the same run comes first, then those of other runs in the given order.

    Args:
        run_id: The run of the card.
        card: The name of the card's stage.
        card_names_by_run: The names of the cards that can be linked to, by run and stage.
        find_datasheet_name: Returns the name of the datasheet that a model card names.
    """
    artifact_name = card_names_by_run.get(run_id, {}).get(card)
    if artifact_name is None:
        return []
    run_ids = [run_id, *(other_id for other_id in card_names_by_run if other_id != run_id)]
    if card == MODEL_CARD:
        datasheet_name = find_datasheet_name(artifact_name)
        return [
            CardLink("Datasheet of the training corpus", other_id, DATASHEET)
            for other_id in run_ids
            if datasheet_name and card_names_by_run[other_id].get(DATASHEET) == datasheet_name
        ][:1]
    if card != DATASHEET:
        return []
    run_by_model_card: dict[str, str] = {}
    for other_id in run_ids:
        model_card_name = card_names_by_run[other_id].get(MODEL_CARD)
        if (
            model_card_name
            and model_card_name not in run_by_model_card
            and find_datasheet_name(model_card_name) == artifact_name
        ):
            run_by_model_card[model_card_name] = other_id
    linked_runs = [*run_by_model_card.values()][:MAX_MODEL_CARDS]
    if len(linked_runs) == 1:
        text = "Model card of the trained model"
        return [CardLink(text, linked_runs[0], MODEL_CARD)]
    return [CardLink(f"Model card of run {run}", run, MODEL_CARD) for run in linked_runs]


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
