"""The table of the chapters: every row, and that what it names is there; the pictures of masks."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest
import torch

import model
from model.masks import MaskSpec

README = (Path(model.__file__).parent / "README.md").read_text()
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in README.splitlines()
    if re.match(r"\| \d+ \|", line)
]
TESTS = Path(__file__).parents[1]


def test_the_table_has_every_row_of_the_chapters_once():
    assert [int(number) for number, *_ in ROWS] == list(range(1, 87))


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_what_a_row_names_is_there(row):
    _, _, where, tests = row
    places, named = re.findall(r"`([^`]+)`", where), re.findall(r"`([^`]+)`", tests)
    assert places and named
    for place in places:
        assert found(place if place.split(".")[0] in ROOMS else f"model.{place}"), place
    for test in named:
        path, name = test.split("::")
        assert name in functions(TESTS / path), test


ROOMS = ("tasks", "reports", "flows")


def found(place):
    """The object that a dotted path leads to."""
    names = place.split(".")
    for cut in range(len(names), 0, -1):
        try:
            thing = importlib.import_module(".".join(names[:cut]))
        except ModuleNotFoundError:
            continue
        for name in names[cut:]:
            thing = getattr(thing, name)
        return thing
    raise AssertionError(f"{place} is no module")


@cache
def functions(path):
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}


def drawn(mask):
    """A mask as lines of marks, a line for each query."""
    return ["".join("■" if seen else "·" for seen in row) for row in mask.tolist()]


def test_the_pictures_are_those_of_the_masks():
    here = torch.device("cpu")
    own = MaskSpec(causal=True).build_dense_mask(4, 4, here)[0, 0]
    prefix = MaskSpec(causal=True, prefix=torch.tensor([3])).build_dense_mask(6, 6, here)[0, 0]
    every = torch.ones(4, 3, dtype=torch.bool)
    pictures = {
        "encoder-decoder": torch.cat((every, own), 1),
        "decoder-only": MaskSpec(causal=True).build_dense_mask(6, 6, here)[0, 0],
        "prefix LM": prefix,
    }
    for name, mask in pictures.items():
        picture = "\n".join(f"    {line}" for line in drawn(mask))
        assert f" {name}:\n\n{picture}\n\n" in README


def test_the_two_lines_run(tmp_path, monkeypatch):
    """Of the README, on a checkpoint of its name."""
    from model.interchange.checkpoint import save_checkpoint
    from tests.model.oracles import tiny, write_tokenizer

    (lines,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    save_checkpoint(
        tiny(), tmp_path / "checkpoint", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(lines, "README.md", "exec"), names)  # our own lines
    assert names["states"].shape == (3, 32)
