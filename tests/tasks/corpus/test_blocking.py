"""Test what ingest excludes: blocked sources, domains and documents, and documents over a quota."""

import json
import random
import tomllib
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hallmark.tasks.contract import ProcessMapper, Session, Store, UsageError, open_session
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.block_list import BlockListConfig, load_block_list
from hallmark.tasks.corpus.reading.inputs import IngestConfig, digest_sources_and_block_lists
from hallmark.tasks.corpus.reading.metadata import extract_domains, normalise_host

HOSTS = ["a.example", "www.b.a.example", "xa.example", "example", "[::1]", "sub.c.example"]


def write_jsonl(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def source_settings(folder, name="s", **settings):
    return {"kind": "jsonl", "name": name, "path": str(folder), "url_field": "url", **settings}


def ingest_sources(*sources, **settings):
    return ingest(IngestConfig(sources=list(sources), **settings))


def get_texts(artifact):
    return artifact["documents"].read()["text"].to_pylist()


def count_reasons(artifact):
    rows = artifact["ledger"].read().to_pylist()
    return Counter(row["reason"] for row in rows if row["action"] == "removed")


@pytest.fixture
def hosts(tmp_path):
    rows = [{"text": f"on {h}", "url": f"http://{h}/"} for h in HOSTS]
    return write_jsonl(tmp_path / "hosts", [*rows, {"text": "nowhere"}, {"text": ""}])


@pytest.mark.parametrize(
    ("domains", "excluded"),
    [
        (["a.example"], {"a.example", "www.b.a.example"}),
        (["WWW.A.Example."], {"a.example", "www.b.a.example"}),
        (["b.a.example", "[::1]"], {"www.b.a.example", "[::1]"}),
        (["example"], {"a.example", "www.b.a.example", "xa.example", "example", "sub.c.example"}),
        (["ample", "e", "no.a.example"], set()),
    ],
)
def test_a_blocked_domain_includes_its_subdomains(hosts, session, tmp_path, domains, excluded):
    artifact = ingest_sources(source_settings(hosts), block={"domains": domains})
    assert set(get_texts(artifact)) == {f"on {h}" for h in HOSTS if h not in excluded} | {"nowhere"}
    expected = {"empty": 1, "blocked domain": len(excluded)}
    assert count_reasons(artifact) == {reason: n for reason, n in expected.items() if n}
    listed = tmp_path / "domains.txt"
    listed.write_text("# a comment\n\n" + "".join(f"  {d}  # why\r\n" for d in domains))
    artifact_from_file = ingest_sources(source_settings(hosts), block={"domains": str(listed)})
    assert artifact_from_file["documents"].digest == artifact["documents"].digest


def find_domains(*urls):
    return extract_domains(pa.array(urls, pa.string())).to_pylist()


def test_the_recorded_case_blocks_only_the_names_of_the_list(session):
    folder = Path(__file__).parents[2] / "cases" / "corpus" / "block"
    config = tomllib.loads((folder / "a.toml").read_text())["ingest"]
    config["sources"][0]["path"] = str(folder / "a.jsonl")
    artifact = ingest(IngestConfig.model_validate(config))
    numbers = sorted(int(text.split()[1].rstrip(":")) for text in get_texts(artifact))
    assert numbers == [0, 1, 3, 4]
    assert count_reasons(artifact) == {"blocked domain": 8}
    assert artifact["sources"].read()["unreadable_values"].to_pylist() == [0]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("www.com", "www.com"),
        ("WWW.COM.", "www.com"),
        ("www.co.uk", "www.co.uk"),
        ("www.github.io", "www.github.io"),
        ("www.公司.cn", "www.xn--55qx5d.cn"),
        ("www.localhost", "www.localhost"),
        ("www.shop.com", "shop.com"),
        ("www.www.com", "www.com"),
        ("www.shop.co.uk", "shop.co.uk"),
        ("www.ck", "www.ck"),
        ("www.b.example", "b.example"),
        ("straße.example", "xn--strae-oqa.example"),
        ("STRAẞE.example", "xn--strae-oqa.example"),
        ("stra%C3%9Fe.example", "xn--strae-oqa.example"),
        ("XN--STRAE-OQA.example", "xn--strae-oqa.example"),
        ("strasse.example", "strasse.example"),
        ("βόλος.example", "xn--nxasmm1c.example"),  # final sigma
        ("ＢＡＤ。example", "bad.example"),
        ("a\u00adb.example", "ab.example"),
        ("e\u0301.example", "xn--9ca.example"),
        ("foo_bar.straße.example", "foo_bar.xn--strae-oqa.example"),
        ("☃.example", "xn--n3h.example"),
        ("[0:0::1]", "[::1]"),
        ("[::FFFF:1.2.3.4]", "[::ffff:102:304]"),
        ("[::g]", None),
        ("a b.example", None),
        ("-a.example", "-a.example"),
        ("a-.b_.example", "a-.b_.example"),
        ("_dmarc.--.example", "_dmarc.--.example"),
        ("-ü-.example", "xn-----xka.example"),
        ("a$.example", None),
        ("a..example", None),
        ("", None),
        (".", None),
        ("%FF.example", None),
        ("℀.example", None),  # becomes a/c
        ("a" * 64 + ".example", None),
        ("a." * 130 + "example", None),
        ("ü" * 60 + ".example", None),
    ],
)
def test_hosts_are_compared_in_one_form(host, expected):
    assert normalise_host(host) == expected


