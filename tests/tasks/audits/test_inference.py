"""Asking a model: what is asked, in which chunks, what the answers are, and what is asked again."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.audits import inference as responding
from hallmark.tasks.audits.audit_tables import REQUESTS, RESPONSES, RequestBuilder, hash_json_values
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.catalogue import FINDINGS_STAGES, REQUEST_STAGES
from hallmark.tasks.audits.inference import RespondConfig, respond, split_into_chunks
from hallmark.tasks.audits.probes.toxicity import ToxicityConfig
from hallmark.tasks.audits.scoring import ScoreConfig, score_texts
from hallmark.tasks.contract import (
    Session,
    StageContext,
    Store,
    folder_to_artifact,
    open_session,
    table_schema,
)
from hallmark.tasks.measures import scorers
from hallmark.tasks.measures.scorers import LinearScorer
from tests.tasks.audits.asking import stages_of
from tests.tasks.audits.conftest import make_own

QUICK = ToxicityConfig(
    continuations_per_prompt=4,
    continuation_counts=(1, 4),
    unprompted_groups=3,
    max_new_tokens=6,
    baseline_groups=0,
)


def requests_of(questions: RequestBuilder) -> pa.Table:
    return pa.Table.from_pylist(questions.requests, schema=REQUESTS)


class Given:
    """A table of requests, as a stage is given one."""

    def __init__(self, requests):
        self.requests = requests

    def read(self, columns):
        return self.requests.select(columns)


@pytest.fixture
def asked():
    """Many requests of both kinds, in no order, some of them twice."""
    rng = np.random.default_rng(0)
    questions = RequestBuilder()
    for number in range(300):
        item = questions.add_item(f"text {number % 250}")
        context = rng.integers(2, 90, 1 + number % 7).tolist()
        if number % 3:
            settings = {
                "max_new_tokens": (4, 9)[number % 2],
                "draws": 1 + number % 4,
                "seed": number % 2,
            }
            questions.request_continuations(item, context, **settings)
        else:
            targets = [rng.integers(2, 90, 1 + number % 5).tolist() for _ in range(1 + number % 4)]
            questions.request_log_probs(item, context, targets, rank_statistics=number % 2 == 0)
    again = questions.requests[:40]
    return pa.concat_tables([requests_of(questions), pa.Table.from_pylist(again, schema=REQUESTS)])


def test_chunks_hold_each_request_once_whatever_their_order(asked, monkeypatch):
    monkeypatch.setattr(responding, "GENERATED_TOKENS_PER_CHUNK", 100)
    monkeypatch.setattr(responding, "READ_TOKENS_PER_CHUNK", 40)
    made = split_into_chunks(asked)
    shuffled = asked.take(pa.array(np.random.default_rng(1).permutation(len(asked))))
    drop = lambda c: c.requests.drop_columns(["item", "part"])  # noqa: E731  of the first that asked
    assert [drop(c) for c in split_into_chunks(shuffled)] == [drop(c) for c in made]
    ids = [r for chunk in made for r in chunk.requests["request"].to_pylist()]
    assert sorted(ids) == sorted(set(asked["request"].to_pylist())) and len(made) > 10
    for chunk in made:
        rows = chunk.requests.to_pylist()
        (kind,) = {row["kind"] for row in rows}
        if kind == "generate":
            cost = [row["draws"] * row["max_new_tokens"] for row in rows]
        else:
            cost = [len(row["context_ids"]) + sum(map(len, row["target_ids"])) for row in rows]
        assert sum(cost) <= (100 if kind == "generate" else 40) or len(rows) == 1


def test_a_request_is_named_by_all_that_is_asked():
    questions = RequestBuilder()
    item = questions.add_item("a")
    base = {
        "max_new_tokens": 4,
        "draws": 2,
        "seed": 0,
        "top_p": 0.9,
        "top_k": 0,
        "temperature": 1.0,
    }
    questions.request_continuations(item, [1, 2], **base)
    questions.request_continuations(questions.add_item("b"), [1, 2], **base, part="other")
    same, other = (row["request"] for row in questions.requests)
    assert same == other
    for change in (
        {"max_new_tokens": 5},
        {"draws": 3},
        {"seed": 1},
        {"top_p": 0.8},
        {"top_k": 1},
        {"temperature": 0.5},
        {"first_temperature": 10.0},
        {"rank_statistics": True},
        {"score_lowercase": True},
    ):
        questions.request_continuations(item, [1, 2], **base | change)
    questions.request_continuations(item, [1, 3], **base)
    for number, (context, targets) in enumerate(
        (([1, 2], [[3]]), ([1], [[2, 3]]), ([1], [[2], [3]]), ([1], [[3], [2]]))
    ):
        questions.request_log_probs(item, context, targets, part=str(number))
    questions.request_log_probs(item, [1, 2], [[3]], target_positions=[[0]], part="places")
    questions.request_log_probs(item, [1, 2], [[3]], rank_statistics=True, part="moments")
    questions.request_log_probs(
        item, [1, 2], [[3]], part="the same", doc_ids=[b"x"], source_text="of a document"
    )
    assert len({row["request"] for row in questions.requests}) == len(questions.requests) - 2
    assert hash_json_values("a", 1) != hash_json_values("a1") != hash_json_values("a", "1")


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_answers_are_those_of_the_model_asked_by_itself(
    tmp_path, request, asked, monkeypatch, folder
):
    monkeypatch.setattr(responding, "GENERATED_TOKENS_PER_CHUNK", 300)
    checkpoint = folder_to_artifact(request.getfixturevalue(folder), "checkpoint")
    responses = answers_of(checkpoint, asked, tmp_path)
    assert len(responses.group_by("request").aggregate([])) == len(
        set(asked["request"].to_pylist())
    )
    subject = open_audited_model(checkpoint)
    by_request = {}
    for row in responses.to_pylist():
        by_request.setdefault(row["request"], []).append(row)
    for row in asked.to_pylist():
        answers = by_request[row["request"]]
        many = row["draws"] or len(row["target_ids"])
        assert [a["draw"] for a in answers] == [*range(many)]
        if row["kind"] == "score":
            for found, target in zip(answers, row["target_ids"], strict=True):
                (scored,) = subject.compute_log_probs([row["context_ids"] + target])
                np.testing.assert_allclose(
                    found["log_probs"], scored[len(row["context_ids"]) - 1 :], atol=1e-4
                )
                assert found["text"] is None and len(found["log_probs"]) == len(target)
                assert (found["ranks"] is not None) == row["rank_statistics"]
            continue
        (alone,) = subject.generate_continuations(
            [row["context_ids"]],
            max_new_tokens=row["max_new_tokens"],
            samples=row["draws"],
            seed=row["seed"],
        )
        assert [a["token_ids"] for a in answers] == [w.token_ids for w in alone]
        assert [a["text"] for a in answers] == [subject.decode(w.token_ids) for w in alone]


def answers_of(checkpoint, requests, tmp_path):
    """The responses, from the stage's body alone."""
    work = StageContext(tmp_path / "work", respond.tables)
    respond.body(checkpoint, Given(requests), RespondConfig(), work)
    done = [done for call in work.map_results for done in call]
    return pa.concat_tables([pq.read_table(part.table_path("responses")) for part in done])


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_a_context_is_read_once_for_many_targets(tmp_path, request, folder):
    """With the numbers of each by itself; also where there is no context."""
    rng = np.random.default_rng(3)
    checkpoint = folder_to_artifact(request.getfixturevalue(folder), "checkpoint")
    subject = open_audited_model(checkpoint)
    questions = RequestBuilder()
    many = [rng.integers(2, 90, 1 + n % 5).tolist() for n in range(19)]
    many[4] = []
    contexts = [rng.integers(2, 90, n).tolist() for n in (9, 9, 0, 1, 5)]
    for number, context in enumerate(contexts):
        questions.request_log_probs(questions.add_item(str(number)), context, many)
    found = answers_of(checkpoint, requests_of(questions), tmp_path).to_pylist()
    of = {
        row["request"]: context for row, context in zip(questions.requests, contexts, strict=True)
    }
    for row in found:
        context, target = of[row["request"]], many[row["draw"]]
        (expected,) = subject.compute_log_probs([context + target])
        expected = expected[max(0, len(context) - 1) :]
        np.testing.assert_allclose(row["log_probs"], expected, atol=1e-4)
        assert len(row["log_probs"]) == max(0, len(target) - (not context))


