# make run    creates .venv, installs, runs the main job: every table of the paper, small (ten minutes)
# make test   creates .venv, installs, runs lint, types and all tests
# make site   builds the pages of docs/ as a site, into site/
# make oldest tests the core with the oldest Python and torch that pyproject.toml claims (gigabytes of wheels; not in CI)
# make release checks, tests, builds dist/ and tags the version that joformer/__init__.py names; pushes nothing
# The first two work as the first command on a fresh checkout, and offline once they have run.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/pip install -q --disable-pip-version-check --no-compile -c constraints.txt
SHAPES := --jaxtyping-packages=joformer,beartype.beartype

# Many tests start processes of their own: without bytecode each would compile everything it imports. What is never
# imported (most of what is installed) is never compiled, hence --no-compile.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test lint types check site oldest release clean

run: $(INSTALLED)
	$(BIN)/joformer reproduce

test: lint types check site

lint: $(INSTALLED)
	$(BIN)/ruff check src tests examples
	$(BIN)/ruff format --check src tests examples
	$(BIN)/codespell src docs tests examples *.md *.cff

types: $(INSTALLED)
	$(BIN)/mypy

# First what shape checks would disturb: compiled graphs, bad input that must reach our own errors, examples in
# docstrings. Then everything else with every annotated shape checked. One thread each; many tests wait for processes of
# their own, so there is one process more than there are cores here.
check: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 3 --dist worksteal -m "compiled or refused" tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --doctest-modules --ignore=src/joformer/rotation/_triton.py \
	    --ignore=src/joformer/integrations/titan.py src
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 3 --dist worksteal -m "not compiled and not refused" $(SHAPES) tests

# timm brings torchvision, whose build does not load beside torch for the CPU and would break transformers: both lie in
# a folder of their own, which only the tests of timm look into. Triton, which comes with torch for GPUs, likewise; and
# torchtitan, which wants another torch and other datasets, with what it imports of its needs.
# The stamp is newer than what it was made from unless that changed: the second run needs no network.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps --upgrade --target $(VENV)/timm timm torchvision
	$(PIP) --no-deps --upgrade --target $(VENV)/triton triton
	$(PIP) --no-deps --upgrade --target $(VENV)/titan "torchtitan; python_version >= '3.11'" torchdata \
	    torch-checkpointing spmd-types tensorboard absl-py
	touch $@

# Strict: a page that is in no menu, a link or an anchor that leads nowhere, or a name without a place fails.
site: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

OLDEST := algebra frames attention spectral monoidal models test_rotation.py test_positions.py test_frequencies.py
oldest:
	test -x .venv-oldest/bin/python || python3.10 -m venv .venv-oldest
	.venv-oldest/bin/pip install -q --no-compile torch==2.6.0 jaxtyping==0.2.34 "numpy<2.3" safetensors==0.4.0 scipy \
	    pytest pytest-xdist hypothesis beartype
	PYTHONPATH=src OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -q -n 2 $(addprefix tests/,$(OLDEST))

# Every check comes before what takes long; the tag comes last.
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/joformer/__init__.py)
release: $(INSTALLED)
	@test -z "$$(git status --porcelain)" || { echo "release: the tree is not clean: commit first"; exit 1; }
	@grep -q '^## $(VERSION) (20[0-9-]*)$$' CHANGELOG.md || \
	    { echo "release: CHANGELOG.md has no section \"## $(VERSION) (DATE)\": write it first"; exit 1; }
	@grep -q '^version: $(VERSION)$$' CITATION.cff || { echo "release: CITATION.cff is not of $(VERSION)"; exit 1; }
	@! git rev-parse -q --verify refs/tags/v$(VERSION) > /dev/null || \
	    { echo "release: v$(VERSION) is tagged already: raise the version"; exit 1; }
	$(MAKE) test
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	if test -x $(BIN)/twine; then $(BIN)/twine check --strict dist/*; fi
	git tag -a v$(VERSION) -m "joformer $(VERSION)"
	@! grep -n 'joformer\.example' pyproject.toml SECURITY.md || echo "release: these addresses are placeholders"
	@echo "release: v$(VERSION) is tagged, its packages are in dist/; nothing was pushed or uploaded"

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
