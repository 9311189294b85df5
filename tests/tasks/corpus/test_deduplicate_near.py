"""Near duplicates: compare the stage with a brute-force comparison of all pairs."""

import hashlib
import random
from itertools import combinations, count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hallmark.tasks.contract import (
    DOCUMENTS,
    ProcessMapper,
    StageContext,
    fill_document_columns,
    hash_texts,
    hash_to_ids,
)
from hallmark.tasks.corpus.copies.sketches import compute_shingle_hashes
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from tests.tasks.corpora import table_in
from tests.tasks.corpus.test_sketches import plain, shingle_set, similarity

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "corpus"

#: Finds practically every pair: MinHash misses one in 10^19 at 0.3, and no limit applies.
THOROUGH = {"bands": 128, "rows_per_band": 1, "max_candidates": 1000}


# Brute force -------------------------------------------------------------------------------------


def find_expected(documents, threshold, cluster_threshold):
    """Return {removed doc_id: (kept doc_id, similarity)} and {kept doc_id: cluster}."""
    texts = {d["doc_id"]: d["text"] for d in documents}
    sets = {doc_id: shingle_set(text) for doc_id, text in texts.items()}
    removed, kept = {}, []
    for doc_id in sorted(texts, key=lambda i: (-len(texts[i].encode()), i)):
        similarities = [(similarity(sets[k], sets[doc_id]), k) for k in kept]
        highest = max((s for s, _ in similarities), default=0.0)
        if highest >= threshold:
            removed[doc_id] = (next(k for s, k in similarities if s == highest), highest)
        else:
            kept.append(doc_id)
    clusters = {doc_id: {doc_id} for doc_id in kept}
    for a, b in combinations(kept, 2):
        if similarity(sets[a], sets[b]) >= cluster_threshold:
            merged = clusters[a] | clusters[b]
            clusters.update(dict.fromkeys(merged, merged))
    return removed, {doc_id: min(members) for doc_id, members in clusters.items()}


# Running the stage -------------------------------------------------------------------------------


def make_table(folder, texts, clusters=None, parts=1, sources=None):
    """Make a table of documents whose doc_ids depend on text and ordinal alone."""
    counters = {}
    keys = [f"{text}\0{counters.setdefault(text, count()).__next__()}" for text in texts]
    column = pa.array(texts, pa.large_string())
    doc_ids = hash_to_ids(keys)
    columns = {
        "doc_id": doc_ids,
        "source": pa.array(sources or ["s"] * len(texts), pa.string()),
        "cluster": doc_ids if clusters is None else hash_to_ids(clusters),
        "text": column,
        "text_hash": hash_texts(column),
    }
    return table_in(
        folder / "made", pa.table(fill_document_columns(columns), schema=DOCUMENTS), parts
    )


class Result:
    """The output of the stage, run without a store."""

    def __init__(self, documents, config, folder, mapper=None, earlier=None):
        tables = deduplicate_near.tables
        context = StageContext(folder, tables)
        if mapper:
            context.mapper = mapper
        deduplicate_near.body(documents, earlier or {}, config, context)
        context.close()
        assembled = context.assemble_tables(tables)
        paths = {
            n: [context.output_folder / p["name"] for p in entry["parts"]]
            for n, entry in assembled.items()
        }
        self.bytes = {n: [path.read_bytes() for path in files] for n, files in paths.items()}
        read_tables = {n: pa.concat_tables(map(pq.read_table, files)) for n, files in paths.items()}
        self.documents, self.ledger, self.pairs = (
            read_tables[n].to_pylist() for n in list(tables)[:3]
        )
        (self.search_summary,) = read_tables["search_summary"].to_pylist()
        self.texts = [d["text"] for d in self.documents]
        self.clusters = {d["doc_id"]: d["cluster"] for d in self.documents}


@pytest.fixture
def run(tmp_path_factory):
    def run(texts, clusters=None, mapper=None, parts=1, **settings):
        folder = tmp_path_factory.mktemp("run")
        documents = make_table(folder, texts, clusters, parts)
        return Result(documents, DeduplicateNearConfig(**settings), folder, mapper)

    return run


def check_against_brute_force(folder, texts, **settings):
    """Run the stage and compare all of its output with brute force."""
    documents = make_table(folder, texts)
    rows = documents.read().to_pylist()
    config = DeduplicateNearConfig(**{**THOROUGH, **settings})
    result = Result(documents, config, folder)
    removed, clusters = find_expected(rows, config.similarity_threshold, config.cluster_threshold)
    assert [d["doc_id"] for d in result.documents] == [
        d["doc_id"] for d in rows if d["doc_id"] not in removed
    ]
    assert result.clusters == clusters
    assert {r["doc_id"]: (r["matched_doc_id"], r["score"]) for r in result.ledger} == removed
    text_by_id = {d["doc_id"]: d["text"] for d in rows}
    for row in result.ledger:
        assert (row["reason"], row["threshold"]) == ("near duplicate", config.similarity_threshold)
        assert row["bytes_before"] == len(text_by_id[row["doc_id"]].encode())
    check_pairs(result, removed)
    for pair in result.pairs:
        first_set, second_set = (
            shingle_set(text_by_id[pair[side]]) for side in ("first_doc_id", "second_doc_id")
        )
        assert pair["similarity"] == similarity(first_set, second_set) >= config.cluster_threshold
    return result


def check_pairs(result, removed):
    """Expect one pair for each removed document, and pairs that form a tree for each cluster."""
    matches = {
        pair["second_doc_id"]: pair["first_doc_id"]
        for pair in result.pairs
        if pair["second_doc_id"] in removed
    }
    assert matches == {doc_id: kept_id for doc_id, (kept_id, _) in removed.items()}
    cluster_pairs = [
        (p["first_doc_id"], p["second_doc_id"])
        for p in result.pairs
        if p["second_doc_id"] not in removed
    ]
    assert all(result.clusters[first] == result.clusters[second] for first, second in cluster_pairs)
    assert len(cluster_pairs) == len(result.clusters) - len(set(result.clusters.values()))


def random_words(rng, count=40):
    return [f"w{rng.randrange(5000)}" for _ in range(count)]


def make_families(seed, families=12, copies=8):
    """Make families of texts that differ more or less from their first member, and single texts."""
    rng = random.Random(seed)
    texts = []
    for _ in range(families):
        original = random_words(rng)
        texts.append(" ".join(original))
        for _ in range(copies):
            words = list(original)
            for _ in range(rng.choice([0, 0, 1, 1, 2, 3, 5])):
                words[rng.randrange(len(words))] = f"x{rng.randrange(10**6)}"
            if rng.random() < 0.3:
                words = words[: rng.randrange(20, 40)]
            text = " ".join(words)
            texts.append(text.upper() + "\n" if rng.random() < 0.2 else text)
        texts.append(" ".join(random_words(rng)))
    rng.shuffle(texts)
    return texts


# Against brute force -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_families_of_near_copies_match_brute_force(tmp_path, seed):
    result = check_against_brute_force(tmp_path, make_families(seed))
    assert {row["score"] for row in result.ledger} > {1.0}
    assert len(set(result.clusters.values())) < len(result.documents)


words = st.sampled_from(["a", "b", "c", "A", "\u00e9", "e\u0301", "\uff41", ""])
documents = st.lists(st.lists(words, max_size=12).map(" ".join), min_size=1, max_size=12)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(documents, st.sampled_from([(0.8, 0.5), (0.5, 0.5), (1.0, 0.3), (0.34, 0.34)]))
@example(["a b c", "a b d", "a b", "a b", "", " ", "\u3000"], (0.8, 0.5))
@example(["a", "b", "c", "a b c a b c", "a b c a b c a"], (0.34, 0.34))
def test_any_small_corpus_matches_brute_force(tmp_path_factory, texts, thresholds):
    threshold, cluster_threshold = thresholds
    check_against_brute_force(
        tmp_path_factory.mktemp("small"),
        texts,
        similarity_threshold=threshold,
        cluster_threshold=cluster_threshold,
    )


# Known difficulties ------------------------------------------------------------------------------


def test_short_documents_are_neither_lost_nor_merged(run):
    texts = ["no", "Yes ", "a b c d", "a b c e", "", "x y z"]
    for unit, clusters in (("words", 6), ("characters", 5)):
        result = run(texts, shingle_unit=unit)
        assert result.texts == texts
        assert len(set(result.clusters.values())) == clusters


def test_one_of_many_copies_is_kept(run):
    """The limit on comparisons never keeps a copy, however many there are."""
    base = " ".join(f"w{i}" for i in range(60))
    result = run([base, *(f"{base} {i}" for i in range(300))], max_candidates=2)
    assert len(result.documents) == 1
    assert {row["matched_doc_id"] for row in result.ledger} == {result.documents[0]["doc_id"]}


def test_the_preferred_source_is_kept_then_the_longest_text(tmp_path):
    words = [f"w{i}" for i in range(60)]
    texts = [" ".join(words), " ".join(words[1:]), " ".join(words[:-1]), " ".join(words[1:-1])]
    sources = ["web", "book", "web", "book"]
    for preferred, expected in (
        ((), 0),
        (("book",), 1),
        (("book", "web"), 1),
        (("web", "book"), 0),
    ):
        folder = tmp_path / "-".join(["by", *preferred])
        result = Result(
            make_table(folder, texts, sources=sources),
            DeduplicateNearConfig(preferred_sources=preferred),
            folder,
        )
        assert result.texts == [texts[expected]]


def test_character_shingles_are_all_windows_of_that_length():
    """Shingles are all windows of seven characters, including spaces."""
    text = "near copies share windows"
    hashes, offsets = compute_shingle_hashes(pa.array(["", "abc", text, text[3:]]), 7, "characters")
    assert np.diff(offsets).tolist() == [1, 1, len(text) - 6, len(text) - 9]
    assert hashes[2 + 3 : 2 + len(text) - 6].tolist() == hashes[offsets[3] :].tolist()
    assert len(set(hashes.tolist())) == 2 + len({text[i : i + 7] for i in range(len(text) - 6)})


def test_near_copies_are_found_in_scripts_without_spaces(run):
    base = (
        "深度学习模型的训练需要大量的文本数据而这些数据往往包含许多重复的内容因此去重是必要的步骤"
    )
    other = "今天天气很好我们一起去公园散步吧那里有很多花草树木和小鸟还有一个漂亮的湖泊可以划船游玩"
    result = run([base, base + "了", other])
    assert sorted(result.texts) == sorted([base + "了", other])
    assert result.ledger[0]["score"] == (len(base) - 4) / (len(base) - 3)


def test_unrelated_documents_are_never_joined(run):
    """With one row per band nearly all pairs are candidates; verification rejects them."""
    rng = random.Random(3)
    texts = [
        " ".join(["all", "rights", "reserved", "for", "ever", *random_words(rng)])
        for _ in range(60)
    ]
    result = run(texts, **THOROUGH)
    assert result.texts == texts
    assert result.pairs == []
    assert len(set(result.clusters.values())) == 60


def test_similar_documents_that_are_kept_share_a_cluster(run):
    """b is similar to a and c, which are not similar to each other; d is unrelated."""
    base = [f"w{i}" for i in range(90)]
    a, b, c = (" ".join(base[i : i + 50]) for i in (0, 15, 30))
    d = " ".join(f"z{i}" for i in range(50))
    result = run([a, b, c, d], cluster_threshold=0.4)
    assert result.texts == [a, b, c, d]
    clusters = [document["cluster"] for document in result.documents]
    assert clusters[0] == clusters[1] == clusters[2] != clusters[3]
    assert clusters[0] == min(document["doc_id"] for document in result.documents[:3])
    assert {round(p["similarity"], 9) for p in result.pairs} == {round(31 / 61, 9)}


def make_similar_texts(count, seed=9):
    """Make slightly similar texts that share more than two of three words."""
    rng = random.Random(seed)
    shared = random_words(rng, 30)
    return [" ".join([*shared, *random_words(rng, 12)]) for _ in range(count)]


def test_comparisons_of_many_slightly_similar_texts_are_limited_and_counted(run):
    """The limit may keep a near copy, but never removes a document that is not one."""
    texts = make_similar_texts(400)
    unlimited = run(texts, **THOROUGH, cluster_threshold=0.3)
    limited = run(texts, cluster_threshold=0.3, max_candidates=4)
    assert unlimited.texts == limited.texts == texts
    assert len(unlimited.pairs) == len(limited.pairs) == 399
    assert len(set(limited.clusters.values())) == 1
    assert (
        unlimited.search_summary["limited_documents"],
        unlimited.search_summary["compared_pairs"],
    ) == (0, 400 * 399 / 2)
    assert limited.search_summary["compared_pairs"] <= 400 * 4
    assert limited.search_summary["limited_documents"] > 390


def test_a_copy_is_found_among_many_similar_texts(run):
    """The documents that share the most bands are compared first."""
    texts = make_similar_texts(600)
    copies = [f"{text} more" for text in texts[::20]]
    result = run([*texts, *copies], max_candidates=4)
    assert sorted(result.texts) == sorted([*copies, *(t for t in texts if t not in texts[::20])])


def test_the_search_summary_counts_comparisons(run):
    """Three texts have similarities of 0.8, 0.5 and 0.3; the fourth shares nothing with them."""
    words = [f"w{i}" for i in range(10)]
    texts = [
        " ".join(shingles) for shingles in (words, words[:8], words[5:], ["apart", "altogether"])
    ]
    result = run(texts, **THOROUGH, shingle_length=1)
    assert result.texts == [texts[0], *texts[2:]]
    assert result.search_summary == {
        "documents": 4,
        "compared_pairs": 3,
        "clustered_pairs": 2,
        "duplicate_pairs": 1,
        "limited_documents": 0,
        "earlier_documents": 0,
        "bridging_documents": 0,
        "candidate_probability": 1 - 0.2**128,
    }
    assert (
        run(["x"], bands=3, rows_per_band=2, similarity_threshold=0.5).search_summary[
            "candidate_probability"
        ]
        == 1 - 0.75**3
    )


