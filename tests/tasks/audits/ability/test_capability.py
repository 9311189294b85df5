"""Bits per byte and cloze accuracy, on a trained subject and on subjects of known answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import scipy.stats

from model.interchange import checkpoint
from tasks.audits.ability.baselines import NgramModel, gzip_bits, gzip_bits_per_byte
from tasks.audits.ability.capability import (
    SAMPLES,
    CapabilityConfig,
    Text,
    audit_capability,
    bits_of,
    measure_text,
    rate,
)
from tasks.audits.ability.capability_baselines import capability_baselines, costs
from tasks.audits.ability.cloze import answer_passages, find_passages, first_word, measure_cloze
from tasks.audits.ability.texts import choose, random_texts
from tasks.audits.judging.comparison import compared, unlike
from tasks.audits.judging.findings import evidence
from tasks.audits.judging.tags import tags_of
from tasks.audits.judging.units import texts_in
from tasks.audits.subjects.subject import Subject
from tasks.contract import (
    Artifact,
    HallmarkError,
    Session,
    StageConfig,
    Store,
    Work,
    external,
    open_session,
    stage,
)
from tasks.training.encoding import load_tokenizer
from tests.model.oracles import logits
from tests.tasks.small_corpus import corpus_of, sentences, split_corpus
from tests.tasks.training.pretraining import run

CONFIG = CapabilityConfig(passage_words=3, recurrent_tokens=20_000)


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, forked_trainers: None
) -> tuple[Session, Artifact, list[Artifact]]:
    """A session, its corpus, and the checkpoints of a training, untrained to last."""
    session = Session(Store(tmp_path_factory.mktemp("trained")))
    _, made = run(Path(session.store.uri))
    names = made["checkpoints"].read()["artifact"].to_pylist()
    found = [session.store.find(*name.split("/")) for name in names]
    with open_session(session):
        return session, split_corpus(200), [artifact for artifact in found if artifact]


@pytest.fixture(scope="module")
def audited(trained: tuple[Session, Artifact, list[Artifact]]) -> Artifact:
    session, corpus, checkpoints = trained
    with open_session(session):
        return measured(checkpoints[-1], corpus)


def measured(subject: Artifact, corpus: Artifact) -> Artifact:
    beside = capability_baselines(subject, corpus, CONFIG.of_baselines)
    return audit_capability(subject, corpus, beside, CONFIG)


def value(artifact: Artifact, slice_: str, metric: str = "bits_per_byte") -> dict[str, Any]:
    rows = artifact["findings"].read().to_pylist()
    (row,) = [r for r in rows if r["metric"] == metric and r["slice"] == slice_]
    return row


def held_out(corpus: Artifact) -> list[str]:
    rows = corpus["documents"].read().to_pylist()
    return [row["text"] for row in rows if row["split"] == "validation"]


def test_model_bits_are_the_cross_entropy_of_the_documents(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    import torch

    _, corpus, checkpoints = trained
    folder = checkpoints[-1].directory()
    model, tokenizer = checkpoint.load(folder), load_tokenizer(folder / "tokenizer.json")
    texts = {row["doc_id"]: row["text"] for row in corpus["documents"].read().to_pylist()}
    rows = [r for r in audited["samples"].read().to_pylist() if r["part"] == "text"]
    assert len(rows) == 20
    for row in rows:
        ids = tokenizer.encode(texts[row["doc_id"]]).ids
        assert (row["tokens"], row["bytes"]) == (len(ids), len(texts[row["doc_id"]].encode()))
    # Token by token, each from a forward pass of its own: a window of 32 moves on by 16.
    for row in rows[:4]:
        opened = [0, *tokenizer.encode(texts[row["doc_id"]]).ids]
        bits = 0.0
        for i in range(1, len(opened)):
            start = 16 * max(0, -(-(i - 32) // 16))
            with torch.inference_mode():
                scores = logits(model, torch.tensor([opened[start:i]]))[0, -1]
            bits -= scores.log_softmax(-1)[opened[i]].item() / np.log(2)
        assert row["model_bits"] == pytest.approx(bits, rel=1e-4)


def test_every_figure_follows_from_its_evidence(audited: Artifact) -> None:
    samples, pairs = audited["samples"].read(), audited["pairs"].read()
    assert samples["sample"].to_pylist() == list(range(len(samples)))
    columns = {name: f"{name}_bits" for name in ("model", "bigram", "fivegram", "recurrent")}
    sources = set()
    for row in audited["findings"].read().to_pylist():
        rows = evidence({"samples": samples, "pairs": pairs}[row["table"]], row["where"])
        assert row["n"] == len(rows)
        assert row["low"] <= row["value"] <= row["high"]
        if row["metric"] == "cloze_accuracy" or row["table"] == "pairs":
            assert row["value"] == pytest.approx(np.mean(rows["correct"].to_pylist()))
        elif (tags := tags_of(row)).get("part") in columns:
            bits = sum(rows[columns[tags["part"]]].to_pylist())
            assert row["value"] == pytest.approx(bits / sum(rows["bytes"].to_pylist()))
            if "source" in tags:
                assert set(rows["source"].to_pylist()) == {tags["source"]}
                sources.add(tags["source"])
    assert len(sources) > 0


def nouns_said(artifact: Artifact) -> float:
    rows = [r for r in artifact["samples"].read().to_pylist() if r["part"] == "cloze"]
    answers = {row["answer"] for row in rows}
    return float(np.mean([first_word(row["continuation"]) in answers for row in rows]))


def test_a_trained_model_beats_itself_untrained_and_the_controls_hold(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    session, corpus, checkpoints = trained
    with open_session(session):
        untrained = measured(checkpoints[0], corpus)
    assert value(audited, "model")["high"] < value(untrained, "model")["low"]
    for slice_ in ("gzip", "bigram", "fivegram", "recurrent"):  # the same tokens of the same text
        assert value(audited, slice_)["value"] == value(untrained, slice_)["value"]
    assert value(audited, "model")["value"] < value(audited, "gzip")["value"]
    difference = value(audited, "less=bigram", "bits_per_byte_difference")
    assert difference["value"] == pytest.approx(
        value(audited, "model")["value"] - value(audited, "bigram")["value"]
    )
    # Which noun comes last is drawn by lot: all there is to learn is that it is one of them.
    assert nouns_said(audited) > 0.2 > nouns_said(untrained)
    for artifact in (audited, untrained):
        verdicts = [r for r in artifact["findings"].read().to_pylist() if r["control"]]
        assert {r["verdict"] for r in verdicts} == {"pass"}
        assert {r["control"] for r in verdicts} == {"positive", "negative"}


def test_baselines_are_over_the_same_text(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    _, corpus, checkpoints = trained
    texts = held_out(corpus)
    size = sum(len(text.encode()) for text in texts)
    tokenizer = load_tokenizer(checkpoints[0].directory() / "tokenizer.json")
    train = [r["text"] for r in corpus["documents"].read().to_pylist() if r["split"] == "train"]
    for name, order in (("bigram", 2), ("fivegram", 5)):
        model = NgramModel([tokenizer.encode(t).ids for t in train], order, 300)
        bits = model.bits([tokenizer.encode(t).ids for t in texts]).sum()
        assert value(audited, name)["value"] == pytest.approx(bits / size)
    # gzip sees the documents in the order of their hash; another order changes it a little.
    expected = gzip_bits([text.encode() for text in texts]) / size
    assert value(audited, "gzip")["value"] == pytest.approx(expected, rel=0.05)


def test_the_same_audit_twice_leaves_the_same_bytes(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact, tmp_path: Path
) -> None:
    _, corpus, checkpoints = trained
    with open_session(Session(Store(tmp_path))):
        assert measured(checkpoints[-1], corpus).content == audited.content


def test_checkpoints_of_one_training_stand_beside_the_same_baselines(
    trained: tuple[Session, Artifact, list[Artifact]],
) -> None:
    session, corpus, checkpoints = trained

    def beside(subject: Artifact, **settings: Any) -> str:
        config = CONFIG.model_copy(update=settings)
        return capability_baselines(subject, corpus, config.of_baselines).fingerprint

    with open_session(session):
        found = beside(checkpoints[-1])
        assert {beside(subject) for subject in checkpoints} == {found}
        assert beside(checkpoints[0], passages=9, device="cpu") == found
        assert beside(checkpoints[0], recurrent_tokens=10_000) != found


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_other_peoples_models(kind: str, tmp_path: Path) -> None:
    """A GPT-2 and a BERT of random weights, as transformers saves them."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        PreTrainedTokenizerFast,
    )

    from tasks.training.train_tokenizer import TokenizerConfig, train

    folder = tmp_path / "model"
    tokenizer = train(iter([sentences(100)]), TokenizerConfig(vocab_size=300))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|pad|>",
        mask_token="<|pad|>" if kind == "masked" else None,
        cls_token="<|endoftext|>",
        sep_token="<|endoftext|>",
    )
    wrapped.save_pretrained(folder)
    if kind == "causal":
        made: Any = GPT2LMHeadModel(
            GPT2Config(vocab_size=300, n_positions=64, n_embd=16, n_layer=1, n_head=2,
                       bos_token_id=0, eos_token_id=0, pad_token_id=1)
        )  # fmt: skip
    else:
        made = BertForMaskedLM(
            BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, intermediate_size=32,
                       num_attention_heads=2, max_position_embeddings=64, pad_token_id=1)
        )  # fmt: skip
    made.save_pretrained(folder)
    with open_session(Session(Store(tmp_path / "store"))):
        audited = measured(external(folder, "checkpoint"), split_corpus(60))
    assert value(audited, "bigram")["value"] > 0
    if kind == "causal":
        found = value(audited, "model")
        assert found["value"] > 8 / 3  # random weights: about log2(300) bits a token
        assert value(audited, "", "cloze_accuracy")["n"] > 0
    else:
        for metric, slice_ in (("bits_per_byte", "model"), ("cloze_accuracy", "")):
            row = value(audited, slice_, metric)
            assert row["value"] is None and "masked language model" in row["method"]


