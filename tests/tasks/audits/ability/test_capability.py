"""Test bits per byte and cloze accuracy of a trained model, and comparisons of its checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from hallmark.model.interchange import checkpoint
from hallmark.tasks.audits.ability.baselines import NgramModel, count_gzip_bits
from hallmark.tasks.audits.ability.capability import (
    SAMPLES,
    CapabilityConfig,
    audit_capability,
)
from hallmark.tasks.audits.ability.capability_baselines import capability_baselines
from hallmark.tasks.audits.ability.cloze import extract_first_word
from hallmark.tasks.audits.judging.comparison import compare_findings, explain_incomparability
from hallmark.tasks.audits.judging.comparison_units import read_heldout_documents
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Session,
    StageConfig,
    StageContext,
    Store,
    folder_to_artifact,
    open_session,
    stage,
)
from hallmark.tasks.measures.estimates import estimate_mean_or_share
from hallmark.tasks.training.encoding import load_tokenizer
from tests.model.oracles import logits
from tests.tasks.small_corpus import sentences, split_corpus
from tests.tasks.training.pretraining import run

CONFIG = CapabilityConfig(min_passage_words=3, recurrent_tokens=20_000)


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, forked_trainers: None
) -> tuple[Session, Artifact, list[Artifact]]:
    """A session, its corpus and the checkpoints of a training, from untrained to last."""
    session = Session(Store(tmp_path_factory.mktemp("trained")))
    _, training = run(Path(session.store.uri))
    names = training["checkpoints"].read()["artifact"].to_pylist()
    artifacts = [session.store.find_artifact(*name.split("/")) for name in names]
    with open_session(session):
        return session, split_corpus(200), [artifact for artifact in artifacts if artifact]


@pytest.fixture(scope="module")
def audited(trained: tuple[Session, Artifact, list[Artifact]]) -> Artifact:
    session, corpus, checkpoints = trained
    with open_session(session):
        return audit_model(checkpoints[-1], corpus)


def audit_model(checkpoint_artifact: Artifact, corpus: Artifact) -> Artifact:
    baselines = capability_baselines(checkpoint_artifact, corpus, CONFIG.baselines_config)
    return audit_capability(checkpoint_artifact, corpus, baselines, CONFIG)


def get_finding(artifact: Artifact, slice_: str, metric: str = "bits_per_byte") -> dict[str, Any]:
    rows = artifact["findings"].read().to_pylist()
    (row,) = [r for r in rows if r["metric"] == metric and name_slice(r["slice"]) == slice_]
    return row


def read_validation_texts(corpus: Artifact) -> list[str]:
    rows = corpus["documents"].read().to_pylist()
    return [row["text"] for row in rows if row["split"] == "validation"]


def test_model_bits_are_the_cross_entropy_of_the_documents(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    import torch

    _, corpus, checkpoints = trained
    folder = checkpoints[-1].fetch_directory()
    model, tokenizer = checkpoint.load_checkpoint(folder), load_tokenizer(folder / "tokenizer.json")
    texts = {row["doc_id"]: row["text"] for row in corpus["documents"].read().to_pylist()}
    rows = [r for r in audited["samples"].read().to_pylist() if r["text_kind"] == "held-out text"]
    assert len(rows) == 20
    for row in rows:
        ids = tokenizer.encode(texts[row["doc_id"]]).ids
        assert (row["tokens"], row["bytes"]) == (len(ids), len(texts[row["doc_id"]].encode()))
    # Token by token in separate forward passes; a window of 32 tokens moves by 16.
    for row in rows[:4]:
        opened = [0, *tokenizer.encode(texts[row["doc_id"]]).ids]
        bits = 0.0
        for i in range(1, len(opened)):
            start = 16 * max(0, -(-(i - 32) // 16))
            with torch.inference_mode():
                scores = logits(model, torch.tensor([opened[start:i]]))[0, -1]
            bits -= scores.log_softmax(-1)[opened[i]].item() / np.log(2)
        assert row["model_bits"] == pytest.approx(bits, rel=1e-4)


def test_the_amount_of_training_text_of_the_baselines_is_stated(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    _, corpus, checkpoints = trained
    rows = corpus["documents"].read().to_pylist()
    texts = [row["text"] for row in rows if row["split"] == "train"]
    size = sum(len(text.encode()) for text in texts)
    tokenizer = load_tokenizer(checkpoints[-1].fetch_directory() / "tokenizer.json")
    tokens = sum(len(tokenizer.encode(text).ids) for text in texts)
    sizes = audited["training_sizes"].read().to_pylist()
    expected = {"documents": len(texts), "bytes": size, "split_bytes": size}
    assert sizes == [
        {"baseline": name, **expected, "tokens": 20_000 if name == "recurrent" else tokens}
        for name in ("bigram", "fivegram", "recurrent")
    ]
    amount = f"{len(texts):,} documents from the train split ({size:,} of its {size:,} bytes)"
    assert f"trained on {amount}" in get_finding(audited, "fivegram")["method"]
    assert f"trained on 20,000 tokens from {amount}" in get_finding(audited, "recurrent")["method"]


def test_by_default_the_baselines_are_cheap() -> None:
    """No recurrent model, and a bounded amount of text; a setting gives more of both."""
    config = CapabilityConfig()
    assert config.recurrent_tokens == 0 and config.training_bytes == 16_000_000


def test_every_figure_follows_from_its_evidence(audited: Artifact) -> None:
    samples, pairs = audited["samples"].read(), audited["pairs"].read()
    assert samples["sample_id"].to_pylist() == list(range(len(samples)))
    columns = {name: f"{name}_bits" for name in ("model", "bigram", "fivegram", "recurrent")}
    sources = set()
    for row in audited["findings"].read().to_pylist():
        rows = select_evidence(
            {"samples": samples, "pairs": pairs}[row["evidence_table"]], row["evidence_filter"]
        )
        assert row["n"] == len(rows)
        assert row["low"] <= row["value"] <= row["high"]
        if row["metric"] == "cloze_accuracy" or row["evidence_table"] == "pairs":
            outcome_column = (
                "preference_score" if row["evidence_table"] == "pairs" else "is_correct"
            )
            assert row["value"] == pytest.approx(np.mean(rows[outcome_column].to_pylist()))
        elif (tags := dict(row["slice"])).get("part") in columns:
            bits = sum(rows[columns[tags["part"]]].to_pylist())
            assert row["value"] == pytest.approx(bits / sum(rows["bytes"].to_pylist()))
            if "source" in tags:
                assert set(rows["source"].to_pylist()) == {tags["source"]}
                sources.add(tags["source"])
    assert len(sources) > 0


def compute_noun_share(artifact: Artifact) -> float:
    rows = [r for r in artifact["samples"].read().to_pylist() if r["text_kind"] == "cloze"]
    answers = {row["answer"] for row in rows}
    return float(np.mean([extract_first_word(row["continuation"]) in answers for row in rows]))


def test_a_trained_model_beats_the_untrained_one(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    session, corpus, checkpoints = trained
    with open_session(session):
        untrained = audit_model(checkpoints[0], corpus)
    assert get_finding(audited, "model")["high"] < get_finding(untrained, "model")["low"]
    for slice_ in ("gzip", "bigram", "fivegram", "recurrent"):  # same tokens of the same text
        assert get_finding(audited, slice_)["value"] == get_finding(untrained, slice_)["value"]
    assert get_finding(audited, "model")["value"] < get_finding(audited, "gzip")["value"]
    difference = get_finding(audited, "baseline=bigram", "bits_per_byte_difference")
    assert difference["value"] == pytest.approx(
        get_finding(audited, "model")["value"] - get_finding(audited, "bigram")["value"]
    )
    # The last noun is random: a model can only learn that it is one of them.
    assert compute_noun_share(audited) > 0.2 > compute_noun_share(untrained)
    for artifact in (audited, untrained):
        verdicts = [r for r in artifact["findings"].read().to_pylist() if r["control"]]
        assert {r["verdict"] for r in verdicts} == {"pass"}
        assert {r["control"] for r in verdicts} == {"positive", "negative"}


def test_baselines_use_the_held_out_text(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    _, corpus, checkpoints = trained
    texts = read_validation_texts(corpus)
    size = sum(len(text.encode()) for text in texts)
    tokenizer = load_tokenizer(checkpoints[0].fetch_directory() / "tokenizer.json")
    train = [r["text"] for r in corpus["documents"].read().to_pylist() if r["split"] == "train"]
    for name, order in (("bigram", 2), ("fivegram", 5)):
        model = NgramModel([tokenizer.encode(t).ids for t in train], order, 300)
        bits = model.compute_document_bits([tokenizer.encode(t).ids for t in texts]).sum()
        assert get_finding(audited, name)["value"] == pytest.approx(bits / size)
    # gzip reads the documents in the order of their hash; another order changes the size slightly.
    expected = count_gzip_bits([text.encode() for text in texts]) / size
    assert get_finding(audited, "gzip")["value"] == pytest.approx(expected, rel=0.05)


def test_a_repeated_audit_gives_the_same_bytes(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact, tmp_path: Path
) -> None:
    _, corpus, checkpoints = trained
    with open_session(Session(Store(tmp_path))):
        assert audit_model(checkpoints[-1], corpus).content_digest == audited.content_digest


def test_checkpoints_of_one_training_share_baselines(
    trained: tuple[Session, Artifact, list[Artifact]],
) -> None:
    session, corpus, checkpoints = trained

    def compute_fingerprint(subject: Artifact, **settings: Any) -> str:
        config = CONFIG.model_copy(update=settings)
        return capability_baselines(subject, corpus, config.baselines_config).fingerprint

    with open_session(session):
        fingerprint = compute_fingerprint(checkpoints[-1])
        assert {compute_fingerprint(subject) for subject in checkpoints} == {fingerprint}
        assert compute_fingerprint(checkpoints[0], max_passages=9, device="cpu") == fingerprint
        assert compute_fingerprint(checkpoints[0], recurrent_tokens=10_000) != fingerprint


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_transformers_models(kind: str, tmp_path: Path) -> None:
    """A GPT-2 and a BERT with random weights, as transformers saves them."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        PreTrainedTokenizerFast,
    )

    from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer_by_kind

    folder = tmp_path / "model"
    tokenizer = train_tokenizer_by_kind(iter([sentences(100)]), TokenizerConfig(vocab_size=300))
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|pad|>",
        mask_token="<|pad|>" if kind == "masked" else None,
        cls_token="<|endoftext|>",
        sep_token="<|endoftext|>",
    )
    fast_tokenizer.save_pretrained(folder)
    if kind == "causal":
        model: Any = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=300,
                n_positions=64,
                n_embd=16,
                n_layer=1,
                n_head=2,
                bos_token_id=0,
                eos_token_id=0,
                pad_token_id=1,
            )
        )
    else:
        model = BertForMaskedLM(
            BertConfig(
                vocab_size=300,
                hidden_size=16,
                num_hidden_layers=1,
                intermediate_size=32,
                num_attention_heads=2,
                max_position_embeddings=64,
                pad_token_id=1,
            )
        )
    model.save_pretrained(folder)
    with open_session(Session(Store(tmp_path / "store"))):
        audited = audit_model(folder_to_artifact(folder, "checkpoint"), split_corpus(60))
    assert get_finding(audited, "bigram")["value"] > 0
    if kind == "causal":
        finding = get_finding(audited, "model")
        assert finding["value"] > 8 / 3  # random weights: about log2(300) bits per token
        assert get_finding(audited, "", "cloze_accuracy")["n"] > 0
    else:
        for metric, slice_ in (("bits_per_byte", "model"), ("cloze_accuracy", "")):
            row = get_finding(audited, slice_, metric)
            assert row["value"] is None and "masked language model" in row["method"]


