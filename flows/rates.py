"""The study that a card may speak of: the newest of a store, as far as its audits are today's."""

from __future__ import annotations

from flows.runs import all_runs, find_artifact
from tasks.audits.about import JUDGED
from tasks.audits.catalogue import JUDGE
from tasks.contract import Artifact, HallmarkError, Store


def rates_of(store: Store) -> dict[str, Artifact]:
    """What the newest study of the store left, by the audits that it measured in this version."""
    studies = [run for run in all_runs(store) if "error_rates" in run.stages]
    if not studies:
        return {}
    try:
        rates = studies[-1]["error_rates"]
        verdicts = next(iter(rates.manifest["lineage"]["verdicts"].values()))
        judged = find_artifact(store, verdicts).manifest["lineage"]["sample"]
        code = {name: find_artifact(store, made).manifest["parts"]["code"]
                for name, made in judged.items()}  # fmt: skip
    except HallmarkError:  # its worlds are gone, so that nothing tells which audits they had
        return {}
    audits = {*JUDGED.values()} & {*code}
    return {name: rates for name in sorted(audits) if code[name] == JUDGE[name].code_digests()}
