"""The published rules: their bounds, the documents they remove, and their use in a config."""

import pytest

from hallmark.flows.commands.settings import list_settings
from hallmark.flows.config import load_config
from hallmark.tasks.contract import UsageError
from hallmark.tasks.corpus.quality import SIGNALS, QualityConfig, measure_quality
from hallmark.tasks.corpus.quality_presets import PRESET_RULES
from hallmark.tasks.corpus.select import SelectConfig, SelectionRule, select_documents
from tests.tasks.corpora import given

SENTENCES = [
    "The committee met on Monday to talk about the new bridge over the river.",
    "It was agreed that work would begin in spring, and that the old one stays open.",
    "Several members asked how much it would cost and who would pay for it.",
    "Nobody knew, but the engineer promised to come back with figures in a month.",
    "After that there was tea, and the secretary read out a letter from the school.",
    "The children wish to paint the railings, with colours that they have voted for.",
]
GOOD = "\n".join(SENTENCES)
WORDS = [f"w{number}ord" for number in range(400)]


def join_lines(*lines):
    return "\n".join(lines)


def unique_words(*added_words, count=60):
    """Return a text of different words, two of them stop words, followed by ``added_words``."""
    return " ".join(["the", "and", *WORDS[:count], *added_words])


#: Texts and the rules of a preset that they violate, derived from the papers.
CASES = {
    "gopher": [
        (GOOD, []),
        (unique_words(count=47), ["gopher_words"]),  # 49 words
        (unique_words(count=48), []),  # 50
        (unique_words("-", "=", "(", count=47), ["gopher_words"]),  # punctuation is not a word
        (
            "a b the and " * 15,
            [
                "gopher_word_length",
                "gopher_top_2gram",
                "gopher_top_3gram",
                "gopher_top_4gram",
                *(f"gopher_duplicate_{n}grams" for n in range(5, 11)),
            ],
        ),
        (" ".join(["the", "of", *(f"{w}{'x' * 10}" for w in WORDS[:60])]), ["gopher_word_length"]),
        (unique_words(*["#"] * 5, count=48), []),  # 5 of 55; 6 would be too many
        (unique_words(*["#"] * 6, count=48), ["gopher_hashes"]),
        (unique_words(*["#x", "#y", "#z", "#a", "#b", "#c", "#d"], count=60), ["gopher_hashes"]),
        (unique_words(*[f"{w}..." for w in WORDS[100:108]], "end"), ["gopher_ellipses"]),
        (
            join_lines(
                *(f"- {WORDS[i]} the {WORDS[i + 1]} of {WORDS[i + 2]}" for i in range(0, 60, 3))
            ),
            ["gopher_bullet_lines"],
        ),
        (
            join_lines(
                *(" ".join(WORDS[i : i + 12]) + "..." for i in range(0, 72, 12)), "the of and"
            ),
            ["gopher_ellipsis_lines"],
        ),
        (unique_words(*(f"{n}" for n in range(100, 120))), ["gopher_alphabetic_words"]),
        (" ".join(WORDS[:60]), ["gopher_stop_words"]),
        (" ".join(["the", "the", "the", *WORDS[:60]]), ["gopher_stop_words"]),
        (
            GOOD + "\n\n" + GOOD,
            [
                "gopher_duplicate_paragraphs",
                "gopher_duplicate_paragraphs_characters",
                "gopher_duplicate_lines",
                "gopher_duplicate_lines_characters",
                *(f"gopher_duplicate_{n}grams" for n in range(5, 11)),
            ],
        ),
        ("", ["gopher_words", "gopher_stop_words"]),
    ],
    "c4": [
        (GOOD, []),
        (join_lines(*SENTENCES[:4]), ["c4_sentences"]),
        (join_lines(*SENTENCES[:4], "One more. And a last one."), []),
        (join_lines(*SENTENCES[:4], "One more. And a last one"), ["c4_sentences"]),
        (join_lines(*SENTENCES[:4], "Too short.", "Yes. No."), ["c4_sentences"]),
        (join_lines(*SENTENCES, "if (x) { return; }"), []),  # C4 removes this line first
        (join_lines(*SENTENCES, "Write { before it."), ["c4_curly_brackets"]),
        (join_lines(*SENTENCES, "Then Lorem Ipsum dolor sit."), ["c4_lorem_ipsum"]),
        ("", ["c4_sentences"]),
    ],
    "fineweb": [
        (GOOD, []),
        (join_lines(*(line.rstrip(".") for line in SENTENCES)), ["fineweb_terminal_lines"]),
        (join_lines(*(line.rstrip(".") for line in SENTENCES[:5]), SENTENCES[5]), []),  # a sixth
        (
            join_lines(SENTENCES[0], "Short and sweet.", "As this.", "So it is, too."),
            ["fineweb_short_lines"],
        ),
        (join_lines(*SENTENCES, SENTENCES[0]), ["fineweb_duplicate_characters"]),
        (join_lines(*SENTENCES, "As it was.", "As it was."), []),  # about 2 % of the characters
        (
            "\n".join(f"{WORDS[n]}{'x' * 40}. and" + "\n" for n in range(9)) + "more of it.",
            ["fineweb_terminal_lines", "fineweb_feeds_per_word"],
        ),
        ("中文的句子到这里就结束了，这是第一句话，它足够长所以不算短行，真的很长很长很长。", []),
        ("", ["fineweb_terminal_lines unknown"]),
        (" \n\t\n", ["fineweb_terminal_lines unknown"]),
    ],
}


