"""Near duplicates against brute force: every pair compared, in plain Python."""

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

#: MinHash finds practically every pair: at 0.3 it misses one in 10^19; and no limit bounds it.
THOROUGH = {"bands": 128, "rows_per_band": 1, "max_candidates": 1000}


# The oracle --------------------------------------------------------------------------------------


def oracle(documents, threshold, cluster_threshold):
    """{doc_id: (twin, similarity)} of what goes, {doc_id: cluster} of what stays."""
    texts = {d["doc_id"]: d["text"] for d in documents}
    sets = {doc_id: shingle_set(text) for doc_id, text in texts.items()}
    gone, kept = {}, []
    for doc_id in sorted(texts, key=lambda i: (-len(texts[i].encode()), i)):
        close = [(similarity(sets[k], sets[doc_id]), k) for k in kept]
        best = max((s for s, _ in close), default=0.0)
        if best >= threshold:
            gone[doc_id] = (next(k for s, k in close if s == best), best)
        else:
            kept.append(doc_id)
    cluster = {doc_id: {doc_id} for doc_id in kept}
    for a, b in combinations(kept, 2):
        if similarity(sets[a], sets[b]) >= cluster_threshold:
            joined = cluster[a] | cluster[b]
            cluster.update(dict.fromkeys(joined, joined))
    return gone, {doc_id: min(members) for doc_id, members in cluster.items()}


# Running the stage's body ------------------------------------------------------------------------


def table(folder, texts, clusters=None, parts=1, sources=None):
    """A documents table of these texts, whose doc_ids depend on text and ordinal alone."""
    seen = {}
    keys = [f"{text}\0{seen.setdefault(text, count()).__next__()}" for text in texts]
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
    def __init__(self, documents, config, folder, mapper=None, earlier=None):
        tables = deduplicate_near.tables
        work = StageContext(folder, tables)
        if mapper:
            work.mapper = mapper
        deduplicate_near.body(documents, earlier or {}, config, work)
        work.close()
        made = work.assemble_tables(tables)
        paths = {
            n: [work.output_folder / p["name"] for p in entry["parts"]] for n, entry in made.items()
        }
        self.bytes = {n: [path.read_bytes() for path in found] for n, found in paths.items()}
        read = {n: pa.concat_tables(map(pq.read_table, found)) for n, found in paths.items()}
        self.documents, self.ledger, self.pairs = (read[n].to_pylist() for n in list(tables)[:3])
        (self.search,) = read["search_summary"].to_pylist()
        self.texts = [d["text"] for d in self.documents]
        self.clusters = {d["doc_id"]: d["cluster"] for d in self.documents}


@pytest.fixture
def run(tmp_path_factory):
    def run(texts, clusters=None, mapper=None, parts=1, **settings):
        folder = tmp_path_factory.mktemp("run")
        documents = table(folder, texts, clusters, parts)
        return Result(documents, DeduplicateNearConfig(**settings), folder, mapper)

    return run


def check(folder, texts, **settings):
    """Run the stage and compare everything it leaves with brute force."""
    documents = table(folder, texts)
    rows = documents.read().to_pylist()
    config = DeduplicateNearConfig(**{**THOROUGH, **settings})
    result = Result(documents, config, folder)
    gone, clusters = oracle(rows, config.similarity_threshold, config.cluster_threshold)
    assert [d["doc_id"] for d in result.documents] == [
        d["doc_id"] for d in rows if d["doc_id"] not in gone
    ]
    assert result.clusters == clusters
    assert {r["doc_id"]: (r["matched_doc_id"], r["score"]) for r in result.ledger} == gone
    texts_of = {d["doc_id"]: d["text"] for d in rows}
    for row in result.ledger:
        assert (row["reason"], row["threshold"]) == ("near duplicate", config.similarity_threshold)
        assert row["bytes_before"] == len(texts_of[row["doc_id"]].encode())
    check_pairs(result, gone)
    for pair in result.pairs:
        left, right = (
            shingle_set(texts_of[pair[side]]) for side in ("first_doc_id", "second_doc_id")
        )
        assert pair["similarity"] == similarity(left, right) >= config.cluster_threshold
    return result


def check_pairs(result, gone):
    """Each document that goes with its twin; among the others a tree for each cluster."""
    rights = {
        pair["second_doc_id"]: pair["first_doc_id"]
        for pair in result.pairs
        if pair["second_doc_id"] in gone
    }
    assert rights == {doc_id: twin for doc_id, (twin, _) in gone.items()}
    links = [
        (p["first_doc_id"], p["second_doc_id"])
        for p in result.pairs
        if p["second_doc_id"] not in gone
    ]
    assert all(result.clusters[left] == result.clusters[right] for left, right in links)
    assert len(links) == len(result.clusters) - len(set(result.clusters.values()))


def sentence(chance, words=40):
    return [f"w{chance.randrange(5000)}" for _ in range(words)]


def planted(seed, families=12, copies=8):
    """Families of texts that drift away from their first member, and loners."""
    chance = random.Random(seed)
    texts = []
    for _ in range(families):
        base = sentence(chance)
        texts.append(" ".join(base))
        for _ in range(copies):
            words = list(base)
            for _ in range(chance.choice([0, 0, 1, 1, 2, 3, 5])):
                words[chance.randrange(len(words))] = f"x{chance.randrange(10**6)}"
            if chance.random() < 0.3:
                words = words[: chance.randrange(20, 40)]
            text = " ".join(words)
            texts.append(text.upper() + "\n" if chance.random() < 0.2 else text)
        texts.append(" ".join(sentence(chance)))
    chance.shuffle(texts)
    return texts


# Against brute force -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_planted_families(tmp_path, seed):
    result = check(tmp_path, planted(seed))
    assert {row["score"] for row in result.ledger} > {1.0}
    assert len(set(result.clusters.values())) < len(result.documents)


words = st.sampled_from(["a", "b", "c", "A", "\u00e9", "e\u0301", "\uff41", ""])
documents = st.lists(st.lists(words, max_size=12).map(" ".join), min_size=1, max_size=12)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(documents, st.sampled_from([(0.8, 0.5), (0.5, 0.5), (1.0, 0.3), (0.34, 0.34)]))
@example(["a b c", "a b d", "a b", "a b", "", " ", "\u3000"], (0.8, 0.5))
@example(["a", "b", "c", "a b c a b c", "a b c a b c a"], (0.34, 0.34))
def test_any_small_corpus(tmp_path_factory, texts, thresholds):
    threshold, cluster_threshold = thresholds
    check(
        tmp_path_factory.mktemp("small"),
        texts,
        similarity_threshold=threshold,
        cluster_threshold=cluster_threshold,
    )


# What has bitten others --------------------------------------------------------------------------


def test_short_documents_are_neither_lost_nor_merged(run):
    texts = ["no", "Yes ", "a b c d", "a b c e", "", "x y z"]
    for unit, clusters in (("words", 6), ("characters", 5)):
        result = run(texts, shingle_unit=unit)
        assert result.texts == texts
        assert len(set(result.clusters.values())) == clusters


def test_one_of_many_copies_stays(run):
    """However many there are: none is left for want of a comparison."""
    base = " ".join(f"w{i}" for i in range(60))
    result = run([base, *(f"{base} {i}" for i in range(300))], max_candidates=2)
    assert len(result.documents) == 1
    assert {row["matched_doc_id"] for row in result.ledger} == {result.documents[0]["doc_id"]}


def test_the_one_that_stays_is_of_the_preferred_source_then_the_longest(tmp_path):
    words = [f"w{i}" for i in range(60)]
    texts = [" ".join(words), " ".join(words[1:]), " ".join(words[:-1]), " ".join(words[1:-1])]
    sources = ["web", "book", "web", "book"]
    for prefer, kept in (((), 0), (("book",), 1), (("book", "web"), 1), (("web", "book"), 0)):
        folder = tmp_path / "-".join(["by", *prefer])
        result = Result(
            table(folder, texts, sources=sources),
            DeduplicateNearConfig(preferred_sources=prefer),
            folder,
        )
        assert result.texts == [texts[kept]]


def test_characters_as_shingles():
    """Every window of seven characters, blanks among them."""
    text = "near copies share windows"
    hashes, offsets = compute_shingle_hashes(pa.array(["", "abc", text, text[3:]]), 7, "characters")
    assert np.diff(offsets).tolist() == [1, 1, len(text) - 6, len(text) - 9]
    assert hashes[2 + 3 : 2 + len(text) - 6].tolist() == hashes[offsets[3] :].tolist()
    assert len(set(hashes.tolist())) == 2 + len({text[i : i + 7] for i in range(len(text) - 6)})


def test_scripts_without_spaces(run):
    base = (
        "深度学习模型的训练需要大量的文本数据而这些数据往往包含许多重复的内容因此去重是必要的步骤"
    )
    other = "今天天气很好我们一起去公园散步吧那里有很多花草树木和小鸟还有一个漂亮的湖泊可以划船游玩"
    result = run([base, base + "了", other])
    assert sorted(result.texts) == sorted([base + "了", other])
    assert result.ledger[0]["score"] == (len(base) - 4) / (len(base) - 3)


def test_unrelated_documents_are_never_chained(run):
    """With one row a band nearly everything is a candidate; verification parts them again."""
    chance = random.Random(3)
    texts = [
        " ".join(["all", "rights", "reserved", "for", "ever", *sentence(chance)]) for _ in range(60)
    ]
    result = run(texts, **THOROUGH)
    assert result.texts == texts
    assert result.pairs == []
    assert len(set(result.clusters.values())) == 60


def test_near_copies_that_stay_share_a_cluster(run):
    """a - b - c: b is alike both, a and c are not; unrelated d stays apart."""
    base = [f"w{i}" for i in range(90)]
    a, b, c = (" ".join(base[i : i + 50]) for i in (0, 15, 30))
    d = " ".join(f"z{i}" for i in range(50))
    result = run([a, b, c, d], cluster_threshold=0.4)
    assert result.texts == [a, b, c, d]
    labels = [document["cluster"] for document in result.documents]
    assert labels[0] == labels[1] == labels[2] != labels[3]
    assert labels[0] == min(document["doc_id"] for document in result.documents[:3])
    assert {round(p["similarity"], 9) for p in result.pairs} == {round(31 / 61, 9)}


def crowd(count, seed=9):
    """All a little alike: two of three words are everybody's."""
    chance = random.Random(seed)
    shared = sentence(chance, 30)
    return [" ".join([*shared, *sentence(chance, 12)]) for _ in range(count)]


def test_a_crowd_that_is_not_quite_alike_is_bounded_and_counted(run):
    """The limit may leave copies in; it never takes out what is none."""
    texts = crowd(400)
    full = run(texts, **THOROUGH, cluster_threshold=0.3)
    bounded = run(texts, cluster_threshold=0.3, max_candidates=4)
    assert full.texts == bounded.texts == texts
    assert len(full.pairs) == len(bounded.pairs) == 399
    assert len(set(bounded.clusters.values())) == 1
    assert (full.search["limited_documents"], full.search["compared_pairs"]) == (0, 400 * 399 / 2)
    assert bounded.search["compared_pairs"] <= 400 * 4
    assert bounded.search["limited_documents"] > 390


def test_a_copy_is_found_in_a_crowd(run):
    """Comparisons go to those that agree in most bands."""
    texts = crowd(600)
    copies = [f"{text} more" for text in texts[::20]]
    result = run([*texts, *copies], max_candidates=4)
    assert sorted(result.texts) == sorted([*copies, *(t for t in texts if t not in texts[::20])])


def test_the_search_says_what_it_looked_at(run):
    """Similarities of 0.8, 0.5 and 0.3 to a text of ten words and to one another, and nothing."""
    words = [f"w{i}" for i in range(10)]
    texts = [" ".join(some) for some in (words, words[:8], words[5:], ["apart", "altogether"])]
    result = run(texts, **THOROUGH, shingle_length=1)
    assert result.texts == [texts[0], *texts[2:]]
    assert result.search == {
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
        run(["x"], bands=3, rows_per_band=2, similarity_threshold=0.5).search[
            "candidate_probability"
        ]
        == 1 - 0.75**3
    )


def test_an_empty_table(run):
    result = run([])
    assert (result.documents, result.ledger, result.pairs) == ([], [], [])
    assert result.search["documents"] == result.search["compared_pairs"] == 0


def test_thresholds_are_ordered():
    with pytest.raises(ValidationError, match="cluster_threshold must not be above"):
        DeduplicateNearConfig(similarity_threshold=0.5, cluster_threshold=0.6)


# Independence, real text -------------------------------------------------------------------------


def big_corpus():
    """More than two row groups, with copies far from one another."""
    texts = [text for seed in range(60) for text in planted(seed, families=14, copies=9)]
    return texts + [text + "!" for text in texts[::7]]


def test_output_does_not_depend_on_parts_workers_or_order(run):
    texts = big_corpus()
    assert len(texts) > 2 * 4096
    one = run(texts)
    many = run(texts, parts=4)
    with ProcessMapper(2) as mapper:
        in_processes = run(texts, mapper=mapper, parts=4)
    assert many.bytes == in_processes.bytes
    assert [len(many.bytes[name]) for name in ("documents", "ledger", "pairs")] == [4, 4, 1]
    assert one.search == many.search

    def removed(result):
        return {(r["doc_id"], r["matched_doc_id"], r["score"], r["reason"]) for r in result.ledger}

    for other in (run(texts[::-1]), many):
        assert other.clusters == one.clusters
        assert removed(other) == removed(one)
        assert sorted(map(str, other.pairs)) == sorted(map(str, one.pairs))
    assert [d["doc_id"] for d in many.documents] == sorted(one.clusters)


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data folder is absent")
def test_real_text(session):
    """Removed chat and news against brute force over all pairs that share a rare shingle."""
    sources = [
        {"kind": "jsonl", "name": "chat", "path": str(SHARED / "nps_chat.jsonl.zst")},
        {"kind": "csv", "name": "web", "path": str(SHARED / "webtext.csv")},
    ]
    raw = deduplicate(ingest(IngestConfig(sources=sources)), {}, DeduplicateConfig())
    made = deduplicate_near(raw, {}, DeduplicateNearConfig())
    texts = {r["doc_id"]: r["text"] for r in raw["documents"].read().to_pylist()}
    kept = {r["doc_id"]: r["cluster"] for r in made["documents"].read().to_pylist()}
    ledger = made["ledger"].read().to_pylist()
    assert len(kept) + len(ledger) == len(texts)
    assert len({plain(texts[i]) for i in kept}) == len(kept)
    sets = {i: shingle_set(text) for i, text in texts.items()}
    for row in ledger:
        assert row["matched_doc_id"] in kept
        assert row["score"] == similarity(sets[row["doc_id"]], sets[row["matched_doc_id"]]) >= 0.8
    # Every pair with anything in common, by an inverted index; 1 in 2 * 10^7 is missed at 0.8.
    index = {}
    for doc_id in kept:
        for shingle in sets[doc_id]:
            index.setdefault(shingle, []).append(doc_id)
    met = {pair for members in index.values() for pair in combinations(sorted(members), 2)}
    alike = [(similarity(sets[a], sets[b]), a, b) for a, b in met]
    assert not [s for s, _, _ in alike if s >= 0.8]
    close = [(a, b) for s, a, b in alike if s >= 0.5]
    together = [kept[a] == kept[b] for a, b in close]
    assert len(close) > 5
    assert sum(together) >= 0.85 * len(close)
    digest = hashlib.sha256(b"".join(sorted(kept))).hexdigest()
    again = deduplicate_near(raw, {}, DeduplicateNearConfig(max_candidates=1000))
    others = again["documents"].read(["doc_id"])["doc_id"].to_pylist()
    assert hashlib.sha256(b"".join(sorted(others))).hexdigest() == digest
