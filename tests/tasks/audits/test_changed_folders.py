"""A model folder, a scorer or a file of items that is replaced while an audit reads it."""

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
from hallmark.tasks.measures.scorers import ClassifierConfig, open_scorer
from tests.tasks.measures.classifier_folder import make_classifier

QUICK = ToxicityConfig(
    continuations_per_prompt=4,
    continuation_counts=(1, 4),
    unprompted_groups=3,
    max_new_tokens=6,
    baseline_groups=0,
)
FOLDERS = ["own_folder", "gpt2_folder", "bert_folder"]
CHANGED = "changed while it was read|changed after its digest was taken"


def change_weights(folder):
    """Other weights of the same names and shapes; their file has the size and time it had."""
    path = folder / "model.safetensors"
    before = path.stat()
    weights = {name: -tensor.flip(0) for name, tensor in load_file(path).items()}
    save_file(weights, path.with_name("new"), metadata={"format": "pt"})
    os.utime(path.with_name("new"), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.with_name("new").stat().st_size == before.st_size
    return path.with_name("new")


class Swap:
    """Other weights at the place of a folder, and the old ones back."""

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
def copied(tmp_path, request):
    def copy(name):
        shutil.copytree(request.getfixturevalue(name), tmp_path / "models" / "model")
        return tmp_path / "models" / "model"

    return copy


@pytest.fixture
def questions():
    """What is asked of each model, small enough for a test and large enough for several chunks."""
    return {
        "own_folder": ("toxicity", QUICK),
        "gpt2_folder": ("toxicity", QUICK),
        "bert_folder": ("bias", BiasConfig()),
    }


def ask(name, questions, folder):
    probe, config = questions[name]
    return REQUEST_STAGES[probe](folder_to_artifact(folder, "checkpoint"), None, None, None, config)


def answers(artifact):
    return artifact["responses"].read().sort_by([("request", "ascending"), ("draw", "ascending")])


@pytest.fixture(scope="module")
def computed():
    return {}


@pytest.fixture
def expected(request, tmp_path, questions, monkeypatch, computed):
    """The answers of a folder that nobody touches."""
    monkeypatch.setattr(responding, "GENERATED_TOKENS_PER_CHUNK", 200)
    monkeypatch.setattr(responding, "READ_TOKENS_PER_CHUNK", 4000)

    def compute(name):
        if name not in computed:
            folder = request.getfixturevalue(name)
            with open_session(Session(Store(tmp_path / "quiet"))):
                asked = ask(name, questions, folder)
                made = respond(folder_to_artifact(folder, "checkpoint"), asked, RespondConfig())
                computed[name] = answers(made)
        monkeypatch.setattr(
            responding, "_opened_model", {}
        )  # else its model, of the same digest, answers
        return computed[name]

    return compute


MOMENTS = ["before", "start", "loading", "answering", "for a while"]
WAYS = ["folder", "file", "in place"]
CASES = [("gpt2_folder", way, moment) for way in WAYS for moment in MOMENTS]
for others in ("own_folder", "bert_folder"):
    CASES += [(others, "folder", moment) for moment in MOMENTS[-2:]]


@pytest.mark.parametrize(("name", "way", "moment"), CASES)
def test_answers_of_other_weights_are_not_stored(
    session, monkeypatch, copied, questions, expected, name, way, moment
):
    """Nor those of a later run, with the old weights back, that goes on from what is there."""
    right = expected(name)
    folder = copied(name)
    checkpoint = folder_to_artifact(folder, "checkpoint")
    asked = ask(name, questions, folder)
    swap, seen = Swap(folder, way), []
    opened = responding.open_audited_model

    def listen(event):
        if event.kind == "start" and moment == "start":
            swap.do()
        if event.kind == "progress" and event.completed == 1 and moment == "answering":
            swap.do()
        seen.append(event.kind)

    def open_later(*args, **options):
        if moment == "loading":
            swap.do()
            return opened(*args, **options)
        if moment != "for a while":
            return opened(*args, **options)
        # After the digests were compared, so that only the loaded weights are others.
        folder_of = type(checkpoint).fetch_directory

        def directory(artifact):
            found = folder_of(artifact)
            swap.do()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(type(checkpoint), "fetch_directory", directory)
            subject = opened(*args, **options)
        swap.undo()
        return subject

    session.listener = listen
    monkeypatch.setattr(responding, "open_audited_model", open_later)
    if moment == "before":
        swap.do()
    with pytest.raises(HallmarkError, match=CHANGED) as raised:
        respond(checkpoint, asked, RespondConfig())
    assert "\n" not in str(raised.value) and "remove" not in str(raised.value)
    assert session.store.list_artifacts("respond") == []
    if moment != "for a while":
        swap.undo()
    session.listener = lambda event: None
    monkeypatch.setattr(responding, "open_audited_model", opened)
    found = answers(respond(folder_to_artifact(folder, "checkpoint"), asked, RespondConfig()))
    assert found.equals(right)


def test_a_folder_that_changes_before_the_untrained_model_answers(session, copied, questions):
    """Its weights do not count, its config and tokenizer do."""
    folder = copied("gpt2_folder")
    checkpoint = folder_to_artifact(folder, "checkpoint")
    asked = ask("gpt2_folder", questions, folder)
    Swap(folder, "file").do()
    assert respond_untrained(checkpoint, asked, RespondConfig())["responses"].row_count
    (folder / "generation_config.json").write_text("{}")
    with pytest.raises(HallmarkError, match=CHANGED):
        respond_untrained(checkpoint, asked, RespondConfig(device="cpu"))


def test_requests_of_another_tokenizer_are_not_stored(session, copied):
    folder = copied("gpt2_folder")
    checkpoint = folder_to_artifact(folder, "checkpoint")
    tokenizer = folder / "tokenizer.json"

    def replace(event):
        if event.kind == "start":
            tokenizer.write_text(tokenizer.read_text().replace("Ġ", "Ģ"))

    session.listener = replace
    with pytest.raises(HallmarkError, match=CHANGED):
        REQUEST_STAGES["toxicity"](checkpoint, None, None, None, QUICK)
    assert session.store.list_artifacts("build_requests_toxicity") == []


@pytest.mark.parametrize("way", ["folder", "file", "in place"])
def test_attention_of_other_weights_is_not_stored(session, monkeypatch, copied, way):
    folder = copied("gpt2_folder")
    checkpoint = folder_to_artifact(folder, "checkpoint")
    swap, opened = Swap(folder, way), maps.open_audited_model

    def open_other(*args):
        swap.do()
        subject = opened(folder)
        swap.undo()
        return subject

    monkeypatch.setattr(maps, "open_audited_model", open_other)
    with pytest.raises(HallmarkError, match=CHANGED):
        attention_maps(checkpoint, AttentionMapsConfig())
    assert session.store.list_artifacts("attention_maps") == []


@pytest.mark.parametrize("name", FOLDERS)
def test_a_loaded_model_does_not_change_with_its_file(copied, name):
    """Weights that are mapped into memory would, and a file that is cut would end the process."""
    folder = copied(name)
    subject = open_audited_model(folder, device="cpu")
    texts = ["The nurse said that she would be late."]
    before = subject.compute_log_likelihoods(texts)[0]
    Swap(folder, "in place").do()
    np.testing.assert_array_equal(subject.compute_log_likelihoods(texts)[0], before)
    (folder / "model.safetensors").write_bytes(b"")
    np.testing.assert_array_equal(subject.compute_log_likelihoods(texts)[0], before)


def test_pairs_that_are_replaced_while_they_are_read_are_not_stored(session, tmp_path, gpt2_folder):
    pairs = tmp_path / "pairs.csv"
    rows = "sent_more,sent_less,bias_type,stereo_antistereo\n"
    rows += "The men are bad,The women are bad,gender,stereo\n" * 3
    pairs.write_text(rows)
    config = BiasConfig(pairs=pairs)

    def replace(event):
        if event.kind == "start":
            pairs.write_text(rows.replace("bad", "sad"))

    session.listener = replace
    with pytest.raises(HallmarkError, match=r"pairs\.csv changed while it was read"):
        REQUEST_STAGES["bias"](
            folder_to_artifact(gpt2_folder, "checkpoint"), None, None, None, config
        )
    assert session.store.list_artifacts("build_requests_bias") == []


def test_a_scorer_that_changes_is_not_scored_with(session, tmp_path, own_folder, questions):
    """Neither while it scores, nor from the memory of an earlier stage."""
    asked = ask("own_folder", questions, own_folder)
    answered = respond(folder_to_artifact(own_folder, "checkpoint"), asked, RespondConfig())
    folder = make_classifier(tmp_path / "scorer")
    also = ClassifierConfig(kind="classifier", folder=folder)
    before = open_scorer(also).score_by_head(["a b c"])
    new = change_weights(folder)
    new = new.rename(tmp_path / "new")

    def replace(event):
        if event.kind == "progress" and event.completed == 1:
            new.replace(folder / "model.safetensors")

    session.listener = replace
    with pytest.raises(HallmarkError, match="changed while it was read"):
        score_texts(asked, answered, ScoreConfig(additional_scorers=(also,)))
    assert session.store.list_artifacts("score") == []
    session.listener = lambda event: None
    assert open_scorer(also).score_by_head(["a b c"])[0, 0] != before[0, 0]
    scored = score_texts(asked, answered, ScoreConfig(additional_scorers=(also,)))
    named = scored["scorers"].read()["scorer"].to_pylist()[1]
    assert open_scorer(also).digest[:12] in named
