"""What a served deployment refuses of a request: paths outside its roots, and parameters that its
flow does not take or that are of another type.

``tasks.contract.roots`` says what the roots are. Without roots, on a person's command line, no
path is refused.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from flows.mistakes import closest, sentence
from flows.runs import ARTIFACT, store_uri
from tasks.contract import External, UsageError, check_external, declared_roots, external_paths

if TYPE_CHECKING:
    from flows.config import Config

#: A store and a folder of outputs are not read as a whole: links below them are not followed.
OUTPUT = External(whole=False)


def check_store(named: str | None) -> None:
    """Refuse a store outside the declared roots.

    Args:
        named: A folder, a URI or the .toml file of a config that names one, as ``--store`` takes
            it; None for the store of the environment.
    """
    if declared_roots() is not None:
        check_external(store_uri(named), "store", OUTPUT)


def check_checkpoint(text: str, setting: str = "checkpoint") -> None:
    """Refuse a folder of a checkpoint outside the declared roots; names of runs are no paths."""
    if declared_roots() is None:
        return
    there = os.path.lexists(text) or os.path.lexists(os.path.expanduser(text))
    if there or not (ARTIFACT.fullmatch(text) or "/" not in text.partition("@")[0]):
        check_external(text, setting)


def check_settings(settings: Config, recorded: Config | None = None) -> None:
    """Refuse a config that names a path outside the declared roots.

    Args:
        settings: The config of the request.
        recorded: The config of the run whose checkpoint is audited, if the request names one. What
            it says of the corpus and the training is not read again.

    The store is not among them: ``check_store`` is for the one that is opened.
    """
    roots = declared_roots()
    if roots is None:
        return
    from flows.config import ROOT_KEYS

    sections = [name for name in type(settings).model_fields if name not in ROOT_KEYS]
    unread = {*sections[: sections.index("pretrain") + 1]}
    known = {
        named
        for named in (external_paths(recorded) if recorded else ())
        if named.setting.partition(".")[0] in unread
    }
    for named in external_paths(settings):
        if named not in known and named.setting != "store":
            roots.check(named.path, named.setting, named.marker)


def check_parameters(
    flow: str, function: Callable[..., Any], parameters: Mapping[str, Any]
) -> None:
    """Refuse parameters that a flow does not take, lacks, or that are of another type.

    Args:
        flow: Name of the flow, for the error.
        function: What the flow calls.
        parameters: Those of the request.

    Raises:
        UsageError: One sentence, with the closest parameter for a name that is not known.
    """
    signature = inspect.signature(function).parameters
    for name in parameters:
        if name not in signature:
            raise UsageError(
                f"the flow {flow} has no parameter {name!r}{closest(name, signature)}; it takes "
                f"{', '.join(signature)}"
            )
    hints = get_type_hints(function)
    fields: Any = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in signature.items()
    }
    model = create_model("Parameters", __config__=ConfigDict(strict=True), **fields)
    try:
        model.model_validate(dict(parameters))
    except ValidationError as error:
        wrong = sentence(error, parameters, (), model)
        raise UsageError(f"the parameters of the flow {flow}: {wrong}") from error
