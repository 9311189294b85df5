"""The README's table of statements, its pictures of masks, and its example."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest
import torch

import hallmark.model
from hallmark.model.masks import MaskSpec

README = (Path(hallmark.model.__file__).parent / "README.md").read_text()
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in README.splitlines()
    if re.match(r"\| \d+ \|", line)
]
TESTS = Path(__file__).parents[1]


def test_the_table_has_every_row_once():
    assert [int(number) for number, *_ in ROWS] == list(range(1, 87))


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_code_and_tests_of_a_row_exist(row):
    _, _, where, tests = row
    places, named = re.findall(r"`([^`]+)`", where), re.findall(r"`([^`]+)`", tests)
    assert places and named
    for place in places:
        is_full_name = place.startswith("hallmark.")
        assert resolve_dotted_path(place if is_full_name else f"hallmark.model.{place}"), place
    for test in named:
        path, name = test.split("::")
        assert name in list_functions(TESTS / path), test


def resolve_dotted_path(place):
    """Import the object at a dotted path."""
    names = place.split(".")
    for cut in range(len(names), 0, -1):
        try:
            target = importlib.import_module(".".join(names[:cut]))
        except ModuleNotFoundError:
            continue
        for name in names[cut:]:
            target = getattr(target, name)
        return target
    raise AssertionError(f"{place} is not a module")


@cache
def list_functions(path):
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}


def draw_mask(mask):
    """Draw a mask as lines of marks, one for each query."""
    return ["".join("■" if seen else "·" for seen in row) for row in mask.tolist()]


def test_the_pictures_equal_the_masks():
    cpu = torch.device("cpu")
    target = MaskSpec(causal=True).build_dense_mask(4, 4, cpu)[0, 0]
    prefix = MaskSpec(causal=True, prefix=torch.tensor([3])).build_dense_mask(6, 6, cpu)[0, 0]
    source = torch.ones(4, 3, dtype=torch.bool)
    pictures = {
        "encoder-decoder": torch.cat((source, target), 1),
        "decoder-only": MaskSpec(causal=True).build_dense_mask(6, 6, cpu)[0, 0],
        "prefix LM": prefix,
    }
    for name, mask in pictures.items():
        picture = "\n".join(f"    {line}" for line in draw_mask(mask))
        assert f" {name}:\n\n{picture}\n\n" in README


def test_the_example_runs(tmp_path, monkeypatch):
    """With a checkpoint in the example's folder."""
    from hallmark.model.interchange.checkpoint import save_checkpoint
    from tests.model.oracles import tiny, write_tokenizer

    (lines,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    save_checkpoint(
        tiny(), tmp_path / "checkpoint", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(lines, "README.md", "exec"), names)
    assert names["states"].shape == (3, 32)