# Subjects of known answers --------------------------------------------------------------------


class ByteSubject(Subject):
    """Tokens are bytes; every one costs ``bits``; continuations are what ``say`` returns."""

    kind = "causal"
    name, context, vocab_size, bos, begin = "bytes", 64, 257, 256, "behind nothing"

    def __init__(self, bits: float = 8.0) -> None:
        self.bits = bits

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        return [np.full(len(s) - 1, -self.bits * np.log(2), np.float32) for s in sequences]

    def generate(self, prompts: Sequence[str], **options: Any) -> list[list[str]]:
        return [[self.say(prompt, row)] for row, prompt in enumerate(prompts)]

    def say(self, prompt: str, row: int) -> str:
        return f" {prompt.split()[-1]}, and so on"


def findings_of(
    subject: Subject, texts: list[str], seen_costs: float = 1.0
) -> list[dict[str, Any]]:
    """``seen_costs``: so many times what the training text costs the 5-gram model."""
    table = pa.table(
        {
            "text": pa.array(texts, pa.large_string()),
            "doc_id": pa.array([bytes([i]) * 16 for i in range(len(texts))], pa.binary(16)),
            "source": ["web"] * len(texts),
        }
    )
    ids = subject.encode_batch(sentences(50, seed=9))
    ngrams = {"bigram": NgramModel(ids, 2, 257), "fivegram": NgramModel(ids, 5, 257)}
    seen = pa.table({"text": pa.array(sentences(50, seed=9))})
    parts = [
        Text(part, given := found["text"].to_pylist(), costs(part, found, subject, ngrams),
             None if part == "training text" else bits_of(subject, given))
        for part, found in (
            ("text", table), ("random characters", random_texts(0)), ("training text", seen)
        )
    ]  # fmt: skip
    *_, learnt = parts
    place = learnt.rows.column_names.index("fivegram_bits")
    more = pc.multiply(learnt.rows["fivegram_bits"], seen_costs)
    parts[-1] = replace(learnt, rows=learnt.rows.set_column(place, "fivegram_bits", more))
    return measure_text(*parts, subject, CONFIG, "trained on 50 texts", "no LSTM")


def test_a_uniform_model_over_bytes_costs_eight_bits_a_byte() -> None:
    rows = findings_of(ByteSubject(bits=8), sentences(20, seed=1))
    model = next(row for row in rows if row["slice"] == "model")
    assert model["value"] == pytest.approx(8) and model["low"] is None
    assert "no interval: all have the same value" in model["method"]


def test_the_negative_control_catches_a_model_that_beats_entropy() -> None:
    """Six bits for characters of 6.57: a score that sums to more than one over the texts."""
    for bits, verdict in ((6.0, "fail"), (6.6, "pass")):
        rows = findings_of(ByteSubject(bits), sentences(20, seed=1))
        (control,) = [row for row in rows if row["control"] == "negative"]
        assert control["verdict"] == verdict


def test_of_many_documents_the_interval_is_that_of_a_bootstrap() -> None:
    rng = np.random.default_rng(4)
    sizes = rng.integers(50, 500, 400)
    bits = sizes * rng.gamma(9, 0.3, 400)
    found = rate(bits, sizes)
    assert found.value == pytest.approx(bits.sum() / sizes.sum())
    expected = scipy.stats.bootstrap(
        (bits, sizes),
        lambda b, s, axis: b.sum(axis) / s.sum(axis),
        paired=True,
        method="percentile",
        n_resamples=4000,
        rng=7,
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=0.01)


