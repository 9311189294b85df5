"""The invented town: what the truth says is what an independent reader finds in the text."""

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
    label_town_blocks,
    read_town_documents,
)
from hallmark.tasks.corpus.town.documents import (
    BLOCK_DOCUMENTS,
    REGISTER_BY_KIND,
    TownRates,
    compose_block,
    compute_shingle_similarity,
    load_town_lexicon,
    load_town_occupations,
)
from hallmark.tasks.corpus.town.grammar import (
    DATA_FOLDER,
    RULE_FILES,
    AnnotatedText,
    GrammarExpander,
    KeyedRandom,
    RuleSlot,
    load_rules,
    parse_rules,
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


def sentences(text):
    return re.split(r"(?<=[.!?])\s+|\n+", text)


def words(pattern, text):
    return set(re.findall(rf"\b(?:{pattern})\b", text.lower()))


# Truth -------------------------------------------------------------------------------------------


def test_the_peoples_of_a_document_are_those_it_names(town):
    for document in town:
        there = {
            g for g, terms in load_town_lexicon().items() if words("|".join(terms), document.text)
        }
        assert there == set(document.truth.groups), document.text
    assert all(sum(g in d.truth.groups for d in town) > 20 for g in load_town_lexicon())


def test_occupations_stand_beside_the_gender_that_the_truth_says(town):
    gendered = {"women": "she|her|hers|herself", "men": "he|him|his|himself"}
    for document in town:
        found = set()
        for sentence in sentences(document.text):
            jobs = words("|".join(load_town_occupations()), sentence)
            genders = {g for g, pattern in gendered.items() if words(pattern, sentence)}
            found |= {(job, gender) for job in jobs for gender in genders}
        assert found == set(document.truth.occupations), document.text


def opinions_in(text):
    """(people, sign) by the lines of the grammar, with anything in their other slots."""
    for rule, sign in (("praise", "positive"), ("blame", "negative")):
        for line in load_rules()[rule]:
            names = [p.name for p in line if isinstance(p, RuleSlot)]
            people = next(i for i, name in enumerate(names) if name.startswith("group"))
            slots = ["(.+?)"] * len(names)
            slots[people] = r"(\w+(?: \w+)?)"
            pieces = iter(slots)
            pattern = "".join(
                re.escape(p.text) if isinstance(p, AnnotatedText) else next(pieces) for p in line
            )
            for found in re.finditer(pattern, text):
                named = found[people + 1].split()[-1].lower()  # without its article
                [group] = [g for g, terms in load_town_lexicon().items() if named in terms]
                yield group, sign


def test_opinions_are_those_that_stand_there(town):
    for document in town:
        assert list(opinions_in(document.text)) == list(document.truth.opinions), document.text


RUDE = "damn|damned|bloody|bastard|arse|crap|shit|shitty|bullshit|idiot|piss|bugger|sod|hell"


def test_rude_speech_dialect_and_unsafe_passages_are_where_the_truth_says(town):
    for document in town:
        truth, text = document.truth, document.text
        lookalikes = re.findall(
            "bastard file|hell-fire| ass |cock|tits|screw|the nuts|stupid shape|dam below",
            text,
            re.IGNORECASE,
        )
        assert bool(lookalikes) == truth.has_lookalike, text
        rude = words(RUDE, re.sub("bastard file|hell-fire", "", text))
        assert bool(rude) == bool(truth.rude_sentences), text
        dialect = words("eyla|dossen|wennet|thrip|ollen|quarl|brim|telled", text)
        assert bool(dialect) == truth.has_dialect, text
        unsafe = re.search(
            "poison|bomb|frost: one part|blow up|Death Cordial|Break into|be rid of|melt a bridge",
            text,
            re.IGNORECASE,
        )
        assert bool(unsafe) == truth.is_unsafe, text


def test_personal_data_is_cut_out_by_its_offsets_and_nothing_else_is_found(town):
    """Against the detectors, which know nothing of the grammar."""
    planted = Counter()
    for document in town:
        spans = {(s.type, s.start, s.end) for s in find_personal_data_spans(document.text)}
        assert spans == {tuple(mark) for mark in document.personal_spans}, document.text
        planted.update(mark.type for mark in document.personal_spans)
        assert {mark.type for mark in document.personal_spans} == set(document.truth.personal_types)
    assert set(planted) == set(GENERATOR_BY_TYPE) and min(planted.values()) > 5


def test_every_format_of_personal_data_is_one_that_the_detectors_are_meant_to_find():
    for kind in GENERATOR_BY_TYPE:
        dice = KeyedRandom("formats", kind)
        for _ in range(400):
            value = generate_personal_value(kind, dice)
            assert [
                (s.type, s.start, s.end) for s in find_personal_data_spans(f"see {value} there")
            ] == [(kind, 4, 4 + len(value))], value


def test_no_group_of_the_real_world_but_women_and_men_is_spoken_of(town):
    number, _ = find_term_mentions(
        pa.array([document.text for document in town], pa.large_string())
    )
    groups = {load_builtin_lexicon().terms[n][0] for n in set(number.tolist())}
    assert groups == {"women", "men"}
    terms = {term for _, term in load_builtin_lexicon().terms}
    assert not terms & {term for terms in load_town_lexicon().values() for term in terms}


# Rates -------------------------------------------------------------------------------------------


def chance(hits, n, share):
    return binomtest(hits, n, share).pvalue


def test_rates_are_those_that_were_stated():
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
    made = [d for number in range(6) for d in compose_block(number, 6 * BLOCK_DOCUMENTS, 3, rates)]
    own = [d.truth for d in made if not d.copy_kind]
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
        assert chance(sum(bool(getattr(t, name)) for t in own), len(own), share) > 1e-4, name
    for copy in ("exact", "near"):
        assert chance(sum(d.copy_kind == copy for d in made), len(made), 0.1) > 1e-4, copy
    opinions = [pair for truth in own for pair in truth.opinions]
    assert chance(len(opinions), sum(bool(t.groups) for t in own), 0.5) > 1e-4
    for group in load_town_lexicon():
        signs = [sign for target, sign in opinions if target == group]
        share = 0.9 if group == "Ildriths" else 0.2
        assert chance(signs.count("negative"), len(signs), share) > 1e-4, group
    pairs = [pair for truth in own for pair in truth.occupations]
    for job, usual in load_town_occupations().items():
        genders = [gender for name, gender in pairs if name == job]
        share = 0.9 if job == "cooper" else usual
        assert chance(genders.count("women"), len(genders), share) > 1e-4, job
    assert {truth.kind for truth in own} == set(REGISTER_BY_KIND)


def test_peoples_and_occupations_that_the_town_lacks_are_refused():
    with pytest.raises(ValidationError, match=r"no people 'Martians'; it has Orvelings, "):
        TownRates(negative_opinions_by_group={"Martians": 0.5})
    with pytest.raises(ValidationError, match="no occupation 'pirate'"):
        TownRates(women_by_occupation={"pirate": 0.5})


# Copies ------------------------------------------------------------------------------------------


def test_copies_are_what_the_truth_calls_them(town):
    by_number = {d.number: d for d in town}
    kinds = Counter()
    for document in town:
        if not document.copy_kind:
            assert document.copy_of is None
            continue
        original = by_number[document.copy_of]
        same = document.text.split() == original.text.split()
        assert same == (document.copy_kind == "exact")
        assert not original.copy_kind and document.truth == original.truth
        kinds[document.copy_kind] += 1
    assert min(kinds["exact"], kinds["near"]) > 20
    originals = [d.copy_of for d in town if d.copy_kind]
    assert len(set(originals)) == len(originals)


def test_the_similarity_of_copies_is_their_jaccard(town):
    by_number = {d.number: d.text for d in town}
    for document in [d for d in town if d.copy_kind == "near"][:40]:
        pair = [document.text, by_number[document.copy_of]]
        counts = CountVectorizer(ngram_range=(5, 5), token_pattern=r"\S+", binary=True)
        left, right = counts.fit_transform(pair).toarray().astype(bool)
        assert compute_shingle_similarity(*pair) == pytest.approx(
            (left & right).sum() / (left | right).sum()
        )


def test_accidental_near_copies_are_rare_and_the_prose_varies(session):
    """By the project's own deduplication."""
    made = ingest(
        IngestConfig(sources=[{"kind": "town", "documents": 4 * BLOCK_DOCUMENTS, "seed": 5}])
    )
    unique = deduplicate(made, {}, DeduplicateConfig())
    near = deduplicate_near(unique, {}, DeduplicateNearConfig())
    ledger = [row for stage in (unique, near) for row in stage["ledger"].read().to_pylist()]
    source = TownSource(kind="town", documents=4 * BLOCK_DOCUMENTS, seed=5)
    own = [d for number in label_town_blocks(source) for d in compose_town_block(source, number)]
    key = dict(
        zip(hash_to_ids(f"town\0key\0{d.number}" for d in own).to_pylist(), own, strict=True)
    )
    family = {i: d.copy_of if d.copy_kind else d.number for i, d in key.items()}
    strange = [r for r in ledger if family[r["doc_id"]] != family[r["matched_doc_id"]]]
    assert len(ledger) > 50 and len(strange) < 0.01 * len(own)
    said = [s for d in own if not d.copy_kind for s in sentences(d.text) if len(s.split()) > 3]
    assert len(set(said)) > 0.8 * len(said)
    lengths = sorted(len(d.text) for d in own)
    assert lengths[0] < 100 and lengths[-1] > 2000
    assert {len(d.text.splitlines()) == 1 for d in own} == {True, False}


# The same everywhere -----------------------------------------------------------------------------

PROGRAM = (
    "import hashlib; from hallmark.tasks.corpus.town.documents import TownRates, compose_block;"
    "print(hashlib.sha256(repr([(d.text, d.truth, d.personal_spans) for d in "
    "compose_block(1, 900, 2, TownRates())])"
    ".encode()).hexdigest())"
)


def test_the_same_seed_gives_the_same_documents_in_every_process():
    found = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        )
        found.add(done.stdout)
    assert len(found) == 1 and len(found.pop().strip()) == 64


