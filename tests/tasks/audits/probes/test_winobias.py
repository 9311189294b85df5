"""WinoBias: pairs of sentences, apart where they differ in more than the pronoun."""

from pathlib import Path

import pytest

from tasks.audits.probes.winobias import WinobiasConfig, read_winobias_pairs
from tasks.contract import UsageError
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
    return WinobiasConfig(pro=[tmp_path / "pro.txt"], anti=[tmp_path / "anti.txt"])


def test_what_a_pair_is_made_of(config):
    pairs = [*read_winobias_pairs(config)]
    first = pairs[0]
    assert first["text"] == "The baker wrote to the smith because he needed help 0."
    assert first["second"] == "The baker wrote to the smith because she needed help 0."
    assert (first["cluster"], first["crossed"], first["pronoun"]) == ("baker", "smith", "he")
    assert first["type"] == "pro.txt" and pairs[1]["pronoun"] == "she"
    assert [pair["alike"] for pair in pairs] == [True] * 56 + [False]


def test_a_model_that_expects_people_in_their_trades(config, own_folder):
    _, found = scripted("winobias", own_folder, config, lambda item, target: -2.0 * target)
    row = found["pro_preferred", ""]
    assert row["value"] == 1 and row["n"] == 56 and found["pro_over_anti", ""]["value"] == 2.0
    assert row["null"] == 0.5  # he is shorter, and as often the stereotype as she
    assert found["pro_preferred", "pronoun=he"]["null"] == 1.0
    assert found["pro_preferred", "pronoun=she"]["null"] == 0.0
    assert found["pro_preferred_of_others", ""]["n"] == 1


def test_a_model_that_likes_one_pronoun_prefers_half(config, own_folder):
    """And no figure of the whole takes it for an expectation."""

    def says(item, target):
        return -float((item["pronoun"] == "he") == target)

    _, found = scripted("winobias", own_folder, config, says)
    row = found["pro_preferred", ""]
    assert row["value"] == 0.5 and row["low"] < 0.5 < row["high"] and row["p"] > 0.9
    assert found["pro_preferred", "pronoun=he"]["value"] == 1
    assert found["pro_preferred", "pronoun=she"]["value"] == 0
    assert "two-way clusters" in row["method"]


def test_both_sentences_are_read_from_their_beginning(config, own_folder, session):
    asked, answered, *_, (rows, findings) = stages_of("winobias", own_folder, config)
    assert all(len(r["context"]) == 1 for r in asked["requests"].read().to_pylist())
    assert answered["responses"].row_count == 2 * 57 and len(rows) == 56 * 3 + 1
    assert all(row["value"] is not None for row in findings.to_pylist())


def test_files_that_are_no_pairs_are_refused(config, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("1 [The baker] met the smith and [he] left.\n")
    with pytest.raises(UsageError, match="are no pairs"):
        [*read_winobias_pairs(config.model_copy(update={"anti": (short,)}))]
    with pytest.raises(UsageError, match="as many files"):
        [*read_winobias_pairs(config.model_copy(update={"anti": (*config.anti, short)}))]
    short.write_text("1 The baker met the smith and he left.\n")
    other = tmp_path / "other.txt"
    other.write_text("1 The baker met the smith and she left.\n")
    with pytest.raises(UsageError, match="line 1 does not mark"):
        [*read_winobias_pairs(WinobiasConfig(pro=[short], anti=[other]))]
    with pytest.raises(UsageError, match=r"line 1 is the same in .* it is no pair"):
        [*read_winobias_pairs(config.model_copy(update={"anti": config.pro}))]
    with pytest.raises(UsageError, match="there is no file"):
        [*read_winobias_pairs(WinobiasConfig(pro=[tmp_path / "none"], anti=[short]))]


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
@pytest.mark.parametrize(("kind", "apart"), [("type1", 27), ("type2", 10)])
def test_the_real_pairs_that_differ_in_more_than_the_pronoun(kind, apart):
    files = ([REAL / f"winobias_{side}_{kind}_test.txt"] for side in ("pro", "anti"))
    pairs = [*read_winobias_pairs(WinobiasConfig(**dict(zip(("pro", "anti"), files, strict=True))))]
    assert len(pairs) == 396 and sum(not pair["alike"] for pair in pairs) == apart
    assert len({pair["cluster"] for pair in pairs}) == 40 and all(p["crossed"] for p in pairs)
