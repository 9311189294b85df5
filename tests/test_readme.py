"""The README's commands, configs and paths are the ones that exist."""

import re
import shlex
import tomllib

import pytest

from hallmark.flows.cli import COMMAND_ALIASES, app
from hallmark.flows.config import fill_missing_sections, load_config
from hallmark.flows.config_files import list_bundled_configs
from hallmark.tasks.audits.catalogue import PROBES
from hallmark.tasks.contract import PROJECT_ROOT

README = (PROJECT_ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
LINES = [line.split("  #")[0].strip() for block in BLOCKS for line in block.splitlines()]
COMMANDS = (
    "run",
    "audit",
    "finetune",
    "status",
    "report",
    "trace",
    "purge",
    "batch",
    "replay",
    "serve",
    "settings",
    "tables",
    "doctor",
    "generate",
    "compare",
    "mitigate",
    "study",
    "prove",
    "runs",
    "verify",
)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("hallmark ")])
def test_every_command_of_the_readme_parses(line):
    _, bound, unused, *_ = app.parse_args(shlex.split(line)[1:], exit_on_error=False)
    assert not unused
    for override in bound.arguments.get("set_") or []:
        load_config("smoke", [override])
    config = bound.arguments.get("config")
    assert config is None or config.endswith(".toml") or config in list_bundled_configs()


def test_the_readme_shows_every_command():
    shown = {line.split()[1] for line in LINES if line.startswith("hallmark ")}
    there = {name for name in app if not name.startswith("-")}
    assert shown == there - {*COMMAND_ALIASES.values()} == set(COMMANDS)


def test_the_make_targets_exist():
    makefile = (PROJECT_ROOT / "Makefile").read_text()
    targets = [line.split()[1] for line in LINES if line.startswith("make ")]
    assert targets == ["run", "proof", "test", "check"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_the_paths_of_the_readme_exist():
    for path in re.findall(r"\]\(([\w./]+)\)", README):
        assert (PROJECT_ROOT / path).exists(), path


def test_the_config_table_lists_every_config():
    assert set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == set(list_bundled_configs())


def test_the_config_of_the_readme_is_valid():
    block, sets, policy, task = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    config = load_config(fill_missing_sections(tomllib.loads(task), tomllib.loads(block)))
    assert config.name == "task" and config.finetune.train.steps == 600
    config = load_config(fill_missing_sections(tomllib.loads(sets), tomllib.loads(block)))
    assert not any(p.find_missing_settings(getattr(config, f"audit_{p.name}")) for p in PROBES)
    config = load_config(fill_missing_sections(tomllib.loads(policy), tomllib.loads(block)))
    assert config.policy.rules["toxic"].bound == ("lt", 0.1)
    config = load_config(tomllib.loads(block))
    assert (config.name, config.plant_canaries.enabled, config.pretrain.train.steps) == (
        "mine",
        False,
        200,
    )