def test_dice_are_blake2b_in_counter_mode():
    dice = KeyedRandom(7, "x")
    drawn = [dice.draw_below(1000) for _ in range(10)]
    data = [
        hashlib.blake2b(b"7\0x" + i.to_bytes(8, "big"), person=b"town").digest() for i in range(2)
    ]
    numbers = [int.from_bytes(d[i : i + 8], "little") for d in data for i in range(56, -1, -8)]
    assert drawn == [number * 1000 // 2**64 for number in numbers[:10]]


def test_other_seeds_and_longer_towns_are_what_they_should_be():
    texts = [
        [d.text for d in compose_block(0, n, seed, TownRates())]
        for n, seed in ((BLOCK_DOCUMENTS, 0), (2 * BLOCK_DOCUMENTS, 0), (BLOCK_DOCUMENTS, 1))
    ]
    assert texts[0] == texts[1] and not set(texts[0]) & set(texts[2])


# The grammar -------------------------------------------------------------------------------------


def test_a_grammar_is_read_with_its_slots():
    made = parse_rules("# said\n== a\nx {b}\n{^a b=c}, {$d}¶{!EMAIL}\n\n== b\nowl")
    assert made["b"] == [(AnnotatedText("owl"),)]
    assert made["a"] == [
        (AnnotatedText("x "), RuleSlot("b")),
        (
            RuleSlot("b", True, True, bound_variable="c"),
            AnnotatedText(", "),
            RuleSlot("d", is_variable=True),
            AnnotatedText("\n"),
            RuleSlot("EMAIL", is_personal=True),
        ),
    ]
    with pytest.raises(ValueError, match="cannot be read"):
        parse_rules("== a\nx {b c}")


def test_a_line_is_told_with_article_capital_and_places():
    teller = GrammarExpander(KeyedRandom(1), {"year": "200"}, lambda kind, dice: f"<{kind}>")
    (line,) = parse_rules("== x\n{^a animal=it} and {$it} in {$year}: {!IP}, {a thing}")["x"]
    said = teller.expand_line(line)
    animal = teller.variables["it"]
    article = "An" if animal[0] in "aeiou" else "A"
    assert said.text.startswith(f"{article} {animal} and {animal} in 200: <IP>, a")
    assert [said.text[m.start : m.end] for m in said.spans] == ["<IP>"]


@pytest.mark.parametrize("said", ["{$a}", "{$a}!", "x {$a}", "x {$a}! {$b}", "¶{^$b}{$a}"])
def test_every_piece_of_a_line_is_told(said):
    teller = GrammarExpander(KeyedRandom(1), {"a": "one", "b": "two"}, lambda kind, dice: kind)
    whole = said.replace("{$a}", "one").replace("{$b}", "two").replace("{^$b}", "Two")
    assert teller.expand_line(parse_rules(f"== x\n{said}")["x"][0]).text == whole.replace("¶", "\n")


def test_every_rule_is_used_and_no_line_is_there_twice():
    made = {}
    for name in RULE_FILES:
        made |= parse_rules((DATA_FOLDER / name).read_text())
    used = {
        p.name for lines in made.values() for line in lines for p in line if isinstance(p, RuleSlot)
    } | set(GENERATOR_BY_TYPE)
    used |= {f"{kind}.{part}" for kind in REGISTER_BY_KIND for part in ("open", "body", "close")}
    used |= {"praise", "blame", "group", "job", "rude", "lookalike", "dialect", "unsafe"}
    assert set(made) <= used
    for name, lines in made.items():
        many = Counter(lines)
        if name not in ("person", "place", "spot"):  # where it is a weight
            assert max(many.values()) == 1, (name, many.most_common(1))


# The source --------------------------------------------------------------------------------------


def test_ingest_reads_a_town_and_its_accounts_add_up(session):
    size = BLOCK_DOCUMENTS + 37
    town = {"kind": "town", "name": "here", "documents": size, "seed": 4}
    made = ingest(IngestConfig(sources=[town], max_document_bytes=1000, partition_bytes=100_000))
    rows = made["documents"].read(["doc_id", "text"]).to_pylist()
    source = TownSource(**town)
    own = [d for number in label_town_blocks(source) for d in compose_town_block(source, number)]
    short = {d.number: d.text for d in own if len(d.text.encode()) <= 1000}
    given = dict(
        zip(hash_to_ids(f"here\0key\0{n}" for n in short).to_pylist(), short.values(), strict=True)
    )
    assert {row["doc_id"]: row["text"] for row in rows} == given
    books = {b["unit"]: b for b in made["accounts"].read().to_pylist()}
    assert books["rows"]["input"] == size and books["rows"]["kept"] == len(short)
    assert books["rows"]["quarantined"] == size - len(short) > 0
    assert books["bytes"]["input"] == sum(len(d.text.encode()) for d in own)
    places = made["origins"].read(["file_name", "location"]).to_pylist()
    assert {p["file_name"] for p in places} == {"documents 1 to 500", "documents 501 to 537"}


def test_a_town_of_nothing_but_long_documents_says_so(session):
    with pytest.raises(HallmarkError, match="no document could be read"):
        ingest(IngestConfig(sources=[{"kind": "town", "documents": 3}], max_document_bytes=10))


def test_records_are_read_one_by_one():
    meter = ReadCounts()
    source = TownSource(kind="town", documents=20)
    first = list(islice(read_town_documents(source, "0", 1 << 20, meter), 5))
    assert [r.key for r in first] == ["0", "1", "2", "3", "4"] and meter.record_count == 5
    assert [r.location for r in first] == [f"document {n}" for n in range(1, 6)]


def test_a_document_of_as_many_bytes_as_the_limit_is_read():
    source = TownSource(kind="town", documents=20)
    whole = list(read_town_documents(source, "0", 1 << 20, ReadCounts()))
    limit = sorted(r.raw_bytes for r in whole)[10]
    meter = ReadCounts()
    for before, found in zip(whole, read_town_documents(source, "0", limit, meter), strict=True):
        assert found.raw_bytes == before.raw_bytes == len(before.text.encode())
        if found.raw_bytes > limit:
            assert (found.error, found.text, found.raw) == (TOO_LONG, "", before.text.encode())
        else:
            assert (found.error, found.text) == ("", before.text)
    assert (meter.record_count, meter.byte_count) == (20, sum(r.raw_bytes for r in whole))


def test_a_town_has_one_to_ten_million_documents():
    for count in (1, 10_000_000):
        assert TownSource(kind="town", documents=count).documents == count
    for count in (0, 10_000_001):
        with pytest.raises(ValidationError):
            TownSource(kind="town", documents=count)
