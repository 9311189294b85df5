"""Test the embedded corpus: documentation is read from packages without importing them."""

import inspect
import json
import subprocess
import sys
from importlib.metadata import distribution

import pytest

from hallmark.tasks.contract import UsageError
from hallmark.tasks.corpus.reading import documentation
from hallmark.tasks.corpus.reading.byte_streams import BOM, ReadCounts
from hallmark.tasks.corpus.reading.documentation import (
    compute_package_digest,
    find_paths_by_document_name,
    read_package_documentation,
)


def read_package(package, limit=1 << 20):
    counts = ReadCounts()
    records = list(read_package_documentation(package, limit, counts))
    assert counts.record_count == len(records)
    assert counts.byte_count == sum(r.raw_bytes for r in records)
    return records


def test_docstrings_are_those_that_python_finds():
    """Compare with inspect on the imported package."""
    import joblib.memory as module

    texts = {r.text for r in read_package("joblib") if r.file_name == "joblib/memory.py"}
    members = vars(module).values()
    own_members = [
        member for member in members if getattr(member, "__module__", "") == module.__name__
    ]
    classes = [member for member in own_members if inspect.isclass(member)]
    own_members += [f for c in classes for f in vars(c).values() if inspect.isfunction(f)]
    expected_texts = {
        inspect.cleandoc(member.__doc__) for member in [module, *own_members] if member.__doc__
    }
    assert len(expected_texts) >= 25
    assert expected_texts <= texts


def test_description_and_licences_are_documents():
    text_by_location = {(r.file_name, r.location): r.text for r in read_package("click")}
    description = text_by_location[("dist-info/METADATA", "description")]
    assert description.strip() == str(distribution("click").metadata.get_payload()).strip()
    licences = [text for (name, _), text in text_by_location.items() if "LICENSE" in name]
    assert licences and "Redistribution and use" in licences[0]


def test_no_package_is_imported():
    program = (
        "import sys;"
        "from hallmark.tasks.corpus.reading.documentation import read_package_documentation;"
        "from hallmark.tasks.corpus.reading.byte_streams import BOM, ReadCounts;"
        "n = len(list(read_package_documentation('networkx', 1 << 20, ReadCounts())));"
        "sys.exit(n < 1000 or 'networkx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_missing_or_unrecorded_packages_are_refused(monkeypatch):
    with pytest.raises(UsageError, match=r"'no-such-package' .* is not installed"):
        find_paths_by_document_name("no-such-package")
    monkeypatch.setattr(type(distribution("click")), "files", None)
    with pytest.raises(UsageError, match=r"'click' .* has no file list"):
        find_paths_by_document_name("click")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package of these files, with a record of them."""

    def install(files, version="1.0"):
        info = f"sample_docs-{version}.dist-info"
        files = {f"{info}/METADATA": b"Name: sample-docs\nVersion: 1.0\n\nHello.\n", **files}
        lines = []
        for name, data in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            lines.append(f"{name},sha256={abs(hash(data))},{len(data)}")
        (tmp_path / info / "RECORD").write_text("\n".join([*lines, f"{info}/RECORD,,"]))
        monkeypatch.syspath_prepend(tmp_path)
        return "sample-docs"

    return install


SOURCE = '''"""Module."""
if True:
    def inner():
        """In a branch."""
        class Local:
            """
            Indented
                more.
            """
try:
    pass
except ImportError:
    async def fallback():
        "In a handler."
def lone():
    "\\ud800"
def dynamic():
    f"""No docstring."""
class Odd:
    def \u03b1(self):
        """Greek: \\\\ud800 is text here."""
'''


def test_docstrings_are_found_at_any_depth(package):
    records = read_package(package({"sample/a.py": SOURCE.encode()}))
    text_by_location = {
        r.location: r.text for r in records if not r.error and r.file_name == "sample/a.py"
    }
    assert text_by_location == {
        "module, line 1": "Module.",
        "inner, line 4": "In a branch.",
        "inner.Local, line 6": "Indented\n    more.",
        "fallback, line 14": "In a handler.",
        "Odd.\u03b1, line 21": "Greek: \\ud800 is text here.",
    }
    assert [(r.location, r.error) for r in records if r.error] == [
        (
            "lone, line 16",
            "the docstring contains a lone surrogate, which cannot be encoded as UTF-8",
        )
    ]


BRANCHES = '''match 1:
    case 1:
        def one():
            """In a case."""
try:
    pass
except* OSError:
    def two():
        """In a handler of groups."""
async def three():
    async with x:
        def four():
            """Under a manager."""
    async for y in x:
        def five():
            """In a loop."""
'''


def test_docstrings_are_found_in_every_branch(package):
    records = read_package(package({"sample/a.py": BRANCHES.encode()}))
    assert [r.text for r in records if r.file_name == "sample/a.py"] == [
        "In a case.",
        "In a handler of groups.",
        "Under a manager.",
        "In a loop.",
    ]


def test_a_byte_order_mark_is_not_part_of_a_file(package):
    licence = "sample_docs-1.0.dist-info/LICENSE"
    name = package({"sample/a.py": BOM + b"'''Module.'''", licence: BOM + b"Free."})
    results_by_file = {r.file_name: (r.text, r.raw_bytes, r.error) for r in read_package(name)}
    assert results_by_file["sample/a.py"] == ("Module.", 7, "")
    assert results_by_file["dist-info/LICENSE"] == ("Free.", 5, "")


def test_damaged_files_are_errors(package):
    name = package(
        {
            "sample/bad.py": b"def f(:\n",
            "sample/nul.py": b"x = '\0'\n",
            "sample/deep.py": b"(" * 5000 + b")" * 5000,
            "sample/latin.py": b"# caf\xe9\n",
            "sample/long.py": b'"""' + b"x" * 2000 + b'"""',
            "sample/tests/test_a.py": b'"""Excluded."""',
            "sample/good.py": b'"""Good."""',
        }
    )
    records = read_package(name, limit=1000)
    errors = {r.file_name: r.error for r in records if r.error}
    assert errors == {
        "sample/bad.py": "not parsable as Python",
        "sample/nul.py": "not parsable as Python",
        "sample/deep.py": "not parsable as Python",
        "sample/latin.py": "not valid UTF-8",
        "sample/long.py": "longer than max_document_bytes",
    }
    assert [r.text for r in records if not r.error] == ["Hello.\n", "Good."]
    assert all(r.text == "" for r in records if r.error)


def test_the_digest_depends_on_version_and_record_without_reading_files(package, monkeypatch):
    name = package({"sample/a.py": b'"""A."""'})
    first = compute_package_digest(name)
    monkeypatch.setattr(documentation.Path, "read_bytes", None)
    assert compute_package_digest(name) == first
    monkeypatch.undo()
    package({"sample/a.py": b'"""B."""'})
    assert compute_package_digest(name) != first


def test_files_outside_the_package_are_not_read(package):
    name = package({"sample/a.py": b'"""A."""', "sample/../../outside.py": b'"""Outside."""'})
    assert list(find_paths_by_document_name(name)) == ["dist-info/METADATA", "sample/a.py"]
    assert "Outside." not in json.dumps([r.text for r in read_package(name)])
