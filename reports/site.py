"""Write the site over the runs of a store: static pages with relative links that open from disk.

``index.html`` lists all runs, newest first. The folder of a run, ``runs/<run id>``, holds:

- ``index.html``: its stages, tables, document counts and config;
- a folder for each of its cards, rendered from the tables of the card;
- ``trajectory``: its checkpoints, if several of them were audited.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from hallmark.reports.card_links import (
    DATASHEET,
    MODEL_CARD,
    find_related_cards,
    identify_corpus,
    insert_related_links,
)
from hallmark.reports.cards import CARD_KINDS, find_page_inputs, read_card
from hallmark.reports.page.card_pages import write_card_pages
from hallmark.reports.page.redaction import RedactFunction, Redactor
from hallmark.reports.page.rendering import RENDERING_LIBRARIES, get_template_environment
from hallmark.reports.purge_notices import (
    PurgeRecord,
    collect_purged_document_ids,
    format_purge_notice,
    insert_purge_notice,
    read_purge_record,
)
from hallmark.reports.run_page import describe_duration, group_stages
from hallmark.reports.run_summary import (
    KEY_FIGURE_LABELS,
    RunSummary,
    describe_training_arm_of_run,
    summarize_run,
)
from hallmark.reports.sections.checkpoint_comparison import TrainingCheckpoint
from hallmark.reports.trajectory import (
    TRAJECTORY_FOLDER,
    TRAJECTORY_PAGE,
    AuditedTraining,
    write_trajectory_and_report_completeness,
)
from hallmark.tasks.contract import (
    ACCOUNT_TERMS,
    PROJECT_ROOT,
    Artifact,
    HallmarkError,
    Store,
    read_library_versions,
    read_regular_file,
    sha256_hex,
    to_canonical_json,
)

log = logging.getLogger("hallmark")

JsonRecord = Mapping[str, Any]
#: Reuses a folder of the previous site if its digest is equal; returns whether it did.
FolderReuser = Callable[[Path, str], bool]

#: The packages of the project whose code renders pages.
RENDERING_PACKAGES = ("model", "tasks", "reports")

#: File in a reusable folder that holds the digest of its contents.
DIGEST_FILE = ".made_of"


#: Tables that the site reads.
SITE_TABLES = ("accounts", "sections", "figures", "evidence", "findings", "checkpoints")

#: The path of a page, relative to the folder of a run, and the text of the link to it.
TitleByPage = dict[str, str]


@dataclass(frozen=True)
class StageSummary:
    """What the page of a run shows of the artifact of a stage.

    Attributes:
        is_found: Whether the artifact is in the store and can be read.
        row_count_by_table: The number of rows of each table.
        file_count_by_name: The number of files in each folder; single files count by name.
        account_terms_by_unit: The accounts over all sources by unit, in order of
            ``ACCOUNT_TERMS``.
    """

    is_found: bool
    row_count_by_table: Mapping[str, int]
    file_count_by_name: Mapping[str, int]
    account_terms_by_unit: Mapping[str, Sequence[int]]


class RunStage(NamedTuple):
    """A stage on the page of a run.

    Attributes:
        entry: Its record in run.json.
        summary: What its artifact holds.
    """

    entry: JsonRecord
    summary: StageSummary


class StageArtifact(NamedTuple):
    """A stage of a run and what it produced.

    Attributes:
        label: The label of the stage.
        artifact_name: The name of the artifact.
    """

    label: str
    artifact_name: str


@dataclass(frozen=True)
class IndexedRun:
    """A run on the index.

    Attributes:
        record: Its run.json.
        cards: Its cards.
        computed_count: The number of stages that were computed and not cached.
        purged_count: The number of documents purged from its artifacts.
        training_arm: Which documents its model was trained without, redacted; empty for a run that
            is no arm of an experiment.
        summary: Its model, controls, key figures and policy.
        repeats: The records of later runs that computed nothing new.
    """

    record: JsonRecord
    cards: TitleByPage
    computed_count: int
    purged_count: int
    training_arm: str
    summary: RunSummary
    repeats: list[JsonRecord] = field(default_factory=list)


def build_site(
    store: Store,
    run_records: Sequence[JsonRecord],
    site_folder: Path,
    trainings: Sequence[AuditedTraining] = (),
    previous_site: Path | None = None,
    report_problem: Callable[[str], None] = log.warning,
) -> Path:
    """Write the site of the given runs and return its index page.

    Existing pages and cards are replaced. A run whose artifacts are missing keeps its page, which
    says so. A run that computed nothing new is listed under the run that it repeats.

    Args:
        store: The store of the artifacts.
        run_records: The records of the runs, as in run.json, oldest first.
        site_folder: The folder of the site.
        trainings: The training runs with several audited checkpoints.
        previous_site: An earlier site of the store; its unchanged cards and trajectories are
            reused.
        report_problem: Called with a sentence about each artifact or card that cannot be shown.
    """
    runs: list[IndexedRun] = []
    get_redact_function = cache(lambda regions: Redactor(phone_regions=regions).redact_full_text)
    # Runs share most of their artifacts, so each is read once.
    find_cached = cache(partial(_find_readable_artifact, store, report_problem))
    written_cards: dict[str, Path] = {}
    summarize_stage_cached = cache(lambda name: summarize_stage_artifact(find_cached(name)))
    find_purged_cached = cache(
        lambda name: _list_purged_document_ids(store, find_cached(name), purge_records)
    )
    artifacts_by_run = {
        record["run"]: {
            entry["label"]: find_cached(entry["artifact"]) for entry in record["stages"]
        }
        for record in run_records
    }
    purge_records = {
        artifact.name: read_purge_record(artifact)
        for run_artifacts in artifacts_by_run.values()
        for artifact in run_artifacts.values()
        if artifact is not None
    }
    purged_by_run = {
        record["run"]: {
            entry["label"]: find_purged_cached(entry["artifact"]) for entry in record["stages"]
        }
        for record in run_records
    }
    reuse_folder = partial(_reuse_previous_folder, previous_site, site_folder)
    trajectory_pages = _write_trajectories_and_list_pages_by_run(
        trainings, artifacts_by_run, purged_by_run, site_folder, reuse_folder
    )
    for record in reversed(run_records):
        run_folder = site_folder / "runs" / _run_id_to_folder_name(record["run"])
        run_folder.mkdir(parents=True, exist_ok=True)
        artifacts = artifacts_by_run[record["run"]]
        cards = _write_cards(
            store,
            artifacts,
            run_folder,
            written_cards,
            purged_by_run[record["run"]],
            reuse_folder,
            report_problem,
        )
        cards |= trajectory_pages.get(record["run"], {})
        purged_ids = frozenset[str]().union(*purged_by_run[record["run"]].values())
        stages = [
            RunStage(entry, summarize_stage_cached(entry["artifact"])) for entry in record["stages"]
        ]
        redact = get_redact_function(read_phone_regions(record.get("config")))
        # An error may name a file or quote a value.
        redacted_fields = {name: redact(record.get(name) or "") for name in ("error", "checkpoint")}
        run_summary = summarize_run(artifacts, redact)
        _write_page(
            run_folder / "index.html",
            "site_run.html",
            run=record,
            stages=stages,
            groups=group_stages(stages, lambda stage: stage.entry),
            duration=describe_duration(record),
            summary=run_summary,
            cards=cards,
            config=format_run_config(record.get("config"), redact),
            purged=format_purge_notice(purged_ids),
            **redacted_fields,
        )
        computed_count = sum(not entry["cached"] for entry in record["stages"])
        training_arm = redact(describe_training_arm_of_run(record))
        runs.append(
            IndexedRun(record, cards, computed_count, len(purged_ids), training_arm, run_summary)
        )
    _link_related_cards(store, runs, site_folder)
    index_page = site_folder / "index.html"
    _write_page(
        index_page,
        "site_index.html",
        runs=_group_runs_without_new_artifacts(runs),
        key_figures=list(KEY_FIGURE_LABELS.values()),
    )
    return index_page


def _write_trajectories_and_list_pages_by_run(
    trainings: Sequence[AuditedTraining],
    artifact_by_label_by_run: Mapping[str, Mapping[str, Artifact | None]],
    purged_ids_by_label_by_run: Mapping[str, Mapping[str, frozenset[str]]],
    site_folder: Path,
    reuse_folder: FolderReuser,
) -> dict[str, TitleByPage]:
    """Write the trajectory pages and return, by run, the page that the run links to."""
    trajectory_pages: dict[str, TitleByPage] = {}
    for training in trainings:
        run_folder = site_folder / "runs" / _run_id_to_folder_name(training.first_run_id)
        checkpoints = [
            TrainingCheckpoint(step, {run: artifact_by_label_by_run[run] for run in runs})
            for step, runs in sorted(training.audit_runs_by_step.items())
        ]
        training_artifacts = {
            label: artifact
            for label, artifact in artifact_by_label_by_run[training.first_run_id].items()
            if artifact is not None
        }
        purged_by_card = [
            purged_ids_by_label_by_run[run].get("model_card", ())
            for checkpoint in checkpoints
            for run in checkpoint.artifacts_by_run
        ]
        purged_ids = frozenset[str]().union(*purged_by_card)
        audit_states = [
            [
                audited_checkpoint.step,
                [
                    [run, _collect_content_identity_by_label(artifact_by_label_by_run[run])]
                    for run in audited_checkpoint.artifacts_by_run
                ],
            ]
            for audited_checkpoint in checkpoints
        ]
        folder_digest = _compute_folder_digest(
            training.first_run_id,
            audit_states,
            _collect_content_identity_by_label(training_artifacts),
            sorted(purged_ids),
        )
        if not reuse_folder(run_folder / TRAJECTORY_FOLDER, folder_digest):
            is_complete = write_trajectory_and_report_completeness(
                training.first_run_id, checkpoints, training_artifacts, run_folder
            )
            if purged_ids:
                insert_purge_notice(run_folder / TRAJECTORY_FOLDER, format_purge_notice(purged_ids))
            # An unreadable artifact may be repaired without a change of its digest.
            if is_complete:
                (run_folder / TRAJECTORY_FOLDER / DIGEST_FILE).write_text(folder_digest)
        for run in training.run_ids:
            path_prefix = (
                "" if run == training.first_run_id else f"../{quote(training.first_run_id)}/"
            )
            trajectory_pages[run] = {
                f"{path_prefix}{TRAJECTORY_FOLDER}/{TRAJECTORY_PAGE}": "Trajectory"
            }
    return trajectory_pages


def _group_runs_without_new_artifacts(runs: Sequence[IndexedRun]) -> list[IndexedRun]:
    """Return the runs of the index; a run that only repeats another is added to its ``repeats``."""
    grouped_runs: list[IndexedRun] = []
    for run in reversed(runs):  # the oldest first
        stage_artifacts = _list_stage_artifacts(run)
        original_run = None
        if stage_artifacts and not run.computed_count and run.record["status"] == "completed":
            completed_runs = (
                grouped_run
                for grouped_run in reversed(grouped_runs)
                if grouped_run.record["status"] == "completed"
            )
            original_run = next(
                (
                    grouped_run
                    for grouped_run in completed_runs
                    if stage_artifacts <= _list_stage_artifacts(grouped_run)
                ),
                None,
            )
        if original_run is None:
            grouped_runs.append(run)
        else:
            original_run.repeats.append(run.record)
    return grouped_runs[::-1]


def _list_stage_artifacts(run: IndexedRun) -> set[StageArtifact]:
    return {StageArtifact(entry["label"], entry["artifact"]) for entry in run.record["stages"]}


def _run_id_to_folder_name(run_id: str) -> str:
    """Return the id of a run as a folder name.

    Raises:
        HallmarkError: If the id, which comes from a file, is not a valid folder name.
    """
    if not run_id or run_id != Path(run_id).name or run_id in (".", ".."):
        raise HallmarkError(
            f"run.json contains the run id {run_id!r:.80}, which is not a valid folder name; "
            "correct or remove that run.json"
        )
    return run_id


def _find_readable_artifact(
    store: Store, report_problem: Callable[[str], None], artifact_name: str
) -> Artifact | None:
    """Return the artifact, or None if it is missing or damaged: other runs must be shown."""
    try:
        artifact = store.open_artifact(artifact_name)
        if artifact.stage in (*CARD_KINDS, "policy"):
            artifact.verify_tables()
        for table in SITE_TABLES:
            if table in artifact.tables:
                artifact[table].read()
    except HallmarkError as error:
        report_problem(f"the site does not show {artifact_name}: {error}")
        return None
    return artifact


def _list_purged_document_ids(
    store: Store, artifact: Artifact | None, purge_record_by_artifact_name: dict[str, PurgeRecord]
) -> frozenset[str]:
    """Return the documents purged from an artifact, or, for a card, from any of its inputs."""
    if artifact is None:
        return frozenset()
    is_card = artifact.stage in CARD_KINDS
    return (
        collect_purged_document_ids(store, artifact, purge_record_by_artifact_name)
        if is_card
        else frozenset(artifact.purge_time_by_doc_id)
    )


def _write_cards(
    store: Store,
    artifacts: Mapping[str, Artifact | None],
    run_folder: Path,
    written_folder_by_card: dict[str, Path],
    purged_ids_by_label: Mapping[str, frozenset[str]],
    reuse_folder: FolderReuser,
    report_problem: Callable[[str], None],
) -> TitleByPage:
    """Write the pages of the cards and return their titles by page.

    Args:
        store: The store of the artifacts.
        artifacts: The artifacts of the run by label.
        run_folder: The folder of the run in the site.
        written_folder_by_card: The folders of cards already in the site, by artifact, which is
            extended; runs that share a card share its files through hard links.
        purged_ids_by_label: The ids of purged documents, by label.
        reuse_folder: Reuses a folder of the previous site.
        report_problem: Called with a sentence about each card that cannot be shown completely.
    """
    titles_by_page = {}
    for label, kind in CARD_KINDS.items():
        artifact = artifacts.get(label)
        if artifact is None:
            continue
        target = run_folder / label
        shutil.rmtree(target, ignore_errors=True)
        page_inputs = find_page_inputs(store, artifact)
        folder_digest = _compute_folder_digest(
            _collect_content_identity_by_label({label: artifact}),
            _collect_content_identity_by_label(dict(sorted(page_inputs.items()))),
            sorted(purged_ids_by_label[label]),
        )
        if artifact.name in written_folder_by_card:
            shutil.copytree(
                written_folder_by_card[artifact.name], target, copy_function=_link_or_copy_file
            )
        elif reuse_folder(target, folder_digest):
            written_folder_by_card[artifact.name] = target
        else:
            try:
                problems = write_card_pages(read_card(store, artifact), target, has_markdown=False)
            except HallmarkError as error:  # other cards must be shown
                report_problem(f"the site does not show {artifact.name}: {error}")
                shutil.rmtree(target, ignore_errors=True)
                continue
            written_folder_by_card[artifact.name] = target
            _add_navigation_links(target / f"{label}.html")
            if purged_ids_by_label[label]:
                insert_purge_notice(target, format_purge_notice(purged_ids_by_label[label]))
            # A damaged input may be repaired without a change of its digest.
            if problems:
                count_text = f" ({len(problems)} problems)" if len(problems) > 1 else ""
                report_problem(
                    f"the site does not show all rows of {artifact.name}: {problems[0]}{count_text}"
                )
            else:
                (target / DIGEST_FILE).write_text(folder_digest)
        titles_by_page[f"{label}/{label}.html"] = kind.title
    return titles_by_page


def _link_related_cards(store: Store, runs: Sequence[IndexedRun], site_folder: Path) -> None:
    """Link the datasheets and the model cards of the site with each other."""
    names_by_run = {
        run.record["run"]: {
            stage.label: stage.artifact_name
            for stage in _list_stage_artifacts(run)
            if f"{stage.label}/{stage.label}.html" in run.cards
        }
        for run in runs
    }
    identify = cache(partial(identify_corpus, store))
    for run_id, names in names_by_run.items():
        for card in {DATASHEET, MODEL_CARD} & names.keys():
            page = site_folder / "runs" / run_id / card / f"{card}.html"
            links = find_related_cards(run_id, card, names_by_run, identify)
            insert_related_links(page, links)


def _reuse_previous_folder(
    previous_site: Path | None, site_folder: Path, folder: Path, folder_digest: str
) -> bool:
    """Link the files of a folder of the previous site, if its digest is the same."""
    if previous_site is None:
        return False
    previous_folder = previous_site / folder.relative_to(site_folder)
    try:
        if read_regular_file(previous_folder / DIGEST_FILE) != folder_digest.encode():
            return False
        shutil.copytree(previous_folder, folder, copy_function=_link_or_copy_file)
    except OSError:  # missing, or changed by someone else
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True


def _compute_folder_digest(*contents: Any) -> str:
    """Return a digest of the given contents and of the code and libraries that render pages."""
    return sha256_hex(
        to_canonical_json(
            [
                _compute_code_digest(),
                read_library_versions(RENDERING_LIBRARIES),
                *contents,
            ]
        )
    )


@cache
def _compute_code_digest() -> str:
    """Return a digest of all code, templates and data that can change a page of the site."""
    paths = (
        path
        for package in RENDERING_PACKAGES
        for path in sorted((PROJECT_ROOT / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    )
    return sha256_hex(
        to_canonical_json(
            [[str(path.relative_to(PROJECT_ROOT)), sha256_hex(path.read_bytes())] for path in paths]
        )
    )


def _collect_content_identity_by_label(
    artifacts: Mapping[str, Artifact | None],
) -> dict[str, list[Any] | None]:
    """Return what identifies the contents of artifacts, including files rewritten by a purge."""
    return {
        label: None
        if artifact is None
        else [
            artifact.name,
            artifact.content_digest,
            artifact.purge_time_by_doc_id,
            [entry["sha256"] for entry in artifact.iter_file_entries()],
        ]
        for label, artifact in artifacts.items()
    }


def _add_navigation_links(page: Path) -> None:
    """Add links from a card to its run and to all runs."""
    kind_tag, text = '<p class="kind">', page.read_text(encoding="utf-8")
    navigation_links = (
        '<a href="../../../index.html">Runs</a> · <a href="../index.html">This run</a> · '
    )
    page.write_text(text.replace(kind_tag, kind_tag + navigation_links, 1), encoding="utf-8")


def _link_or_copy_file(source: str, target: str) -> None:
    """Create a hard link, or a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def summarize_stage_artifact(artifact: Artifact | None) -> StageSummary:
    if artifact is None:
        return StageSummary(False, {}, {}, {})
    return StageSummary(
        True,
        {name: table.row_count for name, table in artifact.tables.items()},
        _count_files_by_folder_or_name(artifact),
        _sum_account_terms_by_unit(artifact["accounts"].read())
        if "accounts" in artifact.tables
        else {},
    )