def test_baselines_of_other_text_or_settings_are_refused(
    trained: tuple[Session, Artifact, list[Artifact]],
) -> None:
    session, corpus, checkpoints = trained
    with open_session(session):
        last_checkpoint = checkpoints[-1]
        other_corpus = split_corpus(160)
        settings_of_audit = CONFIG.baselines_config
        changed = settings_of_audit.model_copy(update={"recurrent_tokens": 10_000})
        for baseline_corpus, settings in ((other_corpus, settings_of_audit), (corpus, changed)):
            baselines = capability_baselines(last_checkpoint, baseline_corpus, settings)
            with pytest.raises(HallmarkError, match="was computed from a different corpus or with"):
                audit_capability(last_checkpoint, corpus, baselines, CONFIG)


def test_evidence_filters_are_json(audited: Artifact) -> None:
    for row in audited["findings"].read().to_pylist():
        assert isinstance(json.loads(row["evidence_filter"]), dict)


def test_checkpoints_are_compared_document_by_document(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    """The change of bits per byte is a ratio of sums; its error is that of a jackknife."""
    session, corpus, checkpoints = trained
    with open_session(session):
        first = audit_model(checkpoints[0], corpus)
    comparisons = {
        (c.findings[0]["metric"], name_slice(c.findings[0]["slice"])): (c.findings, c.changes[0])
        for c in compare_findings([first, audited], [(0, 1)])
    }
    samples = [
        select_evidence(a["samples"].read(), {"text_kind": "held-out text"})
        for a in (first, audited)
    ]
    assert samples[0]["doc_id"] == samples[1]["doc_id"]
    bit_differences = np.subtract(*(side["model_bits"].to_numpy() for side in reversed(samples)))
    sizes = samples[0]["bytes"].to_numpy()
    n, ratio = len(sizes), bit_differences.sum() / sizes.sum()
    jackknife_ratios = [
        np.delete(bit_differences, i).sum() / np.delete(sizes, i).sum() for i in range(n)
    ]
    error = np.sqrt((n - 1) / n * ((np.array(jackknife_ratios) - ratio) ** 2).sum())
    rows, change = comparisons["bits_per_byte", "model"]
    assert change["n"] == n and len({*sizes}) > 1
    assert change["value"] == pytest.approx(rows[1]["value"] - rows[0]["value"])
    effective_size = re.search(
        r"effective sample size (\d+)", change["method"]
    )  # documents have different sizes
    freedom = int(effective_size[1]) - 1 if effective_size else n - 1
    assert 1 < freedom <= n - 1
    half_width = scipy.stats.t.ppf(0.975, freedom) * error
    assert change["value"] == pytest.approx(ratio)
    # One end may be widened for skewness, and p with it.
    distances = sorted((ratio - change["low"], change["high"] - ratio))
    assert distances[0] == pytest.approx(half_width) and distances[1] >= half_width * (1 - 1e-9)
    expected_p = 2 * scipy.stats.t.sf(abs(ratio) / error, freedom)
    assert expected_p * (1 - 1e-9) <= change["p"]
    estimate = estimate_mean_or_share(bit_differences / sizes, weights=sizes, null_value=0.0)
    assert [change["low"], change["high"], change["p"]] == pytest.approx(
        [estimate.low, estimate.high, estimate.p]
    )
    assert 0 < change["p"] < change["p_corrected"]
    for metric, part in (
        ("cloze_accuracy", ""),
        ("agreement_accuracy", "model"),
        ("agreement_accuracy", "model, distance=3"),
        ("garden_path_share", "model"),
    ):
        rows, change = comparisons[metric, part]
        assert change["n"] == rows[0]["n"]
        assert change["value"] == pytest.approx(rows[1]["value"] - rows[0]["value"], abs=1e-12)
    # Baselines are equal in both audits.
    assert all(
        change is None
        for (_, part), (_, change) in comparisons.items()
        if {"bigram", "fivegram", "recurrent", "gzip"} & {*part.split(", ")}
    )


class SamplesConfig(StageConfig):
    """Rows of the table of samples, as JSON."""

    samples: str


@stage(name="written_samples", tables={"samples": SAMPLES})
def write_samples(config: SamplesConfig, context: StageContext) -> None:
    rows = [
        {**row, "doc_id": row["doc_id"] and bytes.fromhex(row["doc_id"])}
        for row in json.loads(config.samples)
    ]
    context.get_table_writer("samples").write(pa.Table.from_pylist(rows, schema=SAMPLES))


class AuditedExample(NamedTuple):
    name: str
    audit: Artifact

    def find_artifact(self, audit: str, stage: str) -> Artifact | None:
        return self.audit if stage == "audit" else None


def test_audits_of_different_held_out_texts_are_not_compared(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    """Documents with equal ids but other sizes count as different texts.

    A masked model has no bits and no cloze passages, and can still be compared.
    """
    session, _, checkpoints = trained

    def rewrite_samples(
        change: Callable[[dict[str, Any]], dict[str, Any] | None],
    ) -> AuditedExample:
        rows = [change(row) for row in audited["samples"].read().to_pylist()]
        config = SamplesConfig(
            samples=json.dumps(
                [
                    {k: v.hex() if isinstance(v, bytes) else v for k, v in row.items()}
                    for row in rows
                    if row
                ]
            )
        )
        return AuditedExample("other", cast(Artifact, write_samples(config)))

    with open_session(session):
        other_texts = AuditedExample("other", audit_model(checkpoints[-1], split_corpus(160)))
        cut = rewrite_samples(lambda row: row | {"bytes": row["bytes"] and row["bytes"] - 1})
        masked = rewrite_samples(lambda row: row | {"model_bits": None} if row["bytes"] else None)
        texts_by_example = [
            read_heldout_documents(example.audit)
            for example in (AuditedExample("one", audited), other_texts, cut, masked)
        ]
    assert (
        texts_by_example[0] == texts_by_example[3]
        and texts_by_example[0] != texts_by_example[1]
        and texts_by_example[0] != texts_by_example[2]
    )
    examples = [AuditedExample("one", audited), other_texts]
    assert explain_incomparability("capability", examples) == "the held-out texts differ"
    assert explain_incomparability("capability", examples[:1] * 2) == ""
