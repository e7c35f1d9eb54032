# make demo   trains a sparse autoencoder lifted, by SGD and by Adam, and writes a page about it
# make test   the everyday checks: ruff, mypy, pytest, documentation
# Each command sets up .venv by itself, and again only when pyproject.toml or constraints.txt changed.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed
TOOLS := .venv/.tools
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

# One thread per process: the suite runs several processes, small tensors gain nothing from more threads, and two threads
# that share busy cores wait for each other.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help setup tools demo test test-all mutation-score lint docs bench report figures release format clean

help:
	@echo 'make demo      lifted training against SGD and Adam in about a minute: a table, and a page (out/demo)'
	@echo 'make test      ruff, mypy, pytest, documentation'
	@echo 'make test-all  the same, the long tests, the mutation check and a sample of the mutation score'
	@echo 'make tools     install what the gallery shows beside the library: Lightning, Accelerate, MLflow, W&B'
	@echo 'make docs      build the documentation (docs/_build/html)'
	@echo 'make bench     the benchmarks'
	@echo 'make report    from stored rows: the page of the reproduction (out/reproduction), its summary, the README'
	@echo 'make release   every check, then sdist, wheel and documentation in dist/, tried in a new environment'
	@echo 'make format    lay out and tidy the source'
	@echo 'make clean     remove everything the commands above wrote, except .venv'

setup: $(STAMP)

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo 'setting up .venv (a few minutes the first time)'; $(PYTHON) -m venv .venv; }
	@$(PIP) install -c constraints.txt -e '.[dev,plot,data,sklearn,track,onnx,docs]' -e ./lab
	@touch $@

# What the pages of the gallery about other tools need; without it these are shown and not run.
tools: $(TOOLS)

$(TOOLS): $(STAMP)
	@$(PIP) install -c constraints.txt -e '.[tools]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/lifted demo --out out/demo

test: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 lint docs
	$(TEST_ENV) $(BIN)/pytest -q -n $(WORKERS)

test-all: tools lint docs
	$(TEST_ENV) HYPOTHESIS_PROFILE=whole $(BIN)/pytest -q -n $(WORKERS) -m ''
	$(TEST_ENV) $(BIN)/python scripts/mutation_check.py --workers $(WORKERS)
	$(TEST_ENV) $(BIN)/python scripts/mutation_score.py --workers $(WORKERS) --sample 100

# Every mutant of mutmut: hours.
mutation-score: $(STAMP)
	$(TEST_ENV) $(BIN)/python scripts/mutation_score.py --workers $(WORKERS)

lint: $(STAMP)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy --no-error-summary

# Warnings are errors (-W), and so is a reference to a name that does not exist (-n).
docs: $(STAMP)
	$(TEST_ENV) $(BIN)/sphinx-build -W --keep-going -n -q -b html docs docs/_build/html

bench: $(STAMP)
	@for file in benchmarks/[!_]*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; echo; done

# From the rows in results/ and docs/races, without training: the page, the documentation's summary, README.md and its picture.
report: $(STAMP)
	@$(BIN)/lifted report results --out out/reproduction --summary docs/reproduction-results.md \
		$$(grep -q 'headline of the reproduction: begin' README.md && echo --headline README.md)
	@$(BIN)/python -m lifted_bregman_lab.front README.md docs

# The paper's theory figures; one of them is on the documentation's first page.
figures: $(STAMP)
	@$(BIN)/python -m lifted_bregman_lab.paper.theory --out out/figures
	@cp out/figures/bregman_losses.png out/figures/bregman_losses_dark.png docs/figures/

# Of a clean tree; needs the package index.
release: $(STAMP)
	$(BIN)/python scripts/release.py

format: $(STAMP)
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

clean:
	rm -rf out docs/_build mutants .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src lab tests docs scripts benchmarks -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
