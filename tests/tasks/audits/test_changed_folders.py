"""Test model folders, scorers and item files that are replaced while an audit reads them."""

import os
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from hallmark.tasks.audits import inference as responding
from hallmark.tasks.audits.ability import attention_maps as maps
from hallmark.tasks.audits.ability.attention_maps import AttentionMapsConfig, attention_maps
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.catalogue import REQUEST_STAGES
from hallmark.tasks.audits.inference import RespondConfig, respond, respond_untrained
from hallmark.tasks.audits.probes.bias import BiasConfig
from hallmark.tasks.audits.probes.toxicity import ToxicityConfig
from hallmark.tasks.audits.scoring import ScoreConfig, score_texts
from hallmark.tasks.contract import HallmarkError, Session, Store, folder_to_artifact, open_session
from hallmark.tasks.measures.scorers import open_scorer
from hallmark.tasks.measures.scorers.sentiment import ClassifierConfig
from tests.tasks.measures.classifier_folder import make_classifier

QUICK = ToxicityConfig(
    continuations_per_prompt=4,
    continuation_counts=(1, 4),
    unprompted_groups=3,
    max_new_tokens=6,
    baseline_groups=0,
)
FOLDERS = ["own_folder", "gpt2_folder", "bert_folder"]
CHANGE_MESSAGE = "changed while it was being read|changed after its digest was computed"


def change_weights(folder):
    """Write other weights with the names, shapes, file size and time of the original."""
    path = folder / "model.safetensors"
    stat_before = path.stat()
    weights = {name: -tensor.flip(0) for name, tensor in load_file(path).items()}
    save_file(weights, path.with_name("new"), metadata={"format": "pt"})
    os.utime(path.with_name("new"), ns=(stat_before.st_atime_ns, stat_before.st_mtime_ns))
    assert path.with_name("new").stat().st_size == stat_before.st_size
    return path.with_name("new")


