# Everything goes through .venv, made on first use. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.setup-stamp
METADATA ?= sqlite
export METADATA
# Spark and the JVM complain about these when a shell sets them for something else.
unexport SPARK_HOME PYSPARK_SUBMIT_ARGS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS PYTHONHOME PYTHONPATH

.PHONY: help setup run test lint bench bench-java soak regenerate check-generated clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | while IFS='|' read -r t d; do printf '  make %-16s %s\n' "$$t" "$$d"; done

setup: $(STAMP)  ## make .venv with everything that the other targets need

$(STAMP): pyproject.toml scripts/make_venv.py src/buckram/core/_hot.c
	@rm -rf src/buckram/core/_hot.*.so build/lib.* build/temp.*
	@"$(PYTHON)" scripts/make_venv.py .venv -e '.[compression,dev,examples,jre,spark]' >&2
	@touch $(STAMP)

run: $(STAMP)  ## the main job: real records through a Spark pipeline; a bookie and the driver are killed
	@$(BIN)/python -m examples.debian --metadata-store "$(METADATA)"

lint: $(STAMP)  ## ruff, mypy --strict, layers, generated pages
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict
	@$(BIN)/mypy --strict bench examples javakit scripts
	@$(BIN)/lint-imports --no-cache
	@$(MAKE) check-generated

test: lint  ## lint, types and every test; a fixed share of each long check
	@$(BIN)/python $(if $(PYTEST_ARGS),-m pytest $(PYTEST_ARGS),scripts/run_tests.py)

bench: $(STAMP)  ## the standard benchmark suite; resumable, cases in .bench/
	@$(BIN)/python -m bench $(CASES)

bench-java: $(STAMP)  ## side by side with Apache BookKeeper, 75 minutes; needs a JDK 17 and Maven; resumable, ROWS="one paced_p99" runs some
	@$(BIN)/python -m bench.java $(if $(ROWS),$(ROWS),--docs)

soak: $(STAMP)  ## the long checks in full; resumable, state in .soak/
	@$(BIN)/python scripts/soak.py $(CHECKS)

regenerate: $(STAMP)  ## write the generated files again: protobuf module, API and configuration pages
	@$(BIN)/python scripts/generate_docs.py
	@$(BIN)/python scripts/generate_proto.py

check-generated: $(STAMP)
	@$(BIN)/python scripts/generate_docs.py --check

clean:  ## remove what tests and runs left behind; keeps .venv
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist spark-warehouse .bench .soak
