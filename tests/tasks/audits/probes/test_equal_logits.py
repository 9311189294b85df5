"""Test that no audit reports a preference of a model whose logits are all equal."""

import shutil

import pytest

from hallmark.tasks.audits.ability.dependencies import compute_dependency_findings
from hallmark.tasks.audits.ability.minimal_pairs import (
    MODEL,
    compare_minimal_pairs,
    generate_agreement_pairs,
    generate_garden_path_pairs,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.probes.associations import AssociationsConfig
from hallmark.tasks.audits.probes.bbq import BbqConfig
from hallmark.tasks.audits.probes.bias import BiasConfig
from hallmark.tasks.audits.probes.extraction import ExtractionConfig
from hallmark.tasks.audits.probes.honest import HonestConfig
from hallmark.tasks.audits.probes.membership import MembershipConfig
from hallmark.tasks.audits.probes.stereoset import StereosetConfig
from hallmark.tasks.audits.probes.weat import WeatConfig
from hallmark.tasks.audits.probes.winobias import WinobiasConfig
from hallmark.tasks.audits.probes.winogender import WinogenderConfig
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from tests.findings import findings_to_rows
from tests.tasks.audits.asking import stages_of, written
from tests.tasks.corpora import given

TRADES = ["baker", "smith", "weaver", "miller", "potter", "glazier", "cooper", "tanner"]
WOMEN = {trade: 20.0 if n % 2 else 80.0 for n, trade in enumerate(TRADES)}

#: Value of each metric if no alternative is preferred to another.
INDIFFERENT = {
    "stereotype_preference": 0.5,
    "group_negative_statement_preference": 0.5,
    "well_formed_preference": 0.5,
    "stereotype_preference_of_non_minimal_pairs": 0.5,
    "stereotype_score_intrasentence": 50.0,
    "stereotype_score_intersentence": 50.0,
    "language_modelling_score_intrasentence": 50.0,
    "language_modelling_score_intersentence": 50.0,
    "accuracy": 0.5,
    "gender_accuracy_gap": 0.0,
    "accuracy_ambiguous": 1 / 3,
    "accuracy_disambiguated": 1 / 3,
    "bias_score_ambiguous": None,
    "bias_score_disambiguated": None,
    "association_strength": 0.0,
    "association_preference": 0.5,
    "exposure_difference": 0.0,
    "agreement_accuracy": 0.5,
    "garden_path_share": 0.5,
}


def copy_with_zero_weights(folder, target):
    """Copy a model and set all weights to 0, so that all logits are equal."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, target)
    (path,) = target.glob("*.safetensors")
    save_file(
        {name: tensor * 0 for name, tensor in load_file(path).items()},
        path,
        metadata={"format": "pt"},
    )
    return target


@pytest.fixture(scope="module", params=["own_folder", "gpt2_folder", "bert_folder"])
def equal_logits_folder(request, tmp_path_factory):
    """Return a checkpoint of Hallmark, a GPT-2 and a BERT, each without preferences."""
    folder = request.getfixturevalue(request.param)
    return copy_with_zero_weights(folder, tmp_path_factory.mktemp("equal") / request.param)


def bias(folder):
    """Return the settings for the built-in pairs."""
    return BiasConfig(), {}


def same_length_pairs(folder):
    """Write pairs that differ in bytes but not in tokens: "he" and "she" are one token each."""
    rows = [
        {
            "stereo": f"The word was {'she' if n % 3 else 'he'} {n}",
            "category": f"c{n % 3}",
            "anti": f"The word was {'he' if n % 3 else 'she'} {n}",
            "template": f"t{n}",
        }
        for n in range(60)
    ]
    return BiasConfig(pairs=written(folder / "pairs.jsonl", rows)), {}


def stereoset(folder):
    rows = [
        {
            "type": kind,
            "target": f"term {t}",
            "bias_type": "trade" if t % 2 else "place",
            "context": f"Here {t} is {n}."
            if kind == "intersentence"
            else f"Term {t} is BLANK {n}.",
            "stereotype": f"Term {t} is late {n}.",
            "anti-stereotype": f"Term {t} is fairly early.",
            "unrelated": f"Term {t} is of the colour blue {n}.",
        }
        for t in range(12)
        for n in range(3)
        for kind in ("intrasentence", "intersentence")
    ]
    return StereosetConfig(items=written(folder / "s.jsonl", rows)), {}


def winobias(folder):
    """Write pairs in which most of the stereotypical sentences have the shorter pronoun."""
    lines = []
    for n in range(60):
        sender, recipient = TRADES[n % 8], TRADES[(n + 1 + n // 8) % 8]
        text = f"{n + 1} [The {sender}] wrote to the {recipient} because [%s] needed help {n}."
        sentences = (text % "he", text % "she")
        lines.append(sentences if n % 3 else sentences[::-1])
    for side, name in enumerate(("pro.txt", "anti.txt")):
        (folder / name).write_text("\n".join(line[side] for line in lines) + "\n")
    return WinobiasConfig(
        pro_stereotypical=[folder / "pro.txt"], anti_stereotypical=[folder / "anti.txt"]
    ), {}


def winogender(folder):
    lines = ["sentid\tsentence"]
    for trade in TRADES:
        for answer in (0, 1):
            for gender, pronoun in (("male", "he"), ("female", "she"), ("neutral", "they")):
                sentence = f"The {trade} told the guest that {pronoun} had won {answer}."
                lines.append(f"{trade}.guest.{answer}.{gender}.txt\t{sentence}")
    (folder / "sentences.tsv").write_text("\n".join(lines) + "\n")
    rows = "".join(f"{t}\t{w}\t{w}\t2015\n" for t, w in WOMEN.items())
    head = "occupation\tbergsma_pct_female\tbls_pct_female\tbls_year\n"
    (folder / "women.tsv").write_text(head + rows)
    sentences, women = folder / "sentences.tsv", folder / "women.tsv"
    return WinogenderConfig(sentences=sentences, occupations=women), {}


def bbq(folder):
    """Write questions whose three answers have equally many bytes."""
    rows = []
    for n in range(40):
        for polarity in ("neg", "nonneg"):
            for condition in ("ambig", "disambig"):
                right = 2 if condition == "ambig" else n % 2
                info = [["a", "old"], ["b", "nonOld"], ["c", "unknown"]]
                rows.append(
                    {
                        "question_index": str(n),
                        "question_polarity": polarity,
                        "context_condition": condition,
                        "category": "Age",
                        "label": right,
                        "answer_info": {f"ans{i}": pair for i, pair in enumerate(info)},
                        "additional_metadata": {"stereotyped_groups": ["old"]},
                        "context": f"Two met in house {n}.",
                        "question": f"Who was late {n}?",
                        "ans0": "0",
                        "ans1": "1",
                        "ans2": "2",
                    }
                )
    return BbqConfig(items=[written(folder / "q.jsonl", rows)]), {}


def honest(folder):
    rows = ["template_masked\traw\tidentity\tnumber\tcategory\ttype"] + [
        f"{name} is {sentence} [M].\t{sentence}\t{name}\tsingular\t{group}\tkind"
        for sentence in ("very", "so", "always", "never")
        for name, group in (
            ("she", "female"),
            ("an aunt", "female"),
            ("a girl", "female"),
            ("he", "male"),
            ("an uncle", "male"),
            ("a boy", "male"),
        )
    ]
    (folder / "templates.tsv").write_text("\n".join(rows))
    (folder / "words.txt").write_text("grumpish\nblatherskite")
    config = HonestConfig(templates=[folder / "templates.tsv"], lexicon=folder / "words.txt")
    return config, {}


def weat(folder):
    return WeatConfig(), {}


def plant_texts():
    config = PlantCanariesConfig(
        enabled=True,
        secrets_per_count=6,
        passages_per_count=0,
        records_per_count=2,
        sentences_per_group=40,
    )
    return plant_canaries(
        given([f"text {i} of the town" for i in range(50)], kind="split"), config
    )["canaries"]


def associations(folder):
    return AssociationsConfig(), {"corpus": (None, plant_texts(), None)}


def extraction(folder):
    config = ExtractionConfig(reference_secrets=200, prefix_tokens=(4, 8), suffix_tokens=8)
    return config, {"corpus": (None, plant_texts(), None)}


def membership(folder):
    texts = [
        f"Document {n} speaks of the harbour, of lamps and of boat {n * 7}." for n in range(60)
    ]
    splits = ["train" if n % 2 else "holdout" for n in range(60)]
    documents = given(texts, splits=splits, kind="split")["documents"]
    return MembershipConfig(documents_per_split=30, max_tokens=8), {
        "corpus": (None, None, documents)
    }


AUDITS = [
    bias,
    same_length_pairs,
    stereoset,
    winobias,
    winogender,
    bbq,
    honest,
    weat,
    associations,
    extraction,
    membership,
]


def get_audit_name(build):
    return "bias" if build is same_length_pairs else build.__name__


def check_no_preference(findings):
    """Check that findings have the values without preference and are not significant.

    Instrument controls, which do not ask the model, must pass.
    """
    for row in findings:
        name = row["metric"], name_slice(row["slice"])
        if row["control"]:
            # A model without preferences may fail capability controls.
            assert row["verdict"] == "pass" or row["control_target"] == "model", name
            continue
        assert row["p"] is None or row["p"] > 0.05, name
        if row["metric"] in INDIFFERENT and row["n"]:
            expected = INDIFFERENT[row["metric"]]
            assert row["value"] == (None if expected is None else pytest.approx(expected)), name


@pytest.mark.parametrize("build", AUDITS, ids=lambda build: build.__name__)
def test_no_preference_is_reported(build, equal_logits_folder, tmp_path, session):
    config, options = build(tmp_path)
    findings = stages_of(get_audit_name(build), equal_logits_folder, config, **options)[-1][
        1
    ].to_pylist()
    assert findings
    check_no_preference(findings)


@pytest.mark.parametrize("equal_logits_folder", ["own_folder", "gpt2_folder"], indirect=True)
def test_one_half_of_minimal_pairs_is_right(equal_logits_folder):
    """Only causal models are asked."""
    model = open_audited_model(equal_logits_folder, device="cpu")
    scorers = {MODEL: lambda texts, contexts: model.compute_log_likelihoods(texts, contexts)[0]}
    rows = compare_minimal_pairs(
        [
            pair
            for pair in [*generate_agreement_pairs(), *generate_garden_path_pairs()]
            if len(pair.continuations[0]) == len(pair.continuations[1])
        ],
        scorers,
    )
    assert {row["system"] for row in rows} == {MODEL}
    check_no_preference(findings_to_rows(compute_dependency_findings(rows, "capability")))
