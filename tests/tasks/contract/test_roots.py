"""The roots of a served deployment: which paths, links and URIs a request may name."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from tasks.contract import External, ExternalPath, Roots, StageConfig, UsageError
from tasks.contract.roots import ROOTS_VARIABLE, check_config, external_paths, open_external


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
    return Roots.from_names([str(place / "root"), "s3://bucket/allowed"])


def declare(monkeypatch, roots):
    monkeypatch.setenv(ROOTS_VARIABLE, json.dumps({"folders": roots.folders, "uris": roots.uris}))


@pytest.mark.parametrize(
    "path",
    [
        "inner/in.txt", "inner", "inner/../inner/in.txt", "inner/*.txt", "**/*.txt",
        "not there yet", "~/root/inner/in.txt", "file://{place}/root/inner/in.txt",
        "{place}/root", "{place}/root/inner", "s3://bucket/allowed", "s3://bucket/allowed/a?.gz",
        "$OUT/secret.txt",  # no shell reads it: a folder of this name below the root
    ],
)  # fmt: skip
def test_a_path_inside_is_let_through(place, roots, path):
    roots.check(path.format(place=place), "a.setting")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "../outside/secret.txt", "inner/../../outside/secret.txt", "..",
        "{place}/root-beside/secret.txt", "{place}/root/../outside", "~/outside/secret.txt",
        "~root/.profile", "../outside/*.txt", "{place}/*/secret.txt", "inner/*/../../../outside/*",
        "file:///etc/passwd", "file://localhost/etc/passwd", "file://{place}/outside/secret.txt",
        "file://{place}/root/%2e%2e/outside/secret.txt", "file:///%65tc/passwd",
        "s3://bucket", "s3://bucket/allowed-too", "s3://bucket/allowed/../x",
        "s3://bucket/allowed/%2e%2e/x", "s3://bucket/allowed/.\t./x", "s3://bucket/allowed*",
        "s3://bucket@elsewhere/allowed", "gs://bucket/allowed", "https://example.org/x",
        "/proc/self/environ", "/dev/stdin", "../nowhere at all",
    ],
)  # fmt: skip
def test_a_path_outside_is_refused_with_its_setting_and_the_roots(place, roots, path):
    named = path.format(place=place)
    with pytest.raises(UsageError) as error:
        roots.check(named, "a.setting")
    said = str(error.value)
    assert said.startswith(f"a.setting: {named!r} ") and "\n" not in said
    assert str(place / "root") in said and "hallmark serve --root PATH" in said


@pytest.mark.parametrize("target", ["outside/secret.txt", "outside", "outside/not there"])
def test_a_link_that_leads_outside_is_refused(place, roots, target):
    (place / "root" / "inner" / "link").symlink_to(place / target)
    patterns = ["inner/*", "**/link"] if (place / target).exists() else []
    for path in ("inner/link", "inner", str(place / "root"), *patterns):
        with pytest.raises(UsageError, match="leads outside the roots"):
            roots.check(path, "a.setting")
    roots.check("inner", "store", External(whole=False))


def test_an_output_below_a_tilde_is_bounded_as_it_is_written(place, roots, monkeypatch):
    """A store of this name is not expanded: it would be made in the folder one is in."""
    roots.check("~/root/store", "store", External(whole=False))
    monkeypatch.chdir(place / "outside")
    roots.check("~/root/inner", "a.setting")
    with pytest.raises(UsageError, match="leads outside"):
        roots.check("~/root/store", "store", External(whole=False))


def test_a_link_to_a_root_is_the_root(place):
    (place / "alias").symlink_to(place / "root")
    for roots in (Roots.from_names([str(place / "alias")]), Roots.from_names(["../root"])):
        roots.check("../alias/inner/in.txt", "a.setting")
        roots.check("inner/in.txt", "a.setting")


def test_a_data_set_of_the_hub_must_be_declared(place):
    hub = External(hub=True)
    with pytest.raises(UsageError, match="'hf://datasets/user/name' leads outside"):
        Roots.from_names(["."]).check("user/name", "a.setting", hub)
    declared = Roots.from_names([".", "hf://datasets/user"])
    declared.check("user/name", "a.setting", hub)
    declared.check("inner", "a.setting", hub)
    for path in ("other/name", "/etc", "../outside"):
        with pytest.raises(UsageError, match="leads outside"):
            declared.check(path, "a.setting", hub)


def test_a_root_that_is_no_uri_is_refused():
    for name in ("s3://", "s3://bucket/../x", "s3://user@bucket"):
        with pytest.raises(UsageError, match=re.escape(f"--root {name!r} is not a URI")):
            Roots.from_names([name])


def test_a_link_that_is_exchanged_after_the_check_is_found_when_the_file_is_opened(
    place, roots, monkeypatch
):
    declare(monkeypatch, roots)
    link = place / "root" / "link"
    link.symlink_to(place / "root" / "inner" / "in.txt")
    with open_external(link, "a.setting") as file:
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
    with pytest.raises(UsageError, match=r"a\.setting: .* leads outside the roots"):
        open_external(link, "a.setting")


def test_without_declared_roots_nothing_is_refused(place, monkeypatch):
    monkeypatch.delenv(ROOTS_VARIABLE, raising=False)
    with open_external(place / "outside" / "secret.txt", "a.setting") as file:
        assert file.read() == b"secret"
    check_config(Everything(folder=place / "outside"), "section")


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
    own: tuple[Annotated[Path, External(built_in=("mine",))], ...] = ()


def test_every_path_of_a_config_is_found_by_its_type(place, roots, monkeypatch):
    config = Everything(
        folder="a", text="b", many=["c", "d"], named={"x": Inner(file="e", words="f")},
        several=[Inner(words=("no", "paths")), Inner(words="g")], plain=Plain(Path("h")),
        own=["mine", "i"],
    )  # fmt: skip
    found = {named.setting: named.path for named in external_paths(config)}
    assert found == {
        "folder": "a", "text": "b", "many.0": "c", "many.1": "d", "named.x.file": "e",
        "named.x.words": "f", "several.1.words": "g", "plain.where": "h", "own.0": "mine",
        "own.1": "i",
    }  # fmt: skip
    declare(monkeypatch, roots)
    check_config(config, "section")
    wrong = config.model_copy(update={"several": [Inner(words="/etc/passwd")]})
    with pytest.raises(UsageError, match=r"^section\.several\.0\.words: '/etc/passwd' leads"):
        check_config(wrong, "section")
    with pytest.raises(UsageError, match=r"^section\.own\.0: '/etc/passwd' leads"):
        check_config(config.model_copy(update={"own": (Path("/etc/passwd"),)}), "section")
