# make demo | test | check | format | bench | docs | setup       in .venv
# make federation | test-flower, test-ray                        with Flower or Ray, each in an environment of its own
# make test-flower-newest                                        the same with the newest Flower that is supported
# make test-browser, test-wheel, test-trackers, test-examples    in .venv: the pages in Chromium; the built package; trackers;
#                                                                examples that need other packages
# make bench-peers                                               speed beside other frameworks, each in an environment of its own
# make test-slow                                                 in .venv: what takes too long for every change
# make coverage                                                  in .venv: the share of the lines that `make test` runs
# make test-pythons                                              without torch, in .venv-3.12 and so on: other Pythons
# make dist                                                      wheel and sdist in dist/, checked by twine
# make test-all                                                  every test there is, quick and slow
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
unexport PYTHONDONTWRITEBYTECODE  # tests start many processes: each would compile all sources again

FLOWER := .venv-flower
NEWEST := .venv-flower-newest
RAY := .venv-ray
# An environment is made again when the text of its lock changes, whatever the dates of the files.
LOCK := $(shell cat pyproject.toml constraints.txt | sha256sum | cut -c1-12)
EVERY := -m 'not wheel'  # the slow tests, too
HERE := --ignore tests/browser --ignore tests/flower  # see test-browser, test-flower
WHOLE := --dist loadfile  # what a file needs takes long to make, so one worker runs all of the file
# Bytecode is made of what is imported, when it is: of all files, pip would take half a minute for each environment.
INSTALL = pip install --quiet --no-compile --constraint constraints.txt --editable
ADD = $(BIN)/$(INSTALL:--editable=--no-build-isolation --editable)  # to an environment that has setuptools

.PHONY: setup demo test check format bench bench-peers docs federation test-flower test-flower-newest test-ray test-browser test-trackers test-wheel \
        dist test-slow coverage test-examples test-pythons test-others test-all chromium clean

setup: $(VENV)/.ready-$(LOCK)

$(VENV)/.ready-$(LOCK):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedstale needs Python 3.11 or newer, got " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) '.[dev,report,pandas,safetensors]'
	$(BIN)/python -m tests.engines.kernels.compiled
	$(BIN)/pytest -n 0 --collect-only -qq >/dev/null || true  # bytecode of the tests: every worker would make all of it
	rm -f $(VENV)/.ready-* $(VENV)/.docs-* $(VENV)/.browser-* $(VENV)/.trackers-* $(VENV)/.examples-* $(VENV)/.coverage-* && touch $@

demo: setup
	$(BIN)/fedstale run experiments/demo.toml $(DEMO)

test: setup
	$(BIN)/pytest --durations=15 $(HERE) $(TESTS)

test-slow: setup
	$(BIN)/pytest -m slow --durations=15 $(HERE) --ignore tests/test_examples.py $(TESTS)  # see test-examples
	$(BIN)/pytest -m 'hypothesis and not slow' --hypothesis-profile thorough $(HERE) $(TESTS)

coverage: $(VENV)/.coverage-$(LOCK)
	$(BIN)/pytest --cov=fedstale --cov-report=term:skip-covered $(HERE) $(TESTS)

$(VENV)/.coverage-$(LOCK): $(VENV)/.ready-$(LOCK)
	$(ADD) '.[coverage]'
	touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/fedstale bench $(BENCH)

bench-peers: setup  # the tables of docs/benchmarks.md: rows that are missing, or those of BENCH='--workloads mlp,gru'
	benchmarks/peers.sh
	$(BIN)/python benchmarks/report.py $(BENCH)

docs: $(VENV)/.docs-$(LOCK)
	$(BIN)/python -m sphinx --fail-on-warning --quiet docs build/docs
	@echo build/docs/index.html

$(VENV)/.docs-$(LOCK): $(VENV)/.ready-$(LOCK)
	$(ADD) '.[docs]'
	touch $@

