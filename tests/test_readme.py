"""The commands, configs, links and paths of the README and of docs/ are the ones that exist."""

import re
import shlex
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hallmark.flows.cli import COMMAND_ALIASES, app
from hallmark.flows.commands.settings import list_settings
from hallmark.flows.config import Config, fill_missing_sections, load_config
from hallmark.flows.config_files import list_bundled_configs
from hallmark.tasks.audits.catalogue import METRICS_BY_AUDIT
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.contract import PROJECT_ROOT

README = PROJECT_ROOT / "README.md"
DOCS = sorted((PROJECT_ROOT / "docs").glob("*.md"))
PAGES = [README, *DOCS]
POLICY_PAGE = PROJECT_ROOT / "docs" / "policies.md"
MAX_README_WORDS = 1200

#: Sections that a block of a page leaves out.
BASE_CONFIG = {
    "name": "base",
    "ingest": {"sources": [{"kind": "text", "name": "letters", "path": "letters"}]},
}


def get_page_name(path):
    return path.relative_to(PROJECT_ROOT).as_posix()


def read_blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def list_shell_lines(path):
    return [
        line.split("  #")[0].strip()
        for block in read_blocks(path, "sh")
        for line in block.splitlines()
    ]


def load_block(block):
    return load_config(fill_missing_sections(tomllib.loads(block), BASE_CONFIG))


def heading_to_anchor(heading):
    words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return words.replace(" ", "-")


SHELL_LINES = [(get_page_name(path), line) for path in PAGES for line in list_shell_lines(path)]
COMMAND_LINES = [(name, line) for name, line in SHELL_LINES if line.startswith("hallmark ")]
TOML_BLOCKS = [
    pytest.param(block, id=f"{get_page_name(path)}-{number}")
    for path in PAGES
    for number, block in enumerate(read_blocks(path, "toml"))
]


@pytest.mark.parametrize(
    "line", [pytest.param(line, id=f"{name}: {line}") for name, line in COMMAND_LINES]
)
def test_every_command_parses(line, tmp_path, monkeypatch):
    (tmp_path / "rules.toml").write_text(read_blocks(POLICY_PAGE, "toml")[0])
    monkeypatch.chdir(tmp_path)
    _, bound, unused, *_ = app.parse_args(shlex.split(line)[1:], exit_on_error=False)
    assert not unused
    for override in bound.arguments.get("overrides") or []:
        load_config("smoke", [override])
    config = bound.arguments.get("config")
    assert config is None or config.endswith(".toml") or config in list_bundled_configs()


def test_every_option_in_running_text_exists():
    """Options of other programs are named only in blocks of code."""
    options = {
        option
        for name in app
        if not name.startswith("-")
        for argument in app[name].assemble_argument_collection()
        for option in argument.names
    } | {"--debug", "--log-format", "--help", "--version"}
    for path in PAGES:
        prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        for code in re.findall(r"`([^`\n]+)`", prose):
            if code.split()[0] in ("hf", ".venv/bin/pip", "python"):
                continue
            named = {word for word in code.split() if word.startswith("--")}
            assert named <= options, f"{get_page_name(path)}: {code}"


def test_the_commands_page_shows_every_command():
    lines = list_shell_lines(PROJECT_ROOT / "docs" / "commands.md")
    shown = {line.split()[1] for line in lines if line.startswith("hallmark ")}
    existing = {name for name in app if not name.startswith("-")}
    assert shown == existing - {*COMMAND_ALIASES.values()}


def test_the_make_targets_exist():
    makefile = (PROJECT_ROOT / "Makefile").read_text()
    targets = {line.split()[1] for _, line in SHELL_LINES if line.startswith("make ")}
    assert targets == {"run", "proof", "test", "test-slow", "check", "types", "golden"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=get_page_name)
def test_every_relative_link_exists(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in link:
            continue
        file_name, _, anchor = link.partition("#")
        target = (path.parent / file_name).resolve() if file_name else path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in map(heading_to_anchor, headings), link


@pytest.mark.parametrize("path", PAGES, ids=get_page_name)
def test_files_named_in_running_text_exist(path):
    packages = "flows|reports|tasks|model|docs|tests|benchmarks"
    for name in re.findall(rf"`((?:{packages})/[\w./]+\.\w+)`", path.read_text()):
        if "NAME" not in name:
            assert (PROJECT_ROOT / name).exists(), name


def test_the_readme_links_every_page():
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)\)", README.read_text()))
    assert linked == {path.name for path in DOCS}


def test_the_readme_is_short():
    assert len(README.read_text().split()) <= MAX_README_WORDS


def test_the_config_table_lists_every_config():
    page = (PROJECT_ROOT / "docs" / "own-text.md").read_text()
    table = page[page.index("| config |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(list_bundled_configs())


@pytest.mark.parametrize("block", TOML_BLOCKS)
def test_every_config_is_valid(block):
    load_block(block)


def test_the_readme_config_is_complete():
    (block,) = read_blocks(README, "toml")
    config = load_config(tomllib.loads(block))
    assert (config.name, config.plant_canaries.enabled, config.pretrain.train.steps) == (
        "letters",
        False,
        500,
    )


def test_the_audit_sets_page_configures_every_probe():
    (block,) = read_blocks(PROJECT_ROOT / "docs" / "audit-sets.md", "toml")
    config = load_block(block)
    assert not any(p.find_missing_settings(getattr(config, f"audit_{p.name}")) for p in PROBES)


def test_the_policy_page_sets_bounds():
    block, previous_block = read_blocks(POLICY_PAGE, "toml")
    assert load_block(block).policy.rules["toxic"].bound == ("lt", 0.3)
    policy = load_block(previous_block).policy
    assert policy.previous and policy.rules["not_more_toxic"].is_about_previous


def test_the_finetuning_page_configures_a_task():
    (block,) = read_blocks(PROJECT_ROOT / "docs" / "finetuning.md", "toml")
    config = load_block(block)
    assert config.name == "task" and config.finetune.train.steps == 600


def test_the_audit_table_lists_every_audit():
    page = (PROJECT_ROOT / "docs" / "auditing.md").read_text()
    table = page[page.index("| name | question |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {
        "capability",
        *(probe.name for probe in PROBES),
    }


def test_diagrams_are_well_formed():
    diagrams = sorted(Path(PROJECT_ROOT, "docs").glob("*.svg"))
    assert diagrams
    for path in diagrams:
        ElementTree.parse(path)


@pytest.mark.parametrize("path", PAGES, ids=get_page_name)
def test_every_setting_in_running_text_exists(path):
    rows = list_settings()
    settings = {f"{row['section']}.{row['key']}".lstrip(".") for row in rows}
    settings |= {row["section"] for row in rows}
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?: ?=[^`]*)?`", path.read_text()):
        if name.split(".")[0] in Config.model_fields:
            assert name in settings, name


def test_every_finding_named_in_a_command_exists():
    findings = [
        match.groups()
        for _, line in COMMAND_LINES
        for match in re.finditer(r'"(\w+)\.(\w+)\b', line)
    ]
    assert findings
    for audit, metric in findings:
        assert metric in METRICS_BY_AUDIT[audit], f"{audit}.{metric}"


def test_every_metric_of_the_figures_page_exists():
    page = (PROJECT_ROOT / "docs" / "figures.md").read_text()
    metrics = {metric for names in METRICS_BY_AUDIT.values() for metric in names}
    named = [
        name
        for names in re.findall(r"^\* \*\*[^*]+\*\*\s\(([^)]*`)\)", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    ]
    assert len(named) > 20 and set(named) <= metrics
