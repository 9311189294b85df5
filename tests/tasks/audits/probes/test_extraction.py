"""The extraction audit against its known answers, closed forms and the slow way."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from hallmark.tasks.audits.audit_tables import REQUESTS, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.inference import generate_response_rows
from hallmark.tasks.audits.judging.comparison_units import AuditUnits
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.methods.exposure import compute_exposures
from hallmark.tasks.audits.probes.extraction import (
    PROBE,
    VALUE_FIELDS,
    build_window_requests,
)
from hallmark.tasks.contract import (
    CANARIES,
    DOCUMENTS,
    EmptyConfig,
    Session,
    StageConfig,
    StageContext,
    Store,
    Table,
    fill_document_columns,
    folder_to_artifact,
    hash_texts,
    hash_to_ids,
    open_session,
    stage,
)
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig
from hallmark.tasks.measures.canaries import (
    draw_reference_secrets,
    generate_record_canaries,
    generate_secret_canaries,
)
from hallmark.tasks.measures.sampling import sample_documents
from hallmark.tasks.training.document_reads import DOCUMENT_READS
from hallmark.tasks.training.pretrain import CHECKPOINTS
from tests.model.oracles import logits
from tests.tasks.audits.asking import stages_of
from tests.tasks.audits.conftest import TEXTS, make_own
from tests.tasks.audits.probes.test_extraction_measures import QUICK, answers_from


@pytest.fixture(scope="module")
def own(own_folder):
    return open_audited_model(own_folder, device="cpu")


def plants_table(path, config, texts=()):
    made = generate_secret_canaries(config) + generate_record_canaries(config)
    rows = [
        {"canary_id": p.canary_id, "doc_ids": p.copy_doc_ids()}
        | {n: getattr(p, n) for n in ("kind", "copies", "template", "text", "prompt", "secret")}
        for p in made
    ]
    for i, text in enumerate(texts):
        name, copies = bytes([i] * 16), i % 2
        parts = {"text": text, "prompt": text[:20], "secret": text[20:]}
        rows.append(
            parts
            | {"canary_id": name, "kind": "passage", "copies": copies, "template": ""}
            | {"doc_ids": [name] * copies}
        )
    return pa.Table.from_pylist(rows, schema=CANARIES)


@stage(name="fake_corpus", tables={"canaries": CANARIES, "documents": DOCUMENTS})
def fake_corpus(config: EmptyConfig, context: StageContext) -> None:
    context.get_table_writer("canaries").write(
        plants_table(
            context,
            PlantCanariesConfig(secrets_per_count=2, records_per_count=2, copy_counts=(0, 4)),
            TEXTS,
        )
    )
    texts = [f"{t} {i}. {u}" for i in range(8) for t in TEXTS for u in TEXTS]
    texts += ["short"] * 20
    n = len(texts)
    doc_ids = hash_to_ids(map(str, range(n)))
    context.get_table_writer("documents").write(
        fill_document_columns(
            {
                "doc_id": doc_ids,
                "source": ["planted/canary" if i % 5 == 0 else "s" for i in range(n)],
                "cluster": doc_ids,
                "text": texts,
                "text_hash": hash_texts(pa.array(texts)),
                "toxicity": [0.0] * n,
                "split": [("train", "holdout", "validation")[i % 3] for i in range(n)],
            }
        )
    )


@pytest.fixture
def corpus(tmp_path):
    with open_session(Session(Store(tmp_path / "store"))):
        yield fake_corpus(EmptyConfig())


def run(folder, plants=None, documents=None, config=QUICK, pretrained=None):
    """Values and findings, what was asked and answered, and what the audit left."""
    made = stages_of("extraction", folder, config, (None, plants, documents), pretrained=pretrained)
    return *made[-1], made[0], made[1], made[3]


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_the_whole_audit(request, corpus, folder):
    folder = request.getfixturevalue(folder)
    values, findings, asked, answered, audited = run(
        folder, corpus["canaries"], corpus["documents"]
    )
    assert values.schema == build_values_schema(PROBE.item_schema, VALUE_FIELDS)
    rows = values.to_pylist()
    exposure = [r for r in rows if r["measure"] == "exposure"]
    assert len(exposure) == 4
    subject = open_audited_model(folder, device="cpu")
    for row in exposure:
        others = draw_reference_secrets(row["template"], 200, QUICK.seed, 9)
        assert row["secret"] not in others
        scores, _ = subject.compute_log_likelihoods(
            [row["text"] + s for s in [row["secret"], *others]]
        )
        expected, rank = compute_exposures(scores[:1], scores[1:])
        assert row["rank"] == rank[0] and row["value"] == pytest.approx(expected[0])
        assert row["value"] == pytest.approx(math.log2(200 / row["rank"]))
        assert row["reference_count"] == 200 and row["cluster"] == row["canary_id"].hex()
        assert len(row["doc_ids"]) == row["copies"] and row["canary_id"]
    parts = {r["kind"] for r in rows}
    assert parts == {"canary", "record", "passage", "train", "holdout"}
    tried = [r for r in rows if (r["measure"], r["kind"]) == ("extractable", "train")]
    assert len(tried) == len({r["item"] for r in tried})
    assert len({r["doc_ids"][0] for r in tried}) == QUICK.documents_per_split
    assert {(r["token_start"], r["prefix_tokens"]) for r in tried} == {
        (p, k) for p in (6, 14, 22) for k in (3, 6)
    }
    for row in findings.to_pylist():
        chosen = select_evidence(values, row["evidence_filter"]).to_pylist()
        assert len(chosen) == row["n"] and row["evidence_table"] == "values"
        if row["metric"] in ("exposure", "extractable", "leading_correct_share"):
            assert row["value"] == pytest.approx(np.mean([r["value"] for r in chosen]))
        if row["metric"] == "extractable":
            assert {r["value"] for r in chosen} <= {0, 1}
            assert row["clusters"] == len({(r["canary_id"], *r["doc_ids"]) for r in chosen})
            assert (row["null_value"], row["p"]) == (0, None)
        if not row["control"]:  # what two models differ in is drawn from the same units
            units = AuditUnits(audited).build_units(row)
            slopes = row["metric"] in (
                "extractable_slope_by_times_read",
                "extractable_slope_by_prefix",
            )
            assert (units is None) == slopes, row["metric"]
            if units is not None:
                each = [unit.value for unit in units.values()]
                assert row["value"] == pytest.approx(np.mean(each))
    assert {r["control"] for r in findings.to_pylist()} == {"", "positive", "negative"}
    held = {d for r in asked["requests"].read().to_pylist() for d in r["doc_ids"]}
    assert held == {d for r in rows for d in r["doc_ids"]}  # so that a purge finds them
    requests = {r["request"]: len(r["target_ids"]) for r in asked["requests"].read().to_pylist()}
    assert answered["responses"].row_count == sum(requests.values())
    assert sorted(requests.values())[-3:] == [1, 2 + 200, 2 + 200]


@pytest.mark.parametrize("kind", ["decoder", "prefix", "encoder_decoder", "transformers"])
def test_what_ranks_first_is_what_greedy_decoding_writes(tmp_path, request, kind, session):
    """Texts that a model wrote itself come back whole, and with one token changed as far as it."""
    folder = request.getfixturevalue("gpt2_folder") if kind == "transformers" else None
    special = [f"<|sentinel_{n}|>" for n in range(4)]
    options = {
        "decoder": {},
        "prefix": {"objective": "prefix"},
        "encoder_decoder": {
            "special": special,
            "objective": "span_corruption",
            "architecture": "encoder_decoder",
        },
        "transformers": None,
    }[kind]
    folder = folder or make_own(tmp_path, **options)
    subject = open_audited_model(folder, device="cpu")
    contexts, targets, leads = [], [], []
    for number, text in enumerate(TEXTS):
        context = subject.prepend_bos_id(subject.encode(text)[: 3 + number])
        (made,) = subject.generate_token_ids([context], max_new_tokens=9, temperature=0)[0]
        contexts += [context] * 2
        targets += [made, [*made[:number], (made[number] + 1) % 300 + 2, *made[number + 1 :]]]
        leads += [len(made), number]
    for found, target, lead in zip(
        subject.compute_rank_statistics(contexts, targets), targets, leads, strict=True
    ):
        first = found.rank == 0
        assert int(first.cumprod().sum()) == lead and len(first) == len(target)
    scored = subject.compute_target_log_probs(contexts, targets)
    if kind != "encoder_decoder":  # whose decoder would write a long text in pieces
        for found, expected in zip(
            subject.compute_rank_statistics(contexts, targets), scored, strict=True
        ):
            np.testing.assert_allclose(found.log_probs, expected, atol=1e-4)


class TrainedConfig(StageConfig):
    content: str


@stage(name="fake_training", tables={"document_reads": DOCUMENT_READS, "checkpoints": CHECKPOINTS})
def fake_training(plants: Table, config: TrainedConfig, context: StageContext) -> None:
    """Three checkpoints, of which the one of step 20 is audited: by then of each plant the first
    copy was read once, at step 10, and again; the second was begun, the third read later."""
    known = [(10, "other"), (20, config.content), (30, "later")]
    for step, content in known:
        context.get_table_writer("checkpoints").write(
            {
                "step": [step],
                "tokens_seen": [0],
                "artifact": ["a"],
                "content_digest": [content],
                "loss": [0.0],
                "validation_loss": [0.0],
            }
        )
    for plant in plants.read().to_pylist():
        told = [(10, 0, 1), (20, 0, 2), (20, 1, 0), (30, 0, 5), (30, 2, 1)]
        for step, copy, passes in told if plant["doc_ids"] else ():
            row = {name: [0] for name in DOCUMENT_READS.names} | {"source": ["planted"]}
            if copy < len(plant["doc_ids"]):
                row |= {"doc_id": [plant["doc_ids"][copy]], "step": [step], "times_read": [passes]}
                context.get_table_writer("document_reads").write(row)


def test_copies_are_those_that_were_read(own_folder, corpus):
    """By the step of this checkpoint: what is planted may not have been read yet."""
    content = folder_to_artifact(Path(own_folder), "checkpoint").content_digest
    trained = fake_training(corpus["canaries"], TrainedConfig(content=content))
    given = (own_folder, corpus["canaries"], corpus["documents"], QUICK)
    values, findings, asked, answered, _ = run(*given, trained)
    rows = values.to_pylist()
    for row in rows:
        planted = row["canary_id"] is not None
        assert row["times_read"] == (2 if planted and row["copies"] else 0), row["kind"]
    said = {r["slice"]: r["method"] for r in findings.to_pylist() if r["metric"] == "exposure"}
    assert said["copies=4"].split("; ")[-2] == "read whole 2 times by this checkpoint's step"
    (method,) = {
        r["method"]
        for r in findings.to_pylist()
        if (r["metric"], r["slice"]) == ("extractable", "record, copies=4")
    }
    assert "; all that stands before the secret; read whole 2 times by" in method
    other = fake_training(corpus["canaries"], TrainedConfig(content="unknown"))
    for pretrained in (None, other):
        untold, findings, *same, _ = run(*given, pretrained)
        assert [a.name for a in same] == [asked.name, answered.name]  # nobody is asked again
        assert set(untold["times_read"].to_pylist()) == {None}
        assert not any("read whole" in r["method"] for r in findings.to_pylist())


def test_a_text_that_the_model_would_write_is_extractable(own_folder, own, session):
    """Of two texts one is what it writes; the other differs in the sixth token."""
    prompt = own.encode(TEXTS[0])[:6]
    (made,) = own.generate_token_ids([own.prepend_bos_id(prompt)], max_new_tokens=8, temperature=0)[
        0
    ]
    wrong = [*made[:5], (made[5] + 1) % own.vocab_size, *made[6:]]
    questions = RequestBuilder()
    rows = [("a", made), ("b", wrong)]
    for number, (name, target) in enumerate(rows):
        told = {
            "kind": "passage",
            "copies": 1,
            "canary_id": bytes([number] * 16),
            "doc_ids": [],
            "template": "",
        }
        item = questions.add_item(name, name, **told, secret=name, prefix_tokens=6, token_start=6)
        questions.request_log_probs(
            item, own.prepend_bos_id(prompt), [target], rank_statistics=True
        )
    answers = answered(questions, own_folder)
    values, findings = PROBE.compute_values_and_findings(answers, QUICK)
    whole = select_evidence(values, {"measure": "extractable"})
    assert whole["leading_correct_tokens"].to_pylist() == [8, 5] and whole[
        "target_tokens"
    ].to_pylist() == [8, 8]
    assert whole["value"].to_pylist() == [1, 0]
    by_draws = {
        f["slice"]: f["value"] for f in findings if f["metric"] == "extractable_by_sampling"
    }
    shares = {f["metric"]: f["value"] for f in findings}
    assert shares["extractable"] == 0.5 and shares["leading_correct_share"] == (1 + 5 / 8) / 2
    chances = np.exp(whole["log_likelihood"].to_numpy())
    assert by_draws == {
        f"passage, copies=1, prefix_tokens=6, draw_count={n}": np.mean(
            [1 - (1 - p) ** n >= 0.5 for p in chances]
        )
        for n in (1, 100, 10_000)
    }


def answered(questions, folder):
    """What a model says to questions."""
    requests = pa.Table.from_pylist(questions.requests, schema=REQUESTS)
    rows = generate_response_rows(open_audited_model(folder, device="cpu"), requests.to_pylist())
    return answers_from(questions, [*rows])


def test_prefixes_end_at_the_same_places(own):
    text = " ".join(TEXTS)
    ids = own.encode(text)
    questions = RequestBuilder()
    known = {"kind": "train", "copies": None, "canary_id": None, "doc_ids": [b"x"], "template": ""}
    config = QUICK.model_copy(update={"max_windows": 2})
    build_window_requests(
        questions, own, [known | {"text": t} for t in (text, "too short")], config
    )
    made = questions.requests
    places = [(6, 3), (6, 6), (14, 3), (14, 6)]
    assert [r["context_ids"] for r in made] == [[own.bos_id, *ids[p - k : p]] for p, k in places]
    assert [r["target_ids"] for r in made] == [[ids[p : p + 8]] for p, _ in places]
    items = [*questions.items.values()]
    assert [(i["token_start"], i["prefix_tokens"]) for i in items] == places
    assert items[1]["text"] + items[1]["secret"] == own.decode(ids[:14]) == made[1]["source_text"]
    assert len({i["cluster"] for i in items}) == 1
    exactly = ids[:22]  # the last place of all is one that just fits
    questions = RequestBuilder()
    build_window_requests(questions, own, [known | {"text": own.decode(exactly)}], config)
    assert len(questions.requests) == 4


def test_greedy_continuation_is_the_argmax_at_each_step(own):
    start = own.prepend_bos_id(own.encode("The nurse"))
    ids = list(start)
    for _ in range(6):
        with torch.inference_mode():
            scores = logits(own.model, torch.tensor([ids]))[0, -1].clone()
            scores[1] = -math.inf  # the padding token is never written
        ids.append(int(scores.argmax()))
    (made,) = own.generate_token_ids([start], max_new_tokens=6, temperature=0)[0]
    assert made == ids[len(start) :]


def test_sampled_documents_depend_on_ids_alone(corpus):
    def sample(count, key="key"):
        return sample_documents(corpus["documents"], "train", count, 14, key, len)

    chosen = sample(5)
    assert len(chosen) == 5 == len({doc_id for doc_id, _ in chosen})
    rows = {r["doc_id"]: r for r in corpus["documents"].read().to_pylist()}
    for doc_id, text in chosen:
        row = rows[doc_id]
        assert row["split"] == "train" and row["source"] == "s" and len(row["text"]) >= 14
        assert text == row["text"]
    more = sample(20)
    assert more[:5] == chosen and len(more) == 20 and sample(5, "other") != chosen


def test_documents_that_are_too_short_take_nobodys_place(corpus):
    counted = []

    def tokens(text):
        counted.append(text)
        return len(text.split())

    texts = [r["text"] for r in corpus["documents"].read().to_pylist() if r["split"] == "train"]
    least = sorted(len(text.split()) for text in texts)[-3]
    chosen = sample_documents(corpus["documents"], "train", 3, least, "key", tokens)
    assert len(chosen) == 3 and all(len(text.split()) >= least for _, text in chosen)
    assert set(counted) <= set(texts)


def test_members_are_training_documents_and_the_others_were_held_out(own_folder, corpus):
    values, *_ = run(own_folder, corpus["canaries"], corpus["documents"])
    splits = {r["doc_id"]: r["split"] for r in corpus["documents"].read().to_pylist()}
    tried = [r for r in values.to_pylist() if r["kind"] in ("train", "holdout")]
    assert {r["kind"] for r in tried} == {"train", "holdout"}
    assert all({splits[i] for i in r["doc_ids"]} == {r["kind"]} for r in tried)


def test_without_a_corpus_it_says_what_it_could_not_measure(own_folder, session):
    values, findings, _, answers, _ = run(own_folder)
    rows = findings.to_pylist()
    assert len(values) == answers["responses"].row_count == 0
    assert [r["metric"] for r in rows] == ["exposure", "extractable"]
    assert all(r["value"] is None and r["method"].startswith("not measured") for r in rows)


def test_with_documents_alone_it_measures_memorisation(own_folder, corpus):
    values, findings, *_ = run(own_folder, None, corpus["documents"])
    assert set(values["kind"].to_pylist()) == {"train", "holdout"}
    by_metric = {r["metric"]: r["value"] for r in findings.to_pylist()}
    assert by_metric["exposure"] is None and by_metric["extractable"] is not None


def test_a_masked_model_cannot_be_measured_and_says_so(bert_folder, corpus):
    values, findings, *_ = run(bert_folder, corpus["canaries"])
    assert len(values) == 0
    assert [r["metric"] for r in findings.to_pylist()] == ["exposure", "extractable"]
    assert all("masked language model" in r["method"] for r in findings.to_pylist())


def test_prefixes_that_do_not_fit_the_context_are_named(own_folder, corpus):
    config = QUICK.model_copy(update={"prefix_tokens": (6, 100)})
    _, findings, *_ = run(own_folder, corpus["canaries"], None, config)
    rows = findings.to_pylist()
    (row,) = [r for r in rows if r["slice"] == "prefix_tokens=100"]
    assert row["value"] is None and "do not fit the context of 48" in row["method"]
    assert any(
        r["metric"] == "extractable" and r["slice"].endswith("prefix_tokens=6") for r in rows
    )


def test_the_same_items_by_other_settings_ask_nobody_again(own_folder, corpus):
    given = (own_folder, corpus["canaries"], corpus["documents"])
    first, again = (
        run(*given),
        run(*given, QUICK.model_copy(update={"stride_tokens": QUICK.suffix_tokens})),
    )
    assert first[3].name == again[3].name and first[0] == again[0]
    assert first[2].name != again[2].name and first[2].content_digest == again[2].content_digest
