"""Test the invented town: an independent reader finds in the texts what the truth records."""

import hashlib
import re
import subprocess
import sys
from collections import Counter
from itertools import islice

import pyarrow as pa
import pytest
from pydantic import ValidationError
from scipy.stats import binomtest
from sklearn.feature_extraction.text import CountVectorizer

from hallmark.tasks.contract import HallmarkError, hash_to_ids
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.readers import TOO_LONG
from hallmark.tasks.corpus.reading.town_source import (
    TownSource,
    compose_town_block,
    list_labels_by_block_number,
    read_town_documents,
)
from hallmark.tasks.corpus.town.documents import (
    BLOCK_DOCUMENTS,
    REGISTER_BY_KIND,
    TownRates,
    compose_block,
    compute_shingle_similarity,
    load_women_shares_by_occupation,
    load_words_by_people,
)
from hallmark.tasks.corpus.town.grammar import (
    DATA_FOLDER,
    RULE_FILES,
    AnnotatedText,
    GrammarExpander,
    KeyedRandom,
    RuleSlot,
    load_lines_by_rule,
    parse_lines_by_rule,
)
from hallmark.tasks.corpus.town.personal_data import GENERATOR_BY_TYPE, generate_personal_value
from hallmark.tasks.measures.identities import find_term_mentions, load_builtin_lexicon
from hallmark.tasks.measures.personal_data import find_personal_data_spans


@pytest.fixture(scope="module")
def town():
    return [
        d
        for number in range(3)
        for d in compose_block(number, 3 * BLOCK_DOCUMENTS, 11, TownRates())
    ]


def split_sentences(text):
    return re.split(r"(?<=[.!?])\s+|\n+", text)


def find_words(pattern, text):
    return set(re.findall(rf"\b(?:{pattern})\b", text.lower()))


# Truth -------------------------------------------------------------------------------------------


def test_the_peoples_of_a_document_are_those_in_its_text(town):
    for document in town:
        mentioned = {
            g
            for g, terms in load_words_by_people().items()
            if find_words("|".join(terms), document.text)
        }
        assert mentioned == set(document.truth.groups), document.text
    assert all(sum(g in d.truth.groups for d in town) > 20 for g in load_words_by_people())


def test_occupations_are_near_words_of_the_recorded_gender(town):
    gendered = {"women": "she|her|hers|herself", "men": "he|him|his|himself"}
    for document in town:
        pairs = set()
        for sentence in split_sentences(document.text):
            jobs = find_words("|".join(load_women_shares_by_occupation()), sentence)
            genders = {g for g, pattern in gendered.items() if find_words(pattern, sentence)}
            pairs |= {(job, gender) for job in jobs for gender in genders}
        assert pairs == set(document.truth.occupations), document.text


def find_opinions(text):
    """Yield (people, sign) by matching lines of the grammar with any text in their other slots."""
    for rule, sign in (("praise", "positive"), ("blame", "negative")):
        for line in load_lines_by_rule()[rule]:
            names = [p.name for p in line if isinstance(p, RuleSlot)]
            people_slot = next(i for i, name in enumerate(names) if name.startswith("group"))
            slots = ["(.+?)"] * len(names)
            slots[people_slot] = r"(\w+(?: \w+)?)"
            slot_patterns = iter(slots)
            pattern = "".join(
                re.escape(p.text) if isinstance(p, AnnotatedText) else next(slot_patterns)
                for p in line
            )
            for match in re.finditer(pattern, text):
                last_word = match[people_slot + 1].split()[-1].lower()  # without its article
                [group] = [g for g, terms in load_words_by_people().items() if last_word in terms]
                yield group, sign


def test_opinions_are_those_in_the_text(town):
    for document in town:
        assert list(find_opinions(document.text)) == list(document.truth.opinions), document.text


RUDE_WORDS = "damn|damned|bloody|bastard|arse|crap|shit|shitty|bullshit|idiot|piss|bugger|sod|hell"


