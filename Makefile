# The two commands of the README are `make demo` and `make test`; each sets everything up by itself.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
SOURCES = cloud edge protocol tools tests examples
RESULTS = tools/bench/results

# Every process would compile what it imports, and pytest rewrite 440 test files in each of its own: bytecode stays
# beside the sources, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

# Files go to two processes in this order, the longest first: neither is left alone with one of them at the end.
# By itself xdist begins with the files of the most tests, and so ends with those of a single long one; and
# pytest forgets about a folder of which one below is named, too.
PARALLEL = -n 2 --dist loadfile --no-loadscope-reorder
LONGEST = tests/reproduce tests/emulate tests/export tests/android tests/system tests/bench
OTHERS = $(filter-out $(LONGEST) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/test_*.py tests/*/)))
# Fleets of real processes mostly wait: for each other, for a broker's answer, for a deadline.
WAITING = $(subst -n 2,-n 4,$(PARALLEL))
FLEETS = tests/test_examples.py tests/system tests/android tests/edge/backends tests/emulate tests/bench \
	tests/reproduce tests/test_windows.py tests/test_output.py tests/cloud tests/hunt

.PHONY: demo dist docs spec native test test-fleet test-slow hunt chaos test-arm64 pi-boot android deb test-deb pack mutation check mypy pyright figures bench-gpu reproduce reproduce-all clean

demo: $(VENV)/demo.ready
	$(BIN)/sedge-emulate run examples/phones.toml --out runs/demo

test: $(VENV)/dev.ready
	$(BIN)/pytest $(PARALLEL) -m "not fleet and not slow and not gpu and not arm64 and not boot and not android and not deb" $(LONGEST) $(OTHERS)

# Whole fleets, most of them of real processes with a real broker.
test-fleet: $(VENV)/dev.ready
	$(BIN)/pytest $(WAITING) -m "fleet and not slow and not gpu" $(FLEETS)

test-slow: $(VENV)/dev.ready
	$(BIN)/pytest -m "slow"

# Both cores in virtual time under every fault, seed after seed, until one violates an invariant:
# SEEDS=0:10000 or HUNT="--minutes 30".
hunt: $(VENV)/dev.ready
	$(BIN)/python -m tests.hunt --seeds $(or $(SEEDS),0:) $(HUNT)

# Three coordinators, their servers and sixty devices as real processes, each host a network namespace, and a fault
# in the middle of a round: eight faults, thirteen times each. Root; 12 minutes a seed: CHAOS="--seeds 1".
chaos: $(VENV)/dev.ready
	$(BIN)/python -m tools.bench three_hosts $(or $(CHAOS),--seeds 13)

# The agent on emulated Raspberry Pi processors, and on an emulated machine of 512 MB that is killed and goes
# on. They say which packages they need; what they build is kept below runs/arm64.
test-arm64: $(VENV)/dev.ready
	$(BIN)/pytest -m arm64 tests/arm64

pi-boot: $(VENV)/dev.ready
	$(BIN)/pytest -m boot tests/arm64

# The Android client in dist/android: the core, the library, a signed APK without a runtime; then its tests.
# Debian's packages suffice; what only Debian 11 has is downloaded and kept below runs/android.
android: $(VENV)/dev.ready
	PYTHON=$(PYTHON) tools/setup $(VENV) dev aapt zipalign apksigner
	$(BIN)/python edge/android/build.py
	$(BIN)/pytest -m "not fleet" tests/android

# Wheels of sedge-executorch in dist/: for this machine, and for arm64 where g++-aarch64-linux-gnu is installed.
native: $(VENV)/dev.ready
	$(BIN)/python edge/native/build.py

# Repositories for apt of the coordinator and the agent, amd64 and arm64: dist/debian12 and dist/debian13; make deb
# SIGN_WITH=KEY signs them by gpg. Then one of each in a fresh Debian 12 and 13 (root, debootstrap).
deb: $(VENV)/dev.ready
	PYTHON=$(PYTHON) tools/setup $(VENV) dev apt-utils gpg
	$(BIN)/python -m tools.deb $(if $(SIGN_WITH),--sign-with "$(SIGN_WITH)")

test-deb: $(VENV)/dev.ready
	PYTHON=$(PYTHON) tools/setup $(VENV) dev apt-utils gpg debootstrap
	$(BIN)/pytest -m deb tests/deb

# A release in dist/, checked: wheel, sdist, man pages, and an SBOM of what a device installs.
dist: $(VENV)/dev.ready
	PYTHON=$(PYTHON) tools/setup $(VENV) dist
	$(BIN)/python -m tools.dist

# dist/pack: the GPU benchmark for a machine that has torch and no registry; there dist/pack/run.
pack: $(VENV)/dev.ready
	$(BIN)/python -m tools.pack

# How many of 150 small faults in the central modules the tests notice: about an hour on two cores.
mutation: $(VENV)/dev.ready
	$(BIN)/python -m tools.bench mutation

# What is made from the structs: docs/reference.md, the comments of the TOML files, Java's messages, the tables
# of the wire's pages.
spec: $(VENV)/dev.ready
	$(BIN)/python -m tools.spec

# All pages as a site in runs/site.
docs: $(VENV)/dev.ready
	$(BIN)/python -m tools.docs

check: $(VENV)/dev.ready
	$(BIN)/python -m tools.spec --check
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(MAKE) --jobs=2 --output-sync=target mypy pyright

mypy: $(VENV)/dev.ready
	$(BIN)/mypy $(SOURCES)

pyright: $(VENV)/dev.ready
	$(BIN)/pyright --pythonpath $(BIN)/python

# Every benchmark, on a machine that does nothing else; the results are kept for RESULTS.md and the README.
# Flower and FedJAX are installed into environments of their own below runs/.
figures: demo
	$(BIN)/python -m tools.bench --all

# Many devices on one GPU, in under six minutes; at small sizes on the CPU where there is none. DEVICE=cuda: or not
# at all. A GPU's result goes to RESULTS.md, and so does a CPU's until there is one.
bench-gpu: $(VENV)/dev.ready
	$(BIN)/python -m tools.bench gpu $(addprefix --device ,$(DEVICE)) --json $(RESULTS)/gpu.json; \
		status=$$?; $(BIN)/python -m tools.bench pages; exit $$status

# Published tables: ten rounds of a few methods in ten minutes; all of them, over hours. What is done is kept.
REPRODUCED = --results $(RESULTS)/reproduce --out runs/reproduce

reproduce: $(VENV)/demo.ready
	$(BIN)/python -m tools.reproduce --short $(REPRODUCED)
	$(BIN)/python -m tools.bench pages

reproduce-all: $(VENV)/demo.ready
	$(BIN)/python -m tools.reproduce --all $(REPRODUCED)
	$(BIN)/python -m tools.bench pages

$(VENV)/demo.ready: pyproject.toml constraints.txt tools/setup
	PYTHON=$(PYTHON) tools/setup $(VENV) emulate mosquitto dataset-fashion-mnist
	touch $@

$(VENV)/dev.ready: pyproject.toml constraints.txt tools/setup
	PYTHON=$(PYTHON) tools/setup $(VENV) dev mosquitto postgresql dataset-fashion-mnist systemd openssl g++ \
		openjdk-17-jdk-headless junit4 chromium zsh fish
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache
