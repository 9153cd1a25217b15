# Every target sets up what it needs: the virtual environment here, the other SDKs in the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-installed
SPARK_STAMP := $(VENV)/.spark-installed
DEV_STAMP := $(VENV)/.dev-installed
# Most tests wait for clients more than they compute.
WORKERS ?= 4

.PHONY: serve test test-spark test-spark-versions check bench bench-peers demo clean

serve: $(RUN_STAMP)
	@$(BIN)/peeklock serve $(ARGS)

test: check
	$(BIN)/python -m pytest -n $(WORKERS) -m "not spark" $(ARGS)
	@echo "Left out: the tests that start a Spark, which take long. make test-spark runs them." >&2

test-spark: check
	$(BIN)/python -m pytest -m spark $(ARGS)

# On older versions of PySpark, each in an environment of its own.
test-spark-versions:
	$(PYTHON) tests/spark/versions.py $(ARGS)

check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The same scenarios through every official SDK; writes docs/conformance.md.
conformance: $(DEV_STAMP)
	PYTHONPATH=src:tests:tests/sdk $(BIN)/python -m conformance $(ARGS)

bench: $(DEV_STAMP)
	$(BIN)/python -m bench $(ARGS)

bench-peers: $(DEV_STAMP)
	$(BIN)/python -m bench peers $(ARGS)

demo: $(SPARK_STAMP)
	@$(BIN)/python -m demo $(ARGS)

$(BIN)/python:
	@echo "Setting up $(VENV) ..." >&2
	@$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(SPARK_STAMP): pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[spark]'
	@touch $(RUN_STAMP) $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(RUN_STAMP) $(SPARK_STAMP) $@

clean:
	rm -rf $(VENV) .venv-spark .pytest_cache .mypy_cache .ruff_cache .hypothesis
