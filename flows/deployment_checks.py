"""Check requests to a served deployment: their paths, and the names and types of parameters.

``hallmark.tasks.contract.allowed_roots`` defines the roots inside which paths are allowed. Without
declared roots, as on the command line, every path is allowed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from hallmark.flows.config_errors import format_validation_error
from hallmark.flows.runs import resolve_store_uri
from hallmark.tasks.contract import (
    ARTIFACT_NAME_PATTERN,
    ExternalMarker,
    UsageError,
    check_external_path,
    format_closest_name_hint,
    iter_config_paths,
    read_declared_roots,
)

if TYPE_CHECKING:
    from hallmark.flows.config import Config

#: For stores and output folders: they are not read as a whole, so links below are not checked.
OUTPUT_MARKER = ExternalMarker(recursive=False)


def check_store_allowed(store_name: str | None) -> None:
    """Refuse a store outside the declared roots.

    Args:
        store_name: A folder, a URI or the .toml file of a config that names one, as for
            ``--store``; None for the default store.
    """
    if read_declared_roots() is not None:
        check_external_path(resolve_store_uri(store_name), "store", OUTPUT_MARKER)


def check_checkpoint_allowed(checkpoint_name: str, setting: str = "checkpoint") -> None:
    """Refuse the folder of a checkpoint outside the declared roots; names of runs are allowed."""
    if read_declared_roots() is None:
        return
    path_exists = os.path.lexists(checkpoint_name) or os.path.lexists(
        os.path.expanduser(checkpoint_name)
    )
    if path_exists or not (
        ARTIFACT_NAME_PATTERN.fullmatch(checkpoint_name)
        or "/" not in checkpoint_name.partition("@")[0]
    ):
        check_external_path(checkpoint_name, setting)


def check_settings_allowed(settings: Config, recorded_settings: Config | None = None) -> None:
    """Refuse a config that names a path outside the declared roots.

    Args:
        settings: The config of the request.
        recorded_settings: The config of the run whose checkpoint is audited, if any. Its paths of
            the corpus and the training are not read again, so they are allowed.

    The setting ``store`` is not checked here, but by ``check_store_allowed``.
    """
    roots = read_declared_roots()
    if roots is None:
        return
    from hallmark.flows.config import ROOT_KEYS

    sections = [section for section in type(settings).model_fields if section not in ROOT_KEYS]
    unused_sections = {*sections[: sections.index("pretrain") + 1]}
    recorded_paths = {
        config_path
        for config_path in (iter_config_paths(recorded_settings) if recorded_settings else ())
        if config_path.setting.partition(".")[0] in unused_sections
    }
    for config_path in iter_config_paths(settings):
        if config_path not in recorded_paths and config_path.setting != "store":
            roots.check_path(config_path.path, config_path.setting, config_path.marker)


def check_request_parameters(
    flow_name: str, function: Callable[..., Any], parameters: Mapping[str, Any]
) -> None:
    """Refuse unknown parameters, missing ones, and values of the wrong type.

    Args:
        flow_name: Name of the flow, for the error.
        function: The function of the flow.
        parameters: The parameters of the request.

    Raises:
        UsageError: If a parameter is wrong; suggests the most similar name for an unknown one.
    """
    expected_parameters = inspect.signature(function).parameters
    for name in parameters:
        if name not in expected_parameters:
            raise UsageError(
                f"the flow {flow_name} has no parameter {name!r}"
                f"{format_closest_name_hint(name, expected_parameters)}; its parameters are "
                f"{', '.join(expected_parameters)}"
            )
    type_hints = get_type_hints(function)
    fields: Any = {
        name: (type_hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in expected_parameters.items()
    }
    parameter_model = create_model("Parameters", __config__=ConfigDict(strict=True), **fields)
    try:
        parameter_model.model_validate(dict(parameters))
    except ValidationError as error:
        problem = format_validation_error(error, parameters, (), parameter_model)
        raise UsageError(f"the parameters of the flow {flow_name}: {problem}") from error
