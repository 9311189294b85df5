"""Plan the stages of a run without executing them.

A session calls the plan instead of its stages. If all inputs of a stage are known, the plan
computes its fingerprint and looks it up in the store; otherwise an ``UnknownArtifact`` takes the
place of its output in the rest of the pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from hallmark.tasks.contract import (
    Artifact,
    BoundStage,
    HallmarkError,
    Session,
    Stage,
    StageConfig,
    Store,
)
from hallmark.tasks.corpus.reading.hub_datasets import DatasetsSource
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.measures.scorers import ScorerConfig, needs_checkpoint_download

MEASURED_IN_TRIAL = "measured while the stage processed the whole corpus in a temporary store"


class ReadOnlyStore(Store):
    """A store that refuses writing, which would be a programming error in a forecast.

    If the store has no secret, a constant replaces it: nothing in the store can depend on it.
    """

    def put(self, key: str, data: bytes | Path) -> NoReturn:
        raise AssertionError(f"a forecast must not write {key} to the store")

    create_if_absent = put

    def delete(self, keys: list[str]) -> NoReturn:
        raise AssertionError(f"a forecast must not delete {keys} from the store")

    @property
    def secret(self) -> bytes:
        return bytes(32) if self.get("secret") is None else super().secret


@dataclass(frozen=True)
class UnknownArtifact:
    """Represents the output of a stage that has not run, whose content is unknown."""

    label: str
    store: None = None  # as for a folder outside a store, so that its origin is not traced


@dataclass
class StageForecast:
    """What a run would do with a stage.

    Attributes:
        label: The label of the stage in the run.
        stage: The name of the stage.
        state: "store" (its artifact exists), "run", "unknown" (whether it would run is unknown),
            "fails", or "blocked" (an input fails).
        reason: Why it is in this state.
        artifact: Its artifact, if it exists.
        seconds: Expected seconds; None if unknown.
        time_basis: How ``seconds`` is known.
    """

    label: str
    stage: str
    state: str
    reason: str = ""
    artifact: str | None = None
    seconds: float | None = None
    time_basis: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class StagePlan:
    """Is called instead of every stage, and collects a forecast for each.

    Args:
        store: The store in which artifacts are looked up.
        trial_session: A session with a temporary store. Stages in ``trial_stages`` that the store
            lacks run there on the real inputs, so that their output and later stages are known.
        trial_stages: Labels of these stages.

    Attributes:
        stage_forecasts: One forecast for each stage, in order.
        known_artifacts: The artifacts that exist, by label.
    """

    def __init__(
        self, store: Store, trial_session: Session | None = None, trial_stages: Sequence[str] = ()
    ) -> None:
        self.session = Session(store)
        self.trial_session, self.trial_stages = trial_session, trial_stages
        self.stage_forecasts: list[StageForecast] = []
        self.known_artifacts: dict[str, Artifact] = {}

    def __call__(
        self, stage: Stage, inputs: Sequence[Any], config: StageConfig
    ) -> Artifact | UnknownArtifact:
        stage_forecast = StageForecast(stage.run_label, stage.name, "run")
        self.stage_forecasts.append(stage_forecast)
        unknown_labels = list(
            dict.fromkeys(unknown.label for unknown in _iter_unknown_artifacts(inputs))
        )
        if unknown_labels:
            stage_forecast.state, stage_forecast.reason = self._derive_state_and_reason(
                unknown_labels
            )
            return UnknownArtifact(stage_forecast.label)
        download_reason = _describe_missing_weights(config)
        if download_reason:
            stage_forecast.state, stage_forecast.reason = "unknown", download_reason
            return UnknownArtifact(stage_forecast.label)
        try:
            bound_stage = BoundStage.from_inputs(stage, inputs, config, self.session)
            artifact = bound_stage.find_and_check_stored_artifact()
            if artifact is None:
                stage_forecast.reason = _explain_cache_miss(bound_stage)
                artifact = self._run_in_trial_store(bound_stage, stage_forecast)
            else:
                stage_forecast.state, stage_forecast.artifact = "store", artifact.name
        except HallmarkError as error:
            artifact = None
            stage_forecast.state, stage_forecast.reason = "fails", str(error)
            if isinstance(config, IngestConfig) and _has_hub_sources(config):
                stage_forecast.state, stage_forecast.reason = (
                    "unknown",
                    f"unknown without access to the Hugging Face hub: {error}",
                )
            elif not stage_forecast.reason.startswith("stage "):
                stage_forecast.reason = f"stage {stage_forecast.label}: {error}"
        if artifact is None:
            return UnknownArtifact(stage_forecast.label)
        self.known_artifacts[stage_forecast.label] = artifact
        return artifact

    def _derive_state_and_reason(self, unknown_labels: Sequence[str]) -> tuple[str, str]:
        """Return the state and the reason of a stage with unknown inputs."""
        forecasts_by_label = {
            stage_forecast.label: stage_forecast for stage_forecast in self.stage_forecasts
        }
        for stage_forecast in (forecasts_by_label[label] for label in unknown_labels):
            if stage_forecast.state == "fails":
                return "blocked", f"cannot start because {stage_forecast.label} fails"
            if stage_forecast.state == "blocked":
                return stage_forecast.state, stage_forecast.reason
        remainder = f" and {len(unknown_labels) - 3} more" if len(unknown_labels) > 3 else ""
        return (
            "run",
            f"these inputs are not in the store yet: {', '.join(unknown_labels[:3])}{remainder}",
        )

    def _run_in_trial_store(
        self, bound_stage: BoundStage, stage_forecast: StageForecast
    ) -> Artifact | None:
        if self.trial_session is None or stage_forecast.label not in self.trial_stages:
            return None
        start_time = time.perf_counter()
        artifact = replace(bound_stage, session=self.trial_session).run_or_load().artifact
        stage_forecast.seconds, stage_forecast.time_basis = (
            time.perf_counter() - start_time,
            MEASURED_IN_TRIAL,
        )
        return artifact

    @property
    def failure_reasons(self) -> list[str]:
        return [
            stage_forecast.reason
            for stage_forecast in self.stage_forecasts
            if stage_forecast.state == "fails"
        ]


def _iter_unknown_artifacts(inputs: Iterable[Any]) -> Iterator[UnknownArtifact]:
    for input_value in inputs:
        if isinstance(input_value, Mapping):
            yield from _iter_unknown_artifacts(input_value.values())
        elif isinstance(input_value, list):
            yield from _iter_unknown_artifacts(input_value)
        elif isinstance(input_value, UnknownArtifact):
            yield input_value


def _has_hub_sources(config: IngestConfig) -> bool:
    return any(
        isinstance(source, DatasetsSource) and not source.is_local for source in config.sources
    )


def _describe_missing_weights(config: StageConfig) -> str:
    """Describe the weights that must be downloaded to know the fingerprint, or return ""."""
    cascade = getattr(config, "cascade", None)
    scorers = (getattr(config, "scorer", None), getattr(cascade, "cheap_scorer", None))
    for scorer in (*scorers, *getattr(config, "additional_scorers", ())):
        if (
            isinstance(scorer, ScorerConfig)
            and scorer.sha256 is None
            and needs_checkpoint_download(scorer)
        ):
            return (
                f"the weights of the {scorer.model} Detoxify model are not on this machine; the "
                "run will download them"
            )
    return ""


def _explain_cache_miss(bound_stage: BoundStage) -> str:
    """Explain how a stage differs from the newest artifact of the same stage in the store."""
    newest_artifact = find_newest_artifact(bound_stage.session.store, bound_stage.stage.name)
    if newest_artifact is None:
        return "the store has no artifact of this stage"
    newest_components, components = map(
        bound_stage.session.equivalent_versions.replace_versions,
        (newest_artifact.manifest["parts"], bound_stage.fingerprint_components),
    )
    component_labels = {
        "external": "external input",
        "code": "code",
        "config": "config",
        "libraries": "libraries",
        "inputs": "inputs",
    }
    changed_components = [
        f"{component_label}: {', '.join(changed_keys[:4])}" + ("…" if len(changed_keys) > 4 else "")
        for component, component_label in component_labels.items()
        if (
            changed_keys := find_changed_keys(
                newest_components.get(component, {}), components[component]
            )
        )
    ]
    return (
        "not in the store; changed since the newest artifact of this stage: "
        f"{'; '.join(changed_components)}"
    )


def find_changed_keys(old_values: dict[str, Any], new_values: dict[str, Any]) -> list[str]:
    """Return the keys whose values differ, sorted; a key that only one side has differs."""
    return sorted(
        key
        for key in old_values.keys() | new_values.keys()
        if old_values.get(key) != new_values.get(key)
    )


def find_newest_artifact(store: Store, stage_name: str) -> Artifact | None:
    """Find the newest artifact of a stage; damaged ones and those of older layouts are skipped."""
    artifacts = []
    for fingerprint in store.list_folder_names(f"artifacts/{stage_name}"):
        try:
            artifact = store.find_artifact(stage_name, fingerprint)
        except HallmarkError:
            continue
        if artifact:
            artifacts.append(artifact)
    return max(artifacts, key=lambda artifact: artifact.manifest["created"], default=None)
