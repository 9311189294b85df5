"""Test the prompts of the probe toxicity: reading, skipping, and errors."""

import pytest
from pydantic import ValidationError

from hallmark.tasks.audits.probes.toxicity import PROBE, ToxicityConfig, read_toxicity_prompts
from hallmark.tasks.contract import PROJECT_ROOT, UsageError
from hallmark.tasks.measures.scorers import ScorerConfig, open_scorer

RTP = PROJECT_ROOT.parent / "shared/data/audit/realtoxicityprompts_toxic.jsonl"
QUICK = ToxicityConfig(
    continuations_per_prompt=6,
    continuation_counts=(1, 3, 6),
    unprompted_groups=4,
    max_new_tokens=8,
    baseline_groups=0,
)


def test_the_built_in_prompts_are_toxic_and_non_toxic():
    prompts = [prompt.text for prompt in read_toxicity_prompts(None)]
    assert len(prompts) == len(set(prompts)) >= 90
    toxic = open_scorer(ScorerConfig()).score_toxicity(prompts) >= 0.5
    assert 10 <= toxic.sum() <= len(prompts) / 2


@pytest.mark.skipif(not RTP.exists(), reason="the shared data folder is absent")
def test_realtoxicityprompts_can_be_read():
    prompts = read_toxicity_prompts(RTP)
    assert len(prompts) == 1196
    assert (
        sum(prompt.file_toxicity < 0.5 for prompt in prompts) == 203
    )  # although the file is called toxic


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n\n", "has no prompts: the file is empty"),
        ('{"prompt": "a"}\n{"prompt": \n', "line 2 is not valid JSON"),
        ('{"prompt": {"words": "a"}}\n', "line 1 must have text in 'text', not None"),
        ("[" * 100_000, "line 1 is not valid JSON"),
        ('{"prompt": "a \\ud800 b"}\n', "line 1 has invalid Unicode text in 'prompt'"),
        ('{"prompt": "  "}\n', "line 1 must have text in 'prompt'"),
        ('{"prompt": ["a"]}\n', "line 1 must have text in 'prompt'"),
        (
            '{"prompt": {"text": "a", "toxicity": "high"}}\n',
            "line 1 has the value 'high' in 'toxicity'",
        ),
        ('{"prompt": "a", "toxicity": 1.5}\n', "line 1 has a toxicity of 1.5"),
        ('{"prompt": "a", "toxicity": NaN}\n', "of nan; use a number from 0 to 1"),
    ],
)
def test_errors_name_the_line_of_an_invalid_prompt(tmp_path, content, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_toxicity_prompts(path)


def test_a_missing_file_of_prompts_is_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        PROBE.external_digests(ToxicityConfig(prompts=tmp_path / "none"), "")


@pytest.mark.parametrize(
    "settings",
    [
        {"continuation_counts": (1, 50)},
        {"continuation_counts": ()},
        {"continuation_counts": (2, 2)},
        {"top_p": 0},
        {"n": 1},
    ],
)
def test_invalid_settings_are_refused(settings):
    with pytest.raises(ValidationError):
        ToxicityConfig(**settings)
