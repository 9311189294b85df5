"""Choose which audits a run executes: those of ``--only``, without those of ``--skip``.

Flows and run.json know only the resulting list, so that there is one mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence

from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import UsageError, format_closest_name_hint

#: All audits, in the order of the card.
ALL_AUDITS = tuple(AUDIT_DESCRIPTIONS)

#: The audits that compare the model with its training corpus and measure nothing without it.
CORPUS_AUDITS = (
    "capability",
    "associations",
    "amplification",
    "extraction",
    "extraction_attack",
    "membership",
)


def select_audits(
    only: Sequence[str] | None = None, skip: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the audits of ``only`` (None: all) without those of ``skip``, in the card's order.

    Raises:
        UsageError: A name is unknown, or no audit remains.
    """
    for option, audit_names in (("only", only), ("skip", skip)):
        if audit_names is not None:
            check_audit_names(audit_names, option)
    selected = tuple(
        name
        for name in ALL_AUDITS
        if (only is None or name in only) and (skip is None or name not in skip)
    )
    if not selected:
        raise UsageError(
            f"the 'skip' option ({','.join(skip or ())!r}) excludes every audit; skip fewer "
            "audits, or stop before the audits with --until pretrain"
        )
    return selected


def check_audit_names(audit_names: Sequence[str], option: str = "only") -> None:
    """Raise UsageError unless these are names of audits, at least one."""
    unknown_names = [name for name in audit_names if name not in AUDIT_DESCRIPTIONS]
    if unknown_names:
        problem = "there is no audit " + ", ".join(
            f"{name!r}{format_closest_name_hint(name, ALL_AUDITS)}" for name in unknown_names
        )
    elif not audit_names:
        problem = "none is named"
    else:
        return
    raise UsageError(
        f"{option} {','.join(audit_names)!r}: {problem}; choose from {', '.join(ALL_AUDITS)}"
    )


def parse_audit_names(values: Sequence[str] | None) -> list[str] | None:
    """Split the values of an option at commas, or return None if the option is not given."""
    if values is None:
        return None
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def format_selection_options(audit_names: Sequence[str] | None) -> list[str]:
    """Return the shorter options that select these audits; nothing for None, which means all."""
    if audit_names is None:
        return []
    skipped_names = [name for name in ALL_AUDITS if name not in audit_names]
    if skipped_names and len(skipped_names) < len(audit_names):
        return ["--skip", ",".join(skipped_names)]
    return ["--only", ",".join(audit_names)]
