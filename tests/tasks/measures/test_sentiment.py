"""Test sentiment and regard scorers: a word list and a user's classifier."""

import json

import numpy as np
import pytest
import torch

from hallmark.tasks.contract import HallmarkError, UsageError
from hallmark.tasks.measures.scorers import (
    SCORER_CLASSES,
    check_scorer_files,
    open_scorer,
    scorer_versions,
)
from hallmark.tasks.measures.scorers.sentiment import (
    ClassifierConfig,
    WordListConfig,
    WordListScorer,
)
from tests.tasks.measures.classifier_folder import make_causal_classifier, make_classifier


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "list.tsv"
    path.write_text("good\t1.9\t0.9\t[2, 2]\nbad\t-2.5\n:-)\t1.3\nday's\t0.5\nbad\t-2\n")
    return WordListConfig(kind="words", path=path)


def test_a_score_follows_from_the_sum_of_valences(words):
    scorer = WordListScorer(words)
    texts = ["A GOOD day", "bad, bad (good)!", "nothing known", "good :-)", "the day’s good", " "]
    sums = np.array([1.9, -2.1, 0.0, 3.2, 1.9, np.nan])
    scores = scorer.score_by_head(texts)
    assert scores.shape == (6, 1) and scorer.heads == scorer.columns == ("sentiment",)
    np.testing.assert_allclose(scores[:, 0], sums / np.sqrt(sums**2 + 15), rtol=1e-6)
    assert scorer.name == "word list list.tsv" and len(scorer.digest) == 64


def test_vader_scores_equal_those_of_the_library():
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    config = SCORER_CLASSES["vader"].config_class(kind="vader")
    scorer = open_scorer(config)
    texts = ["The soup is not good.", "Everybody LOVED it!", "We took the train.", " "]
    scores = scorer.score_by_head(texts)
    analyzer = SentimentIntensityAnalyzer()
    expected = [analyzer.polarity_scores(text)["compound"] for text in texts[:3]]
    assert scores.shape == (4, 1) and scorer.columns == scorer.heads == ("sentiment",)
    np.testing.assert_allclose(scores[:3, 0], expected, rtol=1e-6)
    assert expected[0] < 0 < expected[1] and expected[2] == 0 and np.isnan(scores[3, 0])
    versions = scorer_versions(config)
    assert versions["scorer"] == scorer.name == "VADER 3.3.2"
    assert versions["digest"] == scorer.digest and len(scorer.digest) == 64


def test_a_missing_vader_package_is_named(monkeypatch):
    from hallmark.tasks.measures.scorers import vader

    monkeypatch.setattr(vader.importlib.util, "find_spec", lambda name: None)
    vader.vader_scorer_digest.cache_clear()
    with pytest.raises(HallmarkError, match="install vaderSentiment"):
        vader.vader_scorer_digest()


@pytest.mark.parametrize("line", ["good", "good\tfine", "good 1.9", "good\tnan", "\t1.0 1"])
def test_an_invalid_line_is_reported_with_its_number(tmp_path, line):
    path = tmp_path / "list.txt"
    path.write_text(f"fine\t1\n{line}\n")
    with pytest.raises(
        UsageError, match=r"list\.txt, line 2 does not consist of a word, a tab and a number"
    ):
        WordListScorer(WordListConfig(kind="words", path=path))


def test_words_with_several_valences_are_named(tmp_path, caplog):
    path = tmp_path / "list.txt"
    path.write_text("good\t3\nok\t1\nok\t1\nbad\t-1\ngood\t-3\n")
    scorer = WordListScorer(WordListConfig(kind="words", path=path))
    assert scorer.valences == {"good": -3.0, "ok": 1.0, "bad": -1.0}
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{path} lists more than one valence for 1 of its words, such as good; using the last "
        "valence for each word"
    )


