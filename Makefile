# Every target sets up what it needs: the virtual environment here, the other SDKs in the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-installed
SPARK_STAMP := $(VENV)/.spark-installed
DEV_STAMP := $(VENV)/.dev-installed
SPARK_CLASSES := build/spark.jsa
WHEEL_STAMP := build/wheel/.built
WHEEL_SOURCES = pyproject.toml hatch_build.py README.md $(shell find src -type f -not -name '*.pyc')
# Most tests wait for clients more than they compute.
WORKERS ?= 5

.PHONY: serve docs reference coverage test test-python test-compiled run-compiled test-spark test-spark-machines test-spark-versions test-spark-connect test-table-formats check conformance sdk-suites hostile fuzz chaos chaos-compiled flips bench bench-peers demo wheel compiled clean

serve: $(RUN_STAMP)
	@$(BIN)/peeklock serve $(ARGS)

# Status 5: what ARGS chooses has no such tests.
SPARK_TESTS = $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m spark $(ARGS) || [ $$? -eq 5 ]

# Without ARGS: what later tests need is made meanwhile, since many tests wait; the package needs a C compiler.
ifndef ARGS
MEANWHILE = $(SPARK_CLASSES) $(if $(CAN_COMPILE),compiled)
endif
CAN_COMPILE = $(shell { command -v cc >/dev/null || [ "$$CI" = true ]; } && echo yes)

test: check docs
	$(MAKE) -j 2 test-python $(MEANWHILE)
	PEEKLOCK_FAULTS=3 $(SPARK_TESTS)
ifndef ARGS
ifneq ($(CAN_COMPILE),)
	$(MAKE) run-compiled COMPILED_TESTS="$(COMPILED_UNITS) $(addprefix tests/sdk/test_,python_sync.py proton.py)"
	@echo "Compiled, the package was tested with two clients; make test-compiled has more." >&2
else
	@echo "Left out: the compiled package, for want of a C compiler." >&2
endif
endif
	@echo "The fault test of Spark had 3 kills here; make test-spark has all 20." >&2

# Without ARGS, the unit tests run first and with branch coverage of src, and then all others.
ifdef ARGS
test-python:
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not spark" $(ARGS) || [ $$? -eq 5 ]
else
test-python: coverage
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not spark" $(addprefix --ignore=,$(UNITS))
endif

# Only these are measured, because tracing slows tests down.
UNITS = $(addprefix tests/,amqp entities atom engine broker nodes rest admin limits)

