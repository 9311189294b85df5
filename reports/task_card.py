"""The card of a fine-tuned model: what it learnt from which rows, and how well it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from reports.page.document import (
    Block,
    Bullets,
    Callout,
    Code,
    Document,
    Facts,
    Grid,
    Inline,
    Lines,
    Paragraph,
    Parts,
    Section,
    stated,
)
from reports.page.evidence import publish
from reports.page.figures import FIGURES, Book, Figure, slug
from reports.page.masking import Masker
from reports.page.rendering import LIBRARIES, TEMPLATES
from reports.sections.checkpoint import parameters, settings
from reports.sections.task_scores import COUNTS, FINETUNE, PREDICTIONS, Scores
from reports.sections.task_use import ours, theirs
from reports.sections.training import checkpoints, loss_curve, steps_taken
from tasks.contract import Artifact, StageConfig, Work, expanded, stage

TASKS = {
    "pairs": "answers sources with targets",
    "classification": "gives texts a label",
    "labelling": "gives words a label",
}

COUNTED = {"pairs": "pairs", "classification": "texts", "labelling": "words"}

LEARNT = {
    "all": "All weights.",
    "head": "The output layer alone, over the frozen features of the base.",
}

SPLITS = ("train", "validation", "test")

#: Of the model and of its training, what is said first.
SHAPE = ("architecture", "d_model", "n_layers", "n_heads", "context", "vocab_size")
USUAL = ("batch_size", "optimizer", "learning_rate", "schedule", "warmup", "weight_decay", "seed")


class TaskCardConfig(StageConfig):
    """What only a person knows about a fine-tuned model. Left out, the card says "not stated"."""

    title: str | None = Field(None, description="the name of the model; else the card names its "
                              "task")  # fmt: skip
    intended_use: str | None = Field(None, description="what it is for, and for whom")
    out_of_scope: str | None = Field(None, description="what it must not be used for")
    rows_from: str | None = Field(
        None, description="where the rows come from, and who labelled them"
    )
    contact: str | None = Field(None, description="where questions and complaints go")
    rows_shown: int = Field(200, ge=1, le=5000, description="rows on a page of evidence")
    lines_shown: int = Field(40, ge=1, le=1000, description="lines of a table on the card")


@dataclass
class Card:
    """Makes the figures of a task card, section by section."""

    book: Book
    checkpoint: Artifact
    base: Artifact | None
    scores: Scores
    masker: Masker
    config: TaskCardConfig

    @property
    def tuned(self) -> Artifact:
        return self.book.artifacts[FINETUNE]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The section finetune of the config."""
        found: Mapping[str, Any] = self.tuned.manifest["parts"]["config"]
        return found

    @property
    def kind(self) -> str:
        return str(self.settings["task"]["kind"])

    def head(self) -> list[Block]:
        own = self.settings["data"].get("test_path") is not None
        apart = "stand in a file of their own" if own else "were set aside from the same file"
        tested = self.count("test", "used")
        of: Parts = ["."] if tested is None else [": ", tested, f", which {apart}."]
        said = " What the model does with other texts, and whether it harms, was not measured."
        return [
            *self.scores.verdict(), Paragraph(["The test rows are the user's own", *of, said]),
            *self.warnings(), self.scores.in_short(),
        ]  # fmt: skip

    def count(self, split: str, what: str) -> Figure | None:
        """A row of the table counts, where it has one."""
        rows = self.tuned["counts"].read(["split", "what"]).to_pylist()
        if {"split": split, "what": what} not in rows:
            return None
        known = self.book.figures.get(name := slug(f"rows {split} {what}"))
        label = f"rows, {split}: {what}" if split else f"rows {what}"
        return known or self.book.figure(
            name, label, "rows", COUNTS, {"split": split, "what": what}, column="rows"
        )

    def warnings(self) -> list[Block]:
        """What the tables say against the scores."""
        told = {
            "text also in train": " of the test hold a text that stands among the training rows, "
            "too: what they are given may be remembered.",
            "a label never seen in train": " of the test have a label that no training row has: "
            "the model cannot give it.",
            "cut to the context": " of the test did not fit into the context and were cut.",
        }
        found = self.scores.untested()
        for what, words in told.items():
            figure = self.count("test", what)
            if figure is not None and figure.value:
                found.append(Callout("bad", [figure, words]))
        return found

    def learnt(self) -> Section:
        section = Section("What was learnt")
        pairs: list[tuple[str, Parts]] = [
            ("Task", [f"{self.kind}: it {TASKS[self.kind]}."]),
            ("What learnt", [LEARNT[self.settings["weights"]]]),
            ("Base", self.base_of()),
            ("Base, content digest", [Code(self.tuned.manifest["parts"]["inputs"]["checkpoint"])]),
            ("This checkpoint", [Code(self.checkpoint.name)]),
            ("Its content digest", [Code(self.checkpoint.content)]),
            ("Parameters", parameters(self.book, self.checkpoint)),
        ]
        known = {name.removeprefix("model."): value for name, value in settings(self.checkpoint)}
        pairs += [(name, [Code(known[name])]) for name in SHAPE if name in known]
        pairs.append(("Where the rows come from", stated(self.config.rows_from)))
        section.add(Facts(pairs), self.files(), *self.rows())
        return section

    def base_of(self) -> Parts:
        name = self.tuned.manifest["lineage"]["checkpoint"]
        if self.base is None:
            return [Code(name), ", of a folder outside of this store."]
        parts, lineage = (self.base.manifest[key] for key in ("parts", "lineage"))
        parent = FINETUNE if "checkpoint" in lineage else "pretrain"
        made = Code(f"{parent}/{parts['parent'][:16]}")
        return [
            Code(name),
            ", which the training ",
            made,
            f" left at step {parts['key']['step']:,}.",
        ]

    def files(self) -> Grid:
        """The user's files, as they were when they were read."""
        data, known = self.settings["data"], self.tuned.manifest["parts"]["external"]
        holds = {"path": "the rows", "validation_path": "of validation", "test_path": "of the test"}
        rows: list[list[Inline]] = []
        for key, what in holds.items():
            if path := data.get(key):
                name = expanded(path)
                rows.append([self.masker.whole(name.name), what, Code(known[str(name)])])
        drawn = [
            f"{data[split]:.3g} for {split}" for split in SPLITS[1:] if not data[f"{split}_path"]
        ]
        note = f"Shares of the first, by a hash: {' and '.join(drawn)}." if drawn else ""
        return Grid("Files", ["file", "rows", "SHA-256"], rows, note=note)

    def rows(self) -> list[Block]:
        """What became of the rows: by split, and those that could not be used by reason."""
        table = self.tuned["counts"].read().to_pylist()
        named = dict.fromkeys(row["what"] for row in table if row["split"])
        lines: list[list[Inline]] = [
            [what, *(self.count(split, what) or "–" for split in SPLITS)] for what in named
        ]
        columns = ["rows", *SPLITS]
        found: list[Block] = [Grid("What became of the rows", columns, lines, frozenset({1, 2, 3}))]
        most_first = sorted(table, key=lambda row: -row["rows"])
        bad = [row["what"] for row in most_first if not row["split"]]
        if not bad and not self.tuned["quarantine"].rows:
            return [*found, Paragraph(["Every row could be used; the quarantine is empty."])]
        every = self.book.figure(
            "quarantine", "rows in quarantine", "rows", (FINETUNE, "quarantine"), aggregate="count"
        )
        reasons: list[list[Inline]] = []
        for what in bad[: self.config.lines_shown]:
            figure = self.count("", what)
            assert figure is not None
            reason = what.removeprefix("quarantined: ")
            reasons.append([self.masker.shown(reason, "project text"), figure])
        note = "With the file and the number of each row: the table quarantine."
        if len(bad) > len(reasons):
            note = f"The {len(reasons)} of {len(bad):,} reasons with the most rows. {note}"
        return [
            *found, Paragraph(["Not used: ", every, "."]),
            Grid("Quarantine", ["why it could not be used", "rows"], reasons, frozenset({1}), note),
        ]  # fmt: skip

    def training(self) -> Section:
        section = Section("Training")
        train = self.settings["train"]
        pairs = steps_taken(self.book, FINETUNE)
        pairs += [(name, [Code(json.dumps(train[name]))]) for name in USUAL if name in train]
        facts, changed = self.ran()
        marks = {self.checkpoint.content: "this one"}
        first = "the base with what the task adds to it"
        section.add(
            Facts([*pairs, *facts]), *loss_curve(self.tuned),
            *checkpoints(self.book, FINETUNE, marks, first, self.config.lines_shown),
            *changed, Paragraph(["All settings stand at the bottom of the run's page."]),
        )  # fmt: skip
        return section

    def ran(self) -> tuple[list[tuple[str, Parts]], list[Block]]:
        """On what it ran; and where the training went on under other settings, which ones."""
        by_setting: dict[str, dict[str, str]] = {}
        for row in self.tuned["settings"].read().to_pylist():
            steps = f"{row['first_step']:,} to {row['last_step']:,}"
            by_setting.setdefault(row["setting"], {})[steps] = row["value"]
        device, precision = (
            " and ".join(dict.fromkeys(str(json.loads(v)) for v in by_setting[name].values()))
            for name in ("device", "precision")
        )
        facts: list[tuple[str, Parts]] = [("Ran on", [f"{device}, in {precision}"])]
        changed: list[list[Inline]] = [
            [steps, name, Code(value)]
            for name, values in by_setting.items()
            if len(set(values.values())) > 1
            for steps, value in values.items()
        ]
        if not changed:
            return facts, []
        note = "The training went on from a state that was made under other settings."
        columns = ["steps", "setting", "value"]
        return facts, [Grid("Settings that changed", columns, changed, note=note)]

    def predictions(self) -> Section:
        section = Section("Predictions")
        made = self.tuned["predictions"]
        if not made.rows:
            section.add(Paragraph(["Nothing was predicted."]))
            return section
        right, wrong = (
            self.book.figure(
                f"predictions-{name}", f"{name} answers", "answers", PREDICTIONS,
                {"right": is_right}, aggregate="count",
            )
            for name, is_right in (("right", True), ("wrong", False))
        )  # fmt: skip
        surely, unsurely = (
            self.book.figure(
                f"log-prob-{name}", f"mean log-probability of {name} answers", "nats", PREDICTIONS,
                {"right": is_right}, aggregate="mean", column="log_prob", missing="none",
            )
            for name, is_right in (("right", True), ("wrong", False))
        )  # fmt: skip
        same = "the very target" if self.kind == "pairs" else "the label"
        section.add(
            Paragraph([right, " were right and ", wrong, f" wrong; right is {same} that "
                       "stands in the table."]),
            Paragraph(["The model's own log-probability, in the mean: of right answers ", surely,
                       ", of wrong ones ", unsurely, "."]),
            Paragraph(["The numbers lead to the rows. What stands in the user's table, and what "
                       "the model gave, was judged by no scorer, so that no page shows it; file "
                       "and row lead to it. With ", Code("hallmark report RUN --reveal"),
                       " the same pages show it in clear, for your own eyes."]),
        )  # fmt: skip
        return section

    def use(self) -> Section:
        section = Section("How to use it")
        section.add(
            Facts([("Intended use", stated(self.config.intended_use)),
                   ("Out of scope", stated(self.config.out_of_scope)),
                   ("Contact", stated(self.config.contact))]),
            Paragraph(["In Python, with the store that HALLMARK_STORE names, else ./runs:"]),
            Lines(ours(self.settings["task"], self.checkpoint.name)),
        )  # fmt: skip
        lines = theirs(self.settings["task"], self.tuned)
        if lines:
            section.add(Paragraph(["With transformers, from the export:"]), Lines(lines))
        else:
            said = "There is no export to transformers."
            section.add(Paragraph([said]))
        return section

    def caveats(self) -> Section:
        items: list[Parts] = [
            ["The simple method is a floor: to be ahead of it says that something was learnt that "
             "it cannot see, not that the task is done well enough."],
            ["Intervals tell what chance would do to rows like these. Other texts may be harder."],
            ["No audit was made: toxicity, bias and repeated training text were not looked for. "
             "Audits need a language model; see the model card of the base."],
        ]  # fmt: skip
        if self.kind == "pairs":
            items.append(["Each target is one of many that may be right: chrF and BLEU compare "
                          "letters and words with it alone."])  # fmt: skip
        return Section("Caveats", [Bullets(items)])

    def document(self) -> Document:
        title = self.config.title or f"A model that {TASKS[self.kind]}"
        return Document(
            title, "Task card", self.head(),
            [
                self.learnt(), self.scores.section(), self.training(), self.predictions(),
                self.use(), self.caveats(),
            ],
        )  # fmt: skip


@stage(tables={"figures": FIGURES}, code=TEMPLATES, libraries=LIBRARIES)
def task_card(
    tuned: Artifact,
    checkpoint: Artifact,
    base: Artifact | None,
    config: TaskCardConfig,
    work: Work,
) -> None:
    """``tuned``: what finetune left; ``checkpoint``: the last of its checkpoints; ``base``: that
    from which it began, None for a folder outside of a store."""
    write(tuned, checkpoint, base, config, work, Masker())


def write(
    tuned: Artifact,
    checkpoint: Artifact,
    base: Artifact | None,
    config: TaskCardConfig,
    work: Work,
    masker: Masker,
) -> None:
    """The stage's work, with any masker."""
    book = Book({FINETUNE: tuned, "checkpoint": checkpoint})
    counted = COUNTED[tuned.manifest["parts"]["config"]["task"]["kind"]]
    scores = Scores(book, masker, config.lines_shown, counted)
    document = Card(book, checkpoint, base, scores, masker, config).document()
    publish(document, book, work, "task_card", {}, masker, config.rows_shown)