def test_an_invalid_list_is_found_without_a_text_to_score(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("good\n")
    config = WordListConfig(kind="words", path=path)
    with pytest.raises(UsageError, match="line 1 does not consist of a word, a tab and a number"):
        check_scorer_files(config)
    path.write_text("good\t1\n")
    check_scorer_files(config)
    check_scorer_files(SCORER_CLASSES["vader"].config_class(kind="vader"))


def test_a_missing_list_is_a_usage_error(tmp_path):
    config = WordListConfig(kind="words", path=tmp_path / "none.tsv")
    with pytest.raises(UsageError, match="there is no file"):
        scorer_versions(config)


def test_classifier_scores_equal_those_of_transformers(tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = make_classifier(tmp_path / "moods", ("Other", "NEGATIVE", "Positive"))
    config = ClassifierConfig(kind="classifier", folder=folder, head="regard", batch_tokens=40)
    scorer = open_scorer(config)
    texts = ["a good day", "bad", "b c d e f g", "a good day"]
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        made = [model(**tokenizer(t, return_tensors="pt")).logits.softmax(1)[0] for t in texts]
    expected = [float(row[2] - row[1]) for row in made]
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(scorer.score_by_head(texts)[:, 0], expected, atol=1e-5)
    assert scorer.heads == ("regard",) and scorer.name == "regard classifier moods"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Bert", {}),
        ("MobileBert", {"embedding_size": 32, "intra_bottleneck_size": 32}),
        ("ConvBert", {"embedding_size": 32}),
        ("FNet", {"tpu_short_seq_length": 32}),
    ],
)
def test_a_score_does_not_depend_on_the_other_texts(tmp_path, name, values):
    """Some networks mix in the padding of a batch, though attention to it is masked."""
    folder = make_classifier(tmp_path / "moods", name=name, **values)
    scorer = open_scorer(ClassifierConfig(kind="classifier", folder=folder))
    texts = ["a", "a b c d e f g h i j k l", "c d e", "n o", "abcdefghi"]
    together = scorer.score_by_head(texts)
    alone = np.concatenate([scorer.score_by_head([text]) for text in texts])
    assert np.ptp(alone) > 1e-3
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("with_post_processor", [True, False])
def test_a_classifier_reads_the_ids_of_its_tokenizer_json(tmp_path, with_post_processor):
    """transformers would rebuild this character tokenizer as BERT's WordPiece tokenizer."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoModelForSequenceClassification

    folder = make_classifier(tmp_path / "moods")
    words = (folder / "vocab.txt").read_text().split("\n")
    backend = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.add_special_tokens(words[:5])
    if with_post_processor:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    backend.save(str(folder / "tokenizer.json"))
    scorer = open_scorer(ClassifierConfig(kind="classifier", folder=folder))
    ids = [2, *backend.encode("abc", add_special_tokens=False).ids, 3]
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        row = model(torch.tensor([ids])).logits.softmax(1)[0]
    assert scorer.score_by_head(["abc"])[0, 0] == pytest.approx(float(row[2] - row[0]), abs=1e-5)


def test_a_long_text_gets_the_mean_of_its_windows(tmp_path):
    folder = make_classifier(tmp_path / "moods", positions=12)
    scorer = open_scorer(ClassifierConfig(kind="classifier", folder=folder))
    text = "abcdefghijklmnopqrst"  # Windows of 10 tokens that overlap by 2.
    windows = ["abcdefghij", "##ijklmnopqr", "##qrst"]
    ids = [
        scorer._tokenizer.convert_tokens_to_ids(
            [
                "[CLS]",
                *(c if k == n == 0 else f"##{c}" for n, c in enumerate(w.strip("#"))),
                "[SEP]",
            ]
        )
        for k, w in enumerate(windows)
    ]
    each = scorer._score_windows([tuple(row) for row in ids])[:, 0]
    assert scorer.score_by_head([text])[0, 0] == pytest.approx(each.mean(), abs=1e-5)


def test_missing_labels_are_reported_with_the_existing_ones(tmp_path):
    folder = make_classifier(tmp_path / "moods", ("LABEL_0", "LABEL_1"))
    with pytest.raises(UsageError, match=r"label_0, label_1.*positive"):
        open_scorer(ClassifierConfig(kind="classifier", folder=folder))
    named = ClassifierConfig(
        kind="classifier", folder=folder, positive_label="label_1", negative_label="LABEL_0"
    )
    assert np.isfinite(open_scorer(named).score_by_head(["a"])).all()


def test_a_folder_without_a_safe_classifier_is_rejected(tmp_path):
    folder = make_classifier(tmp_path / "moods")
    config = ClassifierConfig(kind="classifier", folder=folder, device="cpu")
    before = scorer_versions(config)["digest"]
    (folder / "model.safetensors").rename(folder / "kept")
    torch.save({"classifier.weight": torch.zeros(3, 32)}, folder / "pytorch_model.bin")
    with pytest.raises(
        UsageError, match="no loadable sequence classifier with safetensors weights"
    ):
        open_scorer(config)
    assert scorer_versions(config)["digest"] != before
    (folder / "kept").rename(folder / "model.safetensors")
    config_json = json.loads((folder / "config.json").read_text())
    config_json |= {"auto_map": {"AutoModelForSequenceClassification": "evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(config_json | {"model_type": "evil"}))
    (folder / "evil.py").write_text("raise SystemExit('code ran')")
    with pytest.raises(UsageError, match="no loadable sequence classifier"):
        open_scorer(config)
    with pytest.raises(UsageError, match="there is no file"):
        scorer_versions(config.model_copy(update={"folder": tmp_path / "none"}))


def test_a_language_model_is_an_incomplete_classifier(tmp_path):
    from transformers import BertForMaskedLM

    folder = make_classifier(tmp_path / "moods")
    BertForMaskedLM.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(UsageError, match=r"lacks .* weights, for example"):
        open_scorer(ClassifierConfig(kind="classifier", folder=folder, batch_tokens=3))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_classifier_without_a_pad_token_works(tmp_path, kind):
    """Texts of one length share a batch, or each is alone if the network refuses batches."""
    if kind == "bert":
        padded, plain = make_classifier(tmp_path / "a"), make_classifier(tmp_path / "b")
        for name in ("tokenizer_config.json", "config.json"):
            values = json.loads((plain / name).read_text())
            values.pop("pad_token", None)
            values["pad_token_id"] = None
            (plain / name).write_text(json.dumps(values))
    else:
        padded = make_causal_classifier(tmp_path / "a", pad="<pad>")
        plain = make_causal_classifier(tmp_path / "b")
    texts = ["a", "b c d", "e f g", "h i j k l", "a b c", "m"]
    before, after = (
        open_scorer(ClassifierConfig(kind="classifier", folder=folder)).score_by_head(texts)
        for folder in (padded, plain)
    )
    assert np.isfinite(before).all() and len(np.unique(before)) == len(texts)
    np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_weights_are_rejected(tmp_path, value):
    from safetensors.torch import load_file, save_file

    folder = make_classifier(tmp_path / "a")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"][0] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HallmarkError, match=r"has NaN or infinite weights, .* classifier\.bias"):
        open_scorer(ClassifierConfig(kind="classifier", folder=folder))
