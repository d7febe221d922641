# make run       sets up .venv and trains a small model; ARGS="--model ... --data ..." trains yours
# make test      sets up .venv and passes the tests (under 10 minutes on 2 cores)
# make test-fast one process, no launches (under a minute);  make test-all everything
# make lint      ruff and mypy;  make generate  rebuild generated files;  make bench-startup  start-up times;
#                make bench-estimate  how long an estimate takes;
#                make bench-sharded  ZeRO, FSDP2 and DDP on two processes against one (4 minutes)
# make accuracy  the memory estimate against published measurements (8 minutes, 200 MB of releases once); ROWS=FILE another table
# make reality   traced steps against real ones on this CPU (4 minutes), into docs/measured/reality.json
# make sharding  the memory table of deepspeed_configs/README.md (5 minutes), into docs/measured/sharding.json
# make promises  every trick on every head (under 20 minutes), into docs/measured/promises.json and docs/promises.md

PYTHON ?= python3
VENV := .venv
# DeepSpeed looks for ninja on PATH when it compiles.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
LAUNCH := accelerate launch --quiet --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no

.PHONY: run test test-fast test-rest test-all lint generate promises accuracy reality sharding bench-estimate bench-startup bench-sharded clean

run: $(VENV)/.base
	$(LAUNCH) recipes/causal_lm.py $(ARGS)

test: $(VENV)/.test
	python -m pytest -n 2 -m "not slow"

test-fast: $(VENV)/.test
	python -m pytest -m "not slow and not launch"

test-rest: lint
	python -m pytest -n 2 -m slow

test-all: test test-rest

lint: $(VENV)/.test
	ruff check
	ruff format --check
	mypy

generate: $(VENV)/.base
	python -m hf_efficient.generate

promises: $(VENV)/.test
	OMP_NUM_THREADS=1 python benchmarks/promises.py && python -m hf_efficient.generate

accuracy: $(VENV)/.test
	python benchmarks/accuracy $(if $(ROWS),--rows $(ROWS),--json docs/measured/accuracy.json)
	python -m hf_efficient.generate

reality: $(VENV)/.test
	OMP_NUM_THREADS=1 python benchmarks/reality.py && python -m hf_efficient.generate

sharding: $(VENV)/.test
	python benchmarks/sharding.py && python -m hf_efficient.generate

bench-estimate: $(VENV)/.test
	python benchmarks/estimate_speed.py

bench-startup: $(VENV)/.base
	python benchmarks/startup.py

bench-sharded: $(VENV)/.test
	python benchmarks/sharded.py

# torch goes first and pinned: what asks for "any torch" would bring gigabytes of another one.
$(VENV)/.base: pyproject.toml constraints.txt
	@echo "Setting up $(VENV): a minute or two, most of it downloading."
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache
