"""A few hundred mutated inputs of all kinds end in time, with a result or one sentence."""

import os

import pytest

from benchmarks.fuzz_inputs import Fuzzer, Mutator, fuzz_kind, try_to_read
from hallmark.tasks.contract import HallmarkError

#: Inputs of each kind; those that are read slowly are few.
INPUTS_BY_KIND = {
    "config": 50,
    "policy": 50,
    "request": 50,
    "run record": 8,
    "manifest": 20,
    "checkpoint": 50,
}


@pytest.fixture(scope="module")
def fuzzer(apart, tmp_path_factory):
    return Fuzzer(apart.store, tmp_path_factory.mktemp("fuzzed"))


@pytest.mark.parametrize("kind", INPUTS_BY_KIND)
def test_mutated_inputs_end_with_a_result_or_a_sentence(fuzzer, kind):
    outcomes = fuzz_kind(fuzzer, kind, range(INPUTS_BY_KIND[kind]))
    assert outcomes.failures == []
    assert outcomes.counts.total() == INPUTS_BY_KIND[kind] and outcomes.counts["sentence"] > 0


def test_the_store_is_unchanged_afterwards(fuzzer, apart):
    for folder, _, names in os.walk(apart.store / "artifacts"):
        copied = fuzzer.copy.root / os.path.relpath(folder, apart.store)
        assert sorted(os.listdir(copied)) == sorted(os.listdir(folder))
        assert all(os.path.samefile(copied / name, f"{folder}/{name}") for name in names)


def test_a_seed_gives_the_same_input_again():
    tree = {"a": [1, {"b": "text"}], "c": None}
    contents = {Mutator("7").mutate_json(tree) for _ in range(3)}
    assert len(contents) == 1 and contents != {Mutator("8").mutate_json(tree)}
    assert tree == {"a": [1, {"b": "text"}], "c": None}


def raise_sentence(text):
    raise HallmarkError(text)


def loop(_):
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "result"),
    [
        (lambda: None, "valid"),
        (lambda: raise_sentence("one sentence"), "sentence"),
        (lambda: raise_sentence("two\nlines"), "no sentence"),
        (lambda: raise_sentence("x" * 10_000), "no sentence"),
        (lambda: {}["a"], "KeyError at "),
        (lambda: loop(None), "hang at "),
    ],
)
def test_every_outcome_is_recognised(read, result, monkeypatch):
    monkeypatch.setattr("benchmarks.fuzz_inputs.CPU_LIMIT_SECONDS", 0.2)
    assert try_to_read(read).startswith(result)
