"""Test a growing corpus: additions against brute force, and against a corpus built at once."""

import json
import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from hallmark.flows.commands.purge import purge_document
from hallmark.tasks.contract import HallmarkError, ProcessMapper, Session, Store, open_session
from hallmark.tasks.corpus.copies.earlier_corpora import check_earlier_compatible
from hallmark.tasks.corpus.copies.matching import (
    find_duplicate_pairs,
    mark_removed_duplicates,
    select_candidate_pairs,
    unpack_pairs,
)
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.corpus.test_sketches import plain, shingle_set, similarity

deduplicate_redacted = deduplicate.with_label("deduplicate_redacted")

WORDS = [f"word{i}" for i in range(3000)]

#: MinHash finds practically every pair: at 0.3 it misses one in 10^19; the limit is never reached.
THOROUGH = {"bands": 128, "rows_per_band": 1, "max_candidates": 1000}


def ingest_texts(folder, texts, part_bytes=8 << 20):
    """Ingest these texts by their keys."""
    folder.mkdir(exist_ok=True)
    rows = [json.dumps({"key": key, "text": text}) for key, text in texts.items()]
    path = folder / "texts.jsonl"
    path.write_text("\n".join(rows), encoding="utf-8")
    source = {"kind": "jsonl", "name": "s", "path": str(path), "key_field": "key"}
    return ingest(IngestConfig(sources=[source], partition_bytes=part_bytes))


def add_texts(folder, texts, earlier, part_bytes=8 << 20, **near):
    """Run the stages about duplicates on an addition to ``earlier`` ones.

    Returns:
        Artifacts by label.
    """
    artifacts = {"ingest": ingest_texts(folder, texts, part_bytes)}

    def get_earlier(label):
        return {str(number): addition[label] for number, addition in enumerate(earlier)}

    artifacts["deduplicate"] = deduplicate(
        artifacts["ingest"], get_earlier("deduplicate"), DeduplicateConfig()
    )
    artifacts["deduplicate_near"] = deduplicate_near(
        artifacts["deduplicate"], get_earlier("deduplicate_near"), DeduplicateNearConfig(**near)
    )
    artifacts["deduplicate_redacted"] = deduplicate_redacted(
        artifacts["deduplicate_near"], get_earlier("deduplicate_redacted"), DeduplicateConfig()
    )
    artifacts["split"] = split_corpus(
        artifacts["deduplicate_redacted"], SplitConfig(validation_share=0.3, holdout_share=0.3)
    )
    return artifacts


def read_rows(artifacts, label="split", table="documents"):
    return artifacts[label][table].read().to_pylist()


def make_similar_texts(rng, copies, words=40):
    """Yield a text and variants with some words replaced, from slightly to nearly identical."""
    base = rng.choices(WORDS, k=words)
    yield " ".join(base)
    for _ in range(copies):
        text = list(base)
        for _ in range(rng.choice([0, 1, 1, 2, 3, 4])):
            text[rng.randrange(words)] = rng.choice(WORDS)
        yield " ".join(text)


def make_texts(seed, families=25):
    """Return shuffled texts by key; similar texts are far apart."""
    rng = random.Random(seed)
    texts = [t for _ in range(families) for t in make_similar_texts(rng, rng.randrange(5))]
    rng.shuffle(texts)
    return {f"{seed}-{i}": text for i, text in enumerate(texts)}


# Matching ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("limit", [2, 100])
def test_resolved_items_are_kept_and_not_compared_with_one_another(seed, limit):
    rng = np.random.default_rng(seed)
    n, resolved = 60, 25
    bands = rng.integers(0, 12, (n, 4), dtype=np.uint32)
    similarity_matrix = np.triu(rng.random((n, n)).round(2), 1)
    compared = []

    def compute_similarities(first, second):
        compared.extend(zip(first.tolist(), second.tolist(), strict=True))
        return similarity_matrix[first, second]

    matches = find_duplicate_pairs(bands, compute_similarities, 0.7, 0.4, limit, resolved)
    assert compared and all(second >= resolved for _, second in compared)
    assert len(set(compared)) == len(compared) == matches.compared_pairs
    assert not matches.removed[:resolved].any() and not matches.has_uncompared[:resolved].any()
    copies = [(a, b) for a, b in compared if similarity_matrix[a, b] >= 0.7]
    assert matches.removed.tolist() == mark_removed_duplicates(n, *np.array(copies).T).tolist()
    if limit == 100:  # no limit: all pairs that share a band, except pairs of resolved items
        pairs, _, _ = select_candidate_pairs(bands, np.arange(n), limit, resolved)
        assert set(zip(*(side.tolist() for side in unpack_pairs(pairs)), strict=True)) == {
            (a, b)
            for a, b in combinations(range(n), 2)
            if b >= resolved and (bands[a] == bands[b]).any()
        }


# Additions against brute force -------------------------------------------------------------------


def brute_force(new, earlier, config):
    """Compute an addition by comparing all pairs.

    Args:
        earlier: Rows of the earlier corpora, which are kept unchanged.

    Returns:
        (duplicate_of, similarity) of removed documents, the clusters of kept ones, both by doc_id,
        and the number of kept documents that join different clusters.
    """
    sets = {d["doc_id"]: shingle_set(d["text"]) for d in [*earlier, *new]}
    kept_ids = [d["doc_id"] for d in earlier]
    removed = {}
    for row in sorted(new, key=lambda d: (-len(d["text"].encode()), d["doc_id"])):
        close = [(similarity(sets[k], sets[row["doc_id"]]), k) for k in kept_ids]
        best = max((s for s, _ in close), default=0.0)
        if best >= config.similarity_threshold:
            removed[row["doc_id"]] = (next(k for s, k in close if s == best), best)
        else:
            kept_ids.append(row["doc_id"])
    earlier_clusters = {d["doc_id"]: d["cluster"] for d in earlier}
    new_ids = [doc_id for doc_id in kept_ids if doc_id not in earlier_clusters]
    groups = {doc_id: {doc_id} for doc_id in kept_ids}

    def join(a, b):
        joined = groups[a] | groups[b]
        groups.update(dict.fromkeys(joined, joined))

    for a, b in combinations(earlier_clusters, 2):
        if earlier_clusters[a] == earlier_clusters[b]:
            join(a, b)
    for a, b in combinations(kept_ids, 2):
        if b not in earlier_clusters and similarity(sets[a], sets[b]) >= config.cluster_threshold:
            join(a, b)
    clusters, bridges = {}, 0
    for doc_id in new_ids:
        joined_clusters = [
            earlier_clusters[k] for k in kept_ids if k in earlier_clusters and k in groups[doc_id]
        ]
        clusters[doc_id] = joined_clusters[0] if joined_clusters else min(groups[doc_id])
        bridges += len(set(joined_clusters)) > 1
    return removed, clusters, bridges


@pytest.mark.parametrize("seed", range(3))
def test_an_addition_equals_brute_force(session, tmp_path, seed):
    texts = list(make_texts(seed).items())
    steps = [dict(texts[start::3]) for start in range(3)]
    # Joins two texts that are less similar.
    between = random.Random(f"between {seed}").choices(WORDS, k=40)
    steps[0] |= {"begin": " ".join([*"abcdefg", *between[7:]])}
    steps[seed % 2] |= {"end": " ".join([*between[:33], *"hijklmn"])}
    steps[2] |= {"between": " ".join(between)}
    additions, known_documents, bridge_count, cross_matches = [], [], 0, 0
    for number, step in enumerate(steps):
        artifacts = add_texts(tmp_path / str(number), step, additions, **THOROUGH)
        config = DeduplicateNearConfig(**THOROUGH)
        removed, clusters, bridges = brute_force(
            read_rows(artifacts, "deduplicate"), known_documents, config
        )
        ledger = read_rows(artifacts, "deduplicate_near", "ledger")
        assert {r["doc_id"]: (r["matched_doc_id"], r["score"]) for r in ledger} == removed
        kept_rows = read_rows(artifacts, "deduplicate_near")
        assert {d["doc_id"]: d["cluster"] for d in kept_rows} == clusters
        (search,) = read_rows(artifacts, "deduplicate_near", "search_summary")
        assert search["bridging_documents"] == bridges
        bridge_count += bridges
        cross_matches += len(
            {duplicate_of for duplicate_of, _ in removed.values()}
            & {d["doc_id"] for d in known_documents}
        )
        additions.append(artifacts)
        known_documents += kept_rows
    assert cross_matches
    assert bridge_count  # otherwise the counts are not tested


def test_a_removed_copy_is_not_a_bridge(session, tmp_path):
    """Only the one kept document that joins two clusters counts."""
    between = random.Random(1).choices(WORDS, k=40)
    begin, end = [*"abcdefg", *between[7:]], [*between[:33], *"hijklmn"]
    first = add_texts(tmp_path / "1", {"begin": " ".join(begin), "end": " ".join(end)}, [])
    assert len({d["cluster"] for d in read_rows(first)}) == 2
    texts = {"between": between, "begin again": begin[:-1], "end again": end[1:]}
    second = add_texts(
        tmp_path / "2", {key: " ".join(text) for key, text in texts.items()}, [first]
    )
    assert [d["text"] for d in read_rows(second)] == [" ".join(between)]
    (search,) = read_rows(second, "deduplicate_near", "search_summary")
    assert (search["bridging_documents"], search["earlier_documents"]) == (1, 2)


# Exact copies, ids, clusters ---------------------------------------------------------------------


def test_known_texts_and_ids_are_not_added_again(session, tmp_path):
    first = add_texts(tmp_path / "1", {"a": "The same text", "b": "another one here"}, [])
    ids = {d["text"]: d["doc_id"] for d in read_rows(first)}
    second = add_texts(
        tmp_path / "2",
        {
            "a": "a record that changed",
            "b": "another one here",
            "c": "The same text \n",
            "d": "a record that changed",
            "e": "new",
        },
        [first],
    )
    assert sorted(d["text"] for d in read_rows(second)) == ["a record that changed", "new"]
    removed = {
        r["doc_id"]: (r["reason"], r["score"], r["threshold"], r["matched_doc_id"])
        for r in read_rows(second, "deduplicate", "ledger")
    }
    keys = {d["text"]: d["doc_id"] for d in read_rows(second, "ingest")}
    first_id, second_id = ids["The same text"], ids["another one here"]
    assert removed == {
        first_id: ("id used before", None, None, first_id),
        second_id: ("exact duplicate", 1.0, 1.0, second_id),
        keys["The same text \n"]: ("exact duplicate", 1.0, 1.0, first_id),
    }


def test_an_id_stays_used_after_its_document_was_removed(session, tmp_path):
    """Except if it was removed as an exact duplicate, because it then has no signature."""
    words = random.Random(8).choices(WORDS, k=80)
    texts = {"a": " ".join(words), "near": " ".join(words[:-1]), "same": " ".join(words) + "\n"}
    first = add_texts(tmp_path / "1", texts, [])
    reasons = {
        r["reason"]
        for label in ("deduplicate", "deduplicate_near")
        for r in read_rows(first, label, "ledger")
    }
    assert len(read_rows(first)) == 1 and reasons == {"exact duplicate", "near duplicate"}
    (removed_row,) = read_rows(first, "deduplicate", "ledger")
    keys = {d["text"]: d["doc_id"] for d in read_rows(first, "ingest")}
    removed_key = next(key for key, text in texts.items() if keys[text] == removed_row["doc_id"])
    second = add_texts(tmp_path / "2", {key: f"now this is {key}" for key in texts}, [first])
    assert [d["text"] for d in read_rows(second)] == [f"now this is {removed_key}"]
    assert {r["doc_id"]: r["reason"] for r in read_rows(second, "deduplicate", "ledger")} == {
        keys[text]: "id used before" for key, text in texts.items() if key != removed_key
    }


def test_a_cluster_keeps_its_id_and_split_in_every_stage(session, tmp_path):
    """Every new document is slightly similar to an earlier one."""
    rng = random.Random(3)
    bases = [rng.choices(WORDS, k=40) for _ in range(30)]
    first = add_texts(tmp_path / "1", {f"a{i}": " ".join(b) for i, b in enumerate(bases)}, [])
    similar_texts = [" ".join([*base[:34], *rng.choices(WORDS, k=6)]) for base in bases]
    second = add_texts(
        tmp_path / "2", {f"b{i}": text for i, text in enumerate(similar_texts)}, [first]
    )
    more_texts = [" ".join([*rng.choices(WORDS, k=5), *text.split()[5:]]) for text in similar_texts]
    third = add_texts(
        tmp_path / "3", {f"c{i}": t for i, t in enumerate(more_texts)}, [first, second]
    )
    first_documents = {" ".join(d["text"].split()[10:30]): d for d in read_rows(first)}
    assert len(first_documents) == len(read_rows(second)) == len(read_rows(third)) == 30
    for row in [*read_rows(second), *read_rows(third)]:
        first_document = first_documents[" ".join(row["text"].split()[10:30])]
        assert (row["cluster"], row["split"]) == (
            first_document["cluster"],
            first_document["split"],
        )
    assert len({d["split"] for d in first_documents.values()}) == 3


# Three steps compared with one -------------------------------------------------------------------


def test_three_steps_and_one_keep_the_same_texts_except_similar_ones(session, tmp_path):
    texts = {key: text for seed in range(4) for key, text in make_texts(seed).items()}
    rng = random.Random(0)
    order = sorted(texts, key=lambda _: rng.random())
    steps = [{key: texts[key] for key in order[start::3]} for start in range(3)]
    additions = []
    for number, step in enumerate(steps):
        additions.append(add_texts(tmp_path / str(number), step, additions))
    single_run = add_texts(tmp_path / "once", texts, [])
    documents_by_run = {
        "grown": {d["doc_id"]: d for artifacts in additions for d in read_rows(artifacts)},
        "once": {d["doc_id"]: d for d in read_rows(single_run)},
    }
    ledgers = {
        name: {
            r["doc_id"]: r
            for artifacts in runs
            for label in ("deduplicate", "deduplicate_near", "deduplicate_redacted")
            for r in read_rows(artifacts, label, "ledger")
        }
        for name, runs in (("grown", additions), ("once", [single_run]))
    }
    sets = {
        d: shingle_set(row["text"]) for side in documents_by_run.values() for d, row in side.items()
    }
    counts = Counter()
    for name, other in (("grown", "once"), ("once", "grown")):
        for doc_id in documents_by_run[name].keys() - documents_by_run[other].keys():
            assert max(similarity(sets[doc_id], sets[k]) for k in documents_by_run[other]) >= 0.8
            counts[name, ledgers[other][doc_id]["reason"]] += 1
    common_ids = documents_by_run["grown"].keys() & documents_by_run["once"].keys()
    assert len(common_ids) > 0.8 * len(documents_by_run["once"])
    assert counts.keys() == {
        (name, reason)
        for name in documents_by_run
        for reason in ("exact duplicate", "near duplicate")
    }
    # Only bridges have near copies in another split.
    for first, second in combinations(documents_by_run["grown"].values(), 2):
        if similarity(sets[first["doc_id"]], sets[second["doc_id"]]) >= 0.5:
            counts["apart"] += first["split"] != second["split"]
    bridges = sum(
        read_rows(artifacts, "deduplicate_near", "search_summary")[0]["bridging_documents"]
        for artifacts in additions
    )
    assert counts["apart"] <= 10 * bridges


def test_results_do_not_depend_on_workers_or_partitions(tmp_path):
    texts = list(make_texts(5).items())
    first, second = dict(texts[::2]), dict(texts[1::2])

    def compute_results(name, part_bytes, mapper=None):
        session = Session(Store(tmp_path / name))
        if mapper:
            session = Session(Store(tmp_path / name), mapper)
        with open_session(session):
            first_artifacts = add_texts(tmp_path / "first", first, [], part_bytes[0])
            second_artifacts = add_texts(
                tmp_path / "second", second, [first_artifacts], part_bytes[1]
            )
        return [
            (
                label,
                table,
                second_artifacts[label][table].read().sort_by("doc_id").to_pylist()
                if "doc_id" in second_artifacts[label][table].columns
                else read_rows(second_artifacts, label, table),
            )
            for label in ("deduplicate", "deduplicate_near", "deduplicate_redacted", "split")
            for table in second_artifacts[label].tables
        ], {label: artifact.content_digest for label, artifact in second_artifacts.items()}

    expected = compute_results("one", (8 << 20, 8 << 20))
    small_partitions, _ = compute_results("small", (4096, 2048))
    assert small_partitions == expected[0]
    assert compute_results("workers", (4096, 8 << 20), ProcessMapper(2)) == expected


# Refusals ----------------------------------------------------------------------------------------


def test_an_earlier_corpus_with_other_settings_is_refused(session, tmp_path):
    first = add_texts(tmp_path / "1", {"a": "some words", "b": "other words"}, [])
    near = first["deduplicate_near"]
    with pytest.raises(HallmarkError, match=r"deduplicate_near\.bands is 20 but was 32 in the"):
        add_texts(tmp_path / "2", {"c": "new"}, [first], bands=20)
    for setting in (
        {"shingle_unit": "characters"},
        {"rows_per_band": 5},
        {"seed": 2},
        {"similarity_threshold": 0.7},
        {"cluster_threshold": 0.4},
        {"shingle_length": 4},
    ):
        with pytest.raises(HallmarkError, match="earlier corpus"):
            check_earlier_compatible(near, DeduplicateNearConfig(**setting))
    check_earlier_compatible(
        near, DeduplicateNearConfig(preferred_sources=("s",), max_candidates=5)
    )
    with pytest.raises(HallmarkError, match=r"split\.seed is 1 but was 0 in the earlier corpus"):
        check_earlier_compatible(
            first["split"], SplitConfig(seed=1, validation_share=0.3, holdout_share=0.3)
        )


def test_signatures_of_other_code_are_refused(session, tmp_path):
    first = add_texts(tmp_path / "1", {"a": "some words"}, [])["deduplicate"]
    check_earlier_compatible(first, DeduplicateConfig())
    first.manifest["parts"]["code"]["hallmark.tasks.measures.normalised_words"] = "other"
    with pytest.raises(
        HallmarkError,
        match=r"another version of the hallmark\.tasks\.measures\.normalised_words code",
    ):
        check_earlier_compatible(first, DeduplicateConfig())


def test_every_kept_document_has_one_signature(session, tmp_path):
    artifacts = add_texts(tmp_path / "1", make_texts(1), [], part_bytes=2048)
    for label in ("deduplicate", "deduplicate_near"):
        documents, signatures = artifacts[label]["documents"], artifacts[label]["signatures"]
        assert [p.row_count for p in signatures.parts] == [p.row_count for p in documents.parts]
        assert len(signatures.parts) > 1
        for name in ("doc_id", "cluster"):
            assert signatures.read([name]) == documents.read([name])
    clusters_before = {d["doc_id"]: d["cluster"] for d in read_rows(artifacts, "deduplicate")}
    for row in read_rows(artifacts, "deduplicate_near", "signatures"):
        assert row["incoming_cluster"] == clusters_before[row["doc_id"]]
        assert len(row["band_hashes"]) == 32
    texts = {plain(d["text"]) for d in read_rows(artifacts, "deduplicate")}
    assert len(
        {r["folded_text_hash"] for r in read_rows(artifacts, "deduplicate", "signatures")}
    ) == len(texts)


def test_a_corpus_with_a_purged_document_cannot_be_extended(tmp_path):
    store = Store(tmp_path / "store")
    with open_session(Session(store)):
        first = add_texts(tmp_path / "1", {"a": "a violet submarine", "b": "two other words"}, [])
    (doc_id,) = [d["doc_id"] for d in read_rows(first) if d["text"] == "a violet submarine"]
    purge_document(store, doc_id.hex())
    purged = {label: store.find_artifact(a.stage, a.fingerprint) for label, a in first.items()}
    for label in ("deduplicate", "deduplicate_near"):
        (signature,) = [r for r in read_rows(purged, label, "signatures") if r["doc_id"] == doc_id]
        assert (
            signature.get("folded_text_hash", bytes(16)) == bytes(16)
            and signature.get("band_hashes", []) == []
        )
    with open_session(Session(store)):
        with pytest.raises(HallmarkError, match="if the artifact belongs to an earlier corpus"):
            add_texts(tmp_path / "2", {"c": "new"}, [purged])
        second = add_texts(tmp_path / "3", {f"c{i}": f"new {i}" for i in range(30)}, [])
        tokenizer = train_tokenizer([second["split"]], None, TokenizerConfig(vocab_size=300))
        with pytest.raises(HallmarkError, match="which was purged"):
            pack([purged["split"], second["split"]], tokenizer, PackConfig(context=32))
