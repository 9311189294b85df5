"""Compare overlaps with sets of items with a plain Python implementation."""

import json
import random
import re
import string
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.measures.overlap import build_overlap_index, find_overlaps
from tests.tasks.corpus.test_sketches import plain

#: Sizes in sixths of a word.
WORD = 6


def split_words(text):
    """Return the words of a text, and the letters of scripts without spaces with their signs."""
    text = re.sub(r"[^\w\u0300-\u0fff]|_", " ", plain(text))
    return re.findall(r"[\u3040-\u9fffก-๎][\u0e31\u0e34-\u0e4eー]*|[^\W\u3040-\u9fffก-๎]+", text)


def measure_word(word):
    """Return the size of a word: two ideographs or kana are a word, or three Thai letters."""
    return 3 if "\u3040" <= word[0] <= "\u9fff" else 2 if "ก" <= word[0] <= "๎" else WORD


def measure_words(words):
    return sum(map(measure_word, words))


def take_ngram(words, n):
    """Return the words at the beginning that have the size of n words; None if there are fewer."""
    for count in range(len(words) + 1):
        if measure_words(words[:count]) >= n * WORD:
            return tuple(words[:count])
    return None


def list_ngrams(words, n):
    return {take_ngram(words[start:], n) for start in range(len(words))} - {None}


LABELS = (
    string.ascii_lowercase[:10],
    [*map(str, range(1, 11))],
    ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"],
    "абвгдежзик",
    "アイウエオカキクケコ",
    "กขคงจฉชซฌญ",
)


def list_item_ngrams(texts, n):
    """The n-grams within one text, and those from the question to the texts after it.

    The latter have all words of the question, at least four, or half of the n-gram. No generated
    question names a subject in Chinese.
    """
    question, *others = [split_words(text) for text in texts]
    ngrams = set().union(*(list_ngrams(words, n) for words in (question, *others)))
    ends = [question[start:] for start in range(len(question))]
    ends = [end for end in ends if measure_words(end) < n * WORD]
    sizes = {measure_word(word) for word in chain(*ends, *others)}
    labelled_texts = [
        [*chain(*([label, *words] for label, words in zip(labels, others, strict=False)))]
        for labels in LABELS
        if measure_word(labels[0]) in range(min(sizes, default=0), WORD + 1)
    ]
    short_texts = [words for words in others if measure_words(words) < n * WORD]
    min_size = min(max(measure_words(question), 3 * WORD + 1), n * WORD / 2)
    for continuation in [*short_texts, [*chain(*others)], *labelled_texts]:
        ngrams |= {
            take_ngram(end + continuation, n) for end in ends if measure_words(end) >= min_size
        } - {None}
    return ngrams


def find_overlaps_in_plain_python(texts, items, n):
    return [
        (number, item)
        for number, text in enumerate(texts)
        for item, content in enumerate(items)
        if list_ngrams(split_words(text), n) & list_item_ngrams(content, n)
    ]


def list_overlaps(texts, items, n=13):
    pairs = find_overlaps(pa.array(texts, pa.large_string()), build_overlap_index(items, n))
    return list(zip(*(side.tolist() for side in pairs), strict=True))


word = st.sampled_from(["a", "B", "c,", "d.", "é", "(f)", "漢", "字。", "コー", "ก", "ขี่", "ア"])
text = st.lists(word, max_size=14).map(" ".join)
item = st.lists(text, min_size=1, max_size=4)


@settings(deadline=None, max_examples=200)
@given(st.lists(text, max_size=6), st.lists(item, max_size=5), st.integers(1, 6))
def test_overlaps_equal_those_of_plain_python(texts, items, n):
    texts = [*texts, *map(" ".join, items), *(" (a) ".join(item) for item in items)]
    assert list_overlaps(texts, items, n) == find_overlaps_in_plain_python(texts, items, n)
    index = build_overlap_index(items, n)
    sizes = [[measure_words(split_words(text)) for text in texts] for texts in items]
    assert index.item_count == len(items)
    assert index.skipped_item_count == sum(not list_item_ngrams(texts, n) for texts in items)
    assert index.short_text_count == sum(0 < size < n * WORD for size in chain(*sizes))


def test_thirteen_consecutive_words_overlap_and_twelve_do_not():
    chance = random.Random(1)
    words = [f"w{chance.randrange(10**9)}" for _ in range(30)]
    long = "before. " + " ".join(words[5:18]).upper() + ", after"
    short = "before. " + " ".join(words[5:17]) + ", after"
    assert list_overlaps([long, short], [[" ".join(words)]]) == [(0, 0)]


