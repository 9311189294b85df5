"""Test inference: requests and their ids, chunks, responses, and which work is repeated."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.audits import inference as responding
from hallmark.tasks.audits.audit_tables import REQUESTS, RESPONSES, RequestBuilder, hash_json_values
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.catalogue import FINDINGS_STAGES, REQUEST_STAGES
from hallmark.tasks.audits.inference import (
    RespondConfig,
    group_distinct_requests_into_chunks,
    respond,
)
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
from hallmark.tasks.measures.scorers.linear import LinearScorer
from tests.builders import row_dicts
from tests.tasks.audits.audit_runs import run_audit_stages
from tests.tasks.audits.conftest import make_own

QUICK = ToxicityConfig(
    continuations_per_prompt=4,
    continuation_counts=(1, 4),
    unprompted_groups=3,
    max_new_tokens=6,
    baseline_groups=0,
)


def build_request_table(builder: RequestBuilder) -> pa.Table:
    return builder.build_requests_table()


class RequestTable:
    """A table of requests with the interface that a stage uses."""

    def __init__(self, requests):
        self.requests = requests

    def read(self, columns):
        return self.requests.select(columns)


@pytest.fixture
def mixed_requests():
    """Many requests of both kinds in random order, some of them duplicated."""
    rng = np.random.default_rng(0)
    builder = RequestBuilder()
    for number in range(300):
        item = builder.add_item(f"text {number % 250}")
        context = rng.integers(2, 90, 1 + number % 7).tolist()
        if number % 3:
            settings = {
                "max_new_tokens": (4, 9)[number % 2],
                "draws": 1 + number % 4,
                "seed": number % 2,
            }
            builder.request_continuations(item, context, **settings)
        else:
            targets = [rng.integers(2, 90, 1 + number % 5).tolist() for _ in range(1 + number % 4)]
            builder.request_log_probs(item, context, targets, rank_statistics=number % 2 == 0)
    duplicates = row_dicts(builder.requests)[:40]
    return pa.concat_tables(
        [build_request_table(builder), pa.Table.from_pylist(duplicates, schema=REQUESTS)]
    )


def test_chunks_hold_each_request_once_in_any_order(mixed_requests, monkeypatch):
    monkeypatch.setattr(responding, "GENERATED_TOKENS_PER_CHUNK", 100)
    monkeypatch.setattr(responding, "READ_TOKENS_PER_CHUNK", 40)
    chunks = group_distinct_requests_into_chunks(mixed_requests)
    shuffled = mixed_requests.take(
        pa.array(np.random.default_rng(1).permutation(len(mixed_requests)))
    )
    # A chunk keeps item and part of the first of several equal requests.
    drop = lambda c: c.requests.drop_columns(["item", "part"])  # noqa: E731
    assert [drop(c) for c in group_distinct_requests_into_chunks(shuffled)] == [
        drop(c) for c in chunks
    ]
    ids = [r for chunk in chunks for r in chunk.requests["request"].to_pylist()]
    assert sorted(ids) == sorted(set(mixed_requests["request"].to_pylist())) and len(chunks) > 10
    for chunk in chunks:
        rows = chunk.requests.to_pylist()
        (kind,) = {row["kind"] for row in rows}
        if kind == "generate":
            cost = [row["draws"] * row["max_new_tokens"] for row in rows]
        else:
            cost = [len(row["context_ids"]) + sum(map(len, row["target_ids"])) for row in rows]
        assert sum(cost) <= (100 if kind == "generate" else 40) or len(rows) == 1


def test_a_request_id_depends_on_every_setting():
    builder = RequestBuilder()
    item = builder.add_item("a")
    base = {
        "max_new_tokens": 4,
        "draws": 2,
        "seed": 0,
        "top_p": 0.9,
        "top_k": 0,
        "temperature": 1.0,
    }
    builder.request_continuations(item, [1, 2], **base)
    builder.request_continuations(builder.add_item("b"), [1, 2], **base, part="other")
    first_id, second_id = (row["request"] for row in row_dicts(builder.requests))
    assert first_id == second_id
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
        builder.request_continuations(item, [1, 2], **base | change)
    builder.request_continuations(item, [1, 3], **base)
    for number, (context, targets) in enumerate(
        (([1, 2], [[3]]), ([1], [[2, 3]]), ([1], [[2], [3]]), ([1], [[3], [2]]))
    ):
        builder.request_log_probs(item, context, targets, part=str(number))
    builder.request_log_probs(item, [1, 2], [[3]], target_positions=[[0]], part="places")
    builder.request_log_probs(item, [1, 2], [[3]], rank_statistics=True, part="moments")
    builder.request_log_probs(
        item, [1, 2], [[3]], part="the same", doc_ids=[b"x"], source_text="of a document"
    )
    assert len({row["request"] for row in row_dicts(builder.requests)}) == len(builder.requests) - 2
    assert hash_json_values("a", 1) != hash_json_values("a1") != hash_json_values("a", "1")


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_responses_equal_those_of_single_calls_of_the_model(
    tmp_path, request, mixed_requests, monkeypatch, folder
):
    monkeypatch.setattr(responding, "GENERATED_TOKENS_PER_CHUNK", 300)
    checkpoint = folder_to_artifact(request.getfixturevalue(folder), "checkpoint")
    responses = compute_responses(checkpoint, mixed_requests, tmp_path)
    assert len(responses.group_by("request").aggregate([])) == len(
        set(mixed_requests["request"].to_pylist())
    )
    model = open_audited_model(checkpoint)
    by_request = {}
    for row in responses.to_pylist():
        by_request.setdefault(row["request"], []).append(row)
    for row in mixed_requests.to_pylist():
        answers = by_request[row["request"]]
        draw_count = row["draws"] or len(row["target_ids"])
        assert [a["draw"] for a in answers] == [*range(draw_count)]
        if row["kind"] == "score":
            for response, target in zip(answers, row["target_ids"], strict=True):
                (log_probs,) = model.compute_log_probs([row["context_ids"] + target])
                np.testing.assert_allclose(
                    response["log_probs"], log_probs[len(row["context_ids"]) - 1 :], atol=1e-4
                )
                assert response["text"] is None and len(response["log_probs"]) == len(target)
                assert (response["ranks"] is not None) == row["rank_statistics"]
            continue
        (continuations,) = model.generate_continuations(
            [row["context_ids"]],
            max_new_tokens=row["max_new_tokens"],
            samples=row["draws"],
            seed=row["seed"],
        )
        assert [a["token_ids"] for a in answers] == [w.token_ids for w in continuations]
        assert [a["text"] for a in answers] == [model.decode(w.token_ids) for w in continuations]


def compute_responses(checkpoint, requests, tmp_path):
    """Run the body of the stage and return the responses."""
    context = StageContext(tmp_path / "work", respond.tables)
    respond.body(checkpoint, RequestTable(requests), RespondConfig(), context)
    outputs = [outputs for call in context.map_results for outputs in call]
    return pa.concat_tables([pq.read_table(part.table_path("responses")) for part in outputs])


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_a_context_is_read_once_for_many_targets(tmp_path, request, folder):
    """The numbers equal those of each target alone, also for an empty context."""
    rng = np.random.default_rng(3)
    checkpoint = folder_to_artifact(request.getfixturevalue(folder), "checkpoint")
    model = open_audited_model(checkpoint)
    builder = RequestBuilder()
    targets = [rng.integers(2, 90, 1 + n % 5).tolist() for n in range(19)]
    targets[4] = []
    contexts = [rng.integers(2, 90, n).tolist() for n in (9, 9, 0, 1, 5)]
    for number, context in enumerate(contexts):
        builder.request_log_probs(builder.add_item(str(number)), context, targets)
    responses = compute_responses(checkpoint, build_request_table(builder), tmp_path).to_pylist()
    context_by_request = {
        row["request"]: context
        for row, context in zip(row_dicts(builder.requests), contexts, strict=True)
    }
    for row in responses:
        context, target = context_by_request[row["request"]], targets[row["draw"]]
        (expected,) = model.compute_log_probs([context + target])
        expected = expected[max(0, len(context) - 1) :]
        np.testing.assert_allclose(row["log_probs"], expected, atol=1e-4)
        assert len(row["log_probs"]) == max(0, len(target) - (not context))


@pytest.mark.parametrize(("folder", "longest"), [("own_folder", 44), ("gpt2_folder", 30)])
def test_generated_texts_are_read_again(tmp_path, request, folder, longest):
    """Texts are read again as they are and in lower case, after the same context.

    The texts equal those of requests without the second reading. Those of the Hallmark model are
    longer than its context.
    """
    rng = np.random.default_rng(4)
    checkpoint = folder_to_artifact(request.getfixturevalue(folder), "checkpoint")
    model, builder = open_audited_model(checkpoint), RequestBuilder()
    contexts = [rng.integers(2, 90, n).tolist() for n in (1, 4, longest)]
    settings = {"max_new_tokens": 12, "draws": 3, "first_temperature": 10.0, "top_k": 40}
    for part, read_again in (("again", True), ("once", False)):
        for number, context in enumerate(contexts):
            builder.request_continuations(
                builder.add_item(str(number)),
                context,
                **settings,
                rank_statistics=read_again,
                score_lowercase=read_again,
                part=part,
            )
    responses = compute_responses(checkpoint, build_request_table(builder), tmp_path).to_pylist()
    responses_by_key = {(row["request"], row["draw"]): row for row in responses}
    read_again, plain_requests = row_dicts(builder.requests)[:3], row_dicts(builder.requests)[3:]
    changed = 0
    for reread_request, plain_request, context in zip(
        read_again, plain_requests, contexts, strict=True
    ):
        for draw in range(3):
            row, plain_response = (
                responses_by_key[reread_request["request"], draw],
                responses_by_key[plain_request["request"], draw],
            )
            ids = row["token_ids"]
            assert (ids, row["log_probs"]) == (
                plain_response["token_ids"],
                plain_response["log_probs"],
            )
            assert (
                plain_response["ranks"]
                is plain_response["vocabulary_mean"]
                is plain_response["lowercase_log_probs"]
                is None
            )
            (statistics,) = model.compute_rank_statistics([context], [ids])
            assert row["ranks"] == (statistics.rank + 1).tolist() and len(row["ranks"]) == len(ids)
            np.testing.assert_allclose(row["log_probs"], statistics.log_probs, atol=1e-4)
            np.testing.assert_allclose(row["vocabulary_mean"], statistics.mean_log_prob, atol=1e-4)
            np.testing.assert_allclose(row["vocabulary_std"], statistics.std_log_prob, atol=1e-4)
            lowercase_ids = model.encode(row["text"].lower())
            (lowercase_log_probs,) = model.compute_log_probs([context + lowercase_ids])
            np.testing.assert_allclose(
                row["lowercase_log_probs"], lowercase_log_probs[len(context) - 1 :], atol=1e-4
            )
            changed += row["text"] != row["text"].lower()
    assert changed  # some text has capital letters


def test_the_temperature_falls_from_the_first_token(own_folder, gpt2_folder):
    """At temperature 10 almost any token is written, at 1e-3 the most probable one."""
    for folder in (own_folder, gpt2_folder):
        model = open_audited_model(folder)
        prompt = model.prepend_bos_id(model.encode("The nurse"))
        (continuations,) = model.generate_continuations(
            [prompt], max_new_tokens=24, samples=30, temperature=1e-3, first_temperature=10.0
        )
        assert (
            len(
                {
                    continuation.token_ids[0]
                    for continuation in continuations
                    if continuation.token_ids
                }
            )
            > 10
        )
        ids = [continuation.token_ids for continuation in continuations]
        ranks = [
            statistics.rank
            for statistics in model.compute_rank_statistics([prompt] * len(ids), ids)
        ]
        first, last = (
            np.concatenate([rank[part] for rank in ranks]) for part in (slice(5), slice(20, None))
        )
        assert (first == 0).mean() < 0.1 < 0.9 < (last == 0).mean()


def test_a_masked_model_scores_target_positions(tmp_path, bert_folder):
    model = open_audited_model(bert_folder, device="cpu")
    ids = model.encode("The nurse said that she would be late.")
    builder = RequestBuilder()
    item = builder.add_item("a")
    builder.request_log_probs(item, [], [ids], target_positions=[[1, 3]])
    builder.request_log_probs(item, [], [ids], part="all")
    responses = compute_responses(
        folder_to_artifact(bert_folder, "checkpoint"), build_request_table(builder), tmp_path
    )
    some_log_probs, all_log_probs = sorted(responses["log_probs"].to_pylist(), key=len)
    (expected,) = model.compute_masked_log_probs([ids], [[*range(len(ids))]])
    np.testing.assert_allclose(all_log_probs, expected, atol=1e-5)
    np.testing.assert_allclose(some_log_probs, expected[[1, 3]], atol=1e-5)


@pytest.fixture
def call_counts(monkeypatch):
    """Count the prompts that models continue and the texts that the scorer reads."""
    counts = {"written": 0, "scored": 0}
    for kind in list_subclasses(AuditedModel):
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


def list_subclasses(base):
    import hallmark.tasks.audits.audited_models.hallmark_model
    import hallmark.tasks.audits.audited_models.transformers_model  # noqa: F401

    return [
        base,
        *(subclass for child in base.__subclasses__() for subclass in list_subclasses(child)),
    ]


def tally(counts, name, function):
    def counted_function(self, items, *args, **options):
        counts[name] += len(items)
        return function(self, items, *args, **options)

    return counted_function


def test_a_change_of_statistic_threshold_or_scorer_repeats_no_inference(
    session, own_folder, call_counts
):
    first = run_audit_stages("toxicity", own_folder, QUICK)
    assert call_counts["written"] > 90 and call_counts["scored"] > 300
    call_counts |= {"written": 0, "scored": 0}
    for change in ({"toxicity_threshold": 0.7}, {"continuation_counts": (2,)}):
        changed = run_audit_stages("toxicity", own_folder, QUICK.model_copy(update=change))
        assert changed[1].name == first[1].name and changed[2].name == first[2].name
        assert changed[3].content_digest != first[3].content_digest
    assert call_counts == {"written": 0, "scored": 0}
    config = ScoreConfig(  # changes the fingerprint
        scorer=scorers.ScorerConfig(batch_tokens=7), additional_scorers=()
    )
    rescored = score_texts(first[0], first[1], config)
    assert rescored.name != first[2].name and rescored.content_digest == first[2].content_digest
    assert call_counts["written"] == 0 < call_counts["scored"]
    more_continuations = QUICK.model_copy(update={"continuations_per_prompt": 5})
    assert run_audit_stages("toxicity", own_folder, more_continuations)[1].name != first[1].name
    assert call_counts["written"] > 90


def test_checkpoints_of_one_training_get_the_same_requests(session, own_folder, tmp_path):
    """Requests depend on no weights, so checkpoints can be compared item by item."""
    import torch

    from hallmark.model.interchange.checkpoint import load_checkpoint, save_checkpoint

    model = load_checkpoint(own_folder)
    with torch.no_grad():
        model.embedding.weight.mul_(1.5)
    save_checkpoint(model, tmp_path / "later", tokenizer_path=own_folder / "tokenizer.json")
    request_sets = [
        REQUEST_STAGES["toxicity"](
            folder_to_artifact(folder, "checkpoint"), None, None, None, QUICK
        )
        for folder in (own_folder, tmp_path / "later")
    ]
    assert request_sets[0].name == request_sets[1].name
    response_sets = [
        respond(folder_to_artifact(f, "checkpoint"), request_sets[0], RespondConfig())
        for f in (own_folder, tmp_path / "later")
    ]
    ids = [a["responses"].read()["request"].to_pylist() for a in response_sets]
    assert ids[0] == ids[1] and response_sets[0].content_digest != response_sets[1].content_digest


def test_a_killed_stage_answers_only_the_missing_chunks(
    tmp_path, own_folder, monkeypatch, call_counts
):
    """The result has the same bytes as without interruption."""
    monkeypatch.setattr(responding, "GENERATED_TOKENS_PER_CHUNK", 200)
    checkpoint = folder_to_artifact(own_folder, "checkpoint")
    with open_session(Session(Store(tmp_path / "whole"))):
        requests = REQUEST_STAGES["toxicity"](checkpoint, None, None, None, QUICK)
        expected = respond(checkpoint, requests, RespondConfig())
    chunk_count = len(group_distinct_requests_into_chunks(requests["requests"].read()))
    full_count, call_counts["written"] = call_counts["written"], 0
    assert chunk_count > 8

    class Killed(BaseException):
        pass

    with open_session(Session(Store(tmp_path / "killed"))):
        requests = REQUEST_STAGES["toxicity"](checkpoint, None, None, None, QUICK)
        with monkeypatch.context() as patch:
            answer, answered = responding.answer_chunk, []

            def answer_or_die(chunk, *rest):
                answered.append(chunk.number)
                if len(answered) == 6:
                    raise Killed
                return answer(chunk, *rest)

            answer_or_die.__name__ = "answer_chunk"
            patch.setattr(responding, "answer_chunk", answer_or_die)
            with pytest.raises(Killed):
                respond(checkpoint, requests, RespondConfig())
        count_before_kill, call_counts["written"] = call_counts["written"], 0
        result = respond(checkpoint, requests, RespondConfig())
        assert count_before_kill > 0 and count_before_kill + call_counts["written"] == full_count
        assert result.content_digest == expected.content_digest
        assert not [*(tmp_path / "killed/work").rglob("parts")]


def test_no_requests_give_empty_tables(session, bert_folder):
    """A masked model cannot continue text and is not even opened."""
    requests, responses, scores, findings, _ = run_audit_stages("toxicity", bert_folder, QUICK)
    assert (
        requests["requests"].row_count
        == responses["responses"].row_count
        == responses["model"].row_count
        == 0
    )
    assert scores["scores"].row_count == requests["items"].row_count == 0
    assert findings.stage == "audit_toxicity" and [*FINDINGS_STAGES] == [*REQUEST_STAGES]


def test_distinct_texts_are_scored_once(session, own_folder, call_counts):
    requests, responses, scores, _, _ = run_audit_stages("toxicity", own_folder, QUICK)
    texts = requests["items"].read()["text"].to_pylist()
    texts += responses["responses"].read()["text"].to_pylist()
    visible = {text for text in texts if text.strip()}
    assert call_counts["scored"] == len(visible) < len(texts)
    score_rows = scores["scores"].read()
    assert sorted(score_rows["head"].unique().to_pylist()) == sorted(LinearScorer().heads)
    assert len(score_rows) == len(visible) * len(LinearScorer().heads)


def test_requests_depend_on_the_tokenizer(session, tmp_path, own_folder):
    (tmp_path / "other").mkdir()
    other = make_own(tmp_path / "other", special=("<|mask|>",))
    arguments = (None, None, None, QUICK)
    request_sets = [
        REQUEST_STAGES["toxicity"](folder_to_artifact(f, "checkpoint"), *arguments)
        for f in (own_folder, other)
    ]
    assert request_sets[0].name != request_sets[1].name


def test_token_ids_are_never_shown_on_pages():
    for schema in (REQUESTS, RESPONSES):
        kinds = {f.name: f.metadata[b"kind"].decode() for f in schema}
        assert kinds.get("target_ids", "personal") == "personal"
        assert (
            kinds.get("context_ids", "personal") == kinds.get("token_ids", "personal") == "personal"
        )
    assert table_schema("x", *RESPONSES).field("text").metadata[b"kind"] == b"model text"
