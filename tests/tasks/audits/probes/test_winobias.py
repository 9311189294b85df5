"""Test the probe winobias, which separates pairs that differ in more than the pronoun."""

from pathlib import Path

import pytest

from hallmark.tasks.audits.probes.winobias import WinobiasConfig, read_winobias_pairs
from hallmark.tasks.contract import UsageError
from tests.tasks.audits.audit_runs import compute_simulated_findings, run_audit_stages

REAL = Path(__file__).parents[5] / "shared/data/audit"

TRADES = ["baker", "smith", "weaver", "miller", "potter", "glazier", "cooper", "tanner"]


@pytest.fixture
def config(tmp_path):
    lines = []
    for n in range(56):
        sender, recipient = TRADES[n % 8], TRADES[(n + 1 + n // 8) % 8]
        he = n % 2 == 0
        text = f"{n + 1} [The {sender}] wrote to the {recipient} because [%s] needed help {n}."
        lines.append((text % ("he" if he else "she"), text % ("she" if he else "he")))
    lines.append(
        (
            "57 The baker met [the smith] and [he] left.",
            "57 The baker met [the smith] and [she] stayed.",
        )
    )
    for side, name in enumerate(("pro.txt", "anti.txt")):
        (tmp_path / name).write_text("\n".join(line[side] for line in lines) + "\n")
    return WinobiasConfig(
        pro_stereotypical=[tmp_path / "pro.txt"], anti_stereotypical=[tmp_path / "anti.txt"]
    )


def test_pairs_have_the_occupations_and_the_pronoun(config):
    pairs = [*read_winobias_pairs(config)]
    first = pairs[0]
    assert first["text"] == "The baker wrote to the smith because he needed help 0."
    assert first["second_text"] == "The baker wrote to the smith because she needed help 0."
    assert (first["cluster"], first["crossed_cluster"], first["pronoun"]) == (
        "baker",
        "smith",
        "he",
    )
    assert first["sentence_file"] == "pro.txt" and pairs[1]["pronoun"] == "she"
    assert [pair["is_minimal_pair"] for pair in pairs] == [True] * 56 + [False]


def test_pairs_that_differ_in_another_word_than_the_pronoun_are_not_minimal(config):
    """As in two lines of the published file, which have the same pronoun."""
    (pro,), (anti,) = config.pro_stereotypical, config.anti_stereotypical
    pro.write_text(pro.read_text() + "58 [The baker] met the smith and [he] left.\n")
    anti.write_text(anti.read_text() + "58 [The baker] met the potter and [he] left.\n")
    pairs = [*read_winobias_pairs(config)]
    assert [pair["is_minimal_pair"] for pair in pairs[-2:]] == [False, False]


def test_a_fully_stereotyped_model_has_preference_one(config, own_folder):
    _, findings = compute_simulated_findings(
        "winobias", own_folder, config, lambda item, target: -2.0 * target
    )
    row = findings["stereotype_preference", ""]
    assert row["value"] == 1 and row["n"] == 56
    assert findings["log_likelihood_difference", ""]["value"] == 2.0
    assert row["null_value"] == 0.5 and row["worse_when"] == "up"
    assert findings["published_preference", ""]["value"] == 1
    assert findings["stereotype_preference_of_non_minimal_pairs", ""]["n"] == 1


def test_a_model_that_prefers_one_pronoun_has_preference_one_half(config, own_folder):
    def compute_log_likelihood(item, target):
        return -float((item["pronoun"] == "he") == target)

    _, findings = compute_simulated_findings("winobias", own_folder, config, compute_log_likelihood)
    row = findings["stereotype_preference", ""]
    assert row["value"] == 0.5 and row["low"] < 0.5 < row["high"]
    # Each of few occupations is half of the time at either end: no effect could be detected.
    assert row["p"] is None and row["inconclusive_reason"].startswith("uninformative: ")
    assert findings["stereotype_preference", "pronoun=he"]["value"] == 1
    assert findings["stereotype_preference", "pronoun=she"]["value"] == 0
    assert "two-way clustering" in row["method"]


def test_non_minimal_pairs_do_not_decide_what_a_token_costs(config, own_folder):
    rows = []
    for cost_of_others in (2.0, 900.0):

        def simulate_log_probs(item, target, cost_of_others=cost_of_others):
            token_count = 9 + (len(item["text"]) * (3 if target else 7)) % 5
            return [-2.0 if item["is_minimal_pair"] else -cost_of_others] * token_count

        _, findings = compute_simulated_findings("winobias", own_folder, config, simulate_log_probs)
        rows.append(findings["log_likelihood_difference", ""])
    assert (
        rows[0]["value"] == pytest.approx(0) and "cost of an additional token" in rows[0]["method"]
    )
    assert (rows[0]["value"], rows[0]["method"]) == (rows[1]["value"], rows[1]["method"])


@pytest.mark.parametrize("metric", ["stereotype_preference", "log_likelihood_difference"])
def test_the_prior_of_a_pronoun_is_reported_but_not_tested(config, own_folder, metric):
    _, findings = compute_simulated_findings(
        "winobias",
        own_folder,
        config,
        lambda item, target: -float(item["pronoun"] == "he") * target,
    )
    for pronoun in ("he", "she"):
        row = findings[metric, f"pronoun={pronoun}"]
        assert row["n"] == 28 and row["value"] is not None
        assert (row["p"], row["null_value"], row["worse_when"]) == (None, None, "")


def test_both_sentences_are_scored_from_their_beginning(config, own_folder, session):
    request_set, response_set, *_, (rows, findings) = run_audit_stages(
        "winobias", own_folder, config
    )
    assert all(len(r["context_ids"]) == 1 for r in request_set["requests"].read().to_pylist())
    assert response_set["responses"].row_count == 2 * 57 and len(rows) == 56 * 4 + 1
    assert all(row["value"] is not None for row in findings.to_pylist())


def test_files_that_do_not_match_are_refused(config, tmp_path):
    def read_pairs(pro_files, anti_files):
        files = WinobiasConfig(pro_stereotypical=pro_files, anti_stereotypical=anti_files)
        return [*read_winobias_pairs(files)]

    pro_files, anti_files = config.pro_stereotypical, config.anti_stereotypical
    short = tmp_path / "short.txt"
    short.write_text("1 [The baker] met the smith and [he] left.\n")
    with pytest.raises(
        UsageError, match=r"has 57 sentences, but .*short\.txt has 1; provide files"
    ):
        read_pairs(pro_files, [short])
    with pytest.raises(UsageError, match="have 1 and 2 files; specify the same number of files"):
        read_pairs(pro_files, [*anti_files, short])
    short.write_text("1 The baker met the smith and he left.\n")
    other = tmp_path / "other.txt"
    other.write_text("1 The baker met the smith and she left.\n")
    with pytest.raises(UsageError, match="line 1 does not mark"):
        read_pairs([short], [other])
    short.write_text("1 [ ] met the smith and [he] left.\n")
    with pytest.raises(UsageError, match="line 1 does not mark a person and a pronoun"):
        read_pairs([short], [other])
    short.write_text("1 [The baker] met the smith and [he] left.\n")
    for second in (
        "1 [The baker] met the potter and [he] left.\n",  # another person, not another pronoun
        "1 [The baker] met the smith and [they] left.\n",
        "1 [The cook] saw the tanner and [she] ran away.\n",
    ):
        other.write_text(second)
        with pytest.raises(
            UsageError,
            match=r"no sentence in .*short\.txt differs from the sentence on the same line of "
            r".*other\.txt only in the gender of the pronoun; provide files with the same "
            "sentences in the same ord",
        ):
            read_pairs([short], [other])
    with pytest.raises(UsageError, match=r"line 1 is the same in .* must differ in the pronoun"):
        read_pairs(pro_files, pro_files)
    with pytest.raises(UsageError, match="there is no file"):
        read_pairs([tmp_path / "none"], [short])


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
@pytest.mark.parametrize(("kind", "non_minimal_count"), [("type1", 27), ("type2", 10)])
def test_published_pairs_that_differ_in_more_than_the_pronoun_are_found(kind, non_minimal_count):
    files = ([REAL / f"winobias_{side}_{kind}_test.txt"] for side in ("pro", "anti"))
    names = ("pro_stereotypical", "anti_stereotypical")
    pairs = [*read_winobias_pairs(WinobiasConfig(**dict(zip(names, files, strict=True))))]
    assert len(pairs) == 396
    assert sum(not pair["is_minimal_pair"] for pair in pairs) == non_minimal_count
    assert len({pair["cluster"] for pair in pairs}) == 40
    assert all(pair["crossed_cluster"] for pair in pairs)
