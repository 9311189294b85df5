"""The datasheet of a corpus, after Gebru et al., "Datasheets for Datasets" (2021).

What tables can answer is answered from tables; what only a person knows comes from the config
and is "not stated" where it is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from reports.page.document import (
    Bullets,
    Code,
    Document,
    Facts,
    Grid,
    Inline,
    Paragraph,
    Parts,
    Section,
    stated,
)
from reports.page.evidence import publish
from reports.page.figures import FIGURES, Book
from reports.page.masking import OFFENSIVE, Masker
from reports.page.rendering import LIBRARIES, TEMPLATES
from reports.sections.composition import composition, grew, has_plants, licences, plants_callout
from reports.sections.corpus_figures import PROFILE, READ, CorpusFigures, masker_of
from reports.sections.effects import effects, silenced
from reports.sections.personal import in_use
from reports.sections.preprocessing import describe_toxicity_actions, preprocessing
from reports.sections.recovery import recovery
from tasks.contract import Artifact, StageConfig, Work, stage


class DatasheetConfig(StageConfig):
    """What only a person knows about the corpus. Left out, the datasheet says "not stated"."""

    title: str = Field("Untitled corpus", description="the name of the corpus")
    motivation: str | None = Field(None, description="for what purpose it was made")
    creators: str | None = Field(None, description="who made it, on whose behalf")
    funding: str | None = Field(None, description="who paid for it")
    collection: str | None = Field(None, description="how and when the texts were collected")
    consent: str | None = Field(None, description="whether the authors know and agree")
    licence: str | None = Field(None, description="the licences of the texts and of the corpus")
    intended_uses: str | None = Field(None, description="what it should be used for")
    uses_to_avoid: str | None = Field(None, description="what it should not be used for")
    distribution: str | None = Field(None, description="to whom it is given, and how")
    maintenance: str | None = Field(None, description="who keeps it up, how errors are corrected")
    contact: str | None = Field(None, description="where questions and complaints go")
    rows_shown: int = Field(200, ge=1, le=5000, description="rows on a page of evidence")
    lines_shown: int = Field(
        30,
        ge=1,
        le=1000,
        description="lines of a table on the datasheet; groups of people always have theirs",
    )
    mask_from: float = Field(
        OFFENSIVE, ge=0, le=1, description="texts with this toxicity or more are not shown"
    )


@dataclass
class Sheet:
    """Makes the figures of a datasheet, section by section."""

    corpus: CorpusFigures
    masker: Masker
    config: DatasheetConfig

    def head(self) -> list[Any]:
        documents = self.corpus.sum("sources", "documents", "documents", "documents in the corpus")
        size = self.corpus.sum("sources", "bytes", "bytes of text", "size of the corpus")
        splits = self.corpus.values("sources", "split")
        return [
            Paragraph(["The corpus holds ", documents, " in ", size, "."]),
            *grew(self.corpus),
            *silenced(self.corpus),
            plants_callout(self.corpus),
            Facts(
                [
                    ("Documents by split", self.splits(splits)),
                    *(
                        ("Toxicity rule", described)
                        for described in describe_toxicity_actions(self.corpus)
                    ),
                    ("Licences", licences(self.corpus, self.config.licence)),
                    ("Contact", stated(self.config.contact)),
                    (
                        "Made from",
                        ["profile with content ", Code(self.corpus.profile.content)],
                    ),
                ]
            ),
        ]

    def splits(self, splits: Sequence[str]) -> Parts:
        parts: list[Inline] = []
        for split in splits:
            figure = self.corpus.sum(
                "sources", "documents", "documents", f"documents, {split}", split=split
            )
            parts += [", " if parts else "", f"{split} ", figure]
        return parts or ["none"]

    def motivation(self) -> Section:
        pairs = [
            ("For what purpose was it made?", stated(self.config.motivation)),
            ("Who made it?", stated(self.config.creators)),
            ("Who paid for it?", stated(self.config.funding)),
        ]
        return Section("Motivation", [Facts(pairs)])

    def collection(self) -> Section:
        section = Section(
            "Collection process",
            [
                Facts(
                    [
                        ("How and when was it collected?", stated(self.config.collection)),
                        ("Do the authors know and agree?", stated(self.config.consent)),
                    ]
                )
            ],
        )
        errors, note = self.corpus.few("errors", "error", "records")
        rows: list[list[Inline]] = [
            [
                self.masker.shown(error, "project text"),
                self.corpus.sum(
                    "errors", "records", "records", "records in quarantine", error=error
                ),
                self.corpus.sum("errors", "bytes", "bytes", "bytes in quarantine", error=error),
            ]
            for error in errors
        ]
        if rows:
            columns = ["why it could not be read", "records", "raw bytes"]
            section.add(Grid("Quarantine", columns, rows, frozenset({1, 2}), note))
        moved = self.corpus.profile["reasons"].read(["stage", "action", "rows"]).to_pylist()
        later = [
            row for row in moved if row["action"] == "quarantined" and row["stage"] != "ingest"
        ]
        if not rows:
            end = "." if later else "; the quarantine is empty."
            section.add(Paragraph([f"Every record could be read{end}"]))
        if later:
            stages = ", ".join(dict.fromkeys(row["stage"] for row in later))
            count = sum(row["rows"] for row in later)
            said = f"Later stages put documents into quarantine: {count:,} rows of {stages}."
            section.add(Paragraph([said]))
        return section

    def uses(self) -> Section:
        pairs = [
            ("What should it be used for?", stated(self.config.intended_uses)),
            ("What should it not be used for?", stated(self.config.uses_to_avoid)),
        ]
        planted = (
            "The planted documents make the corpus unfit for other uses until they are removed."
        )
        fixed = [[planted]] if has_plants(self.corpus) else []
        fixed.append([in_use(self.corpus)])
        return Section("Uses", [Facts(pairs), Bullets(fixed)])

    def distribution(self) -> Section:
        pairs = [
            ("To whom is it given, and how?", stated(self.config.distribution)),
            ("Under which licences?", licences(self.corpus, self.config.licence)),
        ]
        unread = (
            "Licences are not read from the documents: unless stated above, those of the single "
            "texts are unknown."
        )
        return Section("Distribution", [Facts(pairs), Paragraph([unread])])

    def maintenance(self) -> Section:
        pairs = [
            ("Who keeps it up?", stated(self.config.maintenance)),
            ("Contact", stated(self.config.contact)),
        ]
        return Section("Maintenance", [Facts(pairs)])

    def document(self) -> Document:
        return Document(
            self.config.title,
            "Datasheet",
            self.head(),
            [
                effects(self.corpus),
                self.motivation(),
                composition(self.corpus, self.config.licence),
                self.collection(),
                preprocessing(self.corpus),
                *recovery(self.corpus),
                self.uses(),
                self.distribution(),
                self.maintenance(),
            ],
        )


@stage(
    tables={"figures": FIGURES},
    code=TEMPLATES,
    libraries=LIBRARIES,
    reads={"history": READ},
)
def datasheet(
    profile: Artifact, history: dict[str, Artifact], config: DatasheetConfig, work: Work
) -> None:
    """``history``: the artifacts of the corpus stages by label, in the order they ran."""
    write(profile, history, config, work, masker_of(history, config.mask_from))


def write(
    profile: Artifact,
    history: dict[str, Artifact],
    config: DatasheetConfig,
    work: Work,
    masker: Masker,
) -> None:
    """The stage's work, with any masker."""
    book = Book({**history, PROFILE: profile})
    document = Sheet(CorpusFigures(book, history, config.lines_shown), masker, config).document()
    publish(document, book, work, "datasheet", history, masker, config.rows_shown)
