"""Fixtures: flows run as plain calls here, because these tests do not depend on Prefect."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def plain(plain_calls):
    pass
