PYTHON ?= python3

.PHONY: quickstart test test-slow check docs verify-reference fuzz constraints clean

quickstart: .venv/ready
	.venv/bin/electra quickstart

# Tools are called as modules: those that lie beside the machine's torch have no script in .venv.
test: .venv/ready-dev
	.venv/bin/python -m pytest -n 2 --dist loadfile

test-slow: .venv/ready-dev
	.venv/bin/python -m pytest -n 2 --dist loadfile -m slow

check: .venv/ready-dev
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m ruff check .
	.venv/bin/python -m mypy

docs: .venv/ready-dev
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict

# The shortest reference run, and one of fine-tuning; without rows all of them.
verify-reference: .venv/ready-dev
	.venv/bin/python -m tools.reference verify rtd finetuned

# Damaged input for each reader, a minute each.
fuzz: .venv/ready-dev
	.venv/bin/python -m tools.fuzz --seconds 60

# What a release is tested with, for each system: needs uv.
constraints:
	echo torch==2.13.0 | uv pip compile pyproject.toml - --universal --python-version 3.11 --quiet \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --output-file constraints.txt

clean:
	rm -rf .venv

# A stamp is made last, so an interrupted set-up is taken up again.
.venv/ready: pyproject.toml bootstrap.py
	$(PYTHON) bootstrap.py
	@touch $@

.venv/ready-dev: pyproject.toml bootstrap.py
	$(PYTHON) bootstrap.py dev
	@touch $@ .venv/ready
