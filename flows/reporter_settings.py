"""Define the settings of the systems to which a run reports.

The ``report_to`` setting names them; the section ``reporters`` says where each one writes. None of
these settings changes an artifact.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from hallmark.tasks.contract import ExternalMarker, StageConfig

ReporterName = Literal["tensorboard", "mlflow", "wandb", "prometheus", "openlineage"]


def _check_address(address: str) -> str:
    """Refuse what is neither a path nor an address of a server."""
    scheme, separator, _ = address.partition("://")
    if not separator:
        return address
    if scheme not in ("http", "https", "file"):
        raise ValueError("must be a path, or an address that begins with http:// or https://")
    try:
        urlsplit(address)
    except ValueError as error:
        raise ValueError(f"is not a valid address ({error})") from error
    return address


def _check_one_line(name: str) -> str:
    if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,200}", name) or not name.isprintable():
        raise ValueError("must have 1 to 200 printable characters")
    return name


Folder = Annotated[str, ExternalMarker(recursive=False)]
#: The path of a file or a folder, or the address of a server.
Address = Annotated[str, ExternalMarker(recursive=False), AfterValidator(_check_address)]
Name = Annotated[str, AfterValidator(_check_one_line)]


class TensorBoardConfig(StageConfig):
    """Settings of the event files for TensorBoard."""

    folder: Folder | None = Field(
        None, min_length=1, description="folder for event files, with one subfolder per run"
    )


class MLflowConfig(StageConfig):
    """Settings of MLflow."""

    uri: Address | None = Field(
        None,
        min_length=1,
        description="folder of an MLflow file store, or tracking server address",
    )
    experiment: Name = Field(
        "hallmark", description="name of the experiment that contains the runs"
    )


class WandbConfig(StageConfig):
    """Settings of Weights & Biases."""

    folder: Folder | None = Field(
        None, min_length=1, description="folder to which run files are written"
    )
    project: Name = Field("hallmark", description="name of the project that contains the runs")
    mode: Literal["offline", "online"] = Field(
        "offline",
        description="whether runs are only written to the folder (offline; 'wandb sync' uploads "
        "them later) or sent while they are executed (online)",
    )


class PrometheusConfig(StageConfig):
    """Settings of the metrics for Prometheus."""

    folder: Folder | None = Field(
        None,
        min_length=1,
        description="folder that the Prometheus node exporter reads with its textfile collector",
    )


class OpenLineageConfig(StageConfig):
    """Settings of OpenLineage events."""

    uri: Address | None = Field(
        None,
        min_length=1,
        description="file to which events are appended, one JSON object per line, or server "
        "address; an address without a path refers to the /api/v1/lineage endpoint",
    )
    namespace: Name = Field("hallmark", description="job namespace")


class ReportersConfig(StageConfig):
    """Where each system of ``report_to`` receives reports."""

    tensorboard: TensorBoardConfig = TensorBoardConfig()
    mlflow: MLflowConfig = MLflowConfig()
    wandb: WandbConfig = WandbConfig()
    prometheus: PrometheusConfig = PrometheusConfig()
    openlineage: OpenLineageConfig = OpenLineageConfig()


#: The setting that each system needs.
REQUIRED_SETTINGS: dict[ReporterName, str] = {
    "tensorboard": "folder",
    "mlflow": "uri",
    "wandb": "folder",
    "prometheus": "folder",
    "openlineage": "uri",
}


def check_reporter_settings(report_to: tuple[ReporterName, ...], settings: ReportersConfig) -> None:
    """Check that ``report_to`` names each system once and that its settings say where it writes.

    Raises:
        ValueError: If a name is repeated or a setting is missing.
    """
    for name in report_to:
        if report_to.count(name) > 1:
            raise ValueError(f"report_to lists {name!r} twice; remove the duplicate")
        required_setting = REQUIRED_SETTINGS[name]
        if getattr(getattr(settings, name), required_setting) is None:
            raise ValueError(
                f"report_to lists {name!r}, so reporters.{name}.{required_setting} must be set"
            )