def test_rude_speech_dialect_and_unsafe_passages_are_as_recorded(town):
    for document in town:
        truth, text = document.truth, document.text
        lookalikes = re.findall(
            "bastard file|hell-fire| ass |cock|tits|screw|the nuts|stupid shape|dam below",
            text,
            re.IGNORECASE,
        )
        assert bool(lookalikes) == truth.has_lookalike, text
        rude = find_words(RUDE_WORDS, re.sub("bastard file|hell-fire", "", text))
        assert bool(rude) == bool(truth.rude_sentences), text
        dialect = find_words("eyla|dossen|wennet|thrip|ollen|quarl|brim|telled", text)
        assert bool(dialect) == truth.has_dialect, text
        unsafe = re.search(
            "poison|bomb|frost: one part|blow up|Death Cordial|Break into|be rid of|melt a bridge",
            text,
            re.IGNORECASE,
        )
        assert bool(unsafe) == truth.is_unsafe, text


def test_the_detectors_find_exactly_the_recorded_personal_data(town):
    """The detectors do not know the grammar."""
    planted = Counter()
    for document in town:
        spans = {(s.type, s.start, s.end) for s in find_personal_data_spans(document.text)}
        assert spans == {tuple(span) for span in document.personal_spans}, document.text
        planted.update(span.type for span in document.personal_spans)
        assert {span.type for span in document.personal_spans} == set(document.truth.personal_types)
    assert set(planted) == set(GENERATOR_BY_TYPE) and min(planted.values()) > 5


def test_the_detectors_find_every_format_of_personal_data():
    for kind in GENERATOR_BY_TYPE:
        rng = KeyedRandom("formats", kind)
        for _ in range(400):
            value = generate_personal_value(kind, rng)
            assert [
                (s.type, s.start, s.end) for s in find_personal_data_spans(f"see {value} there")
            ] == [(kind, 4, 4 + len(value))], value


def test_women_and_men_are_the_only_real_groups_mentioned(town):
    texts = pa.array([document.text for document in town], pa.large_string())
    term_indices = find_term_mentions(texts).term_indices
    groups = {load_builtin_lexicon().terms[n].group for n in set(term_indices.tolist())}
    assert groups == {"women", "men"}
    terms = {term for _, term in load_builtin_lexicon().terms}
    assert not terms & {term for terms in load_words_by_people().values() for term in terms}


# Rates -------------------------------------------------------------------------------------------


def compute_p_value(hits, n, share):
    return binomtest(hits, n, share).pvalue


def test_shares_are_as_configured():
    rates = TownRates(
        groups=0.5,
        opinions=0.5,
        negative_opinions=0.2,
        negative_opinions_by_group={"Ildriths": 0.9},
        rude_speech=0.25,
        women_by_occupation={"cooper": 0.9},
        dialect=0.3,
        personal_data=0.2,
        unsafe_passages=0.1,
        rude_lookalikes=0.15,
        exact_copies=0.1,
        near_copies=0.1,
    )
    documents = [
        d for number in range(6) for d in compose_block(number, 6 * BLOCK_DOCUMENTS, 3, rates)
    ]
    truths = [d.truth for d in documents if not d.copy_kind]
    shares = {
        "rude_sentences": 0.25,
        "has_dialect": 0.3,
        "personal_types": 0.2,
        "is_unsafe": 0.1,
        "has_lookalike": 0.15,
        "groups": 0.5,
        "occupations": 0.35,
    }
    for name, share in shares.items():
        assert (
            compute_p_value(sum(bool(getattr(t, name)) for t in truths), len(truths), share) > 1e-4
        ), name
    for copy_kind in ("exact", "near"):
        assert (
            compute_p_value(sum(d.copy_kind == copy_kind for d in documents), len(documents), 0.1)
            > 1e-4
        ), copy_kind
    opinions = [pair for truth in truths for pair in truth.opinions]
    assert compute_p_value(len(opinions), sum(bool(t.groups) for t in truths), 0.5) > 1e-4
    for group in load_words_by_people():
        signs = [sign for target, sign in opinions if target == group]
        share = 0.9 if group == "Ildriths" else 0.2
        assert compute_p_value(signs.count("negative"), len(signs), share) > 1e-4, group
    pairs = [pair for truth in truths for pair in truth.occupations]
    for job, default_share in load_women_shares_by_occupation().items():
        genders = [gender for name, gender in pairs if name == job]
        share = 0.9 if job == "cooper" else default_share
        assert compute_p_value(genders.count("women"), len(genders), share) > 1e-4, job
    assert {truth.kind for truth in truths} == set(REGISTER_BY_KIND)


