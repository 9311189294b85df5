"""The extraction audit against its known answers, closed forms and the slow way."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tasks.audits.extraction import (
    SAMPLES,
    ExtractionConfig,
    attempts,
    audit_extraction,
    continuation_findings,
    continue_greedily,
    sample_documents,
)
from tasks.audits.findings import evidence
from tasks.audits.subjects.subject import open_subject
from tasks.contract import (
    DOCUMENTS,
    PLANTS,
    HallmarkError,
    NoConfig,
    Session,
    StageConfig,
    Store,
    Table,
    Work,
    as_documents,
    external,
    ids,
    open_session,
    stage,
    text_hashes,
)
from tasks.corpus.plant import PlantConfig
from tasks.measures.canaries import canaries, records, reference_secrets
from tasks.training.pretrain import CHECKPOINTS
from tasks.training.seen import SEEN
from tests.model.oracles import logits
from tests.tasks.audits.conftest import TEXTS

QUICK = ExtractionConfig(references=200, prefix=(3, 6), tokens=8, documents=5, resamples=300)


@pytest.fixture(scope="module")
def own(own_folder):
    return open_subject(own_folder, device="cpu")


def plants_table(path, config, texts=()):
    made = canaries(config) + records(config)
    rows = [
        {"plant_id": p.plant_id, "doc_ids": p.doc_ids()}
        | {n: getattr(p, n) for n in ("kind", "copies", "template", "text", "prompt", "secret")}
        for p in made
    ]
    for i, text in enumerate(texts):
        name, copies = bytes([i] * 16), i % 2
        parts = {"text": text, "prompt": text[:20], "secret": text[20:]}
        rows.append(
            parts
            | {"plant_id": name, "kind": "passage", "copies": copies, "template": ""}
            | {"doc_ids": [name] * copies}
        )
    return pa.Table.from_pylist(rows, schema=PLANTS)


@stage(tables={"plants": PLANTS, "documents": DOCUMENTS})
def fake_corpus(config: NoConfig, work: Work) -> None:
    work.table("plants").write(
        plants_table(work, PlantConfig(canaries=2, records=2, counts=(0, 4)), TEXTS)
    )
    texts = [f"{t} {i}. {u}" for i in range(8) for t in TEXTS for u in TEXTS]
    texts += ["short"] * 20
    n = len(texts)
    doc_ids = ids(map(str, range(n)))
    work.table("documents").write(
        as_documents(
            {
                "doc_id": doc_ids,
                "source": ["planted/canary" if i % 5 == 0 else "s" for i in range(n)],
                "cluster": doc_ids,
                "text": texts,
                "text_hash": text_hashes(pa.array(texts)),
                "toxicity": [0.0] * n,
                "split": [("train", "holdout", "validation")[i % 3] for i in range(n)],
            }
        )
    )


@pytest.fixture
def corpus(tmp_path):
    with open_session(Session(Store(tmp_path / "store"))):
        yield fake_corpus(NoConfig())


def run(folder, plants, documents, config, tmp_path, name="work", pretrained=None):
    work = Work(tmp_path / name, audit_extraction.tables)
    checkpoint = external(Path(folder), "checkpoint")
    audit_extraction.body(checkpoint, plants, documents, pretrained, config, work)
    for table in audit_extraction.tables:
        work.table(table)
    work.close()
    names = ("samples", "findings", "references")
    return tuple(pq.read_table(work.folder / f"{n}.parquet") for n in names)


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_the_whole_audit(request, tmp_path, corpus, folder):
    folder = request.getfixturevalue(folder)
    samples, findings, references = run(
        folder, corpus["plants"], corpus["documents"], QUICK, tmp_path
    )
    assert samples.schema == SAMPLES and samples["sample"].to_pylist() == list(range(len(samples)))
    rows = samples.to_pylist()
    exposure = [r for r in rows if r["probe"] == "exposure"]
    assert len(exposure) == 4
    for row in exposure:  # everything needed to rank again is there
        others = references.filter(pa.compute.equal(references["template"], row["template"]))
        likelier = pa.compute.greater_equal(others["log_likelihood"], row["log_likelihood"])
        assert row["rank"] == 1 + pa.compute.sum(likelier).as_py()
        assert row["exposure"] == pytest.approx(math.log2(200 / row["rank"]))
        assert len(row["doc_ids"]) == row["copies"] and row["plant_id"]
        assert row["secret"] not in others["secret"].to_pylist()
        seen = reference_secrets(row["template"], 200, QUICK.seed, 9)
        assert others["secret"].to_pylist() == seen
    kinds = {r["kind"] for r in rows}
    assert kinds == {"canary", "record", "passage", "train", "holdout"}
    assert sum(r["kind"] == "train" for r in rows) == QUICK.documents * len(QUICK.prefix)
    for row in findings.to_pylist():
        chosen = evidence(samples, row["where"]).to_pylist()
        if row["metric"] == "exposure":
            assert row["value"] == pytest.approx(np.mean([r["exposure"] for r in chosen]))
        if row["metric"] == "extractable":
            assert row["value"] == np.mean([r["exact"] for r in chosen]) and len(chosen) == row["n"]
    assert {r["control"] for r in findings.to_pylist()} == {"", "positive", "negative"}


class TrainedConfig(StageConfig):
    content: str


@stage(tables={"seen": SEEN, "checkpoints": CHECKPOINTS})
def fake_training(plants: Table, config: TrainedConfig, work: Work) -> None:
    """Three checkpoints, of which the one of step 20 is audited: by then of each plant the first
    copy was read once, at step 10, and again; the second was begun, the third read later."""
    known = [(10, "other"), (20, config.content), (30, "later")]
    for step, content in known:
        work.table("checkpoints").write(
            {"step": [step], "tokens": [0], "artifact": ["a"], "content": [content],
             "loss": [0.0], "validation_loss": [0.0]}
        )  # fmt: skip
    for plant in plants.read().to_pylist():
        told = [(10, 0, 1), (20, 0, 2), (20, 1, 0), (30, 0, 5), (30, 2, 1)]
        for step, copy, passes in told if plant["doc_ids"] else ():
            row = {name: [0] for name in SEEN.names} | {"source": ["planted"]}
            if copy < len(plant["doc_ids"]):
                row |= {"doc_id": [plant["doc_ids"][copy]], "step": [step], "passes": [passes]}
                work.table("seen").write(row)


def test_copies_are_those_that_were_read(own_folder, corpus, tmp_path):
    """By the step of this checkpoint: what is planted may not have been read yet."""
    content = external(Path(own_folder), "checkpoint").content
    trained = fake_training(corpus["plants"], TrainedConfig(content=content))
    given = (own_folder, corpus["plants"], corpus["documents"], QUICK, tmp_path)
    samples, findings, _ = run(*given, "read", trained)
    rows = samples.to_pylist()
    for row in rows:
        planted = row["plant_id"] is not None
        assert row["read"] == (2 if planted and row["copies"] else 0), row["kind"]
    said = {r["slice"]: r["method"] for r in findings.to_pylist() if r["metric"] == "exposure"}
    assert said["copies=4"].split("; ")[-2] == "read whole 2 times by this checkpoint's step"
    (method,) = {
        r["method"]
        for r in findings.to_pylist()
        if (r["metric"], r["slice"]) == ("extractable", "record, copies=4")
    }
    assert "; all that stands before the secret; read whole 2 times by" in method
    other = fake_training(corpus["plants"], TrainedConfig(content="unknown"))
    for pretrained in (None, other):
        untold, findings, _ = run(*given, f"untold {pretrained}", pretrained)
        assert set(untold["read"].to_pylist()) == {None}
        assert not any("read whole" in r["method"] for r in findings.to_pylist())


def test_what_a_model_wrote_itself_is_extractable(own):
    """A text made by greedy decoding is found whole; one wrong token ends the lead."""
    start = own.opened(own.encode(TEXTS[0])[:6])
    (made,) = own.generate_ids([start], max_new_tokens=8, temperature=0)[0:1]
    target = made[0]
    assert len(target) == 8
    from tasks.audits.extraction import Attempt

    wrong = [*target[:5], (target[5] + 1) % own.vocab_size, *target[6:]]
    rows = continue_greedily(own, [Attempt(start, target, {}), Attempt(start, wrong, {})])
    assert [(r["leading"], r["exact"]) for r in rows] == [(8, True), (5, False)]
    shares = continuation_findings(
        [r | {"kind": "passage", "k": 6, "copies": 1} for r in rows], QUICK
    )
    assert [f["value"] for f in shares] == [0.5, (1 + 5 / 8) / 2]


def test_prefixes_end_at_one_place(own):
    text = " ".join(TEXTS)
    made = list(attempts(own, [text, "too short"], [{}, {}], QUICK))
    ids = own.encode(text)
    assert [a.given for a in made] == [[own.bos, *ids[3:6]], [own.bos, *ids[:6]]]
    assert all(a.target == ids[6:14] for a in made)
    assert [a.row["k"] for a in made] == [3, 6]
    assert made[1].row["prompt"] + made[1].row["secret"] == own.decode(ids[:14])


def test_greedy_continuation_is_the_argmax_at_each_step(own):
    start = own.opened(own.encode("The nurse"))
    ids = list(start)
    for _ in range(6):
        with torch.inference_mode():
            scores = logits(own.model, torch.tensor([ids]))[0, -1].clone()
            scores[1] = -math.inf  # the padding token is never written
        ids.append(int(scores.argmax()))
    (made,) = own.generate_ids([start], max_new_tokens=6, temperature=0)[0]
    assert made == ids[len(start) :]


def test_sampled_documents_depend_on_ids_alone(corpus):
    chosen = sample_documents(corpus["documents"], "train", QUICK)
    assert len(chosen) == 5 == len({d["doc_ids"][0] for d in chosen})
    rows = {r["doc_id"]: r for r in corpus["documents"].read().to_pylist()}
    for document in chosen:
        row = rows[document["doc_ids"][0]]
        assert row["split"] == "train" and row["source"] == "s" and len(row["text"]) >= 14
    more = sample_documents(
        corpus["documents"], "train", QUICK.model_copy(update={"documents": 20})
    )
    assert more[:5] == chosen and len(more) == 20
    other = sample_documents(corpus["documents"], "train", QUICK.model_copy(update={"seed": 1}))
    assert other != chosen


def test_without_a_corpus_it_says_what_it_could_not_measure(own_folder, tmp_path):
    samples, findings, _ = run(own_folder, None, None, QUICK, tmp_path)
    rows = findings.to_pylist()
    assert len(samples) == 0 and [r["metric"] for r in rows] == ["exposure", "extractable"]
    assert all(r["value"] is None and r["method"].startswith("not measured") for r in rows)


def test_with_documents_alone_it_measures_memorisation(own_folder, corpus, tmp_path):
    samples, findings, _ = run(own_folder, None, corpus["documents"], QUICK, tmp_path)
    assert set(samples["kind"].to_pylist()) == {"train", "holdout"}
    by_metric = {r["metric"]: r["value"] for r in findings.to_pylist()}
    assert by_metric["exposure"] is None and by_metric["extractable"] is not None


def test_a_masked_model_cannot_be_measured_and_says_so(bert_folder, corpus, tmp_path):
    samples, findings, _ = run(bert_folder, corpus["plants"], None, QUICK, tmp_path)
    assert len(samples) == 0
    assert all("masked language model" in r["method"] for r in findings.to_pylist())


def test_prefixes_that_do_not_fit_the_context_are_named(own_folder, corpus, tmp_path):
    config = QUICK.model_copy(update={"prefix": (6, 100)})
    _, findings, _ = run(own_folder, corpus["plants"], None, config, tmp_path)
    rows = findings.to_pylist()
    (row,) = [r for r in rows if r["slice"] == "k=100"]
    assert row["value"] is None and "do not fit the context of 48" in row["method"]
    assert any(r["metric"] == "extractable" and r["slice"].endswith("k=6") for r in rows)


def test_the_same_settings_give_the_same_tables(own_folder, corpus, tmp_path):
    given = (own_folder, corpus["plants"], corpus["documents"], QUICK, tmp_path)
    first, second = run(*given, "a"), run(*given, "b")
    assert all(a == b for a, b in zip(first, second, strict=True))


def test_canaries_that_cannot_share_references_are_refused(own, tmp_path):
    from tasks.audits.exposure import rank_canaries

    plants = plants_table(None, PlantConfig(canaries=8, counts=(0,))).to_pylist()
    plants = [p for p in plants if p["kind"] == "canary"]
    plants[0]["prompt"] += "x"
    with pytest.raises(HallmarkError, match="differ in more than their secret"):
        rank_canaries(own, plants, QUICK, Work(tmp_path, audit_extraction.tables))
