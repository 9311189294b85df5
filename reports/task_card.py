"""Build the card of a fine-tuned model: its task, its rows, its training and its test scores.

The model card covers audits; this card compares scores on the user's test rows with baselines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from hallmark.reports.page.card_tables import (
    CARD_TABLE_SCHEMAS,
    CardContent,
    write_card_tables,
)
from hallmark.reports.page.document import (
    Block,
    BulletList,
    Callout,
    Code,
    CodeBlock,
    DataTable,
    DefinitionEntry,
    DefinitionList,
    Document,
    InlineContent,
    InlineElement,
    Paragraph,
    Section,
    ShortFigure,
    format_user_statement,
)
from hallmark.reports.page.figures import Figure, FigureBook, slugify
from hallmark.reports.page.redaction import REDACTION_LIBRARIES, Redactor
from hallmark.reports.sections.checkpoint import describe_parameter_counts, read_config_settings
from hallmark.reports.sections.task_scores import (
    COUNTS_TABLE,
    FINETUNE,
    PREDICTIONS_TABLE,
    TaskScores,
)
from hallmark.reports.sections.training import (
    build_checkpoint_table,
    build_loss_chart,
    summarize_training_log,
)
from hallmark.reports.sections.usage_examples import (
    build_checkpoint_usage_code,
    build_transformers_usage_code,
)
from hallmark.tasks.audits.registry import compute_descriptions_digest
from hallmark.tasks.contract import Artifact, StageConfig, StageContext, expand_home, stage

TASK_DESCRIPTIONS = {
    "pairs": "maps source texts to target texts",
    "classification": "labels texts",
    "labelling": "labels words",
}

COUNTED_UNITS = {"pairs": "pairs", "classification": "texts", "labelling": "words"}

TRAINED_WEIGHTS = {
    "all": "All weights.",
    "head": "Only the output layer is trained; the base is frozen.",
}

SPLIT_NAMES = ("train", "validation", "test")

#: Outcomes of the ``outcome_counts`` table in the words of the card.
OUTCOME_LABELS = {
    "text also in train": "text also in the training rows",
    "a label never seen in train": "label not found in any training row",
    "cut to the context": "truncated to the context",
}

#: The settings of the model and of its training that the card lists.
ARCHITECTURE_SETTINGS = ("architecture", "d_model", "n_layers", "n_heads", "context", "vocab_size")
TRAINING_SETTINGS = (
    "batch_size",
    "optimizer",
    "learning_rate",
    "schedule",
    "warmup_steps",
    "weight_decay",
    "seed",
)


class TaskCardConfig(StageConfig):
    """Facts about a fine-tuned model that only a person knows; missing ones are "not stated"."""

    title: str | None = Field(
        None,
        description=("model name, used as the card title; defaults to a description of the task"),
    )
    intended_use: str | None = Field(None, description="intended uses and users of the model")
    out_of_scope: str | None = Field(None, description="uses for which the model is not intended")
    data_provenance: str | None = Field(
        None, description="origin of the rows and who labelled them"
    )
    contact: str | None = Field(None, description="contact for questions and complaints")
    max_table_rows: int = Field(
        40, ge=1, le=1000, description="maximum number of rows in each card table"
    )


@dataclass
class TaskCardBuilder:
    """Builds the sections of a task card and adds their figures to the book.

    Attributes:
        book: The figures of the card.
        checkpoint: The checkpoint that the card is about.
        base_checkpoint: The checkpoint that was fine-tuned; None if it is not in the store.
        scores: The scores on the test rows.
        redactor: Redacts user text.
        config: The settings.
    """

    book: FigureBook
    checkpoint: Artifact
    base_checkpoint: Artifact | None
    scores: TaskScores
    redactor: Redactor
    config: TaskCardConfig

    @property
    def finetuning_run(self) -> Artifact:
        return self.book.artifacts[FINETUNE]

    @property
    def finetuning_settings(self) -> Mapping[str, Any]:
        """Return the section ``finetune`` of the config."""
        config: Mapping[str, Any] = self.finetuning_run.manifest["parts"]["config"]
        return config

    @property
    def task_kind(self) -> str:
        return str(self.finetuning_settings["task"]["kind"])

    def build_lead(self) -> list[Block]:
        """Build the first screen: comparison with baselines, test rows, warnings and scores."""
        has_test_file = self.finetuning_settings["data"].get("test_path") is not None
        test_origin = (
            "are in a separate file"
            if has_test_file
            else "were split off from the file containing the training rows"
        )
        test_row_count = self.get_row_count_figure("test", "used")
        count_content: InlineContent = (
            ["."] if test_row_count is None else [": ", test_row_count, f", which {test_origin}."]
        )
        scope_note = " Results on other text, and harm that the model can cause, were not measured."
        return [
            *self.scores.build_comparison_callouts(),
            Paragraph(["The test rows come from the user", *count_content, scope_note]),
            *self.build_warnings(),
            self.scores.build_summary_table(),
        ]

    def get_row_count_figure(self, split: str, category: str) -> Figure | None:
        """Return the figure of a row of the ``outcome_counts`` table, if there is such a row."""
        count_keys = self.finetuning_run["outcome_counts"].read(["split", "outcome"]).to_pylist()
        if {"split": split, "outcome": category} not in count_keys:
            return None
        existing = self.book.figures.get(figure_id := slugify(f"rows {split} {category}"))
        outcome_label = OUTCOME_LABELS.get(category, category)
        label = f"rows, {split}: {outcome_label}" if split else f"rows {category}"
        return existing or self.book.add_computed_figure(
            figure_id,
            label,
            "rows",
            COUNTS_TABLE,
            {"split": split, "outcome": category},
            value_column="row_count",
        )

    def build_warnings(self) -> list[Block]:
        """Build warnings about facts that weaken the scores, such as test texts in training."""
        warning_texts = {
            "text also in train": (
                ("contains", "contain"),
                "a text that is also in the training rows, so the model may remember it.",
            ),
            "a label never seen in train": (
                ("has", "have"),
                "a label that appears in no training row, so the model cannot predict it.",
            ),
            "cut to the context": (
                ("was", "were"),
                "truncated because the text did not fit into the context.",
            ),
        }
        callouts = self.scores.build_untested_labels_callout()
        for category, (verbs, warning_text) in warning_texts.items():
            figure = self.get_row_count_figure("test", category)
            if figure is not None and figure.value:
                noun, verb = ("row", verbs[0]) if figure.value == 1 else ("rows", verbs[1])
                content: InlineContent = [
                    ShortFigure(figure),
                    f" test {noun} {verb} {warning_text}",
                ]
                callouts.append(Callout("bad", content))
        return callouts

    def build_task_section(self) -> Section:
        """Build the section on the task, the base checkpoint and the rows."""
        section = Section("Task and base checkpoint")
        entries: list[DefinitionEntry] = [
            ("Task", [f"{self.task_kind}: it {TASK_DESCRIPTIONS[self.task_kind]}."]),
            ("Trained weights", [TRAINED_WEIGHTS[self.finetuning_settings["trained_weights"]]]),
            ("Base", self.describe_base_checkpoint()),
            (
                "Base, content digest",
                [Code(self.finetuning_run.get_input_digest("checkpoint") or "")],
            ),
            ("This checkpoint", [Code(self.checkpoint.name)]),
            ("Its content digest", [Code(self.checkpoint.content_digest)]),
            ("Parameters", describe_parameter_counts(self.book, self.checkpoint)),
        ]
        model_settings = {
            name.removeprefix("model."): value
            for name, value in read_config_settings(self.checkpoint)
        }
        entries += [
            (name, [Code(model_settings[name])])
            for name in ARCHITECTURE_SETTINGS
            if name in model_settings
        ]
        entries.append(("Origin of the rows", format_user_statement(self.config.data_provenance)))
        section.add_blocks(
            DefinitionList(entries), self.build_input_files_table(), *self.build_row_count_blocks()
        )
        return section

    def describe_base_checkpoint(self) -> InlineContent:
        """Return the name of the base checkpoint, with its training run and step if known."""
        checkpoint_name = self.finetuning_run.get_input_name("checkpoint")
        if self.base_checkpoint is None:
            return [Code(checkpoint_name), ", from a folder outside this store."]
        training_stage = FINETUNE if "checkpoint" in self.base_checkpoint.lineage else "pretrain"
        parent = self.base_checkpoint.manifest["parts"].get("parent", "")
        training_name = Code(f"{training_stage}/{parent[:16]}")
        return [
            Code(checkpoint_name),
            ", written by the training run ",
            training_name,
            f" at step {self.base_checkpoint.training_step:,}.",
        ]

    def build_input_files_table(self) -> DataTable:
        """Build the table of the user's files with their digests at the time of reading."""
        data, file_digests = (
            self.finetuning_settings["data"],
            self.finetuning_run.manifest["parts"]["external"],
        )
        row_descriptions = {
            "path": "all other rows",
            "validation_path": "validation",
            "test_path": "test",
        }
        rows: list[list[InlineElement]] = []
        for setting, description in row_descriptions.items():
            if path := data.get(setting):
                file_path = expand_home(path)
                rows.append(
                    [
                        self.redactor.redact_full_text(file_path.name),
                        description,
                        Code(file_digests[str(file_path)]),
                    ]
                )
        split_shares = [
            f"{data[f'{split}_share']:.3g} for {split}"
            for split in SPLIT_NAMES[1:]
            if not data[f"{split}_path"]
        ]
        note = (
            (
                "Shares of the first file's rows that a hash assigned to other splits: "
                f"{' and '.join(split_shares)}."
            )
            if split_shares
            else ""
        )
        return DataTable("Files", ["file", "rows", "SHA-256"], rows, note=note)

    def build_row_count_blocks(self) -> list[Block]:
        """Build tables of the rows by split and outcome, and of quarantined rows by reason."""
        count_rows = self.finetuning_run["outcome_counts"].read().to_pylist()
        categories = dict.fromkeys(row["outcome"] for row in count_rows if row["split"])
        table_rows: list[list[InlineElement]] = [
            [
                OUTCOME_LABELS.get(category, category),
                *(self.get_row_count_figure(split, category) or "–" for split in SPLIT_NAMES),
            ]
            for category in categories
        ]
        columns = ["rows", *SPLIT_NAMES]
        blocks: list[Block] = [DataTable("Row usage", columns, table_rows, frozenset({1, 2, 3}))]
        sorted_counts = sorted(count_rows, key=lambda row: -row["row_count"])
        quarantine_categories = [row["outcome"] for row in sorted_counts if not row["split"]]
        if not quarantine_categories and not self.finetuning_run["quarantine"].row_count:
            return [*blocks, Paragraph(["Every row could be used; the quarantine is empty."])]
        quarantine_count = self.book.add_computed_figure(
            "quarantine",
            "number of rows in quarantine",
            "rows",
            (FINETUNE, "quarantine"),
            aggregate="count",
        )
        reason_rows: list[list[InlineElement]] = []
        for category in quarantine_categories[: self.config.max_table_rows]:
            figure = self.get_row_count_figure("", category)
            assert figure is not None
            reason = category.removeprefix("quarantined: ")
            reason_rows.append([self.redactor.redact_by_kind(reason, "project text"), figure])
        note = "The quarantine table lists each row's file and number."
        if len(quarantine_categories) > len(reason_rows):
            note = (
                f"The table shows {len(reason_rows)} of {len(quarantine_categories):,} reasons: "
                f"those with the most rows. {note}"
            )
        return [
            *blocks,
            Paragraph(["Not used: ", quarantine_count, "."]),
            DataTable(
                "Quarantine",
                ["reason", "rows"],
                reason_rows,
                frozenset({1}),
                note,
            ),
        ]

    def build_training_section(self) -> Section:
        """Build the section on training: log, settings, loss and checkpoints."""
        section = Section("Training")
        train_settings = self.finetuning_settings["train"]
        entries = summarize_training_log(self.book, FINETUNE)
        entries += [
            (name, [Code(json.dumps(train_settings[name]))])
            for name in TRAINING_SETTINGS
            if name in train_settings
        ]
        remark_by_content_digest = {self.checkpoint.content_digest: "this one"}
        initial_model_description = "the base with the weights added for the task"
        section.add_blocks(
            DefinitionList([*entries, self.describe_device()]),
            *build_loss_chart(self.finetuning_run),
            *build_checkpoint_table(
                self.book,
                FINETUNE,
                remark_by_content_digest,
                initial_model_description,
                self.config.max_table_rows,
            ),
            *self.build_changed_settings_table(),
            Paragraph(["The run's page lists all settings."]),
        )
        return section

    def read_value_by_steps_by_setting(self) -> dict[str, dict[str, str]]:
        """Return, for each setting of the training, its value in JSON by range of steps."""
        value_by_steps_by_setting: dict[str, dict[str, str]] = {}
        for row in self.finetuning_run["settings"].read().to_pylist():
            steps = f"{row['first_step']:,} to {row['last_step']:,}"
            value_by_steps_by_setting.setdefault(row["setting"], {})[steps] = row["value"]
        return value_by_steps_by_setting

    def describe_device(self) -> DefinitionEntry:
        """Return the device and the precision of the training."""
        value_by_steps_by_setting = self.read_value_by_steps_by_setting()
        device, precision = (
            " and ".join(
                dict.fromkeys(
                    str(json.loads(json_value))
                    for json_value in value_by_steps_by_setting[name].values()
                )
            )
            for name in ("device", "precision")
        )
        return "Ran on", [f"{device}, in {precision}"]

    def build_changed_settings_table(self) -> list[Block]:
        """Build the table of settings that changed during training, if there are any."""
        changed_settings: list[list[InlineElement]] = [
            [steps, name, Code(value)]
            for name, values in self.read_value_by_steps_by_setting().items()
            if len(set(values.values())) > 1
            for steps, value in values.items()
        ]
        if not changed_settings:
            return []
        note = "Training continued from a state that was saved with different settings."
        columns = ["steps", "setting", "value"]
        return [DataTable("Settings that changed", columns, changed_settings, note=note)]

    def build_predictions_section(self) -> Section:
        """Build the section on right and wrong predictions; it shows numbers, not texts."""
        section = Section("Predictions")
        predictions_table = self.finetuning_run["predictions"]
        if not predictions_table.row_count:
            section.add_blocks(Paragraph(["There are no predictions."]))
            return section
        correct_count, wrong_count = (
            self.book.add_computed_figure(
                f"predictions-{outcome}",
                f"number of {outcome} answers",
                "answers",
                PREDICTIONS_TABLE,
                {"is_correct": is_correct},
                aggregate="count",
            )
            for outcome, is_correct in (("right", True), ("wrong", False))
        )
        correct_log_prob, wrong_log_prob = (
            self.book.add_computed_figure(
                f"log-prob-{outcome}",
                f"mean log-probability of {outcome} answers",
                "nats",
                PREDICTIONS_TABLE,
                {"is_correct": is_correct},
                aggregate="mean",
                value_column="log_prob",
                missing_text="none",
            )
            for outcome, is_correct in (("right", True), ("wrong", False))
        )
        correct_rule = "the target" if self.task_kind == "pairs" else "the label"
        section.add_blocks(
            Paragraph(
                [
                    "Right answers: ",
                    ShortFigure(correct_count),
                    "; wrong answers: ",
                    ShortFigure(wrong_count),
                    f". An answer is right if it equals {correct_rule} in the table.",
                ]
            ),
            Paragraph(
                [
                    "Mean log-probability of the answers under the model: right answers ",
                    correct_log_prob,
                    ", wrong answers ",
                    wrong_log_prob,
                    ".",
                ]
            ),
            Paragraph(
                [
                    "The numbers link to the rows. No page shows text from the user's table or "
                    "the model's answers, because neither has been checked by a scorer; rows are "
                    "identified by file and row number. With ",
                    Code("hallmark export-site RUN --unredacted"),
                    ", the same pages show both unredacted for local use.",
                ]
            ),
        )
        return section

    def build_usage_section(self) -> Section:
        """Build the section on intended use, with Python code that loads the model."""
        section = Section("How to use it")
        section.add_blocks(
            DefinitionList(
                [
                    ("Intended use", format_user_statement(self.config.intended_use)),
                    ("Out of scope", format_user_statement(self.config.out_of_scope)),
                    ("Contact", format_user_statement(self.config.contact)),
                ]
            ),
            Paragraph(
                ["In Python, with the store that HALLMARK_STORE specifies (./runs by default):"]
            ),
            CodeBlock(
                build_checkpoint_usage_code(self.finetuning_settings["task"], self.checkpoint.name)
            ),
        )
        transformers_code = build_transformers_usage_code(
            self.finetuning_settings["task"], self.finetuning_run
        )
        if transformers_code:
            section.add_blocks(
                Paragraph(["With transformers, from the export:"]), CodeBlock(transformers_code)
            )
        else:
            message = "The model was not exported in the transformers format."
            section.add_blocks(Paragraph([message]))
        return section

    def build_caveats_section(self) -> Section:
        items: list[InlineContent] = [
            [
                "The model should at least be better than the simple method. If it is better, it "
                "has learnt something that the method cannot use, but it may still not be good "
                "enough for the task."
            ],
            ["Intervals describe chance variation over rows like these. Other text may be harder."],
            [
                "No audit was run: toxicity, bias and repeated training text were not measured. "
                "Audits require a language model; see the base checkpoint's model card."
            ],
        ]
        if self.task_kind == "pairs":
            items.append(
                [
                    "A row may have several right answers, but chrF and BLEU compare letters and "
                    "words with only one target."
                ]
            )
        return Section("Caveats", [BulletList(items)])

    def build_document(self) -> Document:
        title = self.config.title or f"A model that {TASK_DESCRIPTIONS[self.task_kind]}"
        return Document(
            title,
            "Task card",
            self.build_lead(),
            [
                self.build_task_section(),
                self.scores.build_score_details_section(),
                self.build_training_section(),
                self.build_predictions_section(),
                self.build_usage_section(),
                self.build_caveats_section(),
            ],
        )


