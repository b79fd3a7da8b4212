# The two commands of the README are `make demo` and `make test`; each sets everything up by itself.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
SOURCES = cloud edge protocol tools tests examples
RESULTS = tools/bench/results

.PHONY: demo test test-slow check figures clean

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

# Every benchmark; each ends with one line of JSON, kept here for the README.
figures: demo
	$(BIN)/sedge-emulate run examples/compression.toml --out runs/compression
	cp runs/demo/result.json $(RESULTS)/demo.json
	cp runs/compression/result.json $(RESULTS)/compression.json
	$(BIN)/python tools/bench/train_step.py | tee /dev/stderr | tail -n 1 > $(RESULTS)/train_step.json
	$(BIN)/python tools/bench/codec.py | tee /dev/stderr | tail -n 1 > $(RESULTS)/codec.json
	$(BIN)/python tools/bench/scoring.py | tee /dev/stderr | tail -n 1 > $(RESULTS)/scoring.json
	$(BIN)/python tools/bench/agent_memory.py runs/demo/bundle \
		| tee /dev/stderr | tail -n 1 > $(RESULTS)/agent_memory.json
	$(BIN)/python tools/bench/readme.py

$(VENV)/demo.ready: pyproject.toml constraints.txt tools/setup
	PYTHON=$(PYTHON) tools/setup $(VENV) emulate mosquitto dataset-fashion-mnist
	touch $@

$(VENV)/dev.ready: pyproject.toml constraints.txt tools/setup
	PYTHON=$(PYTHON) tools/setup $(VENV) dev mosquitto dataset-fashion-mnist systemd openssl
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache
