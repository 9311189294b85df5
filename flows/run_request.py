"""What a person asks for: one typed value, whether a command, Prefect or a rerun makes it.

The parameters of the flows, and with them Prefect's form, are the fields of this value.
``run.json`` keeps it, with the version of its format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import NoneType
from typing import Annotated, Any, Self, Union, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticUndefined

from hallmark.flows.config_errors import format_validation_error
from hallmark.tasks.contract import HallmarkError, UsageError, format_closest_name_hint

#: The version of the format in which run.json keeps requests.
REQUEST_FORMAT = 1

#: The fields of a request that each flow uses, in the order of Prefect's form.
FIELDS_BY_FLOW = {
    "pipeline": (
        "config",
        "overrides",
        "audits",
        "until",
        "start",
        "store",
        "hash_sources",
        "experiment_arm",
    ),
    "corpus": ("config", "overrides", "store", "hash_sources"),
    "pretrain": ("config", "overrides", "start", "store", "hash_sources"),
    "audit": ("checkpoint", "audits", "config", "overrides", "store"),
    "finetune": ("checkpoint", "config", "overrides", "store"),
}

#: The fields that a flow needs.
REQUIRED_FIELDS_BY_FLOW = {"audit": ("checkpoint",), "finetune": ("checkpoint", "config")}


@dataclass(frozen=True)
class _Enumerated:
    """Restrict a text in the JSON schema to names that are read when the schema is made.

    The check of a request itself suggests similar names; JSON schema cannot.
    """

    list_names: Callable[[], list[str]]

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "enum": self.list_names()}


def _list_stage_names() -> list[str]:
    from hallmark.flows.config import STAGE_SECTIONS

    return [name for name in STAGE_SECTIONS if name not in ("finetune", "task_card")]


def _list_audit_names() -> list[str]:
    from hallmark.flows.audit_selection import ALL_AUDITS

    return [*ALL_AUDITS]


Text = Annotated[str, Field(min_length=1)]
Override = Annotated[str, Field(json_schema_extra={"pattern": "^[^=]*[^=\\s][^=]*="})]
AuditSelection = Annotated[
    tuple[Annotated[str, _Enumerated(_list_audit_names)], ...],
    Field(json_schema_extra={"minItems": 1, "uniqueItems": True}),
]


class RunRequest(BaseModel):
    """A request to run a flow. It is complete: a flow has no other parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flow: str
    """The flow: one of ``FIELDS_BY_FLOW``, which lists the fields that it uses."""

    checkpoint: Text | None = Field(
        None,
        title="Checkpoint",
        description='RUN, RUN@STEP ("latest@0": the untrained model), an artifact '
        '("checkpoint/…"), or a folder with a model.',
    )
    config: Text | dict[str, Any] | None = Field(
        None,
        title="Config",
        description="A .toml file, the name of a bundled config, or a complete config as an "
        "object. Defaults to the config of the run that trained the checkpoint, or to "
        '"demo" if no checkpoint is given.',
    )
    overrides: tuple[Override, ...] = Field(
        (),
        title="Overrides",
        description="Settings that override the config, such as pretrain.train.steps=100.",
    )
    audits: AuditSelection | None = Field(
        None, title="Audits", description="Audits to run; defaults to all audits."
    )
    until: Annotated[str, _Enumerated(_list_stage_names)] | None = Field(
        None, title="Last stage", description="Stop after this stage; runs all stages by default."
    )
    start: Text | None = Field(
        None,
        title="Start checkpoint",
        description="Continue training from this Hallmark checkpoint, with its tokenizer: "
        'RUN@STEP, an artifact ("checkpoint/…") or a folder.',
    )
    store: Text | None = Field(
        None,
        title="Store",
        description="A folder or a URI; defaults to the store that the config specifies, then to "
        "the HALLMARK_STORE environment variable, then to ./runs.",
    )
    hash_sources: StrictBool = Field(
        False,
        title="Hash sources",
        description="Read and hash every source file, even if its size, timestamps and inode have "
        "not changed since the previous run.",
    )
    experiment_arm: Text | None = Field(
        None,
        title="Arm of an experiment",
        description="Leave this empty. The mitigate and prove commands set it to a run's arm, "
        'which excludes that run from "latest".',
    )

    @model_validator(mode="before")
    @classmethod
    def _check_names_of_fields(cls, fields: Any) -> Any:
        flow_name = fields.get("flow")
        if not isinstance(flow_name, str) or flow_name not in FIELDS_BY_FLOW:
            raise UsageError(
                f"there is no flow {flow_name!r:.80}"
                f"{format_closest_name_hint(str(flow_name), FIELDS_BY_FLOW)}; choose one of: "
                f"{', '.join(FIELDS_BY_FLOW)}"
            )
        field_names = FIELDS_BY_FLOW[flow_name]
        for name in fields:
            if name not in ("flow", *field_names):
                raise UsageError(
                    f"the {flow_name} flow has no parameter "
                    f"{name!r:.80}{format_closest_name_hint(name, field_names)}; its parameters "
                    f"are {', '.join(field_names)}"
                )
        for name in REQUIRED_FIELDS_BY_FLOW.get(flow_name, ()):
            if fields.get(name) is None:
                raise UsageError(f"the {flow_name} flow needs the parameter {name}; add it")
        return fields

    @field_validator("config", mode="before")
    @classmethod
    def _check_config_type(cls, config: Any) -> Any:
        if config is None or (config and isinstance(config, str | dict)):
            return config
        raise ValueError("must be a .toml file, a config name, or an object")

    @field_validator("audits")
    @classmethod
    def _sort_audits(cls, audits: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Sort audits in the order of the card; None if these are all."""
        if audits is None:
            return None
        from hallmark.flows.audit_selection import ALL_AUDITS, check_audit_names, select_audits

        check_audit_names(audits, "audits")
        selected_audits = select_audits(audits)
        return None if selected_audits == ALL_AUDITS else selected_audits

    @classmethod
    def parse(cls, flow_name: str, parameters: Mapping[str, Any]) -> Self:
        """Parse the parameters of a flow.

        Raises:
            UsageError: If one is unknown, missing or wrong, in one sentence.
        """
        if "flow" in parameters:
            raise UsageError(f"the {flow_name} flow has no parameter 'flow'; remove it")
        fields = {**parameters, "flow": flow_name}
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            problem = format_validation_error(error, fields, (), cls)
            raise UsageError(
                f"the parameters of the {flow_name} flow are not valid: {problem}"
            ) from error

    @classmethod
    def from_record(cls, record: Any) -> Self:
        """Parse the request that a run.json keeps.

        Raises:
            HallmarkError: If it has another format, or is damaged; in one sentence.
        """
        if not isinstance(record, dict):
            raise HallmarkError("the request must be a JSON object")
        if record.get("format") != REQUEST_FORMAT or isinstance(record["format"], bool):
            raise HallmarkError(
                f"the request has format {record.get('format')!r:.40}, but this version of "
                f"Hallmark reads format {REQUEST_FORMAT}"
            )
        parameters = {name: value for name, value in record.items() if name != "format"}
        return cls.parse(parameters.pop("flow", None), parameters)

    def to_record(self) -> dict[str, Any]:
        """Return the request as run.json keeps it."""
        return {
            "format": REQUEST_FORMAT,
            "flow": self.flow,
            **self.model_dump(mode="json", include={*FIELDS_BY_FLOW[self.flow]}),
        }

    @property
    def selected_audits(self) -> tuple[str, ...]:
        """The audits to run, in the order of the card."""
        from hallmark.flows.audit_selection import ALL_AUDITS

        return ALL_AUDITS if self.audits is None else self.audits

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the flow."""
        return {name: getattr(self, name) for name in FIELDS_BY_FLOW[self.flow]}

    @property
    def given_parameters(self) -> dict[str, Any]:
        """The parameters of the flow without those that have their default, as JSON."""
        field_names = {*FIELDS_BY_FLOW[self.flow]}
        return self.model_dump(mode="json", include=field_names, exclude_defaults=True)

    def with_changes(self, **changes: Any) -> Self:
        """Return a request that differs in these fields."""
        return self.parse(self.flow, self.parameters | changes)


def build_flow_signature(flow_name: str) -> Signature:
    """Build the signature of a flow, from which Prefect makes its form.

    Every parameter is a field of ``RunRequest``, with its title, its description and the values
    that it may have.
    """
    type_hints = get_type_hints(RunRequest, include_extras=True)
    required_fields = REQUIRED_FIELDS_BY_FLOW.get(flow_name, ())
    parameters = []
    for name in FIELDS_BY_FLOW[flow_name]:
        field, annotation, default = RunRequest.model_fields[name], type_hints[name], None
        if name in required_fields:
            given_types = tuple(each for each in get_args(annotation) if each is not NoneType)
            annotation, default = Union[given_types], PydanticUndefined  # noqa: UP007
        else:
            default = field.default
        form_field = Field(
            default,
            description=field.description,
            json_schema_extra={"title": field.title or name},  # Prefect ignores other titles
        )
        parameters.append(
            Parameter(name, Parameter.KEYWORD_ONLY, default=form_field, annotation=annotation)
        )
    return Signature(parameters, return_annotation=str)
