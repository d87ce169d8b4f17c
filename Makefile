# `make tune` runs the main job and `make test` the tests; both set up .venv first, and only once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ROOMS := spaces costmodel search experiments
INSTALLED := $(VENV)/installed
PINS := $(VENV)/constraints.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(PINS)

# The oldest torch that is supported, for `make test-oldest`, and the newest there is when `make test-newest` sets up its
# .venv-newest. The registry has only their CUDA builds: with what those need to be imported, GPU or not, 2.7 GB to download
# and 4.6 GB on disk (2.11), 5.2 GB (2.15). So they are no part of .ci/run.
OLDEST_TORCH := torch==2.11.0
NEWEST_TORCH := torch

# Tests run in three processes, a file at a time, in their order: xdist would put the files of few tests last, which are the
# slow ones. On two cores three are faster than two, for much of the time of a test is waiting: for servers that start and
# processes that end. On a machine with a GPU they run in one process, for they measure on it.
JOBS = $(shell nvidia-smi -L >/dev/null 2>&1 || echo --numprocesses 3 --dist loadfile --no-loadscope-reorder)

# Each of them keeps to a core: the threads that SciPy starts in all would wait for one another.
ONE_CORE := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# Older ones, as Python 3.11 brings, choose among the links of an index three times as slowly: 72 s for what takes 27.
NEWER_PIP := pip>=25

# What is not compiled to bytecode: an eighth of all, and nothing here imports it.
UNUSED := /(tests|databricks|mypyc?)/|/ray/(data|llm|rllib|serve|train|tune)/

HAS_CUDA := -c 'import torch; assert torch.version.cuda' 2>/dev/null

.DEFAULT_GOAL := help
.PHONY: help setup tune test test-all test-oldest test-newest claims lint types format docs clean

help:
	@echo "make tune    set up .venv and search the Hopper GEMM at 350x7360x832 (replayed where there is no GPU)"
	@echo "make test    set up .venv and run the tests, but for those that are marked slow"
	@echo "make test-all  run the slow ones too"
	@echo "make test-oldest, test-newest  run those of the export under the oldest and the newest torch (5 GB each)"
	@echo "make claims  recompute the figures that the documents state, from the recorded data; some minutes"
	@echo "make lint    check style;  make format  apply it;  make types  check types"
	@echo "make docs    build the documentation into build/docs"
	@echo "make setup   only set up .venv (PYTHON=python3.12 picks another Python);  make clean  remove build outputs"

setup: $(INSTALLED)

# torch goes first. Without a GPU it is exactly the pinned version, because a range would take the newest, and several GB
# of CUDA with it. With a GPU it is the CUDA torch that .venv or $(PYTHON) has, else the newest; what torch shares with
# its own CUDA stack is then not pinned. Compiled to bytecode is torch while pip is at the rest, and that on all cores at the
# end, and not what nobody imports: pip would compile all of it on one core. Some packages hold files for other versions of
# Python, which do not compile.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "tilescout needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12" >&2; \
	    exit 2; }
	@set -e; \
	rm -f $@; mkdir -p $(VENV); \
	if nvidia-smi -L >/dev/null 2>&1; then \
	    gpu=yes; torch=torch; unpinned='^(torch|setuptools|cuda-[a-z]+)=='; \
	else \
	    gpu=; torch=$$(grep '^torch==' constraints.txt); unpinned='^#'; \
	fi; \
	test -z "$(TORCH)" || { torch=$(TORCH); unpinned='^(torch|setuptools|cuda-[a-z]+)=='; }; \
	grep -vE "$$unpinned" constraints.txt > $(PINS); \
	share=; test -z "$$gpu" || ! $(PYTHON) $(HAS_CUDA) || share=--system-site-packages; \
	test -x $(BIN)/python || $(PYTHON) -m venv $$share $(VENV); \
	echo "setup: $$($(BIN)/python --version), $$torch and the rest of constraints.txt into $(VENV); a minute or two"; \
	$(PIP) '$(NEWER_PIP)'; \
	$(PIP) $$torch "$$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')"; \
	$(BIN)/python -m compileall -qq -x '$(UNUSED)' $(VENV)/lib & \
	PYTHONWARNINGS=ignore $(PIP) --no-build-isolation --editable '.[dev]'; \
	wait; \
	$(BIN)/python -m compileall -qq --workers 0 -x '$(UNUSED)' $(VENV)/lib || true; \
	mkdir -p $(VENV)/rooms/tilescout; \
	for room in $(ROOMS); do ln -sfn ../../../$$room $(VENV)/rooms/tilescout/$$room; done; \
	test -z "$$gpu" || $(BIN)/python $(HAS_CUDA) || \
	    echo "setup: warning: there is a GPU, but torch in $(VENV) is a build without CUDA: put a CUDA build there" >&2; \
	touch $@; \
	echo "setup: done"

# A problem on which a search is worth something: of 48 recorded sizes, the default is among the furthest from the best on it,
# and slower than torch.mm. The shipped cost model learned from all of them, and this one from 24 others.
tune: setup
	@$(BIN)/tilescout tune gemm_sm90 --problem 350x7360x832:bf16 --model docs/examples/gemm_sm90-h200.npz

# Tests start hundreds of processes: each would compile the rooms anew where Python may not keep what it compiled.
test: CHOSEN := -m 'not slow'
test test-all: setup
	@$(BIN)/python -m compileall -q $(ROOMS)
	@$(ONE_CORE) $(BIN)/pytest -q $(JOBS) $(CHOSEN)

test-oldest: WANTED := $(OLDEST_TORCH)
test-newest: WANTED := $(NEWEST_TORCH)
test-oldest test-newest: test-%:
	@$(MAKE) --no-print-directory setup VENV=.venv-$* TORCH=$(WANTED)
	@$(ONE_CORE) .venv-$*/bin/pytest -q -rs $(JOBS) tests/search/export

claims: setup
	@$(BIN)/python -P -m tilescout.experiments.research claims

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo "lint: clean"

types: setup
	@$(BIN)/mypy

format: setup
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

docs: setup
	@$(BIN)/sphinx-build -W --keep-going --quiet --builder html docs build/docs
	@echo "docs: build/docs/index.html"

clean:
	@rm -rf build dist docs/reference/api docs/results *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find $(ROOMS) tests -name __pycache__ -type d -prune -exec rm -rf {} +
