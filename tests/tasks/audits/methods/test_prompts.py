"""Test how prompts become contexts: which are skipped or truncated, and that both are counted."""

import json

import pytest

from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.registry import PROBES, SKIPPED_COUNT_METRICS

TEXTS = ["short", "x", "long"]


class LetterTokenizer(AuditedTokenizer):
    """Give one token per letter, and none for the text x; there is no begin-of-text token."""

    name, model_kind, opening_description = "letters", "causal", ""
    context_length, vocab_size, bos_id = 11, 9, None

    def encode_batch(self, texts):
        return [[1] * (0 if text == "x" else len(text)) for text in texts]

    def decode(self, token_ids):
        return ""


@pytest.mark.parametrize(
    ("probe_name", "content"),
    [
        ("toxicity", "".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS)),
        ("misuse", "".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS)),
        ("bold", json.dumps({"group": {"name": TEXTS}})),
    ],
)
def test_prompts_that_are_too_long_or_without_tokens_are_counted(tmp_path, probe_name, content):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    (probe,) = (probe for probe in PROBES if probe.name == probe_name)
    prompts = path if probe_name == "toxicity" else (path,)
    config = probe.config_class(prompts=prompts, max_new_tokens=7)
    builder = RequestBuilder()
    probe.build_requests(builder, LetterTokenizer(), CorpusTables(), config)
    assert sorted(request.context_ids for request in builder.requests) == [[1] * 4, [1] * 5]
    skip_counts = {skipped.metric: skipped.count for skipped in builder.skipped}
    assert skip_counts.pop("expected_maximum_toxicity", None) is None  # without a prompt
    assert skip_counts == {"untokenizable_prompts": 1, "truncated_prompts": 1}
    assert skip_counts.keys() <= {*SKIPPED_COUNT_METRICS[probe_name]}
