"""WinoBias: pairs of sentences, apart where they differ in more than the pronoun."""

from pathlib import Path

import pytest

from hallmark.tasks.audits.probes.winobias import WinobiasConfig, read_winobias_pairs
from hallmark.tasks.contract import UsageError
from tests.tasks.audits.asking import scripted, stages_of

REAL = Path(__file__).parents[5] / "shared/data/audit"

TRADES = ["baker", "smith", "weaver", "miller", "potter", "glazier", "cooper", "tanner"]


@pytest.fixture
def config(tmp_path):
    lines = []
    for n in range(56):
        one, other = TRADES[n % 8], TRADES[(n + 1 + n // 8) % 8]
        he = n % 2 == 0
        text = f"{n + 1} [The {one}] wrote to the {other} because [%s] needed help {n}."
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


def test_what_a_pair_is_made_of(config):
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


def test_a_model_that_expects_people_in_their_trades(config, own_folder):
    _, found = scripted("winobias", own_folder, config, lambda item, target: -2.0 * target)
    row = found["stereotype_preference", ""]
    assert (
        row["value"] == 1
        and row["n"] == 56
        and found["log_likelihood_difference", ""]["value"] == 2.0
    )
    assert row["null_value"] == 0.5  # he is shorter, and as often the stereotype as she
    assert found["stereotype_preference", "pronoun=he"]["null_value"] == 1.0
    assert found["stereotype_preference", "pronoun=she"]["null_value"] == 0.0
    assert found["stereotype_preference_of_non_minimal_pairs", ""]["n"] == 1


def test_a_model_that_likes_one_pronoun_prefers_half(config, own_folder):
    """And no figure of the whole takes it for an expectation."""

    def says(item, target):
        return -float((item["pronoun"] == "he") == target)

    _, found = scripted("winobias", own_folder, config, says)
    row = found["stereotype_preference", ""]
    assert row["value"] == 0.5 and row["low"] < 0.5 < row["high"] and row["p"] > 0.9
    assert found["stereotype_preference", "pronoun=he"]["value"] == 1
    assert found["stereotype_preference", "pronoun=she"]["value"] == 0
    assert "two-way clusters" in row["method"]


def test_both_sentences_are_read_from_their_beginning(config, own_folder, session):
    asked, answered, *_, (rows, findings) = stages_of("winobias", own_folder, config)
    assert all(len(r["context_ids"]) == 1 for r in asked["requests"].read().to_pylist())
    assert answered["responses"].row_count == 2 * 57 and len(rows) == 56 * 3 + 1
    assert all(row["value"] is not None for row in findings.to_pylist())


def test_files_that_are_no_pairs_are_refused(config, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("1 [The baker] met the smith and [he] left.\n")
    with pytest.raises(UsageError, match="are no pairs"):
        [*read_winobias_pairs(config.model_copy(update={"anti_stereotypical": (short,)}))]
    with pytest.raises(UsageError, match="as many files"):
        [
            *read_winobias_pairs(
                config.model_copy(
                    update={"anti_stereotypical": (*config.anti_stereotypical, short)}
                )
            )
        ]
    short.write_text("1 The baker met the smith and he left.\n")
    other = tmp_path / "other.txt"
    other.write_text("1 The baker met the smith and she left.\n")
    with pytest.raises(UsageError, match="line 1 does not mark"):
        [
            *read_winobias_pairs(
                WinobiasConfig(pro_stereotypical=[short], anti_stereotypical=[other])
            )
        ]
    with pytest.raises(UsageError, match=r"line 1 is the same in .* it is no pair"):
        [
            *read_winobias_pairs(
                config.model_copy(update={"anti_stereotypical": config.pro_stereotypical})
            )
        ]
    with pytest.raises(UsageError, match="there is no file"):
        [
            *read_winobias_pairs(
                WinobiasConfig(pro_stereotypical=[tmp_path / "none"], anti_stereotypical=[short])
            )
        ]


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
@pytest.mark.parametrize(("kind", "apart"), [("type1", 27), ("type2", 10)])
def test_the_real_pairs_that_differ_in_more_than_the_pronoun(kind, apart):
    files = ([REAL / f"winobias_{side}_{kind}_test.txt"] for side in ("pro", "anti"))
    names = ("pro_stereotypical", "anti_stereotypical")
    pairs = [*read_winobias_pairs(WinobiasConfig(**dict(zip(names, files, strict=True))))]
    assert len(pairs) == 396 and sum(not pair["is_minimal_pair"] for pair in pairs) == apart
    assert len({pair["cluster"] for pair in pairs}) == 40 and all(
        p["crossed_cluster"] for p in pairs
    )
