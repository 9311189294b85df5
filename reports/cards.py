"""Read the cards of a store: their text, their figures, and the rows that support the figures.

A card artifact holds only tables. The rows that support a figure are in other artifacts, which the
lineage of the card names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from hallmark.reports import (
    datasheet,
    model_card,
    removal_experiment_card,
    study_card,
    task_card,
)
from hallmark.reports.artifact_lookup import find_artifact_by_name
from hallmark.reports.page.answers import read_answer_rows
from hallmark.reports.page.card_tables import CardContent, read_document, read_figures
from hallmark.reports.page.cases import list_case_inputs
from hallmark.reports.page.document import (
    DecisionSheet,
    DefinitionEntry,
    Document,
    list_figure_texts,
    redact_figure,
)
from hallmark.reports.page.evidence_pages import find_unreadable_rows
from hallmark.reports.page.figures import Evidence, FigureBook, StageAndTable
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.sections.checkpoint import read_file_rows
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Stage,
    Store,
    Table,
    select_input_contents,
)

#: The corpus tables that a redactor is built from.
_REDACTION_TABLES = frozenset({"canaries", "regions"})

#: The inputs of a card's stage by name: an artifact, several by label, or None.
CardInputs = Mapping[str, Any]


@dataclass(frozen=True)
class CardKind:
    """How cards of one kind are composed and read.

    Attributes:
        title: The name of the kind, as links show it.
        stage: The stage that writes them.
        label_inputs: Returns the artifacts that have rows for figures, by label.
        build_redactor: Returns the redactor, from the inputs and the settings.
        compose: Returns the content, from the inputs, the settings and a redactor.
    """

    title: str
    stage: Stage
    label_inputs: Callable[[CardInputs], dict[str, Artifact]]
    build_redactor: Callable[[CardInputs, Any], Redactor]
    compose: Callable[[CardInputs, Any, Redactor], CardContent]


def _build_plain_redactor(inputs: CardInputs, config: Any) -> Redactor:
    return Redactor()


#: The kinds of cards, by the name of their stage.
CARD_KINDS = {
    "datasheet": CardKind(
        "Datasheet",
        datasheet.build_datasheet,
        datasheet.label_datasheet_inputs,
        datasheet.build_datasheet_redactor,
        datasheet.compose_datasheet,
    ),
    "model_card": CardKind(
        "Model card",
        model_card.build_model_card,
        model_card.label_model_card_inputs,
        model_card.build_model_card_redactor,
        model_card.compose_model_card,
    ),
    "task_card": CardKind(
        "Task card",
        task_card.build_task_card,
        task_card.label_task_card_inputs,
        _build_plain_redactor,
        task_card.compose_task_card,
    ),
    "study_card": CardKind(
        "Study",
        study_card.build_study_card,
        study_card.label_study_inputs,
        _build_plain_redactor,
        study_card.compose_study_card,
    ),
    "removal_experiment_card": CardKind(
        "Removal experiment",
        removal_experiment_card.build_removal_experiment_card,
        removal_experiment_card.label_removal_experiment_inputs,
        removal_experiment_card.build_removal_experiment_redactor,
        removal_experiment_card.compose_removal_experiment_card,
    ),
}


def find_required_artifact(store: Store, artifact_name: str) -> Artifact:
    """Return a card or an input of a card.

    Raises:
        HallmarkError: If it is not in the store, or cannot be read.
    """
    artifact = find_artifact_by_name(store, artifact_name)
    if artifact is None:
        raise HallmarkError(
            f"{artifact_name}, which the card requires, is missing from the store {store.uri} or "
            "cannot be read; rerun the pipeline (a card for a model from another store cannot be "
            "shown unredacted)"
        )
    return artifact


def load_card_inputs(
    store: Store, card: Artifact, *, are_all_required: bool = False
) -> dict[str, Any]:
    """Load the inputs of a card by name.

    An input that is not in the store is None; in a mapping of several inputs it is omitted.

    Args:
        store: The store of the card.
        card: The card.
        are_all_required: Whether each input must be in the store.

    Raises:
        HallmarkError: If another version of the code wrote the card, or if a required input is not
            in the store.
    """
    card_stage, lineage = CARD_KINDS[card.stage].stage, card.lineage
    if lineage.keys() != set(card_stage.input_names):
        raise _build_version_error(card)
    for name, names in lineage.items():
        _check_input_kind(card, name, names, card_stage.parameter_types[name])

    def load(names: Any) -> Any:
        if isinstance(names, Mapping):
            inputs = {label: load(name) for label, name in names.items()}
            return {label: artifact for label, artifact in inputs.items() if artifact is not None}
        if names is None:
            return None
        find_artifact = find_required_artifact if are_all_required else find_artifact_by_name
        return find_artifact(store, names)

    return {
        name: select_input_contents(load(names), card_stage.reads[name])
        if name in card_stage.reads
        else load(names)
        for name, names in lineage.items()
    }


def _check_input_kind(card: Artifact, name: str, names: Any, input_type: Any) -> None:
    """Raise HallmarkError unless a lineage has one name, a mapping or None, as the stage expects.

    Args:
        card: The card.
        name: The name of the input.
        names: What the lineage of the card says about it.
        input_type: The type of the parameter.
    """
    input_types = get_args(input_type) if isinstance(input_type, UnionType) else (input_type,)
    if names is None:
        is_expected = NoneType in input_types
    else:
        has_mapping = any(get_origin(option) in (dict, Mapping) for option in input_types)
        is_expected = isinstance(names, Mapping) if has_mapping else isinstance(names, str)
    if not is_expected:
        raise card.make_manifest_error(
            f"lineage.{name} does not specify the input that a card needs"
        )


def _build_version_error(card: Artifact) -> HallmarkError:
    return HallmarkError(
        f"{card.name} was created by an earlier version of the code; rerun the pipeline to "
        "recreate it"
    )


def find_page_inputs(store: Store, card: Artifact) -> dict[str, Artifact | None]:
    """Find the artifacts that the pages of a card are rendered from, by name; None if missing."""
    artifacts: dict[str, Artifact | None] = {}
    pending = [*_iterate_input_names(card.manifest["lineage"])]
    while pending:
        name = pending.pop()
        if name not in artifacts:
            artifact = find_artifact_by_name(store, name)
            artifacts[name] = artifact
            pending += [] if artifact is None else list_case_inputs(artifact)
    return artifacts


def _iterate_input_names(names: Any) -> Iterator[str]:
    """Yield the names of artifacts in a lineage, without those of their tables."""
    if isinstance(names, Mapping):
        for value in names.values():
            yield from _iterate_input_names(value)
    elif isinstance(names, str):
        yield names.partition("#")[0]


def read_card_settings(card: Artifact) -> Any:
    """Return the settings of a card.

    Raises:
        HallmarkError: If another version of the code wrote the card.
    """
    config_class = CARD_KINDS[card.stage].stage.parameter_types["config"]
    try:
        return config_class.model_validate(card.manifest["parts"]["config"])
    except (KeyError, ValueError) as error:
        raise _build_version_error(card) from error


def read_card(store: Store, card: Artifact) -> CardContent:
    """Read a card and find the rows that support its figures.

    The SHA-256 of its tables are checked, because figures could be replaced in an intact file.
    Those of further tables that cases show are checked when ``build_cases`` reads them.

    Raises:
        HallmarkError: If the card is damaged, or another version of the code wrote it.
    """
    card.verify_tables()
    kind, settings = CARD_KINDS[card.stage], read_card_settings(card)
    try:
        inputs = load_card_inputs(store, card)
        corpus_artifacts = inputs.get("corpus_artifacts") or {}
        corpus_names = card.manifest["lineage"].get("corpus_artifacts") or {}
        # Without one of them, it is not known what must be redacted, so no rows are shown.
        missing_inputs = tuple(sorted(corpus_names.keys() - corpus_artifacts.keys()))
        redactor = kind.build_redactor(inputs, settings)
        figures = read_figures(card["figures"].read().to_pylist())
        redactor.search_full_texts(
            text for figure in figures.values() for text in list_figure_texts(figure)
        )
        shown_figures = {
            figure_id: redact_figure(figure, redactor.redact_full_text)
            for figure_id, figure in figures.items()
        }
        document = read_document(card["sections"].read().to_pylist(), shown_figures)
        document = insert_dates(document, inputs)
        answers = (
            read_answer_rows(card["answers"].read().to_pylist(), figures)
            if "answers" in card.tables
            else []
        )
        labelled_inputs = kind.label_inputs(inputs).items()
        artifacts = {label: artifact for label, artifact in labelled_inputs if artifact is not None}
        book = FigureBook(artifacts, figures)
        damaged_evidence: dict[str, str] = {}
        if not missing_inputs:
            for evidence in _iterate_evidence(card, book, damaged_evidence):
                book.evidence_by_id[evidence.id] = evidence
            if damage := _describe_redaction_damage(corpus_artifacts):
                damaged_evidence |= dict.fromkeys(book.evidence_by_id, damage)
                book.evidence_by_id.clear()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise make_contradiction_error(card, error) from error
    return CardContent(
        card.stage,
        document,
        book,
        corpus_artifacts,
        redactor,
        missing_inputs,
        answers,
        damaged_evidence=damaged_evidence,
    )


def make_contradiction_error(card: Artifact, error: Exception) -> HallmarkError:
    """Make the error about a card from whose tables and inputs no content can be composed.

    A table of an input may be damaged, because only the card's own tables are verified.
    """
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else f"{error!s:.80}"
    return HallmarkError(
        f"the tables of {card.name} and its inputs contradict each other ({reason}); run hallmark "
        f"verify to find the damaged file; if it finds none, remove {card.name} and rerun the "
        "pipeline"
    )


def insert_dates(document: Document, inputs: CardInputs) -> Document:
    """Show on a decision sheet when the model was trained and when it was audited.

    The tables of a card do not contain these dates, because the same inputs must give the same
    tables. An artifact from outside of the store has no date.
    """
    dates: list[DefinitionEntry] = [
        (term, [f"{max(times):%Y-%m-%d}"])
        for term, artifacts in (
            ("Trained", [inputs.get("checkpoint")]),
            ("Audited", (inputs.get("audits") or {}).values()),
        )
        if (times := [time for artifact in artifacts if (time := _read_creation_time(artifact))])
    ]
    lead = [
        replace(block, identity=[*block.identity, *dates])
        if isinstance(block, DecisionSheet)
        else block
        for block in document.lead
    ]
    return replace(document, lead=lead)


def _read_creation_time(artifact: Artifact | None) -> datetime | None:
    """Return when an artifact was committed, in UTC; None where its manifest does not say so."""
    created = artifact.manifest.get("created") if artifact is not None else None
    return datetime.fromisoformat(created).astimezone(UTC) if created else None


def _iterate_evidence(
    card: Artifact, book: FigureBook, damaged_evidence: dict[str, str]
) -> Iterator[Evidence]:
    """Yield the rows of figures that are in the store, with the digests that the card states.

    A signature covers these digests, so rows that differ from them are no evidence.

    Args:
        card: The card.
        book: Its figures.
        damaged_evidence: Receives the ids of rows in damaged tables, with what is damaged.
    """
    damages: dict[StageAndTable, str] = {}
    for row in card["evidence"].read().to_pylist():
        conditions = json.loads(row["evidence_filter"])
        artifact, table = book.artifacts.get(row["stage"]), row["evidence_table"]
        if artifact is None or table not in {*artifact.tables, *artifact.manifest["files"]}:
            continue
        is_table = table in artifact.tables
        sha256 = artifact[table].digest if is_table else artifact.manifest["files"][table]["sha256"]
        if (artifact.content_digest, sha256) != (row["content_digest"], row["sha256"]):
            continue
        key = row["stage"], table
        if key not in damages:
            damages[key] = _describe_damage(artifact[table]) if is_table else ""
        if damages[key]:
            damaged_evidence[row["id"]] = damages[key]
        else:
            yield book.get_evidence(
                row["stage"],
                table,
                conditions,
                None if is_table else read_file_rows(artifact, table),
                row["row_order"],
            )


def _describe_redaction_damage(corpus_artifacts: Mapping[str, Artifact]) -> str:
    """Describe how a table that says what must be masked differs from its manifest.

    These small tables are read for every card. The text is empty if none is damaged.
    """
    for artifact in corpus_artifacts.values():
        for name in _REDACTION_TABLES & {*artifact.tables}:
            if damage := _describe_damage(artifact[name]):
                return damage
    return ""


def _describe_damage(table: Table) -> str:
    """Describe how a local table differs from its manifest; empty if it does not.

    From an object store, files are compared when they are fetched.
    """
    store = table.artifacts[0].location.store
    if store is not None and store.root_folder is None:
        return ""
    try:
        table.verify()
    except HallmarkError as error:
        return str(error)
    return ""


def list_evidence_problems(store: Store, card: Artifact) -> list[str]:
    """List the tables whose rows a card cites and that cannot be shown as the card cites them.

    A table differs from the digest that the card states, or the page of its rows needs a damaged
    file. All cited tables are read, also from an object store, so this may take long.

    Returns:
        A phrase for each such table of a stage.
    """
    content = read_card(store, card)
    evidence_by_id = content.book.evidence_by_id
    unreadable_rows = find_unreadable_rows(content)
    problems: dict[StageAndTable, str] = {}
    for row in card["evidence"].read().to_pylist():
        key = row["stage"], row["evidence_table"]
        evidence = evidence_by_id.get(row["id"])
        if evidence is None:
            damage = content.damaged_evidence.get(row["id"])
            problems[key] = "is missing or damaged, or has changed" + (
                f" ({damage})" if damage else ""
            )
        elif row["id"] in unreadable_rows:
            problems.setdefault(key, f"cannot be shown ({unreadable_rows[row['id']]})")
        elif key not in problems and evidence.file_rows is None:
            try:
                evidence.artifact[evidence.table].verify()
            except HallmarkError as error:
                problems[key] = f"is damaged ({error})"
    return [f"{table} of {stage} {problem}" for (stage, table), problem in problems.items()]