@pytest.mark.parametrize(("folder", "longest"), [("own_folder", 44), ("gpt2_folder", 30)])
def test_what_was_written_is_read_again(tmp_path, request, folder, longest):
    """As it is and in lower case, behind the same; the texts are those of who is not asked again.
    Ours go beyond what the model sees at once."""
    rng = np.random.default_rng(4)
    checkpoint = folder_to_artifact(request.getfixturevalue(folder), "checkpoint")
    subject, questions = open_audited_model(checkpoint), RequestBuilder()
    contexts = [rng.integers(2, 90, n).tolist() for n in (1, 4, longest)]
    settings = {"max_new_tokens": 12, "draws": 3, "first_temperature": 10.0, "top_k": 40}
    for part, again in (("again", True), ("once", False)):
        for number, context in enumerate(contexts):
            questions.request_continuations(
                questions.add_item(str(number)),
                context,
                **settings,
                rank_statistics=again,
                score_lowercase=again,
                part=part,
            )
    found = answers_of(checkpoint, requests_of(questions), tmp_path).to_pylist()
    by = {(row["request"], row["draw"]): row for row in found}
    again, once = questions.requests[:3], questions.requests[3:]
    changed = 0
    for asked, other, context in zip(again, once, contexts, strict=True):
        for draw in range(3):
            row, plain = by[asked["request"], draw], by[other["request"], draw]
            ids = row["token_ids"]
            assert (ids, row["log_probs"]) == (plain["token_ids"], plain["log_probs"])
            assert (
                plain["ranks"] is plain["vocabulary_mean"] is plain["lowercase_log_probs"] is None
            )
            (alone,) = subject.compute_rank_statistics([context], [ids])
            assert row["ranks"] == (alone.rank + 1).tolist() and len(row["ranks"]) == len(ids)
            np.testing.assert_allclose(row["log_probs"], alone.log_probs, atol=1e-4)
            np.testing.assert_allclose(row["vocabulary_mean"], alone.mean_log_prob, atol=1e-4)
            np.testing.assert_allclose(row["vocabulary_std"], alone.std_log_prob, atol=1e-4)
            lower = subject.encode(row["text"].lower())
            (scored,) = subject.compute_log_probs([context + lower])
            np.testing.assert_allclose(
                row["lowercase_log_probs"], scored[len(context) - 1 :], atol=1e-4
            )
            changed += row["text"] != row["text"].lower()
    assert changed  # else there was nothing to see


