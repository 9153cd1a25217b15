# Every target sets up what it needs: the virtual environment here, the other SDKs in the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-installed
SPARK_STAMP := $(VENV)/.spark-installed
DEV_STAMP := $(VENV)/.dev-installed
# Most tests wait for clients more than they compute.
WORKERS ?= 4

.PHONY: serve test test-spark test-spark-versions check conformance hostile fuzz chaos bench bench-peers demo clean

serve: $(RUN_STAMP)
	@$(BIN)/peeklock serve $(ARGS)

# Status 5: what ARGS chooses has no such tests.
SPARK_TESTS = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m spark $(ARGS) || [ $$? -eq 5 ]

test: check
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not spark" $(ARGS) || [ $$? -eq 5 ]
	PEEKLOCK_FAULTS=6 $(SPARK_TESTS)
	@echo "The fault test of Spark had 6 kills here; make test-spark has all 20." >&2

test-spark: check
	$(SPARK_TESTS)

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

# Attacks on a broker that runs; what it must still do after each.
hostile: $(DEV_STAMP)
	$(BIN)/python -m hostile $(ARGS)

fuzz: $(DEV_STAMP)
	$(BIN)/python fuzz $(ARGS)

# Faults of every kind under concurrent clients, and whether every promise was kept.
chaos: $(DEV_STAMP)
	$(BIN)/python -m chaos $(ARGS)

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
