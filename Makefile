# Every target does its own set-up; a second call installs nothing. Of 22,000 modules Python compiles those that it
# imports, when it does: all took 97 s of CPU time on a busy machine. Images of containers may forbid it to keep what it
# compiled: each of the many processes of a pipeline would compile 2,000 modules again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PATH := $(CURDIR)/$(BIN):$(PATH)
export MLFLOW_DISABLE_TELEMETRY = true
export DO_NOT_TRACK = true
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE
JOBS ?= 3
PYTEST := python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help install repro tpugraphs experiments test coverage test-slow lower-bounds lint params reference proto ui bench clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(READY) ## Install hlorank and its tools into .venv (the other targets do this themselves)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[pipeline,dev,collect,zoo,postgresql,ray,sweep,rivals]'
	python scripts/plots_page.py
	@touch $@

repro: $(READY) ## Run the pipeline (dvc repro), JOBS=3 stages at the same time, and print its scores
	scripts/repro.sh $(JOBS)
	python -P -m hlorank.evaluation.summary

# Optional: STEPS of each network; INDICES, the folder of the paper's lists; PRETRAINED, the folder of a model of
# best_layout to train further; ARCHIVES, a mirror or a folder of the data.
tpugraphs: $(READY) ## Train and judge best_layout and the official baselines on all of TpuGraphs; prints the hours first
	python scripts/tpugraphs.py --jobs $(JOBS) $(if $(STEPS),--steps $(STEPS)) $(if $(INDICES),--indices '$(INDICES)') \
	  $(if $(PRETRAINED),--pretrained '$(PRETRAINED)') $(if $(ARCHIVES),--archives '$(ARCHIVES)')

# `dvc exp show` has a column for each parameter, metric and dependency, and no setting that hides any.
experiments: $(READY) ## Compare the experiments of `dvc exp show`, a column each: Kendall tau on valid, changed parameters
	@dvc exp show --csv --only-changed --keep '.*valid.tau' \
	  --drop '(Created|State|Executor|typ|parent|reports|pipeline|constraints|[^:]*/[^:]*$$|.*(test|slowdown))' | \
	  sed '1s#reports/\([^:,]*\)/scores.json:valid.tau#\1#g' | \
	  python -c 'import sys, pandas; t = pandas.read_csv(sys.stdin, dtype=str); rev = t.pop("rev"); \
	    name = t.pop("Experiment").fillna(rev) if "Experiment" in t else rev; \
	    print(t.set_axis(name).T.fillna("").to_string(index_names=False))'

test: lint ## Check format, lint, types, layers, and run the tests but the slow ones
	$(PYTEST) --dist worksteal

# Noise, such as a busy machine, fails a test of servers or time limits once, but not twice. The tests of a module share
# what is expensive, and stay on one worker.
test-slow: $(READY) ## Run the slow tests: browser, servers, attacks, long trainings; one that fails is repeated once
	$(PYTEST) -m slow --dist loadscope -rs || { [ $$? -eq 1 ] && $(PYTEST) -m slow --last-failed --last-failed-no-failures none; }

coverage: $(READY) ## Run the tests but the slow ones, and show the lines that they miss; fail below 95 %
	$(PYTEST) --dist worksteal --cov --cov-report=term:skip-covered --cov-fail-under=95

# Old versions of packages use deprecated parts of each other.
lower-bounds: ## Run part of the tests with the lowest versions that pyproject.toml allows, in .venv-lower
	$(PYTHON) -m venv .venv-lower
	$(PYTHON) scripts/lower_bounds.py > .venv-lower/constraints.txt
	.venv-lower/bin/python -m pip install --quiet -c .venv-lower/constraints.txt -e '.[pipeline,dev,sweep,rivals]'
	.venv-lower/bin/python -m pytest -n 2 -W ignore::DeprecationWarning tests/config tests/data tests/featurize tests/partition tests/models tests/training

# The workers of mypy fail on a very busy machine, where they start in more than a few seconds.
lint: $(READY) ## Check format, lint, types and layers
	ruff format --check
	ruff check
	mypy || { [ $$? -eq 2 ] && mypy --num-workers 0; }
	lint-imports

params: $(READY) ## Rewrite params.yaml from conf/
	python scripts/params.py

reference: $(READY) ## Rewrite the tables of keys, commands and measured graphs in docs and data
	python -m scripts.reference

proto: $(READY) ## Regenerate the module of the protobuf schema
	python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/hlorank/hlo/hlo.proto

ui: $(READY) ## Open the MLflow UI on http://127.0.0.1:5000
	mlflow ui --backend-store-uri sqlite:///mlflow.db --host 127.0.0.1 --port 5000

bench: $(READY) ## Run the benchmarks in their quick form
	for benchmark in $$(grep -l -e --quick benchmarks/*.py); do python $$benchmark --quick || exit 1; done

clean: ## Remove everything that the pipeline and the tools made, .venv included
	rm -rf $(VENV) .venv-lower .hlorank build dist data/code data/raw data/features data/segments data/downloads models multirun tpugraphs
	git clean -qfdX reports
	rm -rf mlflow.db* mlartifacts mlruns dvc_plots report.html .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