@pytest.mark.parametrize(
    "text",
    ["None of the above", "It is not the case", "以上都不是", "今天天气很好", "12 + 30 = 42", "?"],
)
def test_a_short_item_is_not_searched_for(text):
    assert list_overlaps([f"He wrote: {text}. Then he left.", text], [[text], ["", text]]) == []
    assert build_overlap_index([[text], ["", text]]).skipped_item_count == 2


def test_a_short_answer_is_found_only_after_its_question():
    question = "Which river of the county is the longest one?"  # 9 words
    items = [[question, "The Elm, the old one", "The Ash river near the town"]]
    found = [
        f"{question} The Ash river near the town",
        f"Quiz: {question} the elm the old one; the Ash.",
        f"{question}\n(A) The Elm, the old one\n(B) The Ash river near the town",
        f"{question}\n1. The Elm, the old one\n2. The Ash river near the town",
        "of the county is the longest one? The Elm, the old one; the Ash",
    ]
    missed = [
        "the county is the longest one? The Elm, the old one; the Ash river near the town!",
        question,
        "The Ash river near the town is longer than the Elm, the old one, I think.",
        "The Elm, the old one, the Ash river near the town, is the longest one of all.",
        f"{question} It is the Ash river near the town.",
    ]
    assert list_overlaps([*found, *missed], items) == [(n, 0) for n in range(5)]
    index = build_overlap_index(items)
    assert (index.item_count, index.skipped_item_count, index.short_text_count) == (1, 0, 3)


@pytest.mark.parametrize(
    ("question", "is_found"),
    [
        ("谁发明了电话？", True),
        ("水力磨在哪？", False),  # five characters
        ("水力磨坊在哪？", True),
        ("電話發明者？", False),
        ("電話の発明者？", True),
        ("下列哪項磨坊？", False),  # two characters name a subject
        ("以下何者正確？", False),
        ("これはどれか？", False),
    ],
)
def test_a_question_of_six_characters_about_a_subject_is_compared_with_its_choices(
    question, is_found
):
    choices = ["在老城区的桥旁边的河岸上", "在山上的城堡和教堂之间", "在海边"]
    items = [[question, *choices]]
    labelled = " ".join(f"{letter}. {text}" for letter, text in zip("ABC", choices, strict=True))
    for text in (f"{question}{'；'.join(choices)}", f"测验：{question} {labelled}。完"):
        assert list_overlaps([text], items) == [(0, 0)] * is_found
    for text in (question, "".join(choices), f"{question[:3]}{''.join(choices)}"):
        assert list_overlaps([text], items) == []
    assert build_overlap_index(items).skipped_item_count == 1 - is_found


def test_a_short_answer_after_six_ideographs_needs_thirteen_words_together():
    question, answer = "谁发明了电话？", "亚历山大贝尔"
    assert list_overlaps([question + answer], [[question, answer]]) == []
    assert build_overlap_index([[question, answer]]).skipped_item_count == 1
    assert list_overlaps([question + answer], [[question, answer]], n=6) == [(0, 0)]


def test_short_texts_without_a_question_are_not_searched_for_together():
    choices = ["All of the above are true", "None of the above are true", "It is not the case"]
    assert list_overlaps([" ".join(choices)], [["", *choices]]) == []
    assert list_overlaps([" ".join(choices)], [["Choose.", *choices]]) == []
    question = "Choose the right answer."
    assert list_overlaps([f"{question} {' '.join(choices)}"], [[question, *choices]]) == [(0, 0)]


def test_a_long_answer_is_found_without_its_question():
    answer = " ".join(f"word{n}" for n in range(13))
    assert list_overlaps([f"x {answer} y"], [["Why?", "No.", answer], ["", answer]]) == [
        (0, 0),
        (0, 1),
    ]


def test_an_ngram_of_several_items_overlaps_with_each():
    items = [["a b"], ["c d"], ["a b"], ["x y"], ["a b c d"]]
    assert list_overlaps(["a b, c d", "c d"], items, 2) == [
        *((0, item) for item in (0, 1, 2, 4)),
        *((1, item) for item in (1, 4)),
    ]


def test_short_texts_are_counted_without_empty_ones():
    index = build_overlap_index([["a b", "", "c"], ["a b c"], ["?", "a b"], ["a b c d"]], 3)
    assert (index.item_count, index.skipped_item_count, index.short_text_count) == (4, 1, 3)