def test_unknown_peoples_and_occupations_are_refused():
    with pytest.raises(ValidationError, match=r"no people named 'Martians'; it has Orvelings, "):
        TownRates(negative_opinions_by_group={"Martians": 0.5})
    with pytest.raises(ValidationError, match="no occupation named 'pirate'"):
        TownRates(women_by_occupation={"pirate": 0.5})


# Copies ------------------------------------------------------------------------------------------


def test_copies_are_as_recorded(town):
    by_number = {d.number: d for d in town}
    kinds = Counter()
    for document in town:
        if not document.copy_kind:
            assert document.copy_of is None
            continue
        original = by_number[document.copy_of]
        is_identical = document.text.split() == original.text.split()
        assert is_identical == (document.copy_kind == "exact")
        assert not original.copy_kind and document.truth == original.truth
        kinds[document.copy_kind] += 1
    assert min(kinds["exact"], kinds["near"]) > 20
    originals = [d.copy_of for d in town if d.copy_kind]
    assert len(set(originals)) == len(originals)


def test_the_similarity_of_copies_is_the_jaccard_similarity(town):
    by_number = {d.number: d.text for d in town}
    for document in [d for d in town if d.copy_kind == "near"][:40]:
        pair = [document.text, by_number[document.copy_of]]
        counts = CountVectorizer(ngram_range=(5, 5), token_pattern=r"\S+", binary=True)
        first, second = counts.fit_transform(pair).toarray().astype(bool)
        assert compute_shingle_similarity(*pair) == pytest.approx(
            (first & second).sum() / (first | second).sum()
        )


def test_accidental_near_copies_are_rare_and_the_prose_varies(session):
    """Measured with Hallmark's own deduplication."""
    ingested = ingest(
        IngestConfig(sources=[{"kind": "town", "documents": 4 * BLOCK_DOCUMENTS, "seed": 5}])
    )
    unique_documents = deduplicate(ingested, {}, DeduplicateConfig())
    near_unique = deduplicate_near(unique_documents, {}, DeduplicateNearConfig())
    ledger = [
        row
        for stage in (unique_documents, near_unique)
        for row in stage["ledger"].read().to_pylist()
    ]
    source = TownSource(kind="town", documents=4 * BLOCK_DOCUMENTS, seed=5)
    documents = [
        d
        for number in list_labels_by_block_number(source)
        for d in compose_town_block(source, number)
    ]
    document_by_id = dict(
        zip(
            hash_to_ids(f"town\0key\0{d.number}" for d in documents).to_pylist(),
            documents,
            strict=True,
        )
    )
    original_by_id = {i: d.copy_of if d.copy_kind else d.number for i, d in document_by_id.items()}
    accidental_matches = [
        r for r in ledger if original_by_id[r["doc_id"]] != original_by_id[r["matched_doc_id"]]
    ]
    assert len(ledger) > 50 and len(accidental_matches) < 0.01 * len(documents)
    all_sentences = [
        s
        for d in documents
        if not d.copy_kind
        for s in split_sentences(d.text)
        if len(s.split()) > 3
    ]
    assert len(set(all_sentences)) > 0.8 * len(all_sentences)
    lengths = sorted(len(d.text) for d in documents)
    assert lengths[0] < 100 and lengths[-1] > 2000
    assert {len(d.text.splitlines()) == 1 for d in documents} == {True, False}


