# make demo   the main job, end to end, on this machine
# make test   the suite: every refusal, every mechanism in a case or two
# make test-all  every test: also the other cases, and what a shorter test or evidence shows
# make check  what CI asks of a change: format, lint, types, tests
# make docs   the site, strictly, into site/
# make prove  the long evidence, written to validation/
# make pages  every table and plot of the docs that is made from evidence
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-all check lint docs prove pages clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Brimful needs Python >= 3.11 and $(PYTHON) is older; set PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-compile -c constraints.txt -e '.[dev]'
	# Alone: it would bring Triton along, a gigabyte, for which a stand-in is enough to simulate.
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-compile --no-deps -c constraints.txt liger-kernel
	-@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib src >/dev/null 2>&1  # on all cores, as pip does not
	@touch $(READY)

demo: $(READY)
	$(BIN)/brimful demo

# Two workers with one thread each: the tests are small, and bit-equality does not depend on it.
# Compiled files are kept even where the machine says otherwise: each of many processes reads ours.
SUITE := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
test: $(READY)
	$(SUITE)

test-all: $(READY)
	$(SUITE) -m ""

lint: $(READY)
	$(BIN)/ruff format --check src tests benchmarks validation docs examples
	$(BIN)/ruff check src tests benchmarks validation docs examples
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

check: lint test

PAGES := trust accuracy scale moonshot peers laws rehearsals rules cli
pages: $(READY)
	for page in $(PAGES); do $(BIN)/python docs/generate_$$page.py || exit 1; done

prove: $(READY)
	$(SUITE) -m long
	$(BIN)/python validation/prove.py

clean:
	rm -rf site $(VENV) .pytest_cache .mypy_cache .ruff_cache