@pytest.mark.parametrize("label", ["-x", "x-", "-", "_x", "x_", "a-_b", "r3---sn-x"])
def test_subdomains_with_hyphens_and_underscores_anywhere_are_blocked(label):
    urls = [
        f"http://{label}.shop.example/",
        f"http://{label}.other.example",
        f"{label}.shop.example",
    ]
    block_list = load_block_list(BlockListConfig(domains=("shop.example",)))
    domains = extract_domains(pa.array(urls))
    assert block_list.mark_blocked_domains(domains).to_pylist() == [True, False, True]
    own = load_block_list(BlockListConfig(domains=(f"{label}.shop.example",)))
    assert own.mark_blocked_domains(domains).to_pylist() == [True, False, True]


@pytest.mark.parametrize(
    "url",
    [
        "https://bad.example/a",
        "HTTPS://WWW.Bad.Example",
        " https://bad.example/a",
        "\u00a0\ufeffhttps://bad.example\n",
        "ht\ntps://bad.exa\tmple/a",
        "//bad.example/a",
        "\\\\bad.example\\a",
        "bad.example",
        "bad.example/a",
        "bad.example:8080/a",
        "bad.example?q",
        "bad.example#f",
        "www.bad.example/p",
        "https:bad.example",
        "https:/bad.example/a",
        "https:///bad.example/a",
        "https:\\\\bad.example\\a",
        "https://user:pass@bad.example:443/a",
        "https://good.example@bad.example/",
        "https://bad.example./a",
        "ws://bad.example",
        "svn+ssh://bad.example/a",
    ],
)
def test_a_host_is_found_however_its_url_is_written(url):
    assert find_domains(url) == ["bad.example"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "   ",
        "index.html",
        "a/b.example/c",
        "/bad.example/a",
        "./bad.example",
        "3.14/a",
        "localhost/a",
        "localhost:8000/a",
        "mailto:jane@bad.example",
        "urn:isbn:1",
        "https://",
        "https://bad .example/a",
        "https://[::g]/",
        "https://bad.example:port/",
        "file:///bad.example/a",
        "C:\\bad.example",
        "not a URL",
    ],
)
def test_a_url_without_host_is_counted_and_its_document_kept(session, tmp_path, url):
    assert find_domains(url, None, "https://a.example") == [None, None, "a.example"]
    rows = [{"text": "one", "url": url}, {"text": "two"}, {"text": "3", "url": "http://[::1]/"}]
    artifact = ingest_sources(
        source_settings(write_jsonl(tmp_path / "in", rows)), block={"domains": ["bad.example"]}
    )
    assert set(get_texts(artifact)) == {"one", "two", "3"}
    assert artifact["sources"].read()["unreadable_values"].to_pylist() == [int(url != "")]