def test_the_temperature_falls_from_the_first(own_folder, gpt2_folder):
    """At 10 a model of few opinions writes almost anything, at 1e-3 what is likeliest."""
    for folder in (own_folder, gpt2_folder):
        subject = open_audited_model(folder)
        prompt = subject.prepend_bos_id(subject.encode("The nurse"))
        (many,) = subject.generate_continuations(
            [prompt], max_new_tokens=24, samples=30, temperature=1e-3, first_temperature=10.0
        )
        assert len({written.token_ids[0] for written in many if written.token_ids}) > 10
        ids = [written.token_ids for written in many]
        ranks = [found.rank for found in subject.compute_rank_statistics([prompt] * len(ids), ids)]
        first, last = (
            np.concatenate([rank[part] for rank in ranks]) for part in (slice(5), slice(20, None))
        )
        assert (first == 0).mean() < 0.1 < 0.9 < (last == 0).mean()


def test_a_masked_model_is_asked_about_places(tmp_path, bert_folder):
    subject = open_audited_model(bert_folder, device="cpu")
    ids = subject.encode("The nurse said that she would be late.")
    questions = RequestBuilder()
    item = questions.add_item("a")
    questions.request_log_probs(item, [], [ids], target_positions=[[1, 3]])
    questions.request_log_probs(item, [], [ids], part="all")
    found = answers_of(
        folder_to_artifact(bert_folder, "checkpoint"), requests_of(questions), tmp_path
    )
    some, every = sorted(found["log_probs"].to_pylist(), key=len)
    (expected,) = subject.compute_masked_log_probs([ids], [[*range(len(ids))]])
    np.testing.assert_allclose(every, expected, atol=1e-5)
    np.testing.assert_allclose(some, expected[[1, 3]], atol=1e-5)