def test_an_ngram_does_not_cross_texts_or_items():
    assert list_overlaps(["a b", "c d"], [["b c"]], 2) == []
    assert list_overlaps(["x b c", "c d"], [["b c"], ["c d"]], 2) == [(0, 0), (1, 1)]
    assert list_overlaps(["b c"], [["a b"], ["c d"]], 2) == []


@pytest.mark.parametrize("texts", [[], ["", "  "], ["!?"]])
def test_empty_texts_and_items_do_not_overlap(texts):
    assert list_overlaps(texts, []) == list_overlaps(texts, [[""], ["one"]], 1) == []
    assert list_overlaps([], [["a b c d"]], 2) == []


CASES = Path(__file__).parents[2] / "cases" / "corpus" / "contamination"


def read_cases(name):
    """Read items with a question, its choices and a text."""
    return [json.loads(line) for line in (CASES / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", read_cases("stock_choices"), ids=lambda case: case["question"])
def test_choices_of_many_items_are_no_overlap(case):
    assert list_overlaps([case["text"]], [[case["question"], *case["choices"]]]) == []


@pytest.mark.parametrize("case", read_cases("leaked_choices"), ids=lambda case: case["text"])
def test_a_question_copied_with_its_choices_is_an_overlap(case):
    assert list_overlaps([case["text"]], [[case["question"], *case["choices"]]]) == [(0, 0)]


#: Names of an authority, schools and a station, without the items around them.
NAMES = [
    "中国社会科学院世界经济与政治研究所",
    "独立行政法人国立高等専門学校機構",
    "インターナショナルコンピューターセンター",
    "มหาวิทยาลัยเทคโนโลยีราชมงคลกรุงเทพ",
    "มหาวิทยาลัยเทคโนโลยีพระจอมเกล้าพระนครเหนือ",
    "กระทรวงดิจิทัลเพื่อเศรษฐกิจและสังคม",
    "ວິທະຍາໄລເຕັກນິກແຫ່ງຊາດລາວ",
    "សាកលវិទ្យាល័យភូមិន្ទភ្នំពេញ",
    "နည်းပညာတက္ကသိုလ်ရန်ကုန်",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_script_without_spaces_is_no_overlap(name):
    item = f"x y z {name} v w"
    assert list_overlaps([f"a b {name} c d", name], [[item], ["", item]]) == []


@pytest.mark.parametrize(
    ("letters", "signs", "ngram_letters"),
    [
        ([chr(0x4E00 + n) for n in range(60)], [""], 26),
        ([chr(0x3041 + n) for n in range(60)], ["", "ー"], 26),
        ([chr(0xE01 + n) for n in range(46)], ["", "\u0e34", "\u0e35\u0e48"], 39),
        ([chr(0x1780 + n) for n in range(35)] * 2, ["", "\u17b7"], 39),
    ],
    ids=["Han", "kana", "Thai", "Khmer"],
)
def test_several_letters_without_signs_are_one_word(letters, signs, ngram_letters):
    chance = random.Random(2)
    parts = [letter + chance.choice(signs) for letter in letters]
    passages = ["".join(parts[3 : 3 + ngram_letters - k]) for k in (0, 1)]
    assert list_overlaps(passages, [["".join(parts)]]) == [(0, 0)]
    assert list_overlaps(passages[:1], [[passages[1]]]) == []


def test_spaces_between_letters_without_spaces_make_no_difference():
    item = "老磨坊的主人每天卖黑麦面粉给村里的人，他的儿子在河边种小麦和燕麦。"
    assert list_overlaps([" ".join(item), item], [[item], [" ".join(item)]]) == [
        *((0, 0), (0, 1), (1, 0), (1, 1))
    ]


def test_words_between_letters_without_spaces_count_as_words():
    text = "他用 Python 写 code 卖 flour 给 villagers 吃 bread 和 oats 在 river 边"
    near_text, long_text = f"{text} near", f"{text} near the"
    assert list_overlaps([near_text], [[near_text]]) == []  # 8 words and 9 letters: 12.5 words
    assert list_overlaps([long_text, near_text], [[long_text]]) == [(0, 0)]


@pytest.mark.parametrize(("answer_words", "is_found"), [(12, True), (13, False)])
def test_only_a_short_answer_after_the_first_continues_the_question(answer_words, is_found):
    """A longer one is found without its question, if 13 words of it are there."""
    question = "Which river of the county is the longest one?"
    answer = [f"word{n}" for n in range(answer_words)]
    text = f"{question} {' '.join(answer[:6])}"
    assert list_overlaps([text], [[question, "The Elm", " ".join(answer)]]) == [(0, 0)] * is_found