#: Names of hosts as they are registered.
labels = st.from_regex("[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=4).map(".".join)


@settings(deadline=None)
@hypothesis_given(
    names,
    st.sampled_from(["http://", "HTTPS://", "https:", "//", "ftp:/", "http://u:p@", "\\\\"]),
    st.sampled_from(["", "/", ":8080", "/a b?c#d", "?x=http://other.example/", "#@other.example"]),
    st.sampled_from(["", " ", "\n\t", "\u3000", "\ufeff"]),
)
def test_the_host_of_any_url_is_found(name, prefix, suffix, blanks):
    assert find_domains(blanks + prefix + name.upper() + suffix + blanks) == [normalise_host(name)]


@settings(deadline=None)
@hypothesis_given(names, names)
def test_a_blocked_name_matches_itself_and_its_subdomains_only(first, second):
    """A leading www. has no meaning, except before a public suffix."""
    block_list = load_block_list(BlockListConfig(domains=(first,)))
    hosts = [second, f"{second}.{first}", f"www.{first}", first]
    is_blocked = block_list.mark_blocked_domains(
        extract_domains(pa.array([f"http://{host}/" for host in hosts]))
    )
    entry, others = normalise_host(first), [normalise_host(host) for host in hosts]
    assert is_blocked.to_pylist() == [f".{other}".endswith(f".{entry}") for other in others]
    assert is_blocked.to_pylist()[3]


@hypothesis_given(st.text(max_size=300))
def test_any_text_has_a_host_of_the_form_of_hosts_or_none(text):
    for host in (*find_domains(text, f"http://{text}/"), normalise_host(text)):
        assert host is None or normalise_host(host) in (host, host.removeprefix("www."))


def test_a_blocked_source_includes_its_parts(tmp_path, session):
    one, two = (write_jsonl(tmp_path / name, [{"text": name}]) for name in ("one", "two"))
    packages = {"kind": "documentation", "packages": ["click", "joblib"]}
    artifact = ingest_sources(
        source_settings(one, "one"),
        source_settings(two, "two"),
        packages,
        block={"sources": ["two", "documentation/click"]},
    )
    assert set(artifact["documents"].read()["source"].to_pylist()) == {
        "one",
        "documentation/joblib",
    }
    assert set(count_reasons(artifact)) == {"blocked source"}
    blocked = ingest_sources(
        source_settings(one, "one"), packages, block={"sources": ["documentation", "on"]}
    )
    assert get_texts(blocked) == ["one"]


def test_a_blocked_document_is_excluded_and_its_copies_keep_their_ids(tmp_path, session):
    rows = [{"text": "same", "url": f"http://{n}.example"} for n in range(5)] + [{"text": "other"}]
    settings = source_settings(write_jsonl(tmp_path / "in", rows))
    rows_before = ingest_sources(settings)["documents"].read().to_pylist()
    ids = [row["doc_id"] for row in rows_before if row["text"] == "same"]
    for denied in (ids[0], ids[3]):
        artifact = ingest_sources(settings, block={"doc_ids": [denied.hex().upper(), "0" * 32]})
        assert artifact["documents"].read().to_pylist() == [
            r for r in rows_before if r["doc_id"] != denied
        ]
        removed_rows = [
            r for r in artifact["ledger"].read().to_pylist() if r["action"] == "removed"
        ]
        assert [(r["doc_id"], r["reason"]) for r in removed_rows] == [(denied, "blocked document")]


def test_no_text_is_kept_of_a_blocked_document_with_a_key(tmp_path, session):
    """Another record with the same key is not kept either."""
    folder = write_jsonl(
        tmp_path / "in",
        [{"text": f"secret {n}", "k": 1} for n in range(3)] + [{"text": "x", "k": 2}],
    )
    settings = source_settings(folder, key_field="k")
    (denied,) = [
        r["doc_id"]
        for r in ingest_sources(settings)["documents"].read().to_pylist()
        if r["text"] != "x"
    ]
    artifact = ingest_sources(settings, block={"doc_ids": [denied.hex()]})
    assert get_texts(artifact) == ["x"]
    for table in artifact.tables:
        if table != "telemetry":
            assert "secret" not in repr(artifact[table].read().to_pylist())
            assert b"secret" not in b"".join(p.path.read_bytes() for p in artifact[table].parts)
    assert artifact["quarantine"].row_count == 2


def test_invalid_entries_are_refused_before_the_stage_starts(hosts, tmp_path):
    for block, message in (
        ({"domains": ["http://a.example/"]}, r"block\.domains: 'http://a\.example/' is not a host"),
        ({"doc_ids": ["12"]}, r"block\.doc_ids: '12' is not a document id"),
        ({"sources": str(tmp_path / "no")}, r"block\.sources: the file .* cannot be read"),
        ({"domains": "~nobody-here/x"}, r"block\.domains: the file .* cannot be read"),
    ):
        with pytest.raises(UsageError, match=message):
            digest_sources_and_block_lists(
                IngestConfig(sources=[source_settings(hosts)], block=block), ""
            )


def test_a_list_that_is_not_utf8_and_a_missing_list_have_different_errors(hosts, tmp_path):
    listed = tmp_path / "domains.txt"
    config = IngestConfig(sources=[source_settings(hosts)], block={"domains": str(listed)})
    listed.write_bytes("a.example\nfüße.example".encode("latin-1"))
    message = (
        r"block\.domains: .*domains\.txt' is not UTF-8 text \(invalid at byte 12\); save it as "
        "UTF-8$"
    )
    with pytest.raises(UsageError, match=message):
        digest_sources_and_block_lists(config, "")
    listed.write_bytes("a.example".encode("utf-16"))
    with pytest.raises(UsageError, match=r"not UTF-8 text \(invalid at byte 1\); save it"):
        digest_sources_and_block_lists(config, "")


def test_an_invalid_entry_is_named_with_at_most_60_characters():
    for name, entry, problem in (
        ("domains", "a b" * 30, "is not a host name such as example.org"),
        ("doc_ids", "0" * 90, "is not a document id (32 hexadecimal digits)"),
    ):
        with pytest.raises(UsageError) as raised:
            load_block_list(BlockListConfig(**{name: (entry,)}))
        assert str(raised.value) == (
            f"ingest.block.{name}: {entry[:60]!r} {problem}; correct or remove the entry"
        )


@pytest.mark.parametrize("block", [{"sources": ["s"]}, {"domains": ["a.example"]}])
def test_neither_text_nor_hash_is_kept_of_blocked_documents(tmp_path, session, block):
    """A second record with the same key is quarantined without its bytes."""
    rows = [{"id": 1, "text": f"version {n}", "url": "http://a.example/"} for n in range(2)]
    other_source = source_settings(write_jsonl(tmp_path / "other", [{"text": "other"}]), "other")
    artifact = ingest_sources(
        source_settings(write_jsonl(tmp_path / "in", rows), key_field="id"),
        other_source,
        block=block,
    )
    (row,) = artifact["quarantine"].read().to_pylist()
    assert (row["error"], row["raw"]) == ("duplicate key", b"")
    (row,) = artifact["ledger"].read().to_pylist()
    assert (row["reason"].split()[0], row["document_hash"]) == ("blocked", None)


@pytest.mark.parametrize("name", ["sources", "domains"])
def test_a_byte_order_mark_is_not_part_of_the_first_entry(hosts, session, tmp_path, name):
    listed = tmp_path / "list.txt"
    listed.write_text({"sources": "s", "domains": "example"}[name] + "\nother\n", "utf-8-sig")
    artifact = ingest_sources(
        source_settings(hosts),
        source_settings(write_jsonl(tmp_path / "more", [{"text": "more"}]), "more"),
        block={name: str(listed)},
    )
    excluded = {"sources": HOSTS, "domains": HOSTS[:4] + HOSTS[5:]}[name]
    assert not {f"on {host}" for host in excluded} & set(
        get_texts(artifact)
    ) and "more" in get_texts(artifact)


def test_the_digest_of_a_list_file_depends_on_its_content(hosts, tmp_path):
    listed = tmp_path / "domains.txt"
    config = IngestConfig(sources=[source_settings(hosts)], block={"domains": str(listed)})
    listed.write_text("a.example")
    digests_before = digest_sources_and_block_lists(config, "")
    listed.write_text("b.example")
    assert digest_sources_and_block_lists(config, "") != digests_before


# Quotas ------------------------------------------------------------------------------------------


ROWS = [{"text": f"text {n} {random.Random(n).random()}"} for n in range(2000)]
ROWS += [{"text": "copied"}] * 50 + [{"text": ""}] * 10


@pytest.mark.parametrize(
    "limit",
    [
        {"document_share": 0.3},
        {"max_documents": 321},
        {"document_share": 0.5, "max_documents": 700},
    ],
)
def test_excluded_documents_do_not_depend_on_order_files_or_workers(tmp_path, limit):
    artifacts = []
    for number, rows in enumerate((ROWS, ROWS[::-1])):
        folder = write_jsonl(tmp_path / f"{number}", rows[: 100 + 900 * number])
        write_jsonl(folder / "more", rows[100 + 900 * number :])
        session = Session(Store(tmp_path / f"store {number}"))
        if number:
            session.mapper = ProcessMapper(2)
        with open_session(session):
            full_artifact = ingest_sources(source_settings(folder))
            artifacts.append(ingest_sources(source_settings(folder, **limit), partition_bytes=8000))
    assert artifacts[0]["documents"].digest == artifacts[1]["documents"].digest
    assert artifacts[0]["ledger"].digest == artifacts[1]["ledger"].digest
    assert Counter(get_texts(artifacts[0])) <= Counter(get_texts(full_artifact))
    kept_count = artifacts[0]["documents"].row_count
    cap = limit.get("max_documents")
    share = limit.get("document_share", 1)
    assert kept_count == cap or (
        cap is None and abs(kept_count - 2050 * share) < 4 * (2050 * 0.25) ** 0.5
    )
    reason_counts = count_reasons(artifacts[0])
    assert reason_counts.total() + kept_count == len(ROWS) and reason_counts["empty"] == 10
    assert set(reason_counts) <= {
        "empty",
        "excluded by document_share",
        "excluded by max_documents",
    }
    assert (
        sum(artifacts[0]["documents"].read()["text"].to_pylist().count(t) for t in ["copied"]) < 50
    )
    # There are as many partitions as the kept text needs.
    size = sum(map(len, get_texts(artifacts[0])))
    partition_count = len(artifacts[0]["documents"].parts)
    assert size <= 8000 * partition_count and (
        partition_count == 1 or size > 8000 * partition_count / 2
    )


def test_a_source_that_grows_keeps_the_documents_it_had(tmp_path, session):
    small = set(
        get_texts(
            ingest_sources(
                source_settings(write_jsonl(tmp_path / "a", ROWS[:500]), document_share=0.4)
            )
        )
    )
    large = set(
        get_texts(
            ingest_sources(
                source_settings(write_jsonl(tmp_path / "b", ROWS[:2000]), document_share=0.4)
            )
        )
    )
    assert small == large & {row["text"] for row in ROWS[:500]}


def test_each_source_has_its_own_limits(tmp_path, session):
    folder = write_jsonl(tmp_path / "in", ROWS[:300])
    artifact = ingest_sources(
        source_settings(folder, "all"),
        source_settings(folder, "ten", max_documents=10),
        source_settings(folder, "some", max_documents=900),
    )
    source_counts = Counter(artifact["documents"].read()["source"].to_pylist())
    assert source_counts == {"all": 300, "ten": 10, "some": 300}


@pytest.mark.parametrize(
    "limits", [{"document_share": 0}, {"document_share": 1.5}, {"max_documents": 0}]
)
def test_limits_out_of_range_are_refused(limits):
    with pytest.raises(ValidationError):
        IngestConfig(sources=[source_settings("a", **limits)])
