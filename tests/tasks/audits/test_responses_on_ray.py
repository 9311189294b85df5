"""Test that the stages of an audit that open a model give the same bytes on Ray as without it."""

import psutil
import pytest

from hallmark.tasks.audits import inference, reference_scoring, scoring
from hallmark.tasks.audits.catalogue import REQUEST_STAGES
from hallmark.tasks.audits.inference import (
    SMALL_MODEL_COUNT,
    RespondConfig,
    respond,
    respond_untrained,
    respond_untrained_models,
)
from hallmark.tasks.audits.probes.bias import BiasConfig
from hallmark.tasks.audits.probes.toxicity import ToxicityConfig
from hallmark.tasks.audits.reference_scoring import score_with_reference
from hallmark.tasks.audits.scoring import ScoreConfig, score_texts
from hallmark.tasks.contract import (
    SerialMapper,
    Session,
    Store,
    UsageError,
    folder_to_artifact,
    make_mapper,
    open_session,
)
from hallmark.tasks.measures.scorers import _scorers_in_use
from hallmark.tasks.measures.scorers.sentiment import ClassifierConfig
from tests.tasks.measures.classifier_folder import make_classifier

pytestmark = pytest.mark.slow

TOXICITY = ToxicityConfig(
    continuations_per_prompt=2,
    continuation_counts=(1, 2),
    unprompted_groups=3,
    max_new_tokens=6,
    baseline_groups=0,
)

AUDITS = {
    "own_folder": ("toxicity", TOXICITY),
    "bert_folder": ("bias", BiasConfig()),
}


@pytest.fixture(scope="module")
def ray():
    """Start one cluster of two processors and no GPU for all tests of the module."""
    with make_mapper("ray", 2) as mapper, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(mapper), "__exit__", lambda *_: None)  # a session would end it
        yield mapper
        patch.undo()


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(inference, "GENERATED_TOKENS_PER_CHUNK", 200)
    monkeypatch.setattr(inference, "READ_TOKENS_PER_CHUNK", 400)


def answer(folder, kind, device="auto"):
    """Answer the requests of an audit in the current session; return requests and responses."""
    audit, config = AUDITS[kind]
    checkpoint = folder_to_artifact(folder, "checkpoint")
    requests = REQUEST_STAGES[audit](checkpoint, None, None, None, config)
    return requests, respond(checkpoint, requests, RespondConfig(device=device))


def find_workers():
    """Find the processes of the actors that this process started."""
    processes = psutil.Process().children(recursive=True)
    return [process for process in processes if "ModelWorker" in process.name()]


def kill_workers():
    """Kill these processes, and return how many they were."""
    workers = find_workers()
    for worker in workers:
        worker.kill()
    return len(workers)


@pytest.mark.parametrize("kind", AUDITS)
def test_responses_have_the_same_bytes_on_ray(ray, tmp_path, request, small_chunks, kind):
    """The main process does not open the model."""
    folder = request.getfixturevalue(kind)
    with open_session(Session(Store(tmp_path / "here"))):
        _, expected = answer(folder, kind)
    inference._opened_model.clear()
    with open_session(Session(Store(tmp_path / "ray"), ray)):
        _, responses = answer(folder, kind)
    assert responses.content_digest == expected.content_digest
    assert len(responses["responses"].parts) > 4 and not inference._opened_model


def test_killed_workers_in_mid_respond_change_nothing(ray, tmp_path, own_folder, small_chunks):
    with open_session(Session(Store(tmp_path / "here"))):
        _, expected = answer(own_folder, "own_folder")
    killed_counts = []

    def kill_once(event):
        if event.kind == "progress" and event.completed == 2 < event.total and not killed_counts:
            killed_counts.append(kill_workers())

    with open_session(Session(Store(tmp_path / "ray"), ray, kill_once)):
        _, responses = answer(own_folder, "own_folder")
    assert killed_counts[0] >= 1
    assert responses.content_digest == expected.content_digest


@pytest.mark.slow
def test_other_stages_that_open_a_model_give_the_same_bytes(
    ray, tmp_path, own_folder, gpt2_folder, monkeypatch
):
    """A network that scores texts runs in the workers; other scorers run in the main process."""
    monkeypatch.setattr(scoring, "TEXTS_PER_BATCH", 100)
    monkeypatch.setattr(reference_scoring, "TEXTS_PER_BATCH", 20)
    classifier = ClassifierConfig(kind="classifier", folder=make_classifier(tmp_path / "a"))
    checkpoint = folder_to_artifact(own_folder, "checkpoint")
    reference_model = folder_to_artifact(gpt2_folder, "checkpoint")
    config, score_config = RespondConfig(), ScoreConfig(additional_scorers=(classifier,))
    digests = []
    for name, mapper in (("here", SerialMapper()), ("ray", ray)):
        _scorers_in_use.clear()
        with open_session(Session(Store(tmp_path / name), mapper)):
            pairs = REQUEST_STAGES["bias"](checkpoint, None, None, None, BiasConfig())
            small_models = respond_untrained_models(checkpoint, pairs, config)
            prompts = REQUEST_STAGES["toxicity"](checkpoint, None, None, None, TOXICITY)
            responses = respond_untrained(checkpoint, prompts, config)
            reference = score_with_reference(reference_model, prompts, responses, config)
            scores = score_texts(prompts, responses, score_config)
            artifacts = small_models, responses, reference, scores
            digests.append([artifact.content_digest for artifact in artifacts])
    assert digests[0] == digests[1]
    failures = small_models["untrained_models"].read()["failure"].to_pylist()
    assert failures == [""] * SMALL_MODEL_COUNT
    assert len(reference["reference_scores"].parts) > 1 and len(scores["scores"].parts) > 2
    assert [*_scorers_in_use] == [score_config.scorer]


@pytest.mark.slow
def test_killed_workers_in_mid_score_change_nothing(ray, tmp_path, own_folder, monkeypatch):
    monkeypatch.setattr(scoring, "TEXTS_PER_BATCH", 40)
    classifier = ClassifierConfig(kind="classifier", folder=make_classifier(tmp_path / "a"))
    killed_counts = []

    def kill(event):
        """Kill the workers in the middle of each scorer; the last one is the network."""
        if event.kind == "progress" and event.label == "score" and event.completed == 2:
            killed_counts.append(kill_workers())

    digests = []
    for name, mapper in (("here", SerialMapper()), ("ray", ray)):
        with open_session(Session(Store(tmp_path / name), mapper, kill)):
            requests, responses = answer(own_folder, "own_folder")
            config = ScoreConfig(additional_scorers=(classifier,))
            digests.append(score_texts(requests, responses, config).content_digest)
    assert killed_counts[-1] >= 1 and digests[0] == digests[1]


def test_a_gpu_that_the_cluster_lacks_is_refused(ray, tmp_path, own_folder):
    sentence = (
        r"^stage respond: device cuda:1 does not exist: no machine of the Ray cluster has a GPU; "
        "set device to auto or cpu$"
    )
    with (
        open_session(Session(Store(tmp_path), ray)),
        pytest.raises(UsageError, match=sentence),
    ):
        answer(own_folder, "own_folder", "cuda:1")