def test_an_empty_table_gives_empty_tables(run):
    result = run([])
    assert (result.documents, result.ledger, result.pairs) == ([], [], [])
    assert result.search_summary["documents"] == result.search_summary["compared_pairs"] == 0


def test_thresholds_in_the_wrong_order_are_rejected():
    with pytest.raises(ValidationError, match="'cluster_threshold' must not be greater than"):
        DeduplicateNearConfig(similarity_threshold=0.5, cluster_threshold=0.6)


# Independence, real text -------------------------------------------------------------------------


def make_large_corpus():
    """Make more than two row groups of texts, with copies far from one another."""
    texts = [text for seed in range(60) for text in make_families(seed, families=14, copies=9)]
    return texts + [text + "!" for text in texts[::7]]


def test_output_does_not_depend_on_partitions_workers_or_order(run):
    texts = make_large_corpus()
    assert len(texts) > 2 * 4096
    single = run(texts)
    partitioned = run(texts, parts=4)
    with ProcessMapper(2) as mapper:
        in_processes = run(texts, mapper=mapper, parts=4)
    assert partitioned.bytes == in_processes.bytes
    assert [len(partitioned.bytes[name]) for name in ("documents", "ledger", "pairs")] == [4, 4, 1]
    assert single.search_summary == partitioned.search_summary

    def removed(result):
        return {(r["doc_id"], r["matched_doc_id"], r["score"], r["reason"]) for r in result.ledger}

    for other in (run(texts[::-1]), partitioned):
        assert other.clusters == single.clusters
        assert removed(other) == removed(single)
        assert sorted(map(str, other.pairs)) == sorted(map(str, single.pairs))
    assert [d["doc_id"] for d in partitioned.documents] == sorted(single.clusters)


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data folder is absent")
def test_real_text_matches_brute_force(session):
    """Compare removed and kept documents with brute force over all pairs that share a shingle."""
    sources = [
        {"kind": "jsonl", "name": "chat", "path": str(SHARED / "nps_chat.jsonl.zst")},
        {"kind": "csv", "name": "web", "path": str(SHARED / "webtext.csv")},
    ]
    deduplicated = deduplicate(ingest(IngestConfig(sources=sources)), {}, DeduplicateConfig())
    result = deduplicate_near(deduplicated, {}, DeduplicateNearConfig())
    texts = {r["doc_id"]: r["text"] for r in deduplicated["documents"].read().to_pylist()}
    kept = {r["doc_id"]: r["cluster"] for r in result["documents"].read().to_pylist()}
    ledger = result["ledger"].read().to_pylist()
    assert len(kept) + len(ledger) == len(texts)
    assert len({plain(texts[i]) for i in kept}) == len(kept)
    sets = {i: shingle_set(text) for i, text in texts.items()}
    for row in ledger:
        assert row["matched_doc_id"] in kept
        assert row["score"] == similarity(sets[row["doc_id"]], sets[row["matched_doc_id"]]) >= 0.8
    # All pairs that share a shingle, by an inverted index; the stage misses 1 in 2 * 10^7 at 0.8.
    index = {}
    for doc_id in kept:
        for shingle in sets[doc_id]:
            index.setdefault(shingle, []).append(doc_id)
    candidate_pairs = {
        pair for members in index.values() for pair in combinations(sorted(members), 2)
    }
    compared = [(similarity(sets[a], sets[b]), a, b) for a, b in candidate_pairs]
    assert not [s for s, _, _ in compared if s >= 0.8]
    similar_pairs = [(a, b) for s, a, b in compared if s >= 0.5]
    in_same_cluster = [kept[a] == kept[b] for a, b in similar_pairs]
    assert len(similar_pairs) > 5
    assert sum(in_same_cluster) >= 0.85 * len(similar_pairs)
    digest = hashlib.sha256(b"".join(sorted(kept))).hexdigest()
    thorough = deduplicate_near(deduplicated, {}, DeduplicateNearConfig(max_candidates=1000))
    thorough_ids = thorough["documents"].read(["doc_id"])["doc_id"].to_pylist()
    assert hashlib.sha256(b"".join(sorted(thorough_ids))).hexdigest() == digest