@pytest.mark.parametrize("preset", CASES)
def test_a_preset_removes_the_documents_that_its_paper_removes(session, preset):
    documents = given([text for text, _ in CASES[preset]])
    signals = measure_quality(documents, QualityConfig())
    selected = select_documents(documents, {"quality": signals}, SelectConfig(presets=(preset,)))
    reasons_by_id = {row: [] for row in documents["documents"].read()["doc_id"].to_pylist()}
    for row in selected["ledger"].read().to_pylist():
        reasons_by_id[row["doc_id"]].append(row["reason"])
    assert [sorted(reasons) for reasons in reasons_by_id.values()] == [
        sorted(expected_reasons) for _, expected_reasons in CASES[preset]
    ]
    assert selected["documents"].row_count == sum(
        not expected_reasons for _, expected_reasons in CASES[preset]
    )


def test_bounds_match_the_published_ones():
    bounds = {
        name: (rule.get("ge"), rule.get("le"))
        for rules in PRESET_RULES.values()
        for name, rule in rules.items()
    }
    top_bounds = {2: 0.2, 3: 0.18, 4: 0.16}
    duplicate_bounds = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}
    assert bounds == {
        "gopher_words": (50, 100_000),
        "gopher_word_length": (3, 10),
        "gopher_hashes": (None, 0.1),
        "gopher_ellipses": (None, 0.1),
        "gopher_bullet_lines": (None, 0.9),
        "gopher_ellipsis_lines": (None, 0.3),
        "gopher_alphabetic_words": (0.8, None),
        "gopher_stop_words": (2, None),
        "gopher_duplicate_lines": (None, 0.3),
        "gopher_duplicate_paragraphs": (None, 0.3),
        "gopher_duplicate_lines_characters": (None, 0.2),
        "gopher_duplicate_paragraphs_characters": (None, 0.2),
        **{f"gopher_top_{n}gram": (None, bound) for n, bound in top_bounds.items()},
        **{f"gopher_duplicate_{n}grams": (None, bound) for n, bound in duplicate_bounds.items()},
        "c4_lorem_ipsum": (None, 0),
        "c4_curly_brackets": (None, 0),
        "c4_sentences": (5, None),
        "fineweb_terminal_lines": (0.12, None),
        "fineweb_short_lines": (None, 0.67),
        "fineweb_duplicate_characters": (None, 0.1),
        "fineweb_feeds_per_word": (None, 0.3),
    }


def test_every_rule_of_a_preset_uses_a_quality_signal_and_removes():
    for preset in PRESET_RULES:
        for rule in SelectConfig(presets=(preset,)).rules:
            assert rule.signal in SIGNALS.names and rule.action == "remove"


def load_select_config(**section):
    sources = [{"kind": "text", "name": "s", "path": "x"}]
    return load_config({"name": "x", "ingest": {"sources": sources}, "select": section}).select


def test_no_preset_is_used_by_default():
    assert load_select_config() == SelectConfig() and not load_select_config().rules
    assert not load_config("demo").select.rules and not load_config("smoke").select.rules


def test_presets_come_before_other_rules_and_are_overridden_by_name():
    rules = {
        "language": {"any_of": ["en"]},
        "c4_sentences": {"ge": 3},
        "fineweb_short_lines": {"action": "tag"},
    }
    config = load_select_config(presets=["fineweb", "c4"], rules=rules)
    assert [rule.name for rule in config.rules] == [
        *PRESET_RULES["fineweb"],
        *PRESET_RULES["c4"],
        "language",
    ]
    by_name = {rule.name: rule for rule in config.rules}
    assert by_name["c4_sentences"] == SelectionRule(name="c4_sentences", ge=3)
    assert by_name["fineweb_short_lines"].action == "tag"
    assert by_name["fineweb_short_lines"].le == 0.67
    assert SelectConfig.model_validate(config.model_dump(mode="json")) == config
    assert (
        load_select_config(
            presets=["fineweb", "c4"], rules=[{"name": n, **r} for n, r in rules.items()]
        )
        == config
    )
    given_rule = SelectionRule(name="c4_sentences", ge=3)
    assert SelectConfig(presets=("c4",), rules=(given_rule,)).rules[-1] == given_rule
    assert len(load_select_config(presets=["c4", "c4"]).rules) == len(PRESET_RULES["c4"])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"presets": ["gofer"]}, r"select\.presets\.0: .*'gopher', 'c4' or 'fineweb'"),
        ({"presets": "gopher"}, r"select\.presets: "),
        ({"presets": [["c4"]]}, r"select\.presets\.0: "),
        ({"presets": 7}, r"select\.presets: "),
        ({"presets": ["c4"], "rules": 7}, r"select\.rules: "),
        ({"presets": ["c4"], "rules": [7]}, r"select\.rules\.0: "),
        ({"presets": ["c4"], "rules": [{"name": "c4_sentences", "ge": 1}] * 2}, "two rules have"),
    ],
)
def test_invalid_presets_and_rules_are_rejected_with_their_place(section, message):
    with pytest.raises(UsageError, match=message):
        load_select_config(**section)


def test_the_listed_settings_describe_the_presets():
    [row] = [r for r in list_settings("select") if r["key"] == "presets"]
    assert row["default"] == [] and '"gopher", "c4", "fineweb"' in row["allowed_values"]
    for rules in PRESET_RULES.values():
        assert all(name in row["meaning"] for name in rules)
    assert "gopher_words ≥ 50 and ≤ 100,000" in row["meaning"]