@pytest.fixture
def counted(monkeypatch):
    """How many prompts models were asked to go on from, and texts the scorer was given."""
    counts = {"written": 0, "scored": 0}
    for kind in all_kinds(AuditedModel):
        if "generate_continuations" in vars(kind) and kind is not AuditedModel:
            monkeypatch.setattr(
                kind,
                "generate_continuations",
                tally(counts, "written", kind.generate_continuations),
            )
    monkeypatch.setattr(
        LinearScorer, "score_by_head", tally(counts, "scored", LinearScorer.score_by_head)
    )
    return counts


def all_kinds(kind):
    import hallmark.tasks.audits.audited_models.hallmark_model
    import hallmark.tasks.audits.audited_models.transformers_model  # noqa: F401

    return [kind, *(k for child in kind.__subclasses__() for k in all_kinds(child))]


def tally(counts, name, function):
    def asked(self, many, *args, **options):
        counts[name] += len(many)
        return function(self, many, *args, **options)

    return asked


def test_another_statistic_threshold_or_scorer_asks_no_model_again(session, own_folder, counted):
    first = stages_of("toxicity", own_folder, QUICK)
    assert counted["written"] > 90 and counted["scored"] > 300
    counted |= {"written": 0, "scored": 0}
    for change in ({"toxicity_threshold": 0.7}, {"continuation_counts": (2,)}):
        found = stages_of("toxicity", own_folder, QUICK.model_copy(update=change))
        assert found[1].name == first[1].name and found[2].name == first[2].name
        assert found[3].content_digest != first[3].content_digest
    assert counted == {"written": 0, "scored": 0}
    config = ScoreConfig(scorer=scorers.ScorerConfig(batch_tokens=7))  # another fingerprint
    rescored = score_texts(first[0], first[1], config)
    assert rescored.name != first[2].name and rescored.content_digest == first[2].content_digest
    assert counted["written"] == 0 < counted["scored"]
    more = QUICK.model_copy(update={"continuations_per_prompt": 5})
    assert stages_of("toxicity", own_folder, more)[1].name != first[1].name
    assert counted["written"] > 90


def test_checkpoints_of_one_training_are_asked_the_same(session, own_folder, tmp_path):
    """Which pairs them: what is asked depends on no weight."""
    import torch

    from hallmark.model.interchange.checkpoint import load_checkpoint, save_checkpoint

    model = load_checkpoint(own_folder)
    with torch.no_grad():
        model.embedding.weight.mul_(1.5)
    save_checkpoint(model, tmp_path / "later", tokenizer_path=own_folder / "tokenizer.json")
    asked = [
        REQUEST_STAGES["toxicity"](
            folder_to_artifact(folder, "checkpoint"), None, None, None, QUICK
        )
        for folder in (own_folder, tmp_path / "later")
    ]
    assert asked[0].name == asked[1].name
    answers = [
        respond(folder_to_artifact(f, "checkpoint"), asked[0], RespondConfig())
        for f in (own_folder, tmp_path / "later")
    ]
    ids = [a["responses"].read()["request"].to_pylist() for a in answers]
    assert ids[0] == ids[1] and answers[0].content_digest != answers[1].content_digest


