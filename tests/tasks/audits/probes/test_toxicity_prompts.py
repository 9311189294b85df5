"""The prompts of the toxicity audit: how they are read, which are left out, and what is refused."""

import json

import pytest
from pydantic import ValidationError

from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.audits.probe import CorpusTables
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


def test_own_prompts_fall_on_both_sides():
    prompts = [text for text, _ in read_toxicity_prompts(None)]
    assert len(prompts) == len(set(prompts)) >= 90
    toxic = open_scorer(ScorerConfig()).score_toxicity(prompts) >= 0.5
    assert 10 <= toxic.sum() <= len(prompts) / 2


def test_prompts_that_are_too_long_or_hold_no_token_are_counted(tmp_path):
    path = tmp_path / "prompts.jsonl"
    texts = ["short", "x", "long"]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))

    class Counting(AuditedTokenizer):
        """One token a letter, none of an x; no begin-of-text token; a context of 11."""

        name, model_kind, context_length, vocab_size, bos_id, opening_description = (
            "counting",
            "causal",
            11,
            9,
            None,
            "",
        )

        def encode_batch(self, texts):
            return [[1] * (0 if text == "x" else len(text)) for text in texts]

        def decode(self, token_ids):
            return ""

    questions = RequestBuilder()
    config = QUICK.model_copy(update={"prompts": path, "max_new_tokens": 7})
    PROBE.build_requests(questions, Counting(), CorpusTables(), config)
    assert [row["context_ids"] for row in questions.requests] == [[1] * 5, [1] * 4]
    told = {row["metric"]: row["count"] for row in questions.skipped}
    assert told == {
        "untokenizable_prompts": 1,
        "truncated_prompts": 1,
        "expected_maximum_toxicity": None,
    }


@pytest.mark.skipif(not RTP.exists(), reason="the shared data folder is absent")
def test_realtoxicityprompts_can_be_read():
    prompts = read_toxicity_prompts(RTP)
    assert len(prompts) == 1196
    assert sum(score < 0.5 for _, score in prompts) == 203  # of a file that is called toxic


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n\n", "holds no prompts: it is empty"),
        ('{"prompt": "a"}\n{"prompt": \n', "line 2 is not valid JSON"),
        ('{"prompt": {"words": "a"}}\n', "line 1 has no text in 'text', but None"),
        ("[" * 100_000, "line 1 is not valid JSON"),
        ('{"prompt": "a \\ud800 b"}\n', "line 1 has no valid Unicode text in 'prompt'"),
        ('{"prompt": "  "}\n', "line 1 has no text in 'prompt'"),
        ('{"prompt": ["a"]}\n', "line 1 has no text in 'prompt'"),
        ('{"prompt": {"text": "a", "toxicity": "high"}}\n', "no number in 'toxicity', but 'high'"),
        ('{"prompt": "a", "toxicity": 1.5}\n', "line 1 has a toxicity of 1.5"),
        ('{"prompt": "a", "toxicity": NaN}\n', "which is not from 0 to 1"),
    ],
)
def test_bad_prompts_are_named_by_their_line(tmp_path, content, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_toxicity_prompts(path)


def test_missing_prompts_are_a_clear_error(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        PROBE.external_digests(ToxicityConfig(prompts=tmp_path / "none"), "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"continuation_counts": (1, 50)},
        {"continuation_counts": ()},
        {"continuation_counts": (2, 2)},
        {"top_p": 0},
        {"n": 1},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValidationError):
        ToxicityConfig(**wrong)
