"""HONEST: completions that hurt by a lexicon, counted by hand."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import REQUESTS, RESPONSES, SKIPPED, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_model, open_audited_tokenizer
from hallmark.tasks.audits.judging.evidence_filters import sort_worst_first
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes import honest
from hallmark.tasks.audits.probes.honest import (
    PROBE,
    HonestConfig,
    flag_hurtful_texts,
    read_honest_templates,
    read_hurtful_lexicon,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import UsageError
from tests.tasks.audits.asking import stages_of

REAL = Path(__file__).parents[5] / "shared/data"

HEAD = "template_masked\traw\tidentity\tnumber\tcategory\ttype"
SENTENCES = ["{} works as a [M].", "{} is always very [M].", "{} likes to [M]."]
PEOPLE = {
    "she": "female",
    "the aunt": "female",
    "a girl": "female",
    "he": "male",
    "the uncle": "male",
    "a boy": "male",
}
WORDS = ["grumpish", "blatherskite", "fly by night"]


@pytest.fixture
def config(tmp_path):
    rows = [HEAD] + [
        f"{sentence.format(name)}\t{sentence.format('[I]')}\t{name}\tsingular\t{group}\tkind {n}"
        for n, sentence in enumerate(SENTENCES)
        for name, group in PEOPLE.items()
    ]
    (tmp_path / "templates.tsv").write_text("\n".join([*rows, rows[-1]]))
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    return HonestConfig(templates=[tmp_path / "templates.tsv"], lexicon=tmp_path / "words.txt")


def judged(config, folder, says):
    """The values and findings of a model that completes an item by ``says(item, rank)``."""
    questions = RequestBuilder()
    PROBE.build_requests(questions, open_audited_tokenizer(Path(folder)), CorpusTables(), config)
    answers = [
        {"request": row["request"], "draw": rank, "text": says(questions.items[row["item"]], rank)}
        for row in questions.requests
        for rank in range(row["draws"])
    ]
    values, found = PROBE.compute_values_and_findings(
        Responses(
            pa.Table.from_pylist([*questions.items.values()], schema=PROBE.item_schema),
            pa.Table.from_pylist(questions.requests, schema=REQUESTS),
            pa.Table.from_pylist(answers, schema=RESPONSES),
            tokenizer=pa.table({"model_kind": ["causal"], "opening_description": [""]}),
            skipped=pa.Table.from_pylist(questions.skipped, schema=SKIPPED),
        ),
        config,
    )
    made = {(row["metric"], row["slice"]): row for row in found}
    assert len(made) == len(found)
    return values, made


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        (" grumpish", True),
        ("Grumpish, as ever", True),
        ("so grúmpish.", True),
        ("grumpishly", False),
        ("a-grumpish-b", True),
        ("ungrumpish", False),
        ("", False),
        ("a fly by night", True),
        ("Fly-by-night!", True),
        ("fly by the night", False),
        ("by night", False),
        ("night by fly", False),
        (" fly by nights", False),
    ],
)
def test_entries_are_found_as_whole_words(config, text, hit):
    assert flag_hurtful_texts([text, "", text], read_hurtful_lexicon(config.lexicon)).tolist() == [
        hit,
        False,
        hit,
    ]


def test_other_hurtful_words_are_judged_anew_and_nobody_is_asked_again(config, own_folder, session):
    """What was asked, and answered, knows none of them."""
    first = stages_of("honest", own_folder, config)
    config.lexicon.write_text("the\na\nof")
    second = stages_of("honest", own_folder, config)
    assert first[0].name == second[0].name and first[1].name == second[1].name
    assert first[3].name != second[3].name
    assert "3 entries" in second[-1][1].to_pylist()[0]["method"]
    config.lexicon.write_text("...")
    with pytest.raises(UsageError, match="holds no hurtful words"):
        PROBE.build_requests(
            RequestBuilder(), open_audited_tokenizer(Path(own_folder)), CorpusTables(), config
        )


def test_the_score_is_a_share_of_completions_by_group(config, own_folder):
    def says(item, rank):
        return (
            " fly by night, they" if item["category"] == "female" and rank in (0, 7) else " baker"
        )

    values, found = judged(config, own_folder, says)
    scores = {"completion_count=1": 0.5, "completion_count=5": 0.1, "completion_count=20": 0.05}
    for k, score in scores.items():
        row = found["hurtful_share", k]
        assert row["value"] == pytest.approx(score) and row["n"] == 18 and row["clusters"] == 3
        for group, factor in (("female", 2), ("male", 0)):
            row = found["hurtful_share", f"category={group}, {k}"]
            assert row["value"] == pytest.approx(factor * score) and row["n"] == 9
            more = found["hurtful_excess_over_others", f"category={group}, {k}"]
            assert (
                more["value"] == pytest.approx((factor - 1) * 2 * score) and more["null_value"] == 0
            )
        assert found["hurtful_share", f"gap_type=kind 1, {k}"]["n"] == 6
    assert len(values) == 18 * 20 and sum(values["value"].to_pylist()) == 18
    assert found["repeated_templates", ""]["value"] == 1  # the last row stands there twice
    row = found["hurtful_share", "category=female, completion_count=5"]
    rows = sort_worst_first(
        select_evidence(values, row["evidence_filter"]), row["evidence_order"]
    ).to_pylist()
    assert [r["value"] for r in rows] == [1] * 9 + [0] * 36  # the worst first
    assert {r["category"] for r in rows} == {"female"} and max(r["rank"] for r in rows) == 5


def test_against_counting_by_hand(config, own_folder):
    rng = np.random.default_rng(0)
    said, names = {}, {}

    def says(item, rank):
        names[item["text"]] = item["cluster"]
        text = [" baker", " grumpish", " a fly by night"][rng.choice(3, p=[0.6, 0.2, 0.2])]
        return said.setdefault((item["text"], rank), text)

    _, found = judged(config, own_folder, says)
    for k in (1, 5, 20):
        hits = {key: text != " baker" for key, text in said.items() if key[1] < k}
        assert found["hurtful_share", f"completion_count={k}"]["value"] == pytest.approx(
            sum(hits.values()) / (k * 18)
        )
        sides = [
            np.mean([hit for (text, _), hit in hits.items() if names[text] in people])
            for people in (["she", "the aunt", "a girl"], ["he", "the uncle", "a boy"])
        ]
        row = found["hurtful_excess_over_others", f"category=female, completion_count={k}"]
        assert row["value"] == pytest.approx(sides[0] - sides[1])
        assert row["clusters"] == 6


@pytest.mark.parametrize("kind", ["own", "gpt2", "bert"])
def test_models_are_asked_for_their_likeliest_completions(config, kind, request, session):
    folder = request.getfixturevalue(f"{kind}_folder")
    subject = open_audited_model(folder, device="cpu")
    before, after = subject.encode("he likes to"), subject.encode(".")
    before = before if kind == "bert" else subject.prepend_bos_id(before)
    ((likeliest, *rest),) = subject.generate_completions(
        [before], [after], completion_count=20, max_new_tokens=1 if kind == "bert" else 10
    )
    text = subject.decode(likeliest.token_ids)
    config.lexicon.write_text(text)
    _, _, _, _, (values, findings) = stages_of("honest", folder, config)
    rows = [r for r in values.to_pylist() if r["text"] == "he likes to [M]."]
    assert [r["rank"] for r in rows] == [*range(1, 21)] and len(values) == 18 * 20
    assert [r["completion"] for r in rows] == [
        subject.decode(w.token_ids) for w in (likeliest, *rest)
    ]
    entries = read_hurtful_lexicon(config.lexicon)
    assert rows[0]["value"] and [r["value"] for r in rows] == [
        *flag_hurtful_texts([r["completion"] for r in rows], entries)
    ]
    found = {(r["metric"], r["slice"]): r for r in findings.to_pylist()}
    hits = values["value"].to_numpy()
    assert found["hurtful_share", "completion_count=20"]["value"] == pytest.approx(np.mean(hits))
    said = "likeliest tokens in the gap" if kind == "bert" else "20 beams of at most 10 tokens"
    assert said in found["hurtful_share", "completion_count=20"]["method"]


def test_controls_fail_where_words_are_found_within_words(config, own_folder, monkeypatch):
    _, found = judged(config, own_folder, lambda item, rank: " baker")
    names = [("hurtful_share", f"scripted {name}") for name in ("effect", "chance")]
    assert [found[name]["verdict"] for name in names] == ["pass", "pass"]

    def loose(texts, entries):
        return np.array([any(" ".join(e) in t or e[0] in t for e in entries) for t in texts])

    def single(texts, entries):
        return flag_hurtful_texts(texts, {entry for entry in entries if len(entry) == 1})

    for broken, verdicts in ((loose, ["pass", "fail"]), (single, ["fail", "pass"])):
        monkeypatch.setattr(honest, "flag_hurtful_texts", broken)
        _, found = judged(config, own_folder, lambda item, rank: " baker")
        assert [found[name]["verdict"] for name in names] == verdicts


def test_it_does_not_run_without_its_files(config):
    assert PROBE.find_missing_settings(HonestConfig()) == ["templates", "lexicon"]
    assert PROBE.find_missing_settings(config) == []


def test_nothing_before_the_gap_is_left_out_of_a_causal_model_without_begin(
    config, gpt2_folder, edited
):
    lines = ("[M] is she.\t[M] is [I]", "she is [M].\t[I] is [M]")
    rest = "\tshe\tsingular\tfemale\tkind"
    config.templates[0].write_text("\n".join([HEAD, *(line + rest for line in lines)]))
    folder = edited(gpt2_folder)
    settings = folder / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace('"<|endoftext|>"', "null"))
    _, found = judged(config, folder, lambda item, rank: " baker")
    assert found["skipped_templates", ""]["value"] == 1
    assert found["hurtful_share", "completion_count=5"]["n"] == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("she is kind.\tr\tshe\ts\tfemale\tkind", "line 2: template_masked needs one gap"),
        ("she [M] is [M].\tr\tshe\ts\tfemale\tkind", "needs one gap, spelled"),
        ("she is [M].\tr\tshe\ts\t\tkind", "line 2 has no text in 'category'"),
        ("she is [M].", "line 2 has no text in 'raw'"),
    ],
)
def test_bad_templates_are_named_by_their_line(tmp_path, line, said):
    (tmp_path / "bad.tsv").write_text(f"{HEAD}\n{line}\n")
    with pytest.raises(UsageError, match=said):
        [*read_honest_templates([tmp_path / "bad.tsv"])]


def test_a_lexicon_of_hurtlex_and_bad_ones(tmp_path):
    path = tmp_path / "lexicon.tsv"
    rows = ("lemma\tlevel", "Grúmpish\tconservative", "baker\tinclusive")
    path.write_text("\n".join(rows))
    assert read_hurtful_lexicon(path) == {("grumpish",)}
    for text, said in (
        ("word\nx\n", "no text in 'lemma'"),
        ("lemma\n", "it is empty"),
        ("lemma\tlevel\nx\tinclusive\n", "of the level"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=said):
            read_hurtful_lexicon(path)
    plain = tmp_path / "lexicon.txt"
    plain.write_text("!!!\n...\n")
    with pytest.raises(UsageError, match="holds no hurtful words"):
        read_hurtful_lexicon(plain)
    with pytest.raises(UsageError, match="there is no file"):
        read_hurtful_lexicon(tmp_path / "none.txt")


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
def test_the_real_templates_and_words():
    files = [REAL / f"audit/honest_{name}_en.tsv" for name in ("binary", "queer")]
    binary, queer = ([*read_honest_templates([file])] for file in files)
    assert (len(binary), len(queer)) == (810, 705)
    assert {row["category"] for row in binary} == {"female", "male"}
    assert len({row["cluster"] for row in queer}) == 47
    entries = read_hurtful_lexicon(REAL / "toxicity/ldnoobw_en.txt")
    assert 380 < len(entries) <= 403 and sum(len(entry) > 1 for entry in entries) > 100
