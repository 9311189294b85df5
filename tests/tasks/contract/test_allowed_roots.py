"""The roots of a served deployment: which paths, links and URIs a request may name."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import from_url
from pydantic import Field

from hallmark.tasks.contract import (
    AllowedRoots,
    ExternalMarker,
    ExternalPath,
    StageConfig,
    UsageError,
)
from hallmark.tasks.contract.allowed_roots import (
    ROOTS_ENVIRONMENT_VARIABLE,
    check_config_paths,
    iter_config_paths,
    open_external_file,
)


def hide_user(uri: str) -> str:
    """Return a URI as errors show it: without user and password, but with Azure's container."""
    head, separator, rest = uri.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if not separator or not at or (head == "abfss" and ":" not in user):
        return uri
    return f"{head}://…@{host}{slash}{path}"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A root with a file, and a secret outside of it; ~ is the folder of both."""
    (tmp_path / "root" / "inner").mkdir(parents=True)
    (tmp_path / "root" / "inner" / "in.txt").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    (tmp_path / "root-beside").mkdir()
    (tmp_path / "root-beside" / "secret.txt").write_text("secret")
    monkeypatch.chdir(tmp_path / "root")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OUT", str(tmp_path / "outside"))
    return tmp_path


@pytest.fixture
def roots(place):
    return AllowedRoots.from_names([str(place / "root"), "s3://bucket/allowed"])


def declare(monkeypatch, roots):
    monkeypatch.setenv(
        ROOTS_ENVIRONMENT_VARIABLE, json.dumps({"folders": roots.folders, "uris": roots.uris})
    )


@pytest.mark.parametrize(
    "path",
    [
        "inner/in.txt",
        "inner",
        "inner/../inner/in.txt",
        "inner/*.txt",
        "**/*.txt",
        "not there yet",
        "~/root/inner/in.txt",
        "file://{place}/root/inner/in.txt",
        "{place}/root",
        "{place}/root/inner",
        "s3://bucket/allowed",
        "s3://bucket/allowed/a?.gz",
        "$OUT/secret.txt",  # no shell reads it: a folder of this name below the root
    ],
)
def test_a_path_inside_is_let_through(place, roots, path):
    roots.check_path(path.format(place=place), "a.setting")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../outside/secret.txt",
        "inner/../../outside/secret.txt",
        "..",
        "{place}/root-beside/secret.txt",
        "{place}/root/../outside",
        "~/outside/secret.txt",
        "~root/.profile",
        "../outside/*.txt",
        "{place}/*/secret.txt",
        "inner/*/../../../outside/*",
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "file://{place}/outside/secret.txt",
        "file://{place}/root/%2e%2e/outside/secret.txt",
        "file:///%65tc/passwd",
        "s3://bucket",
        "s3://bucket/allowed-too",
        "s3://bucket/allowed/../x",
        "s3://bucket/allowed/%2e%2e/x",
        "s3://bucket/allowed/.\t./x",
        "s3://bucket/allowed*",
        "s3://bucket@elsewhere/allowed",
        "gs://bucket/allowed",
        "https://example.org/x",
        "/proc/self/environ",
        "/dev/stdin",
        "../nowhere at all",
    ],
)
def test_a_path_outside_is_refused_with_its_setting_and_the_roots(place, roots, path):
    named = path.format(place=place)
    with pytest.raises(UsageError) as error:
        roots.check_path(named, "a.setting")
    said = str(error.value)
    assert said.startswith(f"a.setting: {hide_user(named)!r} ") and "\n" not in said
    assert str(place / "root") in said and "hallmark serve --allowed-root PATH" in said


AZURE = "abfss://container@account.dfs.core.windows.net"

#: Roots of object stores, and what lies inside of each.
INSIDE_URIS = [
    (AZURE, f"{AZURE}/path"),
    (AZURE, AZURE),
    (f"{AZURE}/path", f"{AZURE}/path/a.jsonl"),
    (f"{AZURE}/path/", f"{AZURE}/path"),
    ("abfs://$web@account.dfs.core.windows.net", "abfs://$web@account.dfs.core.windows.net/x"),
    ("s3://bucket/my data", "s3://bucket/my data/a file.txt"),
    ("s3://bucket/my%20data", "s3://bucket/my%20data/a%20file.txt"),
    ("s3://bucket", "s3://bucket/my data/*.txt"),
    ("s3://bucket", "s3://bucket/100% sure/50%/a.txt"),
    ("s3://bucket", "s3://bucket/a..b/..c/d../.../x"),
    ("s3://bucket", "s3://bucket/é/ü%C3%A9.txt"),
    ("s3://bucket", "s3://bucket/me@home/a:b/x+y=z&w;v"),
    ("s3://bucket", "s3://bucket/folder/"),
    ("s3://a.bucket:9000/x", "s3://a.bucket:9000/x/y"),
    ("http://[::1]:9000/x", "http://[::1]:9000/x/y"),
    ("hf://datasets/user", "hf://datasets/user/name@refs%2Fpr%2F1/a.parquet"),
]

#: Paths below roots that a reader may take for something else than they seem to be.
HOSTILE_URIS = [
    "/..",
    "/../x",
    "/x/../../y",
    "/.",
    "/./x",
    "//x",
    "/x//y",
    "/x//",
    "/%2e%2e/x",
    "/%2E%2E/x",
    "/.%2e/x",
    "/%252e%252e/x",
    "/%25252e%25252e/x",
    "/%2e%2e%2fx",
    "/x%2f..%2f..%2fy",
    "/x%2f%2fy",
    "/x%252f..%252fy",
    "/..%5cx",
    "/..\\x",
    "/x/.. ",
    "/.. /x",
    "/ ../x",
    "/..%20/x",
    "/%20../x",
    "/..%09/x",
    "/.\t./x",
    "/.%09./x",
    "/x%00",
    "/x\0",
    "/x%0a",
    "/x\n",
    "/x\xa0",
    "/x\u200b/y",
    "/x\u202e/y",
    "/%c0%ae%c0%ae/x",
    "/%ff",
    "/x%2e%2e%2f\udc80",
    "/x#y",
    "/#/../y",
    " ",
    "/x ",
    "/x/ /y",
    "/x/%20/y",
    "#",
    "#/x",
    "@elsewhere",
    "@elsewhere/x",
    ":80",
    ":80@elsewhere/x",
    "%2f..",
    "%2fx",
    "\\..",
    "?x",
    "/..;x/../..",
]


@pytest.mark.parametrize(("root", "uri"), INSIDE_URIS)
def test_a_uri_inside_is_let_through(place, root, uri):
    for marker in (ExternalMarker(), ExternalMarker(recursive=False)):
        AllowedRoots.from_names([root]).check_path(uri, "a.setting", marker)


@pytest.mark.parametrize("root", [AZURE, f"{AZURE}/path", "s3://bucket", "s3://bucket/my%20data"])
@pytest.mark.parametrize("below", HOSTILE_URIS)
def test_a_uri_that_may_lead_outside_is_refused(place, root, below):
    roots = AllowedRoots.from_names([root])
    for marker in (
        ExternalMarker(),
        ExternalMarker(recursive=False),
        ExternalMarker(allows_hub_id=True),
    ):
        with pytest.raises(UsageError) as error:
            roots.check_path(root + below, "a.setting", marker)
        said = str(error.value)
        assert said.startswith(f"a.setting: {hide_user(root + below)!r} ") and "\n" not in said
        assert f"({roots})" in said and "hallmark serve --allowed-root PATH" in said


@pytest.mark.parametrize(
    "root",
    [
        "abfss://container:word@account.dfs.core.windows.net/x",
        "abfss://@account.net/x",
        "abfss://a@b@account.net/x",
        "abfss://a%40b@account.net/x",
        "s3://user:word@bucket/x",
        "s3://:word@bucket/x",
        "s3://bucket?x/y",
        "s3://bucket#x",
        "s3://bucket/x?y=z",
        "s3://bucket/x#y",
        "s3://bucket%2fx",
        "s3://buck et/x",
        "s3://bück/x",
        "s3://[::1/x",
        "s3://bucket:word/x",
        "s3://bucket/x ",
        "s3://bucket//x",
        "s3://bucket/x//",
        "s3:///x",
        "s3://bucket/%2e%2e",
        "s3://bucket/x/./y",
        "s3://bucket/%ff",
        "s3://bucket\\x",
        "s3://..",
    ],
)
def test_a_root_that_readers_may_take_for_another_is_refused(root):
    for setting in ("--allowed-root", "store:"):
        said = f"{setting} {hide_user(root)!r} is not a URI such as s3://bucket/folder: it "
        with pytest.raises(UsageError, match="^" + re.escape(said)) as error:
            AllowedRoots.from_names([root], setting)
        assert "word@" not in str(error.value)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("s3://bucket/a/x", "s3://bucket/ab"),
        (
            "abfss://one@account.dfs.core.windows.net/x",
            "abfss://two@account.dfs.core.windows.net/x",
        ),
        ("abfss://one@account.dfs.core.windows.net/x", "abfss://one@other.dfs.core.windows.net/x"),
        ("abfss://one@account.dfs.core.windows.net/x", "abfs://one@account.dfs.core.windows.net/x"),
        ("s3://bucket/my data", "s3://bucket/my%20data"),  # a corpus takes %20 as three characters
        ("s3://bucket/my%20data", "s3://bucket/my data"),
        ("s3://bucket/a%2fb", "s3://bucket/a/b"),
    ],
)
def test_a_uri_of_another_spelling_lies_outside(place, inside, outside):
    with pytest.raises(UsageError, match="leads outside the allowed roots"):
        AllowedRoots.from_names([inside]).check_path(outside, "a.setting")


def test_a_pattern_of_uris_is_bounded_by_the_folder_before_it(place):
    """A root may be named like a pattern: a corpus would match its neighbours."""
    roots = AllowedRoots.from_names(["s3://bucket/a[b]", "s3://bucket/x"])
    for uri in ("s3://bucket/a[b]/x.txt", "s3://bucket/x*/y", "s3://bucket/[x]/y"):
        with pytest.raises(UsageError, match="leads outside the allowed roots"):
            roots.check_path(uri, "a.setting")
    roots.check_path("s3://bucket/a[b]/store", "store", ExternalMarker(recursive=False))
    for uri in ("s3://bucket/x/*", "s3://bucket/x/**/a?.txt", "s3://bucket/x/[ab].txt"):
        roots.check_path(uri, "a.setting")
    with pytest.raises(UsageError, match=r"store: 's3://bucket/x/a\?b' .* a query"):
        roots.check_path("s3://bucket/x/a?b", "store", ExternalMarker(recursive=False))


PIECES = st.sampled_from(
    [
        *"ab./%?#@:;*[]~&éx \\\t",
        "..",
        "//",
        "/../",
        "/./",
        "2e",
        "2f",
        "25",
        "%2e",
        "%2E",
        "%2f",
        "%5c",
        "%25",
        "%20",
        "%00",
        "%c0%ae",
    ]
)


@given(
    st.sampled_from(["s3://bucket", "s3://bucket/a", "s3://bucket/a%20b", f"{AZURE}/a b"]),
    st.lists(PIECES, max_size=8).map("".join),
)
@settings(max_examples=2_000)
def test_no_reader_takes_a_uri_that_is_let_through_for_one_outside(root, below):
    """A store decodes a URI and drops a query; a corpus reads what follows the bucket as it is."""
    roots, uri = AllowedRoots.from_names([root]), f"{root}/{below}"
    with suppress(UsageError):
        roots.check_path(uri, "store", ExternalMarker(recursive=False))
        allowed, opened = from_url(root), from_url(uri)
        assert opened.config == allowed.config
        within = str(allowed.prefix or "").strip("/")
        inside = str(opened.prefix or "").strip("/")
        assert not within or inside == within or inside.startswith(f"{within}/")
    with suppress(UsageError):
        roots.check_path(uri, "a.setting")
        bucket, key = re.fullmatch("([a-z0-9]+://[^/]+)/*(.*)", uri).groups()
        assert root.startswith(bucket) and uri.startswith(f"{root}/")
        assert not {"", ".", ".."} & {*key.removesuffix("/").split("/")} or not key
        wild = re.search(r"[*?\[]", key)
        folder = f"{bucket}/{key[: wild.start()] if wild else key}".rpartition("/")[0] + "/"
        assert folder.startswith(f"{root}/") or (not wild and uri.rstrip("/") == root)


def test_a_uri_of_many_nested_escapes_is_refused_at_once(place):
    with pytest.raises(UsageError, match="deeply nested percent-escapes"):
        AllowedRoots.from_names(["s3://bucket"]).check_path(
            f"s3://bucket/%{'25' * 10**6}2e", "a.setting"
        )


CORPUS = ExternalMarker(list_endings=lambda: (".txt", ".txt.gz"))


@pytest.mark.parametrize(
    "link",
    [
        ".venv/bin/python",
        "venv/bin/python",
        ".hidden",
        ".hidden.txt",
        "inner/.hidden.txt.gz",
        "folder",
        "folder.txt",
        ".venv/folder",
        "not there",
    ],
)
def test_a_link_that_no_reader_of_a_corpus_follows_is_passed_over(place, roots, link):
    path = place / "root" / link
    path.parent.mkdir(parents=True, exist_ok=True)
    names = {"folder": "outside", "folder.txt": "outside", "not there": "outside/not there"}
    path.symlink_to(place / names.get(path.name, "outside/secret.txt"))
    roots.check_path(str(place / "root"), "ingest.sources.0.path", CORPUS)
    for marker in (
        ExternalMarker(),
        ExternalMarker(allows_hub_id=True),
    ):  # what reads there is not known
        with pytest.raises(UsageError, match="leads outside the allowed roots"):
            roots.check_path(str(place / "root"), "a.setting", marker)


@pytest.mark.parametrize("link", ["a.txt", ".venv/lib/a.txt", "inner/b.txt.gz", ".a/.b/c.txt"])
@pytest.mark.parametrize("target", ["outside/secret.txt", "outside/not there"])
def test_a_link_that_a_reader_of_a_corpus_follows_is_refused(place, roots, link, target):
    """Also in a hidden folder, which readers search as any other."""
    path = place / "root" / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(place / target)
    with pytest.raises(UsageError, match=f"{re.escape(link)}' leads outside the allowed roots"):
        roots.check_path(str(place / "root"), "ingest.sources.0.path", CORPUS)


@pytest.mark.parametrize("target", ["outside/secret.txt", "outside", "outside/not there"])
def test_a_link_that_leads_outside_is_refused(place, roots, target):
    (place / "root" / "inner" / "link").symlink_to(place / target)
    patterns = ["inner/*", "**/link"] if (place / target).exists() else []
    for path in ("inner/link", "inner", str(place / "root"), *patterns):
        with pytest.raises(UsageError, match="leads outside the allowed roots"):
            roots.check_path(path, "a.setting")
    roots.check_path("inner", "store", ExternalMarker(recursive=False))


def test_an_output_below_a_tilde_is_bounded_as_it_is_written(place, roots, monkeypatch):
    """A store of this name is not expanded: it would be made in the folder one is in."""
    roots.check_path("~/root/store", "store", ExternalMarker(recursive=False))
    monkeypatch.chdir(place / "outside")
    roots.check_path("~/root/inner", "a.setting")
    with pytest.raises(UsageError, match="leads outside"):
        roots.check_path("~/root/store", "store", ExternalMarker(recursive=False))


def test_a_link_to_a_root_is_the_root(place):
    (place / "alias").symlink_to(place / "root")
    for roots in (
        AllowedRoots.from_names([str(place / "alias")]),
        AllowedRoots.from_names(["../root"]),
    ):
        roots.check_path("../alias/inner/in.txt", "a.setting")
        roots.check_path("inner/in.txt", "a.setting")


def test_a_data_set_of_the_hub_must_be_declared(place):
    hub = ExternalMarker(allows_hub_id=True)
    with pytest.raises(UsageError, match="'hf://datasets/user/name' leads outside"):
        AllowedRoots.from_names(["."]).check_path("user/name", "a.setting", hub)
    declared = AllowedRoots.from_names([".", "hf://datasets/user"])
    declared.check_path("user/name", "a.setting", hub)
    declared.check_path("inner", "a.setting", hub)
    for path in ("other/name", "/etc", "../outside"):
        with pytest.raises(UsageError, match="leads outside"):
            declared.check_path(path, "a.setting", hub)


def test_a_root_that_is_no_uri_is_refused():
    for name in ("s3://", "s3://bucket/../x", "s3://user@bucket"):
        with pytest.raises(UsageError, match=re.escape(f"--allowed-root {hide_user(name)!r} is")):
            AllowedRoots.from_names([name])


def test_a_link_that_is_exchanged_after_the_check_is_found_when_the_file_is_opened(
    place, roots, monkeypatch
):
    declare(monkeypatch, roots)
    link = place / "root" / "link"
    link.symlink_to(place / "root" / "inner" / "in.txt")
    with open_external_file(link, "a.setting") as file:
        assert file.read() == b"inside"

    opened = os.open

    def exchange(path, *more, **named):
        """The file that is opened is another one than was checked, and than is there behind."""
        link.unlink()
        link.symlink_to(place / "outside" / "secret.txt")
        descriptor = opened(path, *more, **named)
        link.unlink()
        link.symlink_to(place / "root" / "inner" / "in.txt")
        return descriptor

    monkeypatch.setattr(os, "open", exchange)
    with pytest.raises(UsageError, match=r"a\.setting: .* leads outside the allowed roots"):
        open_external_file(link, "a.setting")


def test_without_declared_roots_nothing_is_refused(place, monkeypatch):
    monkeypatch.delenv(ROOTS_ENVIRONMENT_VARIABLE, raising=False)
    with open_external_file(place / "outside" / "secret.txt", "a.setting") as file:
        assert file.read() == b"secret"
    check_config_paths(Everything(folder=place / "outside"), "section")


class Inner(StageConfig):
    file: Path | None = None
    words: tuple[str, ...] | ExternalPath = ()


@dataclass(frozen=True)
class Plain:
    where: Path | None = None
    title: str = "no path"


class Everything(StageConfig):
    folder: Path
    title: str = "no path"
    text: Annotated[ExternalPath, "more"] | None = None
    many: tuple[Path, ...] = ()
    named: Mapping[str, Inner] = Field(default_factory=dict)
    several: list[Inner] = Field(default_factory=list)
    plain: Plain = Plain()
    own: tuple[Annotated[Path, ExternalMarker(built_in_names=("mine",))], ...] = ()


def test_every_path_of_a_config_is_found_by_its_type(place, roots, monkeypatch):
    config = Everything(
        folder="a",
        text="b",
        many=["c", "d"],
        named={"x": Inner(file="e", words="f")},
        several=[Inner(words=("no", "paths")), Inner(words="g")],
        plain=Plain(Path("h")),
        own=["mine", "i"],
    )
    found = {named.setting: named.path for named in iter_config_paths(config)}
    assert found == {
        "folder": "a",
        "text": "b",
        "many.0": "c",
        "many.1": "d",
        "named.x.file": "e",
        "named.x.words": "f",
        "several.1.words": "g",
        "plain.where": "h",
        "own.0": "mine",
        "own.1": "i",
    }
    declare(monkeypatch, roots)
    check_config_paths(config, "section")
    wrong = config.model_copy(update={"several": [Inner(words="/etc/passwd")]})
    with pytest.raises(UsageError, match=r"^section\.several\.0\.words: '/etc/passwd' leads"):
        check_config_paths(wrong, "section")
    with pytest.raises(UsageError, match=r"^section\.own\.0: '/etc/passwd' leads"):
        check_config_paths(config.model_copy(update={"own": (Path("/etc/passwd"),)}), "section")
