"""Write the site over the runs of a store: static pages with relative links that open from disk.

<site>/index.html                              all runs, newest first <site>/runs/<run
id>/index.html                one run: its stages, tables and accounts <site>/runs/<run
id>/datasheet/                the card of its corpus, copied from its artifact <site>/runs/<run
id>/model_card/               the card of its model <site>/runs/<run id>/task_card/
the card of a model that it fine-tuned <site>/runs/<run id>/study_card/               the card of a
study of the audits <site>/runs/<run id>/removal_experiment_card/  the card of a removal experiment
<site>/runs/<run id>/trajectory/               its checkpoints, if several were audited
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from hallmark.reports.page.redaction import RedactFunction, Redactor
from hallmark.reports.page.rendering import (
    RENDERING_LIBRARIES,
    TEMPLATE_FILES,
    get_template_environment,
)
from hallmark.reports.purge_notices import (
    PurgeRecord,
    collect_purged_documents,
    find_artifact_by_name,
    format_purge_notice,
    insert_purge_notice,
    read_purge_record,
)
from hallmark.reports.run_summary import KEY_FIGURE_LABELS, summarize_run
from hallmark.reports.sections.checkpoint_comparison import TrainingCheckpoint
from hallmark.reports.tables_page import write_tables_page
from hallmark.reports.trajectory import (
    TRAJECTORY_FOLDER,
    TRAJECTORY_PAGE,
    AuditedTraining,
    write_trajectory,
)
from hallmark.tasks.contract import (
    ACCOUNT_TERMS,
    Artifact,
    HallmarkError,
    Store,
    compute_code_digests,
    read_library_versions,
    sha256_hex,
    to_canonical_json,
)

CARD_TITLES = {
    "datasheet": "Datasheet",
    "model_card": "Model card",
    "task_card": "Task card",
    "study_card": "Study",
    "removal_experiment_card": "Removal experiment",
}

JsonRecord = Mapping[str, Any]
#: Reuses a folder of the previous site if its digest is equal; returns whether it did.
FolderReuser = Callable[[Path, str], bool]

#: File in a reusable folder that holds the digest of its contents.
DIGEST_FILE = ".made_of"


#: Tables that the site reads.
SITE_TABLES = ("accounts", "figures", "findings", "checkpoints")


def build_site(
    store: Store,
    run_records: Sequence[JsonRecord],
    site_folder: Path,
    table_descriptions: Sequence[JsonRecord] = (),
    trainings: Sequence[AuditedTraining] = (),
    previous_site: Path | None = None,
) -> Path:
    """Write the site of the given runs and return its index page.

    Existing pages and cards are replaced. A run whose artifacts are missing keeps its page, which
    says so. A run that computed nothing new is listed under the run that it repeats.

    Args:
        store: The store of the artifacts.
        run_records: The records of the runs, as in run.json.
        site_folder: The folder of the site.
        table_descriptions: The rows of ``hallmark tables``; if given, a page of them is written.
        trainings: The training runs with several audited checkpoints.
        previous_site: An earlier site of the store; its unchanged cards and trajectories are
            reused.
    """
    runs: list[dict[str, Any]] = []
    get_redact_function = cache(lambda regions: Redactor(phone_regions=regions).redact_full_text)
    # Runs share most of their artifacts, so each is read once.
    find_cached = cache(lambda label, name: _find_readable_artifact(store, label, name))
    copied_cards: dict[str, Path] = {}
    summarize_stage_cached = cache(
        lambda label, name: _summarize_stage_artifact(find_cached(label, name))
    )
    find_purged_cached = cache(
        lambda label, name: _list_purged_documents(store, find_cached(label, name), purge_records)
    )
    artifacts_by_run = {
        record["run"]: {
            entry["label"]: find_cached(entry["label"], entry["artifact"])
            for entry in record["stages"]
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
            entry["label"]: find_purged_cached(entry["label"], entry["artifact"])
            for entry in record["stages"]
        }
        for record in run_records
    }
    reuse_folder = partial(_reuse_previous_folder, previous_site, site_folder)
    trajectory_pages = _write_trajectories(
        trainings, artifacts_by_run, purged_by_run, site_folder, reuse_folder
    )
    for record in sorted(
        run_records, key=lambda run_record: (run_record["started"], run_record["run"]), reverse=True
    ):
        run_folder = site_folder / "runs" / _run_id_to_folder_name(record["run"])
        run_folder.mkdir(parents=True, exist_ok=True)
        stage_keys = [(entry["label"], entry["artifact"]) for entry in record["stages"]]
        artifacts = artifacts_by_run[record["run"]]
        cards = _copy_cards(
            artifacts, run_folder, copied_cards, purged_by_run[record["run"]], reuse_folder
        )
        cards |= trajectory_pages.get(record["run"], {})
        purged_ids = frozenset[str]().union(*purged_by_run[record["run"]].values())
        stages = [
            {"entry": entry, **summarize_stage_cached(*stage_key)}
            for entry, stage_key in zip(record["stages"], stage_keys, strict=True)
        ]
        redact = get_redact_function(_read_phone_regions(record.get("config")))
        # An error may name a file or quote a value.
        redacted_fields = {name: redact(record.get(name) or "") for name in ("error", "checkpoint")}
        run_summary = summarize_run(artifacts, redact)
        _write_page(
            run_folder / "index.html",
            "site_run.html",
            run=record,
            stages=stages,
            cards=cards,
            config=_format_run_config(record.get("config"), redact),
            purged=format_purge_notice(purged_ids),
            failed_rules=run_summary["failed_rules"],
            undecided_rules=run_summary["undecided_rules"],
            **redacted_fields,
        )
        computed_count = sum(not entry["cached"] for entry in record["stages"])
        runs.append(
            {"record": record, "cards": cards, "made": computed_count, "purged": len(purged_ids)}
            | run_summary
        )
    index_page = site_folder / "index.html"
    if table_descriptions:
        write_tables_page(table_descriptions, site_folder)
    _write_page(
        index_page,
        "site_index.html",
        runs=_group_repeated_runs(runs),
        key_figures=list(KEY_FIGURE_LABELS.values()),
        tables=bool(table_descriptions),
    )
    return index_page


def _write_trajectories(
    trainings: Sequence[AuditedTraining],
    artifacts_by_run: Mapping[str, Mapping[str, Artifact | None]],
    purged_by_run: Mapping[str, Mapping[str, frozenset[str]]],
    site_folder: Path,
    reuse_folder: FolderReuser,
) -> dict[str, dict[str, str]]:
    """Write the trajectory pages.

    Returns:
        By run, the path of its trajectory page with its title.
    """
    trajectory_pages: dict[str, dict[str, str]] = {}
    for training in trainings:
        run_folder = site_folder / "runs" / _run_id_to_folder_name(training.first_run_id)
        checkpoints = [
            TrainingCheckpoint(step, {run: artifacts_by_run[run] for run in runs})
            for step, runs in sorted(training.audit_runs_by_step.items())
        ]
        training_artifacts = {
            label: artifact
            for label, artifact in artifacts_by_run[training.first_run_id].items()
            if artifact is not None
        }
        purged_by_card = [
            purged_by_run[run].get("model_card", ())
            for checkpoint in checkpoints
            for run in checkpoint.artifacts_by_run
        ]
        purged_ids = frozenset[str]().union(*purged_by_card)
        audit_states = [
            [
                audited_checkpoint.step,
                [
                    [run, _collect_artifact_states(artifacts_by_run[run])]
                    for run in audited_checkpoint.artifacts_by_run
                ],
            ]
            for audited_checkpoint in checkpoints
        ]
        folder_digest = _compute_folder_digest(
            training.first_run_id,
            audit_states,
            _collect_artifact_states(training_artifacts),
            sorted(purged_ids),
        )
        if not reuse_folder(run_folder / TRAJECTORY_FOLDER, folder_digest):
            is_complete = write_trajectory(
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


def _group_repeated_runs(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs of the index, each with the records of its repetitions in ``repeats``."""
    grouped_runs: list[dict[str, Any]] = []
    for run in reversed(runs):  # the oldest first
        stage_artifacts = _list_stage_artifacts(run)
        original_run = None
        if stage_artifacts and not run["made"] and run["record"]["status"] == "completed":
            completed_runs = (
                grouped_run
                for grouped_run in reversed(grouped_runs)
                if grouped_run["record"]["status"] == "completed"
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
            grouped_runs.append(run | {"repeats": []})
        else:
            original_run["repeats"].append(run["record"])
    return grouped_runs[::-1]


def _list_stage_artifacts(run: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(entry["label"], entry["artifact"]) for entry in run["record"]["stages"]}


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


def _find_readable_artifact(store: Store, label: str, artifact_name: str) -> Artifact | None:
    """Return the artifact, or None if it is missing or damaged: other runs must be shown."""
    try:
        artifact = find_artifact_by_name(store, artifact_name)
        if artifact is not None:
            for file in artifact.manifest["files"] if label in CARD_TITLES else []:
                artifact.fetch_file(file)
            for table in SITE_TABLES:
                if table in artifact.tables:
                    artifact[table].read()
    except HallmarkError:
        return None
    return artifact


def _list_purged_documents(
    store: Store, artifact: Artifact | None, purge_records: dict[str, PurgeRecord]
) -> frozenset[str]:
    """Return the documents purged from an artifact, or, for a card, from any of its inputs."""
    if artifact is None:
        return frozenset()
    is_card = artifact.stage in CARD_TITLES
    return (
        collect_purged_documents(store, artifact, purge_records)
        if is_card
        else frozenset(artifact.purged_documents)
    )


def _copy_cards(
    artifacts: Mapping[str, Artifact | None],
    run_folder: Path,
    copied_cards: dict[str, Path],
    purged_by_label: Mapping[str, frozenset[str]],
    reuse_folder: FolderReuser,
) -> dict[str, str]:
    """Copy the files of the cards and return their titles by page.

    Args:
        artifacts: The artifacts of the run by label.
        run_folder: The folder of the run in the site.
        copied_cards: The folders of cards already in the site, by artifact; runs that share a card
            share its files through hard links.
        purged_by_label: The purged documents, by label.
        reuse_folder: Reuses a folder of the previous site.
    """
    titles_by_page = {}
    for label, title in CARD_TITLES.items():
        artifact = artifacts.get(label)
        if artifact is None:
            continue
        target = run_folder / label
        shutil.rmtree(target, ignore_errors=True)
        folder_digest = _compute_folder_digest(
            _collect_artifact_states({label: artifact}), sorted(purged_by_label[label])
        )
        if artifact.name in copied_cards:
            shutil.copytree(copied_cards[artifact.name], target, copy_function=_link_or_copy_file)
        elif reuse_folder(target, folder_digest):
            copied_cards[artifact.name] = target
        else:
            copied_cards[artifact.name] = target
            for entry in artifact.manifest["files"].values():
                path = target / entry["name"]
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(artifact.fetch_file(entry["name"]), path)
            _add_navigation_links(target / f"{label}.html")
            if purged_by_label[label]:
                insert_purge_notice(target, format_purge_notice(purged_by_label[label]))
            (target / DIGEST_FILE).write_text(folder_digest)
        titles_by_page[f"{label}/{label}.html"] = title
    return titles_by_page


def _reuse_previous_folder(
    previous_site: Path | None, site_folder: Path, folder: Path, folder_digest: str
) -> bool:
    """Link the files of a folder of the previous site, if its digest is the same."""
    if previous_site is None:
        return False
    previous_folder = previous_site / folder.relative_to(site_folder)
    try:
        if (previous_folder / DIGEST_FILE).read_text() != folder_digest:
            return False
        shutil.copytree(previous_folder, folder, copy_function=_link_or_copy_file)
    except (OSError, UnicodeDecodeError):  # missing, or changed by someone else
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True


def _compute_folder_digest(*contents: Any) -> str:
    """Return a digest of the given contents and of the code and libraries that render pages."""
    return sha256_hex(
        to_canonical_json(
            [_hash_site_code(), read_library_versions(RENDERING_LIBRARIES), *contents]
        )
    )


@cache
def _hash_site_code() -> dict[str, str]:
    page_templates = [
        f"reports/page/templates/site_{page_name}.html" for page_name in ("trajectory", "pairs")
    ]
    return compute_code_digests(["hallmark.reports.site", *TEMPLATE_FILES, *page_templates])


def _collect_artifact_states(artifacts: Mapping[str, Artifact | None]) -> dict[str, Any]:
    """Return what identifies the contents of artifacts, including files rewritten by a purge."""
    return {
        label: artifact
        and [
            artifact.name,
            artifact.content_digest,
            artifact.purged_documents,
            [entry["sha256"] for entry in artifact.iter_file_entries()],
        ]
        for label, artifact in artifacts.items()
    }


def _add_navigation_links(page: Path) -> None:
    """Add links from a card to its run and to all runs."""
    kind_tag, text = '<p class="kind">', page.read_text(encoding="utf-8")
    navigation_links = (
        '<a href="../../../index.html">Runs</a> · <a href="../index.html">Its run</a> · '
    )
    page.write_text(text.replace(kind_tag, kind_tag + navigation_links, 1), encoding="utf-8")


def _link_or_copy_file(source: str, target: str) -> None:
    """Create a hard link, or a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _summarize_stage_artifact(artifact: Artifact | None) -> dict[str, Any]:
    tables: list[tuple[str, int]] = []
    accounts: list[dict[str, Any]] = []
    files: list[tuple[str, int]] = []
    if artifact is not None:
        tables = [(name, table.row_count) for name, table in artifact.tables.items()]
        files = _count_files_by_folder(artifact)
        if "accounts" in artifact.tables:
            accounts = _sum_accounts_by_unit(artifact["accounts"].read())
    return {
        "found": artifact is not None,
        "tables": tables,
        "files": files,
        "accounts": accounts,
    }


def _count_files_by_folder(artifact: Artifact) -> list[tuple[str, int]]:
    """Return the number of files by folder; single files are listed by name."""
    counts: dict[str, int] = {}
    for name in artifact.manifest["files"]:
        group_name = name.split("/")[0] + "/" if "/" in name else name
        counts[group_name] = counts.get(group_name, 0) + 1
    return sorted(counts.items())


def _sum_accounts_by_unit(table: pa.Table) -> list[dict[str, Any]]:
    """Return the accounts summed over all sources, one row for each unit."""
    sums = table.group_by("unit").aggregate([(term, "sum") for term in ACCOUNT_TERMS])
    rows = sums.sort_by([("unit", "descending")]).to_pylist()
    return [
        {"unit": row["unit"], "terms": [row[f"{term}_sum"] for term in ACCOUNT_TERMS]}
        for row in rows
    ]


def _write_page(path: Path, template: str, **template_values: Any) -> None:
    template_values |= {"terms": [term.replace("_", " ") for term in ACCOUNT_TERMS]}
    html = get_template_environment().get_template(template).render(**template_values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")


def _format_run_config(config: Any, redact: RedactFunction) -> str:
    """Return the config of a run, redacted; what a person stated for a card is not redacted."""
    section_names = sorted(config) if isinstance(config, Mapping) else []
    if not section_names:
        return redact(_format_json(config)) if config else ""
    section_texts = {
        section_name: _format_json({section_name: config[section_name]})[2:-2]
        for section_name in section_names
    }
    redacted_texts = [
        text if section_name in CARD_TITLES else redact(text)
        for section_name, text in section_texts.items()
    ]
    return "{\n" + ",\n".join(redacted_texts) + "\n}"


def _read_phone_regions(config: Any) -> frozenset[str]:
    """Return the countries whose telephone numbers were searched for, to redact them."""
    try:
        regions = config["find_personal_data"]["regions"]
        return frozenset([regions] if isinstance(regions, str) else map(str, regions))
    except (LookupError, TypeError):  # a run without a corpus, or a config of unknown origin
        return frozenset()


def _format_json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
