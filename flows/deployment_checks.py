"""Check the paths of requests to a served deployment.

``hallmark.tasks.contract.allowed_roots`` defines the roots inside which paths are allowed. Without
declared roots, as on the command line, every path is allowed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hallmark.flows.checkpoint_versions import CheckpointVersion
from hallmark.flows.runs import resolve_store_uri
from hallmark.tasks.contract import (
    ARTIFACT_NAME_PATTERN,
    ExternalMarker,
    check_external_path,
    iter_config_paths,
    read_declared_roots,
)

if TYPE_CHECKING:
    from hallmark.flows.config import Config

#: For stores, output folders and watched checkpoints: they are not read as a whole, so links below
#: are not checked here.
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
    if version := CheckpointVersion.parse(checkpoint_name):
        check_external_path(version.location, setting, OUTPUT_MARKER)
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

    The ``store`` setting is not checked here, but by ``check_store_allowed``.
    """
    roots = read_declared_roots()
    if roots is None:
        return
    from hallmark.flows.config import STAGE_SECTIONS

    unused_sections = {*STAGE_SECTIONS[: STAGE_SECTIONS.index("pretrain") + 1]}
    recorded_paths = {
        config_path
        for config_path in (iter_config_paths(recorded_settings) if recorded_settings else ())
        if config_path.setting.partition(".")[0] in unused_sections
    }
    for config_path in iter_config_paths(settings):
        if config_path not in recorded_paths and config_path.setting != "store":
            roots.check_path(config_path.path, config_path.setting, config_path.marker)
