import subprocess
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def forked_trainers():
    """The stage ``pretrain`` gets its trainers as forks, which need no seconds to import torch."""
    from tests.model.training.training import popen

    with pytest.MonkeyPatch.context() as patch:
        forked = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE)
        patch.setattr("tasks.training.following.subprocess", forked)
        yield
