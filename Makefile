# Everything goes through .venv, made on first use. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.setup-stamp
RUN_STAMP := .venv/.setup-run-stamp
SECURE_STAMP := .venv/.setup-secure-stamp
ALL_STAMP := .venv/.setup-all-stamp
# What an environment is made of; each target has a lock file more, which says what was tested (scripts/locks.py).
SETUP_SOURCES := pyproject.toml setup.py scripts/make_venv.py scripts/locks.py locks/build.txt $(wildcard src/buckram/core/entries/_*.[ch])
METADATA ?= sqlite
export METADATA
# Spark and the JVM complain about these when a shell sets them for something else.
unexport SPARK_HOME PYSPARK_SUBMIT_ARGS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS PYTHONHOME PYTHONPATH
# Container images set this one. Without compiled modules each of the many processes of the tests starts a second later.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-all run run-needs check test test-light lint format bench bench-java chaos soak site regenerate check-generated lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | while IFS='|' read -r t d; do printf '  make %-16s %s\n' "$$t" "$$d"; done

setup: $(STAMP)  ## make .venv for `make check`, small: no Spark, no Java; shows what it fetches

$(STAMP): $(SETUP_SOURCES) locks/setup.txt
	@rm -rf src/buckram/core/entries/_hot.*.so build/lib.* build/temp.*
	@"$(PYTHON)" scripts/make_venv.py .venv --lock setup >&2
	@touch $(STAMP)

setup-all: $(ALL_STAMP)  ## what all other targets need: Spark, a Java, etcd, Prometheus, helm, a browser, plots and Apache's jars, 1.9 GB; as root also Debian's packages

$(ALL_STAMP): $(SETUP_SOURCES) $(wildcard locks/*.txt)
	@rm -rf src/buckram/core/entries/_hot.*.so build/lib.* build/temp.*
	@"$(PYTHON)" scripts/make_venv.py .venv --lock all >&2
	@$(BIN)/python -m buckram.spark.archives >&2
	@$(BIN)/python -m javakit >&2
	@$(BIN)/python scripts/fetch_debian.py .venv >&2
	@$(BIN)/python scripts/fetch_helm.py .venv >&2
	@$(BIN)/python scripts/fetch_browser.py >&2
	@touch $(STAMP) $(RUN_STAMP) $(SECURE_STAMP) $(ALL_STAMP)

run: run-needs  ## the main job, with what it needs alone: real records through a Spark pipeline; a bookie, the driver and a database's leader are killed; METADATA=sqlite, zookeeper or etcd; SECURE=1: with TLS, tokens and grants
	@$(BIN)/python -m examples.debian --metadata-store "$(METADATA)" $(if $(SECURE),--secure)

run-needs: $(RUN_STAMP) $(if $(SECURE),$(SECURE_STAMP))
	@$(BIN)/python scripts/fetch_java.py .venv >&2
	@$(if $(filter etcd,$(METADATA)),$(BIN)/python scripts/fetch_debian.py .venv etcd >&2,true)

$(RUN_STAMP): $(SETUP_SOURCES) locks/run.txt
	@rm -rf src/buckram/core/entries/_hot.*.so build/lib.* build/temp.*
	@"$(PYTHON)" scripts/make_venv.py .venv --lock run >&2
	@$(BIN)/python -m buckram.spark.archives >&2
	@touch $(RUN_STAMP)

$(SECURE_STAMP): $(RUN_STAMP) locks/secure.txt
	@"$(PYTHON)" scripts/make_venv.py .venv --lock secure >&2
	@touch $(SECURE_STAMP)

lock:  ## write locks/ anew after a change of pyproject.toml; UPGRADE=1 takes the newest of each range, JARS=1 also hashes what Maven fetches
	@"$(PYTHON)" scripts/lock.py $(if $(UPGRADE),--upgrade) $(if $(JARS),--jars)

check: $(STAMP)  ## what to run after each change: lint, types, and quick tests of what changed; half a minute
	@$(BIN)/python scripts/check.py

lint: $(ALL_STAMP)  ## ruff, mypy --strict, layers, dead definitions, generated pages
	@$(BIN)/python scripts/check.py --lint

format: $(STAMP)  ## write every file as ruff format has it
	@$(BIN)/ruff format .

test: $(ALL_STAMP)  ## lint, types and every test, side by side; a fixed share of each long check
ifdef PYTEST_ARGS
	@$(MAKE) lint
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
else
	@$(BIN)/python scripts/run_tests.py --lint
endif

test-light: $(STAMP)  ## the tests that need no Spark and no Java, with any Python from 3.11 on
	@$(BIN)/python scripts/run_tests.py --light

bench: $(ALL_STAMP)  ## the standard benchmark suite; resumable, results in bench-results/; NET=1 as between machines
	@NET="$(NET)" $(BIN)/python -m bench $(CASES)

bench-java: $(ALL_STAMP)  ## side by side with Apache BookKeeper, 75 minutes; needs a JDK 17 and Maven; resumable, ROWS="one paced_p99" runs some; NET=1 as between machines
	@NET="$(NET)" $(BIN)/python -m bench.java $(if $(ROWS),$(ROWS),$(if $(NET),,--docs))

chaos: $(ALL_STAMP)  ## five minutes of faults on real processes, then a verdict; METADATA=sqlite, zookeeper or etcd
	@$(BIN)/python -m buckram.chaos --minutes 5 --metadata $(or $(METADATA),sqlite) $(if $(SEED),--seed $(SEED))

soak: $(ALL_STAMP)  ## the long checks in full; resumable, state in .soak/; CHECKS="lives chaos_etcd" runs some, MINUTES=60 as far as that goes
	@$(BIN)/python scripts/soak.py $(if $(MINUTES),--minutes $(MINUTES)) $(CHECKS)

site: $(ALL_STAMP)  ## the documentation as a site in build/site, with all links checked
	@$(BIN)/python scripts/build_site.py

regenerate: $(ALL_STAMP)  ## write the generated files again: protobuf module, public names, calls without async, API and configuration pages
	@$(BIN)/python scripts/generate_names.py
	@$(BIN)/python scripts/generate_sync.py
	@$(BIN)/python scripts/generate_docs.py
	@$(BIN)/python scripts/generate_proto.py

check-generated: $(STAMP)
	@$(BIN)/python scripts/generate_names.py --check
	@$(BIN)/python scripts/generate_sync.py --check
	@$(BIN)/python scripts/generate_docs.py --check

clean:  ## remove what tests and runs left behind; keeps .venv
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist spark-warehouse .bench .soak .test-times
