"""What these commands leave is no matter of Prefect's."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def plain(plain_calls):
    pass
