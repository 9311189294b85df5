"""Define stages and their calls: bind the inputs of a call and compute its fingerprint.

``stages.py`` derives the classes that run calls; ``commit.py`` and ``external_inputs.py`` need only
the base classes defined here.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa

from hallmark.tasks.contract.accounts import ACCOUNTS, CHECKSUMS
from hallmark.tasks.contract.allowed_roots import check_config_paths
from hallmark.tasks.contract.artifact import Artifact, Table
from hallmark.tasks.contract.code_digests import (
    CodeName,
    ModuleFile,
    ModuleOrDataFile,
    compute_reached_code_digests,
)
from hallmark.tasks.contract.columns import column, table_schema
from hallmark.tasks.contract.equivalent_versions import iter_library_versions
from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.external_files import ExternalFiles
from hallmark.tasks.contract.fingerprint import compute_fingerprint, read_library_versions
from hallmark.tasks.contract.inputs import (
    compute_digest_and_lineage,
    iter_artifacts,
    select_input_contents,
    select_input_table,
)
from hallmark.tasks.contract.resources import Resources
from hallmark.tasks.contract.session import Session
from hallmark.tasks.contract.settings import StageConfig
from hallmark.tasks.contract.store import Store
from hallmark.tasks.contract.tombstones import PURGED_DOCUMENTS_FILE, hash_purged_ids

Determinism = Literal["exact", "machine", "statistical"]

TELEMETRY = table_schema(
    "Resources used by the stage on the machine where it ran. These values are not part of the "
    "content digest.",
    column("metric", pa.string(), "label", "name of the measurement or note"),
    column(
        "value",
        pa.float64(),
        "figure",
        "measured value, in the unit specified in the `unit` column",
    ),
    column("unit", pa.string(), "label", "unit of the value"),
    column(
        "note",
        pa.string(),
        "label",
        "text value of a non-numeric entry, such as host, platform or Python version",
    ),
)


@dataclass(frozen=True)
class StageDefinition:
    """The definition of a stage: its function and the arguments of ``stages.stage``.

    Attributes:
        body: The undecorated function.
        label: Name of the stage in a run; empty means ``name``.
        phase: Name of a group of consecutive stages, reported in events.
    """

    body: Callable[..., None]
    name: str
    tables: dict[str, pa.Schema]
    telemetry_tables: dict[str, pa.Schema]
    extra_code: tuple[str, ...]
    libraries: tuple[str, ...]
    external_digests: Callable[..., dict[str, str]] | None
    determinism: Determinism
    reads: dict[str, Sequence[str]]
    resources: Resources
    is_entry_point: bool = False
    resume_key: Callable[..., Any] | None = None
    label: str = ""
    phase: str = ""

    @property
    def run_label(self) -> str:
        """Name of the stage in a run."""
        return self.label or self.name

    @functools.cached_property
    def parameter_types(self) -> dict[str, Any]:
        hints = typing.get_type_hints(self.body)
        return {name: hints[name] for name in inspect.signature(self.body).parameters}

    @property
    def input_names(self) -> list[str]:
        return [name for name in self.parameter_types if name not in ("config", "context")]

    def order_inputs(
        self, inputs: Sequence[Any], named_inputs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Sort the inputs of a call in the order of the parameters.

        Raises:
            TypeError: An input is missing, unknown or given twice.
        """
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in self.input_names
        ]
        try:
            bound_inputs = inspect.Signature(parameters).bind(*inputs, **named_inputs)
        except TypeError as error:
            expected_inputs = ", ".join(self.input_names) or "none"
            raise TypeError(
                f"stage {self.name}: {error}; its inputs are {expected_inputs}"
            ) from None
        return tuple(bound_inputs.arguments.values())

    @property
    def has_automatic_accounts(self) -> bool:
        """Whether the contract computes and writes the stage's accounts and checksums."""
        return {"documents", "ledger"} <= set(self.tables) and "documents" in self.input_names

    def collect_table_schemas(self) -> dict[str, pa.Schema]:
        """Return the schemas of all tables of the artifact, including those of the contract."""
        account_schemas = (
            {"accounts": ACCOUNTS, "checksums": CHECKSUMS} if self.has_automatic_accounts else {}
        )
        return {**self.tables, **self.telemetry_tables, **account_schemas, "telemetry": TELEMETRY}

    def list_body_and_extra_code_names(self) -> tuple[CodeName, ...]:
        """Return the names of the body and of the extra code."""
        body_name = self.body.__qualname__.partition(".")[0]
        return (f"{self.body.__module__}:{body_name}", *self.extra_code)

    def get_body_module(self) -> ModuleFile:
        """Return the module that defines the body; it may be outside the project."""
        return ModuleFile(self.body.__module__, Path(inspect.getsourcefile(self.body) or ""))

    def compute_code_digests(self) -> dict[ModuleOrDataFile, str]:
        return compute_reached_code_digests(
            self.list_body_and_extra_code_names(), self.get_body_module()
        )

    def compute_external_digests(self, config: StageConfig, store: Store) -> dict[str, str]:
        """Compute the digests of everything read from outside the store.

        For an entry point, this includes the list of purged documents.

        Raises:
            UsageError: The config names a path outside the declared roots.
        """
        check_config_paths(config, self.run_label)
        digests = (
            self.external_digests(config, store.compute_secret_id())
            if self.external_digests
            else {}
        )
        if self.is_entry_point and (purged_ids_digest := hash_purged_ids(store)):
            digests = {**digests, PURGED_DOCUMENTS_FILE: purged_ids_digest}
        return digests

    def read_library_versions(self) -> dict[str, str]:
        return read_library_versions(sorted({"pyarrow", *self.libraries}))


@dataclass(frozen=True)
class StageCall:
    """A stage with its inputs, settings and fingerprint.

    Attributes:
        stage: The stage.
        arguments: The inputs by parameter name, reduced to what the stage reads.
        config: The settings.
        session: The session in which the stage runs.
        fingerprint_components: Everything that the fingerprint is computed from, with the versions
            of libraries that are used.
        fingerprint: The fingerprint. Versions that count as others are replaced before.
        lineage: Names of the input artifacts, by parameter name; see ``DigestAndLineage``.
        external_files: States of the files whose digests ``StageDefinition.external_digests``
            computed.
    """

    stage: StageDefinition
    arguments: dict[str, Any]
    config: StageConfig
    session: Session
    fingerprint_components: dict[str, Any]
    fingerprint: str
    lineage: dict[str, Any]
    external_files: ExternalFiles = field(default_factory=ExternalFiles)

    @classmethod
    def from_inputs(
        cls, stage: StageDefinition, inputs: Sequence[Any], config: StageConfig, session: Session
    ) -> Self:
        """Bind inputs, given in the order of the parameters, and compute the fingerprint."""
        arguments: dict[str, Any] = {}
        digests: dict[str, Any] = {}
        lineage: dict[str, Any] = {}
        for input_name, input_value in zip(stage.input_names, inputs, strict=True):
            is_table_input = stage.parameter_types[input_name] in (Table, Table | None)
            selected_input = (
                select_input_table(input_value, input_name) if is_table_input else input_value
            )
            if input_name in stage.reads:
                selected_input = select_input_contents(selected_input, stage.reads[input_name])
            arguments[input_name] = selected_input
            identity = compute_digest_and_lineage(selected_input)
            digests[input_name], lineage[input_name] = identity.digest, identity.lineage
        external_files = ExternalFiles()
        with external_files.record_hashed_files():
            external_digests = stage.compute_external_digests(config, session.store)
        components = {
            "stage": stage.name,
            "code": stage.compute_code_digests(),
            "config": config.model_dump(mode="json"),
            "inputs": digests,
            "libraries": stage.read_library_versions(),
            "external": external_digests,
        }
        return cls(
            stage,
            arguments,
            config,
            session,
            components,
            compute_fingerprint(session.equivalent_versions.replace_versions(components)),
            lineage,
            external_files,
        )

    @property
    def label(self) -> str:
        return self.stage.run_label

    @property
    def equivalent_versions(self) -> dict[str, str]:
        """The versions that the fingerprint contains in place of those that are used."""
        count_as = self.session.equivalent_versions.count_as
        return {
            library: counted_version
            for library, version in iter_library_versions(self.fingerprint_components)
            if (counted_version := count_as(library, version, self.stage.name)) != version
        }

    @property
    def work_area_id(self) -> str:
        """Id of the work area: the fingerprint, or a hash shared by runs with one resume key."""
        if self.stage.resume_key is None:
            return self.fingerprint
        components = self.session.equivalent_versions.replace_versions(self.fingerprint_components)
        return compute_fingerprint({**components, "config": self.stage.resume_key(self.config)})

    def find_and_check_stored_artifact(self) -> Artifact | None:
        """Return the stored output; None if there is none.

        Raises:
            HallmarkError: A file of the output or of an input is missing from the store or has
                the wrong size.
        """
        artifact = self.session.store.find_artifact(self.stage.name, self.fingerprint)
        if artifact is not None:
            try:
                self.session.check_artifact_file_sizes(
                    [*iter_artifacts(self.arguments.values()), artifact]
                )
            except HallmarkError as error:
                raise HallmarkError(f"stage {self.label}: {error}") from error
        return artifact
