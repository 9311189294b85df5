"""Find the error rates that a card may cite: those of the newest study with unchanged audits."""

from __future__ import annotations

from hallmark.flows.runs import find_artifact, read_all_runs
from hallmark.tasks.audits.audit_descriptions import AUDIT_BY_CANDIDATE_KIND
from hallmark.tasks.audits.catalogue import FINDINGS_STAGES
from hallmark.tasks.contract import Artifact, HallmarkError, Store


def find_current_error_rates_by_audit(store: Store) -> dict[str, Artifact]:
    """Return the error rates of the newest study, by audit.

    Only audits whose code has not changed since are included. Empty if there is no study or an
    artifact of it is missing.
    """
    study_runs = [run for run in read_all_runs(store) if "error_rates" in run.stages]
    if not study_runs:
        return {}
    try:
        error_rates = study_runs[-1]["error_rates"]
        verdicts_names = [*error_rates.get_input_names_by_key("verdicts").values()]
        if not verdicts_names:
            return {}
        verdicts = find_artifact(store, verdicts_names[0])
        findings_names = verdicts.get_input_names_by_key("sample_audits")
        code_digests = {
            name: find_artifact(store, artifact_name).manifest["parts"].get("code")
            for name, artifact_name in findings_names.items()
        }
    except HallmarkError:  # without its trials, the code of their audits is unknown
        return {}
    audit_names = {*AUDIT_BY_CANDIDATE_KIND.values()} & {*code_digests}
    return {
        name: error_rates
        for name in sorted(audit_names)
        if code_digests[name] == FINDINGS_STAGES[name].compute_code_digests()
    }
