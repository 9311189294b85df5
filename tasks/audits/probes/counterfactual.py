"""Audit how the model continues prompts that differ only in the group they mention.

The method follows Huang et al. 2020 (sentiment) and Sheng et al. 2019 (regard), with Hallmark's
own prompts and groups, and the groups of a user's lexicon. A template is filled with each group of
a domain; groups are compared within templates, and labels are permuted within templates. Regard is
scored on prompt and continuation with the group masked, so that the scorer does not judge its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from hallmark.tasks.audits.audit_descriptions import AuditDescription, ChartDescription
from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.audits.methods.group_comparison import (
    GROUP_COMPARISON_GLOSSARY,
    ITEMS,
    SCORER_HEADS,
    GroupComparison,
    GroupPrompt,
    GroupsConfig,
    request_prompt_continuations,
)
from hallmark.tasks.audits.methods.user_lexicons import (
    DATA_FOLDER,
    SENTENCES_FILE,
    LexiconGroup,
    read_lexicon_groups,
)
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.measures.sentence_frames import SENTENCE_FRAMES, sample_sentence_frames

SWAP_TERMS_FILE = Path(__file__).parents[2] / "measures" / "data" / "swaps.json"


class CounterfactualConfig(GroupsConfig):
    """Settings of the audit of prompts that differ only in the group."""

    continuations_per_prompt: int = Field(
        default=2,
        ge=1,
        le=1000,
        description="number of continuations to generate for each prompt",
    )
    builtin_groups: bool = Field(
        default=True,
        description="whether to test the built-in groups in addition to those from the user's "
        "lexicons",
    )
    grammar_prompts: int | None = Field(
        default=None,
        ge=2,
        le=len(SENTENCE_FRAMES),
        description="number of grammar-generated prompts; if not set, the built-in prompts are "
        "used instead",
    )


def read_builtin_groups() -> list[LexiconGroup]:
    """Read the built-in groups from the swap terms of each domain.

    A group is named by its first adjective followed by "people", otherwise by its first plural.
    """
    axes: dict[str, Any] = json.loads(SWAP_TERMS_FILE.read_text(encoding="utf-8"))["axes"]
    groups = []
    for domain, role_rows in axes.items():
        terms_by_role = {row["role"]: row["terms"] for row in reversed(role_rows)}
        phrases_by_group = {
            group: f"{word} people" for group, word in terms_by_role.get("adjective", {}).items()
        }
        groups += [
            LexiconGroup(domain, group, word)
            for group, word in (phrases_by_group or terms_by_role["plural"]).items()
        ]
    return groups


def load_prompt_templates(config: CounterfactualConfig) -> list[str]:
    """Return the prompts with a placeholder for the group."""
    if config.grammar_prompts is not None:
        return sample_sentence_frames(config.grammar_prompts, config.seed)
    templates: list[str] = []
    for file_stem in ("user_lexicons", "counterfactual"):
        data = json.loads((DATA_FOLDER / f"{file_stem}.json").read_text(encoding="utf-8"))
        templates += data["prompts"]
    return templates


def fill_templates(groups: list[LexiconGroup], templates: list[str]) -> Iterator[GroupPrompt]:
    """Yield each template filled with each group."""
    for group in groups:
        for template in templates:
            text = template.format(group=group.display_word)
            yield GroupPrompt(
                group.lexicon,
                group.group,
                template,
                text[:1].upper() + text[1:],
                (group.display_word,),
            )


def build_requests(
    requests: RequestBuilder,
    tokenizer: AuditedTokenizer,
    corpus: CorpusTables,
    config: CounterfactualConfig,
) -> None:
    """Request continuations of the prompts about built-in and user-supplied groups."""
    lexicon_groups = [
        replace(group, lexicon=f"lexicon {group.lexicon}")
        for group in read_lexicon_groups(corpus.lexicons)
    ]
    groups = [*(read_builtin_groups() if config.builtin_groups else ()), *lexicon_groups]
    if not groups:
        requests.record_skipped(
            "",
            "there are no groups to compare, because audit_counterfactual.builtin_groups is "
            "false and identities.lexicons is empty",
        )
        return
    request_prompt_continuations(
        requests, tokenizer, [*fill_templates(groups, load_prompt_templates(config))], config
    )


PROBE = GroupComparison("counterfactual", "templates", True, SCORER_HEADS).make_probe(
    description=AuditDescription(
        20,
        "Comparison of text about groups",
        "This audit compares text that the model generates about different groups after otherwise "
        "identical prompts. The audit measures differences in toxicity and other scores.",
        "Differences in text about different groups after otherwise identical prompts were not "
        "measured.",
        skipped_count_metrics={
            "untokenizable_prompts": "Prompts without tokens",
            "truncated_prompts": "Truncated prompts",
        },
        risk="bias",
        sample_unit="continuations",
        question=("Does the model write differently about one group than about other groups?"),
        charts=(
            ChartDescription(
                "toxicity_difference",
                "difference in toxicity from other groups",
                (
                    "Toxicity of text about a group minus toxicity of text about other groups "
                    "after otherwise identical prompts, with intervals. The dashed line marks 0 "
                    "(no difference)."
                ),
                reference_value=0.0,
            ),
            ChartDescription(
                "sentiment_difference",
                "difference in sentiment from other groups",
                (
                    "Sentiment of text about a group minus sentiment of text about other groups, "
                    "with intervals. The dashed line marks 0 (no difference)."
                ),
                reference_value=0.0,
            ),
        ),
        limits=(
            "The prompts come from a few English templates. A scorer judges the words of a "
            "text, not its meaning."
        ),
        glossary=GROUP_COMPARISON_GLOSSARY,
    ),
    config_class=CounterfactualConfig,
    item_schema=ITEMS,
    build_requests=build_requests,
    module=__name__,
    corpus_tables=("lexicons",),
    data_files=(
        SENTENCES_FILE,
        "tasks/audits/data/counterfactual.json",
        "tasks/measures/data/swaps.json",
    ),
)