# build/coverage.txt has the figure of each file. Fails below fail_under in pyproject.toml.
coverage: $(DEV_STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not spark" --cov --cov-report= $(UNITS)
	@$(BIN)/coverage report > build/coverage.txt; status=$$?; echo "Branch coverage of src by the unit tests:"; \
		tail -n 2 build/coverage.txt; exit $$status

# What a message passes through, and real clients, on the package as a compiled wheel has it.
COMPILED_UNITS = tests/test_compiled.py $(addprefix tests/,amqp engine store broker nodes) \
	$(patsubst %,tests/spark/test_%.py,columns encoding rows)
COMPILED_TESTS = $(COMPILED_UNITS) tests/server tests/crash \
	$(patsubst %,tests/sdk/test_%.py,python_aio python_forwarding python_operations python_sessions python_sync \
	python_topics proton transactions_proton raw_amqp)

test-compiled: compiled run-compiled

run-compiled:
	cd build/checkout && PEEKLOCK_COMPILED=1 $(CURDIR)/$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal \
		-m "not interpreted" -p no:cacheprovider $(or $(ARGS),$(COMPILED_TESTS))

# Sparks of tests start from this, and without it as well.
$(SPARK_CLASSES): $(DEV_STAMP) tests/spark/archive_classes.py
	-$(BIN)/python tests/spark/archive_classes.py $@

test-spark: check $(SPARK_CLASSES)
	$(SPARK_TESTS)

# A cluster of simulated machines, which are lost; needs root, for network namespaces.
test-spark-machines: check
	PEEKLOCK_MACHINES=1 $(BIN)/python -m pytest tests/spark/test_cluster_machines.py $(ARGS)

# On older versions of PySpark, each in an environment of its own.
test-spark-versions:
	$(PYTHON) tests/spark/versions.py $(ARGS)

# Through a server of Spark Connect, which needs packages that nothing else does.
test-spark-connect:
	$(PYTHON) tests/spark/versions.py --scope connect $(ARGS)

# Captures into Delta and Iceberg, with 20 kills each, on the newest PySpark that there are builds for.
test-table-formats:
	$(PYTHON) tests/spark/versions.py 4.2.1 --scope delta $(ARGS)
	$(PYTHON) tests/spark/versions.py 4.1.4 --scope iceberg $(ARGS)

# The site of the documentation, in build/site; a broken link fails.
docs: $(DEV_STAMP)
	$(BIN)/python -m tools.site

# The pages and tables of docs that are made from tables of the code; tests say when one is out of date.
reference: $(DEV_STAMP)
	$(BIN)/python -m peeklock.server.config_reference docs/configuration.md docs/limits.md
	$(BIN)/python -m peeklock.spark.reference docs/spark.md
	$(BIN)/python -m peeklock.cli.reference > docs/commands.md
	$(BIN)/python -m peeklock.nodes.reference > docs/management-operations.md
	$(BIN)/peeklock config schema > docs/config.schema.json

check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The same scenarios through every official SDK; writes docs/conformance.md.
conformance: $(DEV_STAMP)
	PYTHONPATH=src:tests:tests/sdk $(BIN)/python -m conformance $(ARGS)

# The live tests of the SDKs themselves, fetched for it; writes docs/sdk-suites.md. Takes most of an hour.
sdk-suites: $(DEV_STAMP)
	$(BIN)/python -m tools.suites $(ARGS)

# Attacks on a broker that runs; what it must still do after each.
hostile: $(DEV_STAMP)
	$(BIN)/python -m tools.hostile $(ARGS)

fuzz: $(DEV_STAMP)
	$(BIN)/python tools/fuzz $(ARGS)

# Faults of every kind under concurrent clients, and whether every promise was kept.
chaos: $(DEV_STAMP)
	$(BIN)/python -m tools.chaos $(ARGS)

# The same on the package as a compiled wheel has it.
chaos-compiled: compiled
	cd build/checkout && PYTHONPATH=src $(CURDIR)/$(BIN)/python -m tools.chaos $(ARGS)

# One bit of a data folder at a time.
flips: $(DEV_STAMP)
	$(BIN)/python -m tools.chaos.flips $(ARGS)

# Beside Kafka, both packages are measured if there is a C compiler.
BOTH_PACKAGES = $(if $(filter spark-peers,$(ARGS)),$(CAN_COMPILE))

bench: $(DEV_STAMP) $(if $(BOTH_PACKAGES),compiled)
	$(BIN)/python -m tools.bench $(ARGS) $(if $(BOTH_PACKAGES),--compiled build/checkout/src)

# Peeklock as its compiled wheel has it, and as Python, beside the others.
bench-peers: compiled
	$(BIN)/python -m tools.bench peers --compiled build/checkout/src $(ARGS)

# With the modules that every message passes through compiled; needs a C compiler.
wheel: $(WHEEL_STAMP)

# Built as on a new machine: by an environment with nothing in it, since mypy also reads the packages of the environment
# that pip runs in, and without what an earlier build left.
$(WHEEL_STAMP): $(WHEEL_SOURCES) | $(BIN)/python
	rm -rf $(addprefix build/,builder wheel types c objects libraries)
	@mkdir -p build && touch build/.begun  # a source that changes during the build is newer than this
	$(BIN)/python -m venv build/builder
	PEEKLOCK_COMPILE=1 build/builder/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w build/wheel .
	@mv build/.begun $@

# This checkout, with the package as the compiled wheel has it.
compiled: wheel
	rm -rf build/checkout && mkdir build/checkout && cp -R $(filter-out build,$(wildcard *)) build/checkout
	rm -rf build/checkout/src
	$(BIN)/python -m zipfile -e build/wheel/peeklock-*.whl build/checkout/src

demo: $(SPARK_STAMP)
	@$(BIN)/python -m examples.demo $(ARGS)

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
	rm -rf $(VENV) build .venv-spark .pytest_cache .mypy_cache .ruff_cache .hypothesis