class Swap:
    """Replace the weights of a folder by others, and restore them."""

    def __init__(self, folder, way):
        self.folder, self.way, self.away = folder, way, folder.with_name("away")
        self.weights = folder / "model.safetensors"
        self.other = folder.with_name("other")
        shutil.copytree(folder, self.other)
        self.new = change_weights(self.other)
        self.old = self.weights.read_bytes()

    def do(self):
        if self.way == "folder":
            self.new.replace(self.other / "model.safetensors")
            self.folder.rename(self.away)
            self.other.rename(self.folder)
        elif self.way == "file":
            self.weights.rename(self.away)
            self.new.replace(self.weights)
        else:
            self._write(self.new.read_bytes())

    def undo(self):
        if self.way == "folder":
            self.folder.rename(self.other)
            self.away.rename(self.folder)
        elif self.way == "file":
            self.away.replace(self.weights)
        else:
            self._write(self.old)

    def _write(self, data):
        before = self.weights.stat()
        with self.weights.open("r+b") as file:
            file.write(data)
        os.utime(self.weights, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def copy_folder(tmp_path, request):
    def copy(name):
        shutil.copytree(request.getfixturevalue(name), tmp_path / "models" / "model")
        return tmp_path / "models" / "model"

    return copy


@pytest.fixture
def probe_by_model():
    """The probe for each model: quick, but with several chunks."""
    return {
        "own_folder": ("toxicity", QUICK),
        "gpt2_folder": ("toxicity", QUICK),
        "bert_folder": ("bias", BiasConfig()),
    }


def build_requests(name, probe_by_model, folder):
    probe, config = probe_by_model[name]
    return REQUEST_STAGES[probe](folder_to_artifact(folder, "checkpoint"), None, None, None, config)


def read_responses(artifact):
    return artifact["responses"].read().sort_by([("request", "ascending"), ("draw", "ascending")])


@pytest.fixture(scope="module")
def computed():
    return {}


@pytest.fixture
def expected(request, tmp_path, probe_by_model, monkeypatch, computed):
    """The responses of an unchanged folder."""
    monkeypatch.setattr(responding, "GENERATED_TOKENS_PER_CHUNK", 200)
    monkeypatch.setattr(responding, "READ_TOKENS_PER_CHUNK", 4000)

    def compute(name):
        if name not in computed:
            folder = request.getfixturevalue(name)
            with open_session(Session(Store(tmp_path / "quiet"))):
                requests = build_requests(name, probe_by_model, folder)
                responses = respond(
                    folder_to_artifact(folder, "checkpoint"), requests, RespondConfig()
                )
                computed[name] = read_responses(responses)
        # Otherwise the cached model with the same digest would answer.
        monkeypatch.setattr(responding, "_opened_model", {})
        return computed[name]

    return compute


SWAP_TIMES = ["before", "start", "loading", "answering", "for a while"]
SWAP_KINDS = ["folder", "file", "in place"]
CASES = [("gpt2_folder", way, moment) for way in SWAP_KINDS for moment in SWAP_TIMES]
for others in ("own_folder", "bert_folder"):
    CASES += [(others, "folder", moment) for moment in SWAP_TIMES[-2:]]


@pytest.mark.parametrize(("name", "way", "moment"), CASES)
def test_responses_of_other_weights_are_not_stored(
    session, monkeypatch, copy_folder, probe_by_model, expected, name, way, moment
):
    """A later run with the restored weights does not store any of them either."""
    expected_responses = expected(name)
    folder = copy_folder(name)
    checkpoint = folder_to_artifact(folder, "checkpoint")
    requests = build_requests(name, probe_by_model, folder)
    swap, events = Swap(folder, way), []
    open_model = responding.open_audited_model

    def listen(event):
        if event.kind == "start" and moment == "start":
            swap.do()
        if event.kind == "progress" and event.completed == 1 and moment == "answering":
            swap.do()
        events.append(event.kind)

    def open_later(*args, **options):
        if moment == "loading":
            swap.do()
            return open_model(*args, **options)
        if moment != "for a while":
            return open_model(*args, **options)
        # The swap happens after the digests were compared, so that only the loaded weights differ.
        folder_of = type(checkpoint).fetch_directory

        def directory(artifact):
            responses = folder_of(artifact)
            swap.do()
            return responses

        with monkeypatch.context() as patch:
            patch.setattr(type(checkpoint), "fetch_directory", directory)
            subject = open_model(*args, **options)
        swap.undo()
        return subject

    session.listener = listen
    monkeypatch.setattr(responding, "open_audited_model", open_later)
    if moment == "before":
        swap.do()
    with pytest.raises(HallmarkError, match=CHANGE_MESSAGE) as raised:
        respond(checkpoint, requests, RespondConfig())
    assert "\n" not in str(raised.value) and "remove" not in str(raised.value)
    assert session.store.list_artifacts("respond") == []
    if moment != "for a while":
        swap.undo()
    session.listener = lambda event: None
    monkeypatch.setattr(responding, "open_audited_model", open_model)
    responses = read_responses(
        respond(folder_to_artifact(folder, "checkpoint"), requests, RespondConfig())
    )
    assert responses.equals(expected_responses)


def test_the_untrained_model_depends_on_config_and_tokenizer(session, copy_folder, probe_by_model):
    """Its weights do not matter, its config and tokenizer do."""
    folder = copy_folder("gpt2_folder")
    checkpoint = folder_to_artifact(folder, "checkpoint")
    requests = build_requests("gpt2_folder", probe_by_model, folder)
    Swap(folder, "file").do()
    assert respond_untrained(checkpoint, requests, RespondConfig())["responses"].row_count
    (folder / "generation_config.json").write_text("{}")
    with pytest.raises(HallmarkError, match=CHANGE_MESSAGE):
        respond_untrained(checkpoint, requests, RespondConfig(device="cpu"))


def test_requests_of_another_tokenizer_are_not_stored(session, copy_folder):
    folder = copy_folder("gpt2_folder")
    checkpoint = folder_to_artifact(folder, "checkpoint")
    tokenizer = folder / "tokenizer.json"

    def replace(event):
        if event.kind == "start":
            tokenizer.write_text(tokenizer.read_text().replace("Ġ", "Ģ"))

    session.listener = replace
    with pytest.raises(HallmarkError, match=CHANGE_MESSAGE):
        REQUEST_STAGES["toxicity"](checkpoint, None, None, None, QUICK)
    assert session.store.list_artifacts("build_requests_toxicity") == []


@pytest.mark.parametrize("way", ["folder", "file", "in place"])
def test_attention_of_other_weights_is_not_stored(session, monkeypatch, copy_folder, way):
    folder = copy_folder("gpt2_folder")
    checkpoint = folder_to_artifact(folder, "checkpoint")
    swap, open_model = Swap(folder, way), maps.open_audited_model

    def open_other(*arguments, **options):
        swap.do()
        model = open_model(folder)
        swap.undo()
        return model

    monkeypatch.setattr(maps, "open_audited_model", open_other)
    with pytest.raises(HallmarkError, match=CHANGE_MESSAGE):
        attention_maps(checkpoint, AttentionMapsConfig())
    assert session.store.list_artifacts("attention_maps") == []


@pytest.mark.parametrize("name", FOLDERS)
def test_a_loaded_model_does_not_change_with_its_file(copy_folder, name):
    """Memory-mapped weights would change, and a truncated file would end the process."""
    folder = copy_folder(name)
    model = open_audited_model(folder, device="cpu")
    texts = ["The nurse said that she would be late."]
    totals_before = model.compute_log_likelihoods(texts)[0]
    Swap(folder, "in place").do()
    np.testing.assert_array_equal(model.compute_log_likelihoods(texts)[0], totals_before)
    (folder / "model.safetensors").write_bytes(b"")
    np.testing.assert_array_equal(model.compute_log_likelihoods(texts)[0], totals_before)


def test_requests_from_replaced_pairs_are_not_stored(session, tmp_path, gpt2_folder):
    pairs = tmp_path / "pairs.csv"
    rows = "sent_more,sent_less,bias_type,stereo_antistereo\n"
    rows += "The men are bad,The women are bad,gender,stereo\n" * 3
    pairs.write_text(rows)
    config = BiasConfig(pairs=pairs)

    def replace(event):
        if event.kind == "start":
            pairs.write_text(rows.replace("bad", "sad"))

    session.listener = replace
    with pytest.raises(HallmarkError, match=r"pairs\.csv changed while it was being read"):
        REQUEST_STAGES["bias"](
            folder_to_artifact(gpt2_folder, "checkpoint"), None, None, None, config
        )
    assert session.store.list_artifacts("build_requests_bias") == []


def test_a_changed_scorer_is_not_used(session, tmp_path, own_folder, probe_by_model):
    """Neither while it scores nor from the cache of an earlier stage."""
    requests = build_requests("own_folder", probe_by_model, own_folder)
    responses = respond(folder_to_artifact(own_folder, "checkpoint"), requests, RespondConfig())
    folder = make_classifier(tmp_path / "scorer")
    classifier = ClassifierConfig(kind="classifier", folder=folder)
    scores_before = open_scorer(classifier).score_by_head(["a b c"])
    new = change_weights(folder)
    new = new.rename(tmp_path / "new")

    def replace(event):
        if event.kind == "progress" and event.completed == 1:
            new.replace(folder / "model.safetensors")

    session.listener = replace
    with pytest.raises(HallmarkError, match="changed while it was being read"):
        score_texts(requests, responses, ScoreConfig(additional_scorers=(classifier,)))
    assert session.store.list_artifacts("score") == []
    session.listener = lambda event: None
    assert open_scorer(classifier).score_by_head(["a b c"])[0, 0] != scores_before[0, 0]
    scores = score_texts(requests, responses, ScoreConfig(additional_scorers=(classifier,)))
    scorer_name = scores["scorers"].read()["scorer"].to_pylist()[1]
    assert open_scorer(classifier).digest[:12] in scorer_name
