# `make run` and `make test` each do all the set-up; ARGS= passes further flags on.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
INSTALLED := $(VENV)/.installed
ARGS ?=

.PHONY: run test lint lock

run: $(INSTALLED)
	$(VENV)/bin/python -m tasks.run --task=shakespeare --p=0.05 $(ARGS)

test: $(INSTALLED)
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile $(ARGS)

# npm's @bazel/buildifier is used where npx is; ruff always.
lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	if command -v npx >/dev/null; then \
	  npx --yes @bazel/buildifier --mode=check --lint=warn BUILD MODULE.bazel; \
	fi

$(INSTALLED): requirements.txt
	$(PYTHON) fedsmp_tff/_platform.py
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --no-deps -r requirements.txt
	touch $@

# Makes requirements.txt anew from requirements.in and overrides.txt; needs uv.
lock:
	uv pip compile --python-version 3.11 --overrides overrides.txt \
	  --no-emit-index-url --no-header --upgrade requirements.in -o requirements.txt