def label_task_card_inputs(inputs: Mapping[str, Any]) -> dict[str, Artifact]:
    """Return the inputs that have rows for figures, by the label that figures name."""
    return {FINETUNE: inputs["finetuning_run"], "checkpoint": inputs["checkpoint"]}


def compose_task_card(
    inputs: Mapping[str, Any], config: TaskCardConfig, redactor: Redactor
) -> CardContent:
    """Compose the card; ``inputs`` are those of the stage, by name."""
    book = FigureBook(label_task_card_inputs(inputs))
    task = inputs["finetuning_run"].manifest["parts"]["config"]["task"]
    scores = TaskScores(book, redactor, config.max_table_rows, COUNTED_UNITS[task["kind"]])
    document = TaskCardBuilder(
        book, inputs["checkpoint"], inputs["base_checkpoint"], scores, redactor, config
    ).build_document()
    return CardContent("task_card", document, book, {}, redactor)


@stage(
    name="task_card",
    tables=CARD_TABLE_SCHEMAS,
    libraries=REDACTION_LIBRARIES,
    external_digests=compute_descriptions_digest,
)
def build_task_card(
    finetuning_run: Artifact,
    checkpoint: Artifact,
    base_checkpoint: Artifact | None,
    config: TaskCardConfig,
    context: StageContext,
) -> None:
    """Build the card as a stage.

    Args:
        finetuning_run: The output of ``finetune``.
        checkpoint: The last checkpoint of ``finetune``.
        base_checkpoint: The checkpoint that was fine-tuned; None for a folder outside of the store.
        config: The settings.
        context: The context of the stage.
    """
    inputs = {
        "finetuning_run": finetuning_run,
        "checkpoint": checkpoint,
        "base_checkpoint": base_checkpoint,
    }
    write_card_tables(compose_task_card(inputs, config, Redactor()), context)
