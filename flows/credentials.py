"""Resolve the credentials of libraries from environment variables or Prefect Secret blocks.

A config names where a credential is and never contains it, because run.json, Prefect, pages and
cards show the config. When a run starts, each credential is put into the environment variable from
which its library reads it, which the processes of the run inherit. Nothing else keeps the value.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, model_validator

from hallmark.flows.config_errors import format_validation_error
from hallmark.flows.config_files import apply_override
from hallmark.tasks.contract import (
    HallmarkError,
    StageConfig,
    UsageError,
    get_short_error_line,
    read_declared_roots,
)

#: How a config refers to a credential, for errors.
REFERENCE_FORMS = '{env = "NAME"} or {secret_block = "NAME"}'

#: The number of characters from which a value is replaced in messages; shorter ones are words.
MIN_REDACTED_CHARACTERS = 6


#: The credentials that libraries read from the environment variable with this name in capital
#: letters.
CredentialName = Literal[
    "hf_token",
    "wandb_api_key",
    "mlflow_tracking_username",
    "mlflow_tracking_password",
    "mlflow_tracking_token",
    "openlineage_api_key",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "azure_storage_account_key",
    "azure_storage_sas_token",
    "google_service_account_key",
]


class SecretReference(StageConfig):
    """Where a credential is: either in an environment variable or in a Secret block of Prefect.

    NAME is hf_token, wandb_api_key, mlflow_tracking_username, mlflow_tracking_password,
    mlflow_tracking_token, openlineage_api_key, aws_access_key_id, aws_secret_access_key,
    aws_session_token, azure_storage_account_key, azure_storage_sas_token or
    google_service_account_key. The value is put into the environment variable of the library, which
    has the same name in capital letters.
    """

    env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        max_length=200,
        description="name of an environment variable",
    )
    secret_block: str | None = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9-]*$",
        max_length=200,
        description="name of a Prefect Secret block",
    )

    @model_validator(mode="before")
    @classmethod
    def _check_is_reference(cls, value: Any) -> Any:
        names = [name for name in value.values() if name] if isinstance(value, Mapping) else []
        if isinstance(value, cls) or len(names) == 1:
            return value
        raise ValueError(f"must be {REFERENCE_FORMS}, not the value itself")

    def __str__(self) -> str:
        return (
            f"the environment variable {self.env}"
            if self.env
            else f"the Prefect Secret block {self.secret_block!r}"
        )


#: The credentials of a config by name.
Credentials = dict[CredentialName, SecretReference]


class CredentialRedactor(logging.Filter):
    """Replace the values of credentials in log messages, such as those that a server echoes."""

    def __init__(self) -> None:
        super().__init__()
        #: The values by the variable in which they are.
        self.values: dict[str, SecretStr] = {}

    def redact(self, text: str) -> str:
        """Replace all values in a text by the names of their variables."""
        for variable, value in self.values.items():
            if len(value) >= MIN_REDACTED_CHARACTERS:
                text = text.replace(value.get_secret_value(), f"[{variable}]")
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        redacted_message = self.redact(message)
        if redacted_message != message:
            record.msg, record.args = redacted_message, ()
        return True


redactor = CredentialRedactor()


def export_credentials(references: Credentials) -> None:
    """Put each credential into the environment variable from which its library reads it.

    Raises:
        UsageError: If a credential does not exist or cannot be used, or if a request to a served
            deployment names an environment variable that is not declared.
    """
    check_references_allowed(references)
    for name, reference in references.items():
        value = resolve_secret(reference, f"credentials.{name}")
        os.environ[name.upper()] = value.get_secret_value()
        redactor.values[name.upper()] = value
    if references:
        logging.getLogger("hallmark").addFilter(redactor)


def export_credentials_of_tree(tree: Mapping[str, Any], overrides: Sequence[str] = ()) -> None:
    """Do what ``export_credentials`` does for a config of which only this section is read yet.

    Raises:
        UsageError: As ``export_credentials``, or if the section is invalid.
    """
    section_tree = {"credentials": tree.get("credentials") or {}}
    for override in overrides:
        if override.partition(".")[0].strip() == "credentials":
            apply_override(section_tree, override)
    try:
        export_credentials(_Section.model_validate(section_tree).credentials)
    except ValidationError as error:
        raise UsageError(
            f"config: {format_validation_error(error, section_tree, (), _Section)}"
        ) from None


class _Section(StageConfig):
    credentials: Credentials = Field({})


def list_environment_variables(references: Credentials) -> tuple[str, ...]:
    """List the environment variables to which the section of a config refers."""
    return tuple(reference.env for reference in references.values() if reference.env)


def check_references_allowed(references: Credentials) -> None:
    """Refuse environment variables that the operator of a served deployment did not declare.

    A request could otherwise send any variable of the host to a server. Blocks are not limited:
    everybody who may start a run can read them through Prefect's API.
    """
    roots = read_declared_roots()
    if roots is None:
        return
    for name, reference in references.items():
        if reference.env and reference.env not in (name.upper(), *roots.environment_variables):
            raise UsageError(
                f"credentials.{name}: a served run is not allowed to read the environment variable "
                f"{reference.env}; reference it in the config of hallmark serve, or use a Prefect "
                "Secret block"
            )


def resolve_secret(reference: SecretReference, setting: str) -> SecretStr:
    """Read a credential.

    Args:
        reference: Where it is.
        setting: The setting that refers to it, for the error.

    Raises:
        UsageError: If it does not exist, or cannot be a credential.
    """
    if reference.env:
        text = os.environ.get(reference.env)
        if text is None:
            raise UsageError(
                f"{setting}: {reference} is not set; set it, or change the name in the config"
            )
    else:
        text = _read_secret_block(reference.secret_block or "", setting)
    if not text or text != text.strip():
        problem = "is empty" if not text.strip() else "begins or ends with a space or a line break"
        raise UsageError(f"{setting}: {reference} {problem}; correct its value")
    return SecretStr(text)


def _read_secret_block(name: str, setting: str) -> str:
    """Read the value of a Secret block from the Prefect server, as text."""
    from hallmark.flows.local_prefect_server import connect_prefect

    connect_prefect()
    from prefect.blocks.system import Secret

    try:
        block: Any = Secret.load(name, _sync=True)
    except ValueError as error:
        raise UsageError(
            f"{setting}: the Prefect server has no Secret block {name!r}; create it on the "
            "server's Blocks page, or change the name in the config"
        ) from error
    except Exception as error:  # the client's errors have many types
        raise HallmarkError(
            f"{setting}: the Secret block {name!r} cannot be read from the Prefect server "
            f"({get_short_error_line(error)}); check that the server responds, then run again"
        ) from error
    value = block.value.get_secret_value()
    return value if isinstance(value, str) else json.dumps(value)