@pytest.mark.parametrize("count", [2, 5, 20])
def test_intervals_of_few_documents_cover_what_all_would_cost(count: int) -> None:
    """Long documents cost less a byte; a bootstrap of two covers half of the time."""
    rng = np.random.default_rng(5)
    sizes = np.exp(rng.normal(4.5, 0.7, 4000)).astype(np.int64) + 10
    bits = sizes * rng.gamma(9, 0.3, 4000) * (sizes / sizes.mean()) ** -0.15
    whole, covered = bits.sum() / sizes.sum(), 0
    for _ in range(1000):
        taken = rng.integers(4000, size=count)
        found = rate(bits[taken], sizes[taken])
        covered += found.low <= whole <= found.high
    assert 0.925 <= covered / 1000 <= 0.985


def test_gzips_interval_leaves_groups_of_documents_out() -> None:
    texts = sentences(30, seed=3)
    rows = findings_of(ByteSubject(bits=8), texts)
    gzip = next(row for row in rows if row["slice"] == "gzip")
    found, error, groups = gzip_bits_per_byte([text.encode() for text in texts])
    low, high = scipy.stats.t.interval(0.95, groups - 1, found, error)
    assert groups == 20
    assert [gzip[name] for name in ("value", "low", "high")] == pytest.approx([found, low, high])


def test_text_that_the_five_gram_model_has_not_learnt_fails_its_control() -> None:
    """What it was trained on must cost it less than the upper end of what it was not."""
    for spread, verdict in ((0.5, "pass"), (4.0, "fail")):
        rows = findings_of(ByteSubject(bits=8), sentences(20, seed=1), seen_costs=spread)
        (control,) = [row for row in rows if row["control"] == "positive"]
        (own,) = [row for row in rows if row["slice"] == "fivegram"]
        assert (control["value"] < own["high"]) == (verdict == "pass")
        assert control["verdict"] == verdict
        model = next(row for row in rows if row["slice"] == "model")
        assert control["value"] < model["value"]  # which would let it pass


def test_baselines_of_other_text_or_settings_are_refused(
    trained: tuple[Session, Artifact, list[Artifact]],
) -> None:
    session, corpus, checkpoints = trained
    with open_session(session):
        subject = checkpoints[-1]
        other = split_corpus(160)
        own = CONFIG.of_baselines
        changed = own.model_copy(update={"recurrent_tokens": 10_000})
        for given, settings in ((other, own), (corpus, changed)):
            beside = capability_baselines(subject, given, settings)
            with pytest.raises(HallmarkError, match="is of another corpus, or of other settings"):
                audit_capability(subject, corpus, beside, CONFIG)


