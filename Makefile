# make demo | test | check | bench | docs | setup, with Flower in an environment of its own: federation | test-flower,
# and with Ray in another: test-ray
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

FLOWER := .venv-flower
RAY := .venv-ray

.PHONY: setup demo test check format bench docs federation test-flower test-ray clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedstale needs Python 3.11 or newer, got " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,report]'
	touch $@

demo: setup
	$(BIN)/fedstale run experiments/demo.toml $(DEMO)

test: setup
	$(BIN)/pytest $(TESTS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/fedstale bench $(BENCH)

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --quiet docs build/docs
	@echo build/docs/index.html

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

$(FLOWER)/.ready: pyproject.toml constraints.txt
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev,flower]'
	touch $@

federation: $(FLOWER)/.ready
	$(FLOWER)/bin/python examples/federation/main.py $(FEDERATION)

test-flower: $(FLOWER)/.ready
	$(FLOWER)/bin/pytest tests/federation $(TESTS)

$(RAY)/.ready: pyproject.toml constraints.txt
	test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev,ray]'
	touch $@

test-ray: $(RAY)/.ready
	$(RAY)/bin/pytest tests/engines/ray $(TESTS)

clean:
	rm -rf $(VENV) $(FLOWER) $(RAY) runs build .mypy_cache .ruff_cache .pytest_cache .hypothesis
