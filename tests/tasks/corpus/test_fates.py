"""Where documents went: places among ids, and who belongs to a group, against plain Python."""

import numpy as np
import pyarrow as pa
import pytest

from tasks.contract import ID, ids
from tasks.corpus.identities import IdentitiesConfig, identities
from tasks.corpus.people.fates import Places, fates
from tests.tasks.corpora import given


@pytest.mark.parametrize("chunked", [False, True])
def test_places_are_those_among_the_sorted_ids(chunked):
    known = [bytes([n]) + bytes(15) for n in (3, 4, 200)] + [bytes([200]) + bytes(14) + b"\1"]
    asked = [known[2], bytes(16), known[3], None, b"\xff" * 16, known[0], bytes([4] * 16)]
    column = pa.array(asked, ID)
    column = pa.chunked_array([column[:2], column[2:]]) if chunked else column
    places = Places(pa.array(known, ID)).of(column)
    assert places.tolist() == [known.index(i) if i in known else -1 for i in asked]
    assert Places(pa.array([], ID)).of(column).tolist() == [-1] * len(asked)


def test_the_groups_of_a_dimension_are_its_own_where_nobody_told_the_language(session):
    texts = ["A woman came.", "Two women left.", "Rain fell.", "A Muslim woman sang.", "Fog."]
    raw = given(texts, ["a", "b", "b", "b", "b"])
    found = fates({"ingest": raw, "identities": identities(raw, IdentitiesConfig())})
    order = np.argsort(ids(f"document {i}" for i in range(5)).to_pylist())
    own = {name: sorted(order[group.members].tolist())
           for dimension in ("identity", "source", "length", "language")
           for name, group in found.slices(dimension, 1).items()}  # fmt: skip
    assert own == {"women": [0, 1, 3], "Muslims": [3], "a": [0], "b": [1, 2, 3, 4],
                   "under 200 bytes": [0, 1, 2, 3, 4]}  # fmt: skip
    again = fates({"ingest": raw, "identities": identities(raw, IdentitiesConfig())})
    assert [*again.slices("source", 2)] == ["b"] and [*again.slices("identity", 2)] == ["women"]
    assert found.english.all() and found.known.all()