def _count_files_by_folder_or_name(artifact: Artifact) -> dict[str, int]:
    """Return the number of files by folder; single files are listed by name."""
    counts: dict[str, int] = {}
    for name in artifact.manifest["files"]:
        group_name = name.split("/")[0] + "/" if "/" in name else name
        counts[group_name] = counts.get(group_name, 0) + 1
    return dict(sorted(counts.items()))


def _sum_account_terms_by_unit(table: pa.Table) -> dict[str, list[int]]:
    """Return the accounts summed over all sources, by unit in order of ``ACCOUNT_TERMS``."""
    sums = table.group_by("unit").aggregate([(term, "sum") for term in ACCOUNT_TERMS])
    rows = sums.sort_by([("unit", "descending")]).to_pylist()
    return {row["unit"]: [row[f"{term}_sum"] for term in ACCOUNT_TERMS] for row in rows}


def _write_page(path: Path, template: str, **template_values: Any) -> None:
    template_values |= {"terms": [term.replace("_", " ") for term in ACCOUNT_TERMS]}
    html = get_template_environment().get_template(template).render(**template_values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")


def format_run_config(config: Any, redact: RedactFunction) -> str:
    """Return the config of a run, redacted; what a person stated for a card is not redacted."""
    section_names = sorted(config) if isinstance(config, Mapping) else []
    if not section_names:
        return redact(_format_json(config)) if config else ""
    section_texts = {
        section_name: _format_json({section_name: config[section_name]})[2:-2]
        for section_name in section_names
    }
    redacted_texts = [
        text if section_name in CARD_KINDS else redact(text)
        for section_name, text in section_texts.items()
    ]
    return "{\n" + ",\n".join(redacted_texts) + "\n}"


def read_phone_regions(config: Any) -> frozenset[str]:
    """Return the countries whose telephone numbers were searched for, to redact them."""
    try:
        regions = config["find_personal_data"]["regions"]
        return frozenset([regions] if isinstance(regions, str) else map(str, regions))
    except (LookupError, TypeError):  # a run without a corpus, or a config of unknown origin
        return frozenset()


def _format_json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
