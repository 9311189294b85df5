"""Audit how the model continues text about people of different groups, with BOLD's prompts.

The prompts (Dhamala et al. 2021) are beginnings of sentences from Wikipedia, by domain (gender,
race, religion …), group, and subject of the article. Trailing white space, which 23,674 of the
23,679 prompts have, is removed because it would become a token. Repeated prompts are asked once.
At most ``prompts_per_group`` are asked for each group, those with the lowest hashes.

Prompts about one name are a cluster. The groups consist of different people, so a difference
between them describes the texts that readers get; it does not show that the group causes it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from hallmark.tasks.audits.audit_descriptions import (
    NO_INVENTED_GROUPS,
    AuditDescription,
    ChartDescription,
)
from hallmark.tasks.audits.audit_tables import RequestBuilder, hash_json_values
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.audits.methods.group_comparison import (
    GROUP_COMPARISON_GLOSSARY,
    ITEMS,
    GroupComparison,
    GroupPrompt,
    GroupsConfig,
    request_prompt_continuations,
)
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.contract import UsageError
from hallmark.tasks.measures.item_files import check_file_exists, open_text_file, user_file_digests


class BoldConfig(GroupsConfig):
    """Settings of the audit of BOLD's prompts about people; it does not run without files."""

    prompts: tuple[Path, ...] = Field(
        (),
        description="BOLD files, one for each domain, each a JSON object of the form {group: "
        "{name: [prompts]}}, plain or compressed (.gz)",
    )
    prompts_per_group: int = Field(
        100,
        ge=2,
        le=1_000_000,
        description="maximum number of prompts per group; the prompts are selected by hash",
    )


def read_bold_prompts(json_file: Path) -> Iterator[GroupPrompt]:
    """Yield all prompts of a file, including empty ones.

    Raises:
        UsageError: The file does not exist or is not a file of BOLD. The message names the place.
    """
    check_file_exists(json_file, "prompts")
    try:
        with open_text_file(json_file, "prompts", encoding="utf-8") as file:
            groups_in_domain = json.load(file)
    except (ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            f"{json_file} is not a valid UTF-8 JSON file; provide a BOLD file: {str(error)[:200]}"
        ) from error
    domain = json_file.name.partition(".")[0].removeprefix("bold_").removesuffix("_prompt")
    for group, prompts_by_name in _require_json_object(
        json_file, groups_in_domain, "groups"
    ).items():
        group_location = f"{json_file}, group {group[:60]!r}"
        named_prompts = _require_json_object(group_location, prompts_by_name, "names")
        for name, prompts in named_prompts.items():
            location = f"{group_location}, {name[:60]!r}"
            if not isinstance(prompts, list):
                raise UsageError(f"{location} is not a list of prompts; provide a BOLD file")
            for prompt in prompts:
                if not isinstance(prompt, str) or not _is_encodable(prompt):
                    raise UsageError(
                        f"{location}: {repr(prompt)[:60]} is not a text; provide a BOLD file"
                    )
                yield GroupPrompt(
                    " ".join(domain.split()), " ".join(group.split()), name, prompt.rstrip()
                )


def _require_json_object(location: Path | str, value: Any, contents: str) -> dict[str, Any]:
    """Return a value that must be a JSON object with printable names; ``contents`` is in errors."""
    if not isinstance(value, dict) or not value:
        raise UsageError(f"{location} is not a JSON object of {contents}; provide a BOLD file")
    for name in value:
        if not name.isprintable() or not name.strip():
            raise UsageError(
                f"{location}: the name {name!r:.60} is empty or not printable; correct the file"
            )
    return value


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


class SelectedPrompts(NamedTuple):
    """The prompts to ask, and the numbers of the others.

    Attributes:
        prompts: The prompts to ask.
        skip_counts: Number of skipped prompts by metric of ``_SKIP_REASONS``.
    """

    prompts: list[GroupPrompt]
    skip_counts: dict[str, int]


def select_prompts(config: BoldConfig) -> SelectedPrompts:
    """Select the prompts to ask, and count those that are skipped."""
    all_prompts = [prompt for path in config.prompts for prompt in read_bold_prompts(path)]
    nonempty_prompts = [prompt for prompt in all_prompts if prompt.text]
    if not nonempty_prompts:
        raise UsageError(
            "all prompts in the files specified by audit_bold.prompts are empty; provide BOLD files"
        )
    prompts_by_group: dict[tuple[str, str], dict[str, GroupPrompt]] = {}
    for prompt in nonempty_prompts:
        prompts_by_group.setdefault((prompt.domain, prompt.group), {}).setdefault(
            prompt.text, prompt
        )
    selected = [
        prompt
        for group_prompts in prompts_by_group.values()
        for prompt in sorted(group_prompts.values(), key=lambda p: hash_json_values(p.text))[
            : config.prompts_per_group
        ]
    ]
    skip_counts = {
        "empty_prompts": len(all_prompts) - len(nonempty_prompts),
        "repeated_prompts": len(nonempty_prompts)
        - len({prompt.text for prompt in nonempty_prompts}),
        "skipped_prompts": sum(map(len, prompts_by_group.values())) - len(selected),
    }
    return SelectedPrompts(selected, skip_counts)


_SKIP_REASONS = {
    "empty_prompts": "prompts that consist only of white space; they are not passed to the model",
    "repeated_prompts": "prompts with the same text as an earlier prompt in the files; each text "
    "is passed to the model only once",
    "skipped_prompts": "prompts that were not selected because each group is limited to "
    "audit_bold.prompts_per_group prompts (selected by hash)",
}


def build_requests(
    requests: RequestBuilder, tokenizer: AuditedTokenizer, corpus: CorpusTables, config: BoldConfig
) -> None:
    """Request continuations of the selected prompts and record the skipped ones."""
    selection = select_prompts(config)
    request_prompt_continuations(requests, tokenizer, selection.prompts, config)
    for count_metric, count in selection.skip_counts.items():
        if count:
            requests.record_skipped(count_metric, _SKIP_REASONS[count_metric], count)


PROBE = GroupComparison("bold", "names", False, ("toxicity", "sentiment")).make_probe(
    description=AuditDescription(
        30,
        "Text about people (BOLD)",
        "This audit compares the toxicity of generated text about one group with the toxicity of "
        "generated text about other people.",
        "The toxicity of text about people was not measured (BOLD).",
        skipped_count_metrics={
            "empty_prompts": "Empty prompts",
            "repeated_prompts": "Repeated prompts",
            "skipped_prompts": "Skipped prompts",
            "untokenizable_prompts": "Prompts without tokens",
            "truncated_prompts": "Truncated prompts",
        },
        risk="bias",
        not_studied_because=NO_INVENTED_GROUPS,
        sample_unit="continuations",
        question=("Is generated text about one group more toxic than generated text about others?"),
        charts=(
            ChartDescription(
                "toxicity_difference",
                "difference in toxicity from other groups",
                (
                    "Toxicity of text about a group minus toxicity of text about other groups, "
                    "with intervals. The dashed line marks 0 (no difference)."
                ),
                reference_value=0.0,
            ),
        ),
        limits=(
            "Prompts about different groups differ in more than the group mentioned. A scorer "
            "judges the words of a text, not its meaning."
        ),
        glossary=GROUP_COMPARISON_GLOSSARY,
    ),
    config_class=BoldConfig,
    item_schema=ITEMS,
    build_requests=build_requests,
    module=__name__,
    required_settings=("prompts",),
    external_digests=lambda config, secret_id: user_file_digests(config.prompts, "prompts"),
)
