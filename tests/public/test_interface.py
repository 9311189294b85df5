"""Test what ``import hallmark`` provides, and what it does not import."""

import subprocess
import sys

import pytest

import hallmark
from hallmark.tasks.contract import PROJECT_ROOT


def test_every_public_name_can_be_imported_and_is_documented():
    for name in hallmark.__all__:
        assert getattr(hallmark, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        hallmark.no_such_name  # noqa: B018


@pytest.mark.parametrize("module", ["hallmark", "hallmark.model"])
def test_importing_the_model_needs_no_prefect(module):
    program = f"import {module}, sys; print('prefect' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False False\n"


def test_files_of_the_user_do_not_hide_the_packages(tmp_path):
    """Hallmark ignores a ``tasks.py`` or ``model.py`` in the working folder."""
    for name in ("tasks", "model", "flows", "reports"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    program = "import hallmark.flows.pipeline, hallmark.model; print('imported')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "imported\n", done.stderr


def test_a_copy_of_the_checkout_imports_its_own_packages(tmp_path):
    """Otherwise faults planted in a copy would not be seen by its tests."""
    for name in ("hallmark", "tasks", "model"):
        source = PROJECT_ROOT / name
        subprocess.run(["cp", "-r", str(source), str(tmp_path / name)], check=True)
    (tmp_path / "setup.py").touch()
    (tmp_path / "model" / "masks.py").write_text("a syntax error\n")
    program = "import hallmark.model.masks"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert "SyntaxError" in done.stderr


def test_prefect_sends_no_usage_data():
    program = (
        "import os; os.environ.pop('PREFECT_SERVER_ANALYTICS_ENABLED', None); "
        "os.environ.pop('DO_NOT_TRACK', None); import hallmark.flows.pipeline; "
        "from prefect.settings import get_current_settings; "
        "print(get_current_settings().server.analytics_enabled, os.environ['DO_NOT_TRACK'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False 1\n"