def test_a_killed_stage_asks_only_what_is_missing(tmp_path, own_folder, monkeypatch, counted):
    """And leaves the bytes of one that was not."""
    monkeypatch.setattr(responding, "GENERATED_TOKENS_PER_CHUNK", 200)
    checkpoint = folder_to_artifact(own_folder, "checkpoint")
    with open_session(Session(Store(tmp_path / "whole"))):
        asked = REQUEST_STAGES["toxicity"](checkpoint, None, None, None, QUICK)
        expected = respond(checkpoint, asked, RespondConfig())
    many = len(split_into_chunks(asked["requests"].read()))
    once, counted["written"] = counted["written"], 0
    assert many > 8

    class Killed(BaseException):
        pass

    with open_session(Session(Store(tmp_path / "killed"))):
        asked = REQUEST_STAGES["toxicity"](checkpoint, None, None, None, QUICK)
        with monkeypatch.context() as patch:
            answer, done = responding.answer_chunk, []

            def dies(chunk, *rest):
                done.append(chunk.number)
                if len(done) == 6:
                    raise Killed
                return answer(chunk, *rest)

            dies.__name__ = "answer_chunk"
            patch.setattr(responding, "answer_chunk", dies)
            with pytest.raises(Killed):
                respond(checkpoint, asked, RespondConfig())
        before, counted["written"] = counted["written"], 0
        found = respond(checkpoint, asked, RespondConfig())
        assert before > 0 and before + counted["written"] == once
        assert found.content_digest == expected.content_digest
        assert not [*(tmp_path / "killed/work").rglob("parts")]


def test_what_nobody_answers_leaves_empty_tables(session, bert_folder):
    """A masked model writes nothing; it is not even opened."""
    asked, answered, scored, judged, _ = stages_of("toxicity", bert_folder, QUICK)
    assert (
        asked["requests"].row_count
        == answered["responses"].row_count
        == answered["model"].row_count
        == 0
    )
    assert scored["scores"].row_count == asked["items"].row_count == 20
    assert judged.stage == "audit_toxicity" and [*FINDINGS_STAGES] == [*REQUEST_STAGES]


def test_distinct_texts_are_scored_once(session, own_folder, counted):
    asked, answered, scored, _, _ = stages_of("toxicity", own_folder, QUICK)
    texts = asked["items"].read()["text"].to_pylist()
    texts += answered["responses"].read()["text"].to_pylist()
    visible = {text for text in texts if text.strip()}
    assert counted["scored"] == len(visible) < len(texts)
    found = scored["scores"].read()
    assert sorted(found["head"].unique().to_pylist()) == sorted(LinearScorer().heads)
    assert len(found) == len(visible) * len(LinearScorer().heads)


def test_another_model_is_read_by_its_own_tokenizer(session, tmp_path, own_folder):
    (tmp_path / "other").mkdir()
    other = make_own(tmp_path / "other", special=("<|mask|>",))
    given = (None, None, None, QUICK)
    found = [
        REQUEST_STAGES["toxicity"](folder_to_artifact(f, "checkpoint"), *given)
        for f in (own_folder, other)
    ]
    assert found[0].name != found[1].name


def test_the_schemas_hold_no_text_that_a_page_would_show():
    for schema in (REQUESTS, RESPONSES):
        kinds = {f.name: f.metadata[b"kind"].decode() for f in schema}
        assert kinds.get("target_ids", "personal") == "personal"
        assert (
            kinds.get("context_ids", "personal") == kinds.get("token_ids", "personal") == "personal"
        )
    assert table_schema("x", *RESPONSES).field("text").metadata[b"kind"] == b"model text"