# Reproducibility ---------------------------------------------------------------------------------

PROGRAM = (
    "import hashlib; from hallmark.tasks.corpus.town.documents import TownRates, compose_block;"
    "print(hashlib.sha256(repr([(d.text, d.truth, d.personal_spans) for d in "
    "compose_block(1, 900, 2, TownRates())])"
    ".encode()).hexdigest())"
)


def test_the_same_seed_gives_the_same_documents_in_every_process():
    digests = set()
    for seed in ("1", "2"):
        process = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        )
        digests.add(process.stdout)
    assert len(digests) == 1 and len(digests.pop().strip()) == 64


def test_random_numbers_are_blake2b_in_counter_mode():
    rng = KeyedRandom(7, "x")
    drawn = [rng.draw_below(1000) for _ in range(10)]
    data = [
        hashlib.blake2b(b"7\0x" + i.to_bytes(8, "big"), person=b"town").digest() for i in range(2)
    ]
    numbers = [int.from_bytes(d[i : i + 8], "little") for d in data for i in range(56, -1, -8)]
    assert drawn == [number * 1000 // 2**64 for number in numbers[:10]]


def test_texts_depend_on_the_seed_but_not_on_the_size_of_the_town():
    texts = [
        [d.text for d in compose_block(0, n, seed, TownRates())]
        for n, seed in ((BLOCK_DOCUMENTS, 0), (2 * BLOCK_DOCUMENTS, 0), (BLOCK_DOCUMENTS, 1))
    ]
    assert texts[0] == texts[1] and not set(texts[0]) & set(texts[2])


# The grammar -------------------------------------------------------------------------------------


def test_a_grammar_is_parsed_with_its_slots():
    rules = parse_lines_by_rule("# comment\n== a\nx {b}\n{^a b=c}, {$d}¶{!EMAIL}\n\n== b\nowl")
    assert rules["b"] == [(AnnotatedText("owl"),)]
    assert rules["a"] == [
        (AnnotatedText("x "), RuleSlot("b")),
        (
            RuleSlot("b", True, True, bound_variable="c"),
            AnnotatedText(", "),
            RuleSlot("d", is_variable=True),
            AnnotatedText("\n"),
            RuleSlot("EMAIL", is_personal=True),
        ),
    ]
    with pytest.raises(ValueError, match=r"slot in line .* of a rule is invalid"):
        parse_lines_by_rule("== a\nx {b c}")


def test_a_line_is_expanded_with_articles_capitals_and_spans():
    expander = GrammarExpander(KeyedRandom(1), {"year": "200"}, lambda kind, rng: f"<{kind}>")
    (line,) = parse_lines_by_rule("== x\n{^a animal=it} and {$it} in {$year}: {!IP}, {a thing}")[
        "x"
    ]
    expanded = expander.expand_line(line)
    animal = expander.variables["it"]
    article = "An" if animal[0] in "aeiou" else "A"
    assert expanded.text.startswith(f"{article} {animal} and {animal} in 200: <IP>, a")
    assert [expanded.text[span.start : span.end] for span in expanded.spans] == ["<IP>"]


@pytest.mark.parametrize("line", ["{$a}", "{$a}!", "x {$a}", "x {$a}! {$b}", "¶{^$b}{$a}"])
def test_every_part_of_a_line_is_expanded(line):
    expander = GrammarExpander(KeyedRandom(1), {"a": "one", "b": "two"}, lambda kind, rng: kind)
    expected = line.replace("{$a}", "one").replace("{$b}", "two").replace("{^$b}", "Two")
    assert expander.expand_line(
        parse_lines_by_rule(f"== x\n{line}")["x"][0]
    ).text == expected.replace("¶", "\n")


def test_every_rule_is_used_and_no_line_is_repeated():
    rules = {}
    for name in RULE_FILES:
        rules |= parse_lines_by_rule((DATA_FOLDER / name).read_text())
    used = {
        p.name
        for lines in rules.values()
        for line in lines
        for p in line
        if isinstance(p, RuleSlot)
    } | set(GENERATOR_BY_TYPE)
    used |= {f"{kind}.{part}" for kind in REGISTER_BY_KIND for part in ("open", "body", "close")}
    used |= {"praise", "blame", "group", "job", "rude", "lookalike", "dialect", "unsafe"}
    assert set(rules) <= used
    for name, lines in rules.items():
        line_counts = Counter(lines)
        if name not in ("person", "place", "spot"):  # where repetition is a weight
            assert max(line_counts.values()) == 1, (name, line_counts.most_common(1))


# The source --------------------------------------------------------------------------------------


def test_ingest_reads_a_town_and_its_accounts_add_up(session):
    size = BLOCK_DOCUMENTS + 37
    town = {"kind": "town", "name": "here", "documents": size, "seed": 4}
    artifact = ingest(
        IngestConfig(sources=[town], max_document_bytes=1000, partition_bytes=100_000)
    )
    rows = artifact["documents"].read(["doc_id", "text"]).to_pylist()
    source = TownSource(**town)
    documents = [
        d
        for number in list_labels_by_block_number(source)
        for d in compose_town_block(source, number)
    ]
    short_texts = {d.number: d.text for d in documents if len(d.text.encode()) <= 1000}
    expected = dict(
        zip(
            hash_to_ids(f"here\0key\0{n}" for n in short_texts).to_pylist(),
            short_texts.values(),
            strict=True,
        )
    )
    assert {row["doc_id"]: row["text"] for row in rows} == expected
    accounts_by_unit = {b["unit"]: b for b in artifact["accounts"].read().to_pylist()}
    assert accounts_by_unit["rows"]["input"] == size and accounts_by_unit["rows"]["kept"] == len(
        short_texts
    )
    assert accounts_by_unit["rows"]["quarantined"] == size - len(short_texts) > 0
    assert accounts_by_unit["bytes"]["input"] == sum(len(d.text.encode()) for d in documents)
    origins = artifact["origins"].read(["file_name", "location"]).to_pylist()
    assert {p["file_name"] for p in origins} == {"documents 1 to 500", "documents 501 to 537"}


def test_a_town_with_only_too_long_documents_is_refused(session):
    with pytest.raises(HallmarkError, match="no documents could be read"):
        ingest(IngestConfig(sources=[{"kind": "town", "documents": 3}], max_document_bytes=10))


def test_records_are_read_one_by_one():
    counts = ReadCounts()
    source = TownSource(kind="town", documents=20)
    first_records = list(islice(read_town_documents(source, "0", 1 << 20, counts), 5))
    assert [r.key for r in first_records] == ["0", "1", "2", "3", "4"] and counts.record_count == 5
    assert [r.location for r in first_records] == [f"document {n}" for n in range(1, 6)]


def test_a_document_of_as_many_bytes_as_the_limit_is_read():
    source = TownSource(kind="town", documents=20)
    all_records = list(read_town_documents(source, "0", 1 << 20, ReadCounts()))
    limit = sorted(r.raw_bytes for r in all_records)[10]
    counts = ReadCounts()
    for full_record, record in zip(
        all_records, read_town_documents(source, "0", limit, counts), strict=True
    ):
        assert record.raw_bytes == full_record.raw_bytes == len(full_record.text.encode())
        if record.raw_bytes > limit:
            assert (record.error, record.text, record.raw) == (
                TOO_LONG,
                "",
                full_record.text.encode(),
            )
        else:
            assert (record.error, record.text) == ("", full_record.text)
    assert (counts.record_count, counts.byte_count) == (20, sum(r.raw_bytes for r in all_records))


def test_a_town_has_one_to_ten_million_documents():
    for count in (1, 10_000_000):
        assert TownSource(kind="town", documents=count).documents == count
    for count in (0, 10_000_001):
        with pytest.raises(ValidationError):
            TownSource(kind="town", documents=count)
