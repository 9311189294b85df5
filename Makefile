# Needs Python 3.11 to 3.13 and make; everything else goes into $(VENV).
PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt

# Python keeps what it compiled, and the project what it read of its code, whatever the shell says:
# each command would wait for them again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run proof test test-slow check types golden clean

run: $(VENV)/installed
	$(VENV)/bin/hallmark run

# From the demo's store: how often its audits are wrong, and one loop closed: its worst findings'
# documents removed, and what became of the findings.
proof: run
	$(VENV)/bin/hallmark study --name small --trials-with-effects 6 --trials-without-effects 2 --set retrained_trials=1
	$(VENV)/bin/hallmark prove latest --extra-seeds 1

# The tests of a file run in one process, because they share what is expensive to create. In the
# order of names the longest, those of flows, come first. Three processes: much of the time is
# waited for processes that tests start and stop, and two would leave a core of two idle meanwhile.
PYTEST = $(VENV)/bin/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: $(VENV)/installed-dev
	$(PYTEST) -m "not slow"

# The tests of whole runs, killed processes and the browser.
test-slow: $(VENV)/installed-dev
	$(PYTEST) -m slow

# The quick tests: the walls, what the documents name, the contract, the model's objectives.
QUICK = tests/test_architecture.py tests/test_readme.py tests/model/test_readme.py \
	tests/tasks/contract/test_corpus_tables.py \
	tests/tasks/contract/test_code_digests.py tests/tasks/contract/test_fingerprint.py \
	tests/tasks/contract/test_golden.py tests/tasks/corpus/test_split.py \
	tests/tasks/measures/test_statistics.py tests/model/test_objectives.py tests/model/test_loss.py

check: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest --quiet --numprocesses 2 --dist loadfile $(QUICK)

types: $(VENV)/installed-dev
	$(VENV)/bin/mypy

# After a change of CONTRACT_VERSION in tasks/contract/fingerprint.py.
golden: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest --quiet --update-golden tests/tasks/contract/test_golden.py

$(VENV)/installed: pyproject.toml constraints.txt
	@echo 'installing into $(VENV), some minutes'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
