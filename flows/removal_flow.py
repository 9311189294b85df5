"""The flow that compares trainings with and without the documents that findings lead to."""

from __future__ import annotations

from typing import Any

from prefect import flow

from hallmark.flows.config import load_config
from hallmark.flows.credentials import export_credentials
from hallmark.flows.removal_experiment import collect_source_document_inputs
from hallmark.flows.run_recording import generate_flow_run_name, record_run
from hallmark.flows.runs import open_run, open_store
from hallmark.flows.site import try_build_site
from hallmark.reports.removal_experiment_card import (
    RemovalExperimentCardConfig,
    build_removal_experiment_card,
)
from hallmark.tasks.audits.experiments.removal_experiment import compare_arms
from hallmark.tasks.audits.experiments.source_documents import (
    SourceDocumentsConfig,
    find_source_documents,
)

#: The stages of a corpus from which the card shows documents and knows what to redact.
CARD_STAGES = ("find_personal_data", "score_toxicity", "plant_canaries")


@flow(name="prove", flow_run_name=generate_flow_run_name)
def prove(
    config: dict[str, Any], arms: dict[str, str], cases: dict[str, Any], store: str | None = None
) -> str:
    """Compare trainings, some of which lack the documents that findings lead to.

    Args:
        config: The config of the base run.
        arms: The run of each arm; that of the whole corpus ("base") first.
        cases: The findings, as the config of the ``find_source_documents`` stage.
        store: The store to use instead of the config's.

    Returns:
        The id of the run.
    """
    settings = load_config(config)
    export_credentials(settings.credentials)
    opened_store = open_store(store)
    with record_run("prove", settings, opened_store) as run:
        runs_by_arm = {arm: open_run(name, run.store) for arm, name in arms.items()}
        base_run, case_config = runs_by_arm["base"], SourceDocumentsConfig.model_validate(cases)
        run.update_record(
            checkpoint=base_run.audited_checkpoint,
            arms=arms,
            findings=[name for case in case_config.cases for name in case.finding_names],
            seeds=sum(arm.startswith("seed") for arm in arms),
        )
        source_documents = find_source_documents(
            **collect_source_document_inputs(base_run, case_config), config=case_config
        )
        audit_names = dict.fromkeys(case.audit for case in case_config.cases)
        arm_comparison = compare_arms(
            audits={
                f"{arm}/{name}": arm_run[f"audit_{name}"]
                for arm, arm_run in runs_by_arm.items()
                for name in audit_names
            },
            trainings={arm: arm_run["pretrain"] for arm, arm_run in runs_by_arm.items()},
            removals={
                arm: arm_run["leave_out"]
                for arm, arm_run in runs_by_arm.items()
                if "leave_out" in arm_run.stages
            },
            source_documents=source_documents,
            config=case_config,
        )
        build_removal_experiment_card(
            arm_comparison=arm_comparison,
            source_documents=source_documents,
            corpus_artifacts={label: base_run[label] for label in CARD_STAGES},
            config=RemovalExperimentCardConfig(
                title=base_run.config.model_card.title or base_run.config.name
            ),
        )
    run.site_index = try_build_site(opened_store)
    return run.id
