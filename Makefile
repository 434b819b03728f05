PYTHON ?= python3

.PHONY: quickstart test test-slow check docs clean

quickstart: .venv/ready
	.venv/bin/electra quickstart

test: .venv/ready-dev
	.venv/bin/pytest -n 2

test-slow: .venv/ready-dev
	.venv/bin/pytest -n 2 -m slow

check: .venv/ready-dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

docs: .venv/ready-dev
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

clean:
	rm -rf .venv

# A stamp is made last, so an interrupted set-up is taken up again.
.venv/ready: pyproject.toml bootstrap.py
	$(PYTHON) bootstrap.py
	@touch $@

.venv/ready-dev: pyproject.toml bootstrap.py
	$(PYTHON) bootstrap.py dev
	@touch $@ .venv/ready
