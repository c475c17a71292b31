# `make run` and `make test` each do all the set-up; ARGS= passes further flags on.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
DOCS_VENV := .venv-docs
INSTALLED := $(VENV)/.installed
ARGS ?=
# Whole files, in the order of conftest.py: processes share what a file's tests set up.
PYTEST = $(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: run test test-slow results lint docs planted lock

run: $(INSTALLED)
	$(VENV)/bin/python -m tasks.run --task=shakespeare --p=0.05 $(ARGS)

# Most tests of privacy, and others: 5 to 10 minutes.
test: $(INSTALLED)
	$(PYTEST) -m 'not slow' $(ARGS)

# The rest, 25 to 35 minutes: Ray, signals, real data, planted faults, notebooks, the wheel.
test-slow: $(INSTALLED)
	$(PYTEST) -m slow $(ARGS)

# Plants faults in privacy code; tests must catch each. One: make planted ARGS='-k [7-'
planted: $(INSTALLED)
	$(PYTEST) --dist load -m slow tests/project/test_planted.py $(ARGS)

# Tables and figures of a grid, with the grid's name: make results NAME=main/fashion_mnist ARGS=--seeds=3
results: $(INSTALLED)
	@test -n "$(NAME)" || { echo "make: name a grid: make results NAME=main/fashion_mnist" >&2; exit 2; }
	$(VENV)/bin/python -m tasks.sweep --grid=$(NAME) --sweep_dir=runs/$(NAME) $(ARGS)
	$(VENV)/bin/python -m tasks.report runs/$(NAME) --output=docs/results/$(NAME)

# npm's @bazel/buildifier is used where npx is; ruff always.
lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	if command -v npx >/dev/null; then \
	  npx --yes @bazel/buildifier --mode=check --lint=warn BUILD MODULE.bazel; \
	fi

# The documentation site, in site/; its own environment has no TensorFlow.
docs: $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/python -m docs.build_site

$(DOCS_VENV)/.installed: requirements-docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r requirements-docs.txt
	touch $@

$(INSTALLED): requirements.txt
	@test -n "$(PYTHON)" || { \
	  echo "make: no python3.11 is on the PATH; install Python 3.11, or name one: make PYTHON=FILE" >&2; \
	  exit 2; }
	@test ! -L $(VENV) || { \
	  echo "make: $(VENV) is a link, and set-up would empty the directory behind it; remove the link" >&2; \
	  exit 2; }
	$(PYTHON) fedsmp_tff/_platform.py
	@echo 'setting up $(VENV) from requirements.txt: one to three minutes, once'
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r requirements.txt
	touch $@

# Makes requirements.txt from requirements.in and overrides.txt, and requirements-docs.txt from
# pyproject.toml; needs uv.
lock:
	uv pip compile --python-version 3.11 --overrides overrides.txt \
	  --no-emit-index-url --no-header --upgrade requirements.in -o requirements.txt
	uv pip compile --python-version 3.11 --group docs \
	  --no-emit-index-url --no-header --upgrade pyproject.toml -o requirements-docs.txt