$(FLOWER)/.ready-$(LOCK):
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/$(INSTALL) '.[dev,flower,simulation]'
	rm -f $(FLOWER)/.ready-* && touch $@

federation: $(FLOWER)/.ready-$(LOCK)
	$(FLOWER)/bin/python examples/federation/main.py $(FEDERATION)

test-flower: $(FLOWER)/.ready-$(LOCK)
	$(FLOWER)/bin/pytest tests/flower $(EVERY) -rs $(TESTS)

$(NEWEST)/.ready-$(LOCK):
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	grep -vE '^(flwr|certifi|uv)==' constraints.txt > $(NEWEST)/constraints.txt
	$(NEWEST)/bin/pip install --quiet --no-compile --constraint $(NEWEST)/constraints.txt --editable '.[dev,flower,simulation]' 'flwr==1.42.*' || { \
	echo 'this index has not all that flwr 1.42 asks for: it is installed beside the packages of 1.41'; \
	$(NEWEST)/bin/$(INSTALL) '.[dev,flower,simulation]' && $(NEWEST)/bin/pip install --quiet --no-compile --no-deps 'flwr==1.42.*'; }
	rm -f $(NEWEST)/.ready-* && touch $@

test-flower-newest: $(NEWEST)/.ready-$(LOCK)
	$(NEWEST)/bin/python -m pytest $(EVERY) -rs tests/flower/test_*.py tests/flower/federation/test_adapter.py \
	tests/flower/federation/test_fleet.py tests/flower/federation/test_warm.py tests/flower/federation/test_flower_*.py $(TESTS)

$(RAY)/.ready-$(LOCK):
	test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	$(RAY)/bin/$(INSTALL) '.[dev,ray]'
	rm -f $(RAY)/.ready-* && touch $@

test-ray: $(RAY)/.ready-$(LOCK)
	$(RAY)/bin/pytest tests/engines/ray $(EVERY) $(WHOLE) -rs $(TESTS)

$(VENV)/.browser-$(LOCK): $(VENV)/.ready-$(LOCK)
	$(ADD) '.[browser,ui]'
	touch $@

chromium:  # Debian's; without it, and without the right to install it, tests/browser are skipped and say why
	@for name in chromium chromium-browser google-chrome; do command -v $$name && exit 0; done; \
	{ test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	echo "Chromium is missing and cannot be installed here: tests/browser will be skipped"

test-browser: $(VENV)/.browser-$(LOCK) chromium
	$(BIN)/pytest tests/browser tests/view/live $(EVERY) $(WHOLE) -rs $(TESTS)

$(VENV)/.trackers-$(LOCK): $(VENV)/.ready-$(LOCK)
	$(ADD) '.[tensorboard,wandb,mlflow,parquet]'
	touch $@

test-trackers: $(VENV)/.trackers-$(LOCK)
	$(BIN)/pytest tests/view/trackers tests/cli/test_export.py $(EVERY) $(WHOLE) -rs $(TESTS)

test-wheel: setup
	$(BIN)/pytest -m wheel tests/packaging $(WHOLE) -rs $(TESTS)

$(VENV)/.examples-$(LOCK): $(VENV)/.ready-$(LOCK)
	$(ADD) '.[examples,hf]'
	touch $@

dist: setup  # wheel and sdist, as they would be published
	$(BIN)/pip install --quiet build twine
	rm -rf dist && $(BIN)/python -m build --quiet --outdir dist
	$(BIN)/twine check --strict dist/*

test-examples: $(VENV)/.examples-$(LOCK)
	$(BIN)/pytest tests/test_examples.py tests/data/test_hugging_face.py $(EVERY) -rs $(TESTS)

test-pythons:
	.ci/pythons $(TESTS)

test-others: test-slow test-pythons test-wheel test-examples docs test-browser test-trackers test-ray test-flower

test-all: test test-others

clean:
	rm -rf $(VENV) $(FLOWER) $(NEWEST) $(RAY) .venv-3.* runs build .mypy_cache .ruff_cache .pytest_cache .hypothesis
