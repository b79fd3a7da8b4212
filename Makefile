# The two commands of the README are `make demo` and `make test`; each sets everything up by itself.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
SOURCES = cloud edge protocol tools tests examples

.PHONY: demo test test-slow check bench clean

demo: $(VENV)/demo.ready
	$(BIN)/sedge-emulate run examples/demo.toml --out runs/demo

test: $(VENV)/dev.ready
	$(BIN)/pytest -m "not slow and not arm64 and not gpu"

test-slow: $(VENV)/dev.ready
	$(BIN)/pytest -m "slow"

check: $(VENV)/dev.ready
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/dev.ready
	$(BIN)/python tools/bench/train_step.py
	$(BIN)/python tools/bench/codec.py
	$(BIN)/python tools/bench/scoring.py

$(VENV)/demo.ready: pyproject.toml constraints.txt tools/setup
	PYTHON=$(PYTHON) tools/setup $(VENV) emulate mosquitto dataset-fashion-mnist
	touch $@

$(VENV)/dev.ready: pyproject.toml constraints.txt tools/setup
	PYTHON=$(PYTHON) tools/setup $(VENV) dev mosquitto dataset-fashion-mnist systemd openssl
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache
