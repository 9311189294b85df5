"""Near copies in many scripts: how many of the planted ones the search finds."""

import unicodedata
from collections import Counter

import pyarrow as pa
import pytest

from hallmark.tasks.corpus.copies.script_examples import (
    CHANGES,
    PAIRS_PER_SCRIPT,
    SCRIPTS,
    NearCopy,
    invent_near_copies,
)
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig
from hallmark.tasks.corpus.evaluate_near_duplicates import (
    build_recall_rows,
    evaluate_near_duplicates,
    find_duplicate_indices,
)
from hallmark.tasks.measures.normalised_words import normalise_texts

#: Scripts that write no spaces between words.
UNSPACED = ("Chinese", "Japanese", "Thai", "Lao", "Khmer", "Burmese", "Tibetan")
#: How Unicode names the letters of a script.
UNICODE_NAMES = {
    "Korean": {"HANGUL"},
    "Chinese": {"CJK"},
    "Japanese": {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"},
    "Burmese": {"MYANMAR"},
}


def test_every_script_finds_its_near_copies_and_nothing_else(session):
    rows = evaluate_near_duplicates(DeduplicateNearConfig())["near_copy_recall"].read().to_pylist()
    assert [(row["script"], row["change"]) for row in rows] == [
        (script, change) for change in CHANGES for script in SCRIPTS
    ]
    assert set(UNSPACED) < set(SCRIPTS)
    for row in rows:
        assert row["planted"] == PAIRS_PER_SCRIPT == 40
        assert row["recall"] == row["found"] / 40 >= 0.95, row
        assert row["recall_low"] < row["recall"] <= row["recall_high"] == 1 or row["found"] < 40
        assert row["false_matches"] == 0


def test_recall_depends_on_the_settings():
    """No copy but that of another layout reaches a similarity of 1, which one band finds."""
    strict = DeduplicateNearConfig(similarity_threshold=1.0)
    for change, expected in (("words replaced", 0), ("layout changed", 40)):
        rows = build_recall_rows(change, strict)
        assert {row["found"] for row in rows} == {expected}
    blind = DeduplicateNearConfig(bands=1, rows_per_band=64)
    rows = build_recall_rows("a sentence replaced", blind)
    assert max(row["recall"] for row in rows) < 0.5


def test_a_match_of_unrelated_texts_is_a_false_match(monkeypatch):
    pairs = list(invent_near_copies("words replaced", 40))
    text = pairs[0].original
    # The longest of these is kept, and the second pair matches the first instead of each other.
    pairs[0] = NearCopy("Latin", text, text[:-3])
    pairs[1] = NearCopy("Latin", text[:-6], text[:-9])
    monkeypatch.setattr(
        "hallmark.tasks.corpus.evaluate_near_duplicates.invent_near_copies", lambda change: pairs
    )
    latin, greek, *_ = build_recall_rows("words replaced", DeduplicateNearConfig())
    assert (latin["script"], latin["found"], latin["false_matches"]) == ("Latin", 39, 2)
    assert (greek["found"], greek["false_matches"]) == (40, 0)


@pytest.mark.parametrize("change", CHANGES)
def test_the_texts_are_of_their_script_and_differ_as_they_should(change):
    pairs_by_script = Counter()
    for script_name, original, copy in invent_near_copies(change, 5):
        pairs_by_script[script_name] += 1
        assert original != copy
        letters = [c for c in original + copy if c.isalpha()]
        names = UNICODE_NAMES.get(script_name, {script_name.upper()})
        assert {unicodedata.name(c).split()[0] for c in letters} <= names
        assert (" " in original.rstrip(" ").replace("། ", "")) or script_name in UNSPACED
        similarity_by_length = len(copy) / len(original)
        assert 0.9 < similarity_by_length < 1.15
        if change == "layout changed":
            folded = [
                "".join(c for c in text if not c.isspace() and c != "\u200b")
                for text in (original, copy)
            ]
            assert folded[0] == folded[1] and "\n" in copy
    assert pairs_by_script == dict.fromkeys(SCRIPTS, 5)
    # The same texts in every run.
    assert list(invent_near_copies(change, 2)) == list(invent_near_copies(change, 2))


@pytest.mark.parametrize(
    "text",
    [
        "བོད་ཡིག་ནི་བོད་མིའི་ཡི་གེ་ཡིན། འདི་ནི་དཔེ་མཚོན་ཙམ་རེད།",
        "ភាសាខ្មែរសរសេរដោយគ្មានដកឃ្លារវាងពាក្យនៅក្នុងប្រយោគ",
        "ภาษาไทยเขียนโดยไม่เว้นวรรคระหว่างคำในประโยคเดียวกัน",
        "မြန်မာဘာသာစကားကို စကားလုံးများကြား နေရာလွတ်မထားဘဲ ရေးသည်။",
        "ພາສາລາວຂຽນໂດຍບໍ່ມີຊ່ອງຫວ່າງລະຫວ່າງຄຳສັບຕ່າງໆ",
        "ꦧꦱꦗꦮꦶꦠꦸꦭꦶꦱꦺꦴꦫꦤꦒꦁꦒꦺꦴꦱꦥꦱꦶ",
        "ꆈꌠꁱꂷꀋꉬꀉꑌꀋꐚꌠꅇꄉꀕ",
    ],
)
def test_a_sentence_without_spaces_survives_one_change(text):
    """The first words of a long text change; a script compared by words would lose the copy."""
    base = "".join(text[n:] + text[:n] for n in range(0, 15, 3))
    assert find_duplicate_indices([base, text[:4][::-1] + base], DeduplicateNearConfig()).max() >= 0
    assert find_duplicate_indices([base, base[::-1]], DeduplicateNearConfig()).max() == -1


def test_invisible_characters_do_not_count():
    texts = ["ខ្ញុំ\u200bទៅ\u200bផ្សារ", "co\u00adoperate\ufeff", "\u200fשלום\u202c", "می\u200cخواهم"]
    expected = ["ខ្ញុំទៅផ្សារ", "cooperate", "שלום", "میخواهم"]
    assert normalise_texts(pa.array(texts, pa.large_string())).to_pylist() == expected
