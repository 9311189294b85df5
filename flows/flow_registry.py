"""Find flows by their names, and register every stage."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect import Flow

#: The module of each flow below ``hallmark.flows``.
FLOW_MODULES = {
    "pipeline": "pipeline",
    "corpus": "pipeline",
    "pretrain": "pipeline",
    "audit": "pipeline",
    "finetune": "finetuning",
    "prove": "removal_flow",
    "study": "study",
    "trial": "study",
}


def get_flow(name: str) -> Flow[..., Any]:
    """Return the Prefect flow with this name."""
    flow: Flow[..., Any] = getattr(import_module(f"hallmark.flows.{FLOW_MODULES[name]}"), name)
    return flow


def register_all_stages() -> None:
    """Import every stage, so that the contract's registry of stages is complete."""
    for module in dict.fromkeys(FLOW_MODULES.values()):
        import_module(f"hallmark.flows.{module}")