def test_text_is_chosen_by_hash_about_as_much_as_asked_for(tmp_path: Path) -> None:
    rows = [("web", "validation", text) for text in sentences(1000, seed=2)]
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of([*rows, ("web", "train", "not this"), ("web", "validation", "")])
        everything = choose(corpus["documents"], "validation", 10**9, seed=0)
        assert sorted(everything["text"].to_pylist()) == sorted(text for *_, text in rows)
        size = sum(everything["bytes"].to_pylist())
        some = choose(corpus["documents"], "validation", size // 4, seed=0)
        assert sum(some["bytes"].to_pylist()) == pytest.approx(size / 4, rel=0.2)
        # A larger choice holds the smaller one: figures of two sizes are about the same text.
        assert some["text"].to_pylist() == everything["text"].to_pylist()[: len(some)]
        with pytest.raises(HallmarkError, match="'holdout' holds no text"):
            choose(corpus["documents"], "holdout", 1000, seed=0)


def passages_of(*texts: str, words: int = 3, characters: int = 200) -> list[tuple[str, str]]:
    table = pa.table({"doc_id": [b"0" * 16] * len(texts), "source": ["web"] * len(texts),
                      "text": list(texts)})  # fmt: skip
    return [(p.prompt, p.answer) for p in find_passages(table, 9, words, characters)]


def test_passages_end_before_the_last_word_of_a_sentence() -> None:
    assert passages_of("One two three.\nThe old dog\n  sleeps! And then") == [
        ("One two three.\nThe old dog", "sleeps")
    ]
    assert passages_of("Too short here.") == []
    assert passages_of("We met in Åre near naïveté.") == [("We met in Åre near", "naïveté")]
    assert passages_of("call the method foo.bar of it") == []  # no sentence ends there
    # Cut behind "foo.": what follows tells that the sentence goes on.
    assert passages_of("call the method foo.bar of it", characters=20) == []
    assert passages_of("we call the foo. Not bar", characters=16) == [("we call the", "foo")]


@pytest.mark.parametrize(
    ("continuation", "word"),
    [(" word and", "word"), ("\n  Word.", "Word"), (", word", None), ("", None), (" été!", "été"),
     (" 12 words", None)],
)  # fmt: skip
def test_the_first_word_of_a_continuation(continuation: str, word: str | None) -> None:
    assert first_word(continuation) == word


def cloze_of(subject: Subject) -> dict[str, dict[str, Any]]:
    nouns = [
        f"noun{chr(97 + i // 26)}{chr(97 + i % 26)}".replace("noun", "thing") for i in range(60)
    ]
    texts = [f"So here we say {noun} {noun}. More" for noun in nouns]
    table = pa.table({"doc_id": [b"0" * 16] * 60, "source": ["web"] * 60, "text": texts})
    rows = answer_passages(subject, find_passages(table, 60, 3, 200))
    return {row["slice"]: row for row in measure_cloze(rows)}


def test_a_subject_that_repeats_the_last_word_is_always_right_where_that_is_the_answer() -> None:
    found = cloze_of(ByteSubject())
    assert found[""]["value"] == 1 and found[""]["n"] == 60
    assert found["answers of other passages"]["value"] == 0
    assert {row["verdict"] for row in found.values()} == {"", "pass"}


def test_the_positive_control_catches_decoding_that_depends_on_the_batch() -> None:
    class Unsteady(ByteSubject):
        def say(self, prompt: str, row: int) -> str:
            return f" word{'abcdefghij'[row % 10]}"

    assert cloze_of(Unsteady())["own greedy words"]["verdict"] == "fail"


def test_a_subject_without_words_leaves_the_control_unmeasured() -> None:
    class Mute(ByteSubject):
        def say(self, prompt: str, row: int) -> str:
            return "..."

    found = cloze_of(Mute())
    assert found[""]["value"] == 0 and found[""]["high"] < 0.1
    assert found["own greedy words"]["value"] is None


def test_where_is_json(audited: Artifact) -> None:
    for row in audited["findings"].read().to_pylist():
        assert isinstance(json.loads(row["where"]), dict)


def test_checkpoints_are_compared_document_by_document(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    """Bits per byte is a ratio of two sums: what the second costs more, by the bytes of all, with
    each document left out in turn."""
    session, corpus, checkpoints = trained
    with open_session(session):
        first = measured(checkpoints[0], corpus)
    found = {(c.found[0]["metric"], c.found[0]["slice"]): (c.found, c.changes[0])
             for c in compared([first, audited], [(0, 1)])}  # fmt: skip
    sides = [evidence(a["samples"].read(), {"part": "text"}) for a in (first, audited)]
    assert sides[0]["doc_id"] == sides[1]["doc_id"]
    less = np.subtract(*(side["model_bits"].to_numpy() for side in reversed(sides)))
    sizes = sides[0]["bytes"].to_numpy()
    n, ratio = len(sizes), less.sum() / sizes.sum()
    without = [np.delete(less, i).sum() / np.delete(sizes, i).sum() for i in range(n)]
    error = np.sqrt((n - 1) / n * ((np.array(without) - ratio) ** 2).sum())
    rows, change = found["bits_per_byte", "model"]
    assert change["n"] == n and len({*sizes}) > 1
    assert change["value"] == pytest.approx(rows[1]["value"] - rows[0]["value"])
    alike = re.search(r"weigh as (\d+)", change["method"])  # documents of one size
    freedom = int(alike[1]) - 1 if alike else n - 1
    assert 1 < freedom <= n - 1
    half = scipy.stats.t.ppf(0.975, freedom) * error
    assert [change["value"], change["low"], change["high"]] == pytest.approx(
        [ratio, ratio - half, ratio + half]
    )
    assert change["p"] == pytest.approx(2 * scipy.stats.t.sf(abs(ratio) / error, freedom))
    assert 0 < change["p"] < change["p_corrected"]
    for metric, part in (("cloze_accuracy", ""), ("agreement_accuracy", "model"),
                         ("agreement_accuracy", "model, distance=3"),
                         ("garden_path_share", "model")):  # fmt: skip
        rows, change = found[metric, part]
        assert change["n"] == rows[0]["n"]
        assert change["value"] == pytest.approx(rows[1]["value"] - rows[0]["value"], abs=1e-12)
    # Baselines are the same beside both.
    assert all(change is None for (_, part), (_, change) in found.items()
               if {"bigram", "fivegram", "recurrent", "gzip"} & {*part.split(", ")})  # fmt: skip


class Rewritten(StageConfig):
    """Rows of samples, as JSON."""

    samples: str


@stage(tables={"samples": SAMPLES})
def resampled(config: Rewritten, work: Work) -> None:
    rows = [{**row, "doc_id": row["doc_id"] and bytes.fromhex(row["doc_id"])}
            for row in json.loads(config.samples)]  # fmt: skip
    work.table("samples").write(pa.Table.from_pylist(rows, schema=SAMPLES))


class Measured(NamedTuple):
    name: str
    audit: Artifact

    def part(self, audit: str, stage: str) -> Artifact | None:
        return self.audit if stage == "audit" else None


def test_other_held_out_texts_are_not_compared(
    trained: tuple[Session, Artifact, list[Artifact]], audited: Artifact
) -> None:
    """Nor those that have the same names, but were cut otherwise; a masked model is asked for no
    last words, and compared in all else."""
    session, _, checkpoints = trained

    def rewritten(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Measured:
        rows = [change(row) for row in audited["samples"].read().to_pylist()]
        config = Rewritten(samples=json.dumps(
            [{k: v.hex() if isinstance(v, bytes) else v for k, v in row.items()}
             for row in rows if row]))  # fmt: skip
        return Measured("other", cast(Artifact, resampled(config)))

    with open_session(session):
        others = Measured("other", measured(checkpoints[-1], split_corpus(160)))
        cut = rewritten(lambda row: row | {"bytes": row["bytes"] and row["bytes"] - 1})
        masked = rewritten(lambda row: row | {"model_bits": None} if row["bytes"] else None)
        found = [texts_in(one.audit) for one in (Measured("one", audited), others, cut, masked)]
    assert found[0] == found[3] and found[0] != found[1] and found[0] != found[2]
    subjects = [Measured("one", audited), others]
    assert unlike("capability", subjects) == "other held-out texts were measured"
    assert unlike("capability", subjects[:1] * 2) == ""
