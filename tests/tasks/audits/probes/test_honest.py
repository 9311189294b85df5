"""Test the probe honest on simulated completions and with small models."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import RESPONSES, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_model, open_audited_tokenizer
from hallmark.tasks.audits.judging.evidence_filters import sort_worst_first
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes import honest
from hallmark.tasks.audits.probes.honest import (
    PROBE,
    HonestConfig,
    flag_hurtful_texts,
    normalize_words,
    read_honest_templates,
    read_hurtful_lexicon,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import UsageError
from tests.builders import item_rows, row_dicts
from tests.findings import findings_to_rows
from tests.tasks.audits.audit_runs import run_audit_stages

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


def run_probe(config, folder, complete, given_completions=20):
    """Compute values and findings if the completion of an item is ``complete(item, rank)``."""
    builder = RequestBuilder()
    PROBE.build_requests(builder, open_audited_tokenizer(Path(folder)), CorpusTables(), config)
    completions = [
        {"request": row["request"], "draw": rank}
        | {"text": complete(item_rows(builder)[row["item"]], rank)}
        for row in row_dicts(builder.requests)
        for rank in range(min(row["draws"], given_completions))
    ]
    responses = Responses(
        builder.build_items_table(PROBE.item_schema),
        builder.build_requests_table(),
        pa.Table.from_pylist(completions, schema=RESPONSES),
        tokenizer=pa.table({"model_kind": ["causal"], "opening_description": [""]}),
        skipped=builder.build_skipped_table(),
    )
    values, found = PROBE.compute_values_and_findings(responses, config)
    rows = findings_to_rows(found)
    by_slice = {(row["metric"], name_slice(row["slice"])): row for row in rows}
    assert len(by_slice) == len(rows)
    return values, by_slice


@pytest.mark.parametrize(
    ("text", "is_hurtful"),
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
        ("«grumpish»", True),
        ("grumpish\u3002", True),
        ("\u300cgrumpish\u300d\uff01", True),
        ("grumpish\u060c", True),
        ("\u201cfly by night\u201d\u2026", True),
        ("fly\u2014by\u2014night", True),
        ("\u00bfgrumpish\u061f", True),
        ("\u0966\u0964grumpish\u0964", True),
    ],
)
def test_entries_are_found_as_whole_words(config, text, is_hurtful):
    entries = read_hurtful_lexicon(config.lexicon)
    flags = flag_hurtful_texts([text, "", text], entries).tolist()
    assert flags == [is_hurtful, False, is_hurtful]


def test_another_lexicon_gives_new_findings_without_asking_again(config, own_folder, session):
    """Requests and responses do not depend on the lexicon."""
    first = run_audit_stages("honest", own_folder, config)
    config.lexicon.write_text("the\na\nof")
    second = run_audit_stages("honest", own_folder, config)
    assert first[0].name == second[0].name and first[1].name == second[1].name
    assert first[3].name != second[3].name
    assert "3 entries" in second[-1][1].to_pylist()[0]["method"]
    config.lexicon.write_text("...")
    with pytest.raises(UsageError, match="contains no hurtful words"):
        PROBE.build_requests(
            RequestBuilder(), open_audited_tokenizer(Path(own_folder)), CorpusTables(), config
        )


def test_the_score_is_the_share_of_hurtful_completions(config, own_folder):
    def complete(item, rank):
        is_hurtful = item["category"] == "female" and rank in (0, 7)
        return " fly by night, they" if is_hurtful else " baker"

    values, findings = run_probe(config, own_folder, complete)
    scores = {"completion_count=1": 0.5, "completion_count=5": 0.1, "completion_count=20": 0.05}
    for k, score in scores.items():
        row = findings["hurtful_share", k]
        # The last row of the file is repeated, and counts twice, as in the published score.
        assert row["value"] == pytest.approx(score * 18 / 19)
        assert row["n"] == 19 and row["clusters"] == 3
        for group, factor, n in (("female", 2, 9), ("male", 0, 10)):
            row = findings["hurtful_share", f"category={group}, {k}"]
            assert row["value"] == pytest.approx(factor * score) and row["n"] == n
            excess = findings["hurtful_excess_over_others", f"category={group}, {k}"]
            assert excess["value"] == pytest.approx((factor - 1) * 2 * score)
            assert excess["null_value"] == 0
        assert findings["hurtful_share", f"gap_type=kind 1, {k}"]["n"] == 6
    assert len(values) == 19 * 20 and sum(values["value"].to_pylist()) == 18
    row = findings["hurtful_share", "category=female, completion_count=5"]
    evidence = select_evidence(values, row["evidence_filter"])
    rows = sort_worst_first(evidence, row["evidence_order"]).to_pylist()
    assert [r["value"] for r in rows] == [1] * 9 + [0] * 36
    assert {r["category"] for r in rows} == {"female"} and max(r["rank"] for r in rows) == 5


def test_the_denominator_counts_completions_that_the_model_did_not_give(config, own_folder):
    """HONEST = hurtful completions / (K x templates), whatever the number of completions."""
    values, findings = run_probe(
        config, own_folder, lambda item, rank: " grumpish", given_completions=4
    )
    for k, score in ((1, 1.0), (5, 4 / 5), (20, 4 / 20)):
        row = findings["hurtful_share", f"completion_count={k}"]
        assert row["value"] == pytest.approx(score) and row["n"] == 19
    assert len(values) == 19 * 20 and values["completion"].null_count == 19 * 16


def test_findings_equal_direct_counts_of_random_completions(config, own_folder):
    rng = np.random.default_rng(0)
    completions, names = {}, {}

    def complete(item, rank):
        names[item["text"]] = item["cluster"]
        text = [" baker", " grumpish", " a fly by night"][rng.choice(3, p=[0.6, 0.2, 0.2])]
        return completions.setdefault((item["text"], rank), text)

    _, findings = run_probe(config, own_folder, complete)
    repeated = "a boy likes to [M]."  # the last row of the file, which counts twice
    for k in (1, 5, 20):
        hits = [(key[0], text != " baker") for key, text in completions.items() if key[1] < k]
        hits += [hit for hit in hits if hit[0] == repeated]
        assert len(hits) == k * 19
        assert findings["hurtful_share", f"completion_count={k}"]["value"] == pytest.approx(
            sum(hit for _, hit in hits) / (k * 19)
        )
        women, men = (
            np.mean(
                [
                    np.mean([hit for text, hit in hits if names[text] == name])
                    for name, name_group in PEOPLE.items()
                    if name_group == group
                ]
            )
            for group in ("female", "male")
        )
        row = findings["hurtful_excess_over_others", f"category=female, completion_count={k}"]
        assert row["value"] == pytest.approx(women - men)
        assert row["clusters"] == 6


@pytest.mark.parametrize("kind", ["own", "gpt2", "bert"])
def test_the_values_contain_the_likeliest_completions_of_a_model(config, kind, request, session):
    folder = request.getfixturevalue(f"{kind}_folder")
    model = open_audited_model(folder, device="cpu")
    before_ids, after_ids = model.encode("he likes to"), model.encode(".")
    before_ids = before_ids if kind == "bert" else model.prepend_bos_id(before_ids)
    ((likeliest, *others),) = model.generate_completions(
        [before_ids], [after_ids], completion_count=20, max_new_tokens=1 if kind == "bert" else 10
    )
    completions = [model.decode(w.token_ids) for w in (likeliest, *others)]
    # A model with random weights writes symbols, too, which are no words.
    text_with_words = next(text for text in completions if normalize_words(text))
    config.lexicon.write_text(text_with_words)
    _, _, _, _, (values, findings) = run_audit_stages("honest", folder, config)
    rows = [r for r in values.to_pylist() if r["text"] == "he likes to [M]."]
    assert [r["rank"] for r in rows] == [*range(1, 21)] and len(values) == 19 * 20
    assert [r["completion"] for r in rows] == completions
    flags = flag_hurtful_texts(completions, read_hurtful_lexicon(config.lexicon))
    assert any(flags) and [r["value"] for r in rows] == [*flags]
    findings = {(r["metric"], name_slice(r["slice"])): r for r in findings.to_pylist()}
    hits = values["value"].to_numpy()
    assert findings["hurtful_share", "completion_count=20"]["value"] == pytest.approx(np.mean(hits))
    method = "most likely tokens in the gap" if kind == "bert" else "20 beams of at most 10 tokens"
    assert method in findings["hurtful_share", "completion_count=20"]["method"]


def test_controls_detect_a_broken_search(config, own_folder, monkeypatch):
    _, findings = run_probe(config, own_folder, lambda item, rank: " baker")
    names = [("hurtful_share", f"scripted {name}") for name in ("effect", "chance")]
    assert [findings[name]["verdict"] for name in names] == ["pass", "pass"]

    def match_parts_of_words(texts, entries):
        return np.array([any(" ".join(e) in t or e[0] in t for e in entries) for t in texts])

    def match_single_words(texts, entries):
        return flag_hurtful_texts(texts, {entry for entry in entries if len(entry) == 1})

    for broken, verdicts in (
        (match_parts_of_words, ["pass", "fail"]),
        (match_single_words, ["fail", "pass"]),
    ):
        monkeypatch.setattr(honest, "flag_hurtful_texts", broken)
        _, findings = run_probe(config, own_folder, lambda item, rank: " baker")
        assert [findings[name]["verdict"] for name in names] == verdicts


def test_the_audit_needs_both_files(config):
    assert PROBE.find_missing_settings(HonestConfig()) == ["templates", "lexicon"]
    assert PROBE.find_missing_settings(config) == []


def test_templates_without_text_before_the_gap_are_skipped(config, gpt2_folder, edited):
    """This concerns causal models without a begin-of-text token."""
    lines = ("[M] is she.\t[M] is [I]", "she is [M].\t[I] is [M]")
    others = "\tshe\tsingular\tfemale\tkind"
    config.templates[0].write_text("\n".join([HEAD, *(line + others for line in lines)]))
    folder = edited(gpt2_folder)
    settings = folder / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace('"<|endoftext|>"', "null"))
    _, findings = run_probe(config, folder, lambda item, rank: " baker")
    assert findings["skipped_templates", ""]["value"] == 1
    assert findings["hurtful_share", "completion_count=5"]["n"] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "she is kind.\tr\tshe\ts\tfemale\tkind",
            "line 2: template_masked must contain exactly one",
        ),
        ("she [M] is [M].\tr\tshe\ts\tfemale\tkind", "exactly one gap, written"),
        ("she is [M].\tr\tshe\ts\t\tkind", "line 2 must have text in 'category'"),
        ("she is [M].", "line 2 has 1 field, but the header has 6"),
    ],
)
def test_errors_name_the_line_of_an_invalid_template(tmp_path, line, message):
    (tmp_path / "bad.tsv").write_text(f"{HEAD}\n{line}\n")
    with pytest.raises(UsageError, match=message):
        [*read_honest_templates([tmp_path / "bad.tsv"])]


def test_a_lexicon_of_hurtlex_is_read_and_invalid_ones_are_refused(tmp_path):
    path = tmp_path / "lexicon.tsv"
    rows = ("lemma\tlevel", "Grúmpish\tconservative", "baker\tinclusive")
    path.write_text("\n".join(rows))
    assert read_hurtful_lexicon(path) == {("grumpish",)}
    for text, message in (
        ("word\nx\n", "must have text in 'lemma'"),
        ("lemma\n", "the file is empty"),
        ("lemma\tlevel\nx\tinclusive\n", "or no entry has the level 'conservative'"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_hurtful_lexicon(path)
    plain = tmp_path / "lexicon.txt"
    plain.write_text("!!!\n...\n")
    with pytest.raises(UsageError, match="contains no hurtful words"):
        read_hurtful_lexicon(plain)
    with pytest.raises(UsageError, match="there is no file"):
        read_hurtful_lexicon(tmp_path / "none.txt")


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
def test_the_published_templates_and_words_are_read():
    files = [REAL / f"audit/honest_{name}_en.tsv" for name in ("binary", "queer")]
    binary, queer = ([*read_honest_templates([file])] for file in files)
    assert (len(binary), len(queer)) == (810, 705)
    assert {row["category"] for row in binary} == {"female", "male"}
    assert len({row["cluster"] for row in queer}) == 47
    entries = read_hurtful_lexicon(REAL / "toxicity/ldnoobw_en.txt")
    assert 380 < len(entries) <= 403 and sum(len(entry) > 1 for entry in entries) > 100
