from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.model.oracles import toy_rows, write_rows, write_tokenizer


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: small models spend their time waiting for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """Write packed rows and their tokenizer; tests must not write to the folder."""
    folder = tmp_path_factory.mktemp("inputs")
    write_rows(folder / "train.parquet", toy_rows(60, 16, 40, seed=1))
    write_rows(folder / "validation.parquet", toy_rows(12, 16, 40, seed=2))
    write_tokenizer(folder / "tokenizer.json", 40)
    return folder
