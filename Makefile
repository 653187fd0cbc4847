# The commands of phraseloom's developers and of its continuous integration; each sets up .venv first if it is missing.
PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo
BIN := $(VENV)/bin
JOBS ?= auto

.PHONY: help install native demo test check format test-full lowest bench docs wheel clean

help:
	@echo "make demo       install, train a model that attends to phrases, and show what it does (a few minutes)"
	@echo "make test       install, check format, lint, types, run the fast tests"
	@echo "make check      format, lint and types only"
	@echo "make test-full  every test, also the long ones, with new random examples"
	@echo "make lowest     tests on the lowest versions that pyproject.toml allows, in .lowest; TORCH=2.13.0 takes another torch"
	@echo "make bench      speed and memory, as ratios within one run (peers when installed, see benchmarks/README.md)"
	@echo "make docs       the pages of docs/ as a site in build/site; every link is checked"
	@echo "make wheel      the package as dist/*.whl, with the recipes"
	@echo "make native     build the compiled library for search again"
	@echo "make format     rewrite the code in the project's format"
	@echo "make clean      remove what make demo made"

install: $(VENV)/.installed

NATIVE := setup.py $(wildcard src/phraseloom/native/*.cpp src/phraseloom/native/*.h src/phraseloom/native/*.inc)

native: install
	$(BIN)/python setup.py --quiet build_ext --inplace --force

# Installing builds the library of phraseloom.native where there is a C++ compiler. Python compiles what is imported, not all
# 14,000 files of the packages.
$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "phraseloom needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@touch $@

check: install
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

format: install
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

test-full: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m "" --hypothesis-profile=explore

# Python 3.11: later ones have no numpy 1.26. The package is installed from a wheel, so that the checkout stays as it is.
LOWEST ?= .lowest
LOWEST_TESTS ?= tests/test_config.py tests/test_other_names.py tests/training/test_config.py tests/metrics tests/text tests/align \
	tests/cli/test_main.py tests/cli/test_options.py tests/models tests/decoding tests/serving

lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) tests/lowest.py $(if $(TORCH),torch=$(TORCH)) > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/constraints.txt '.[sentences,serve,zh]' pytest pytest-xdist hypothesis
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n $(JOBS) $(LOWEST_TESTS)

bench: install
	$(BIN)/python benchmarks/run.py

docs: install
	$(BIN)/mkdocs build --strict

wheel: install
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(DEMO)

demo: install
	@PATH="$(abspath $(BIN)):$$PATH" bash demo.sh $(DEMO)
