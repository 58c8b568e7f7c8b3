# Each target makes the environment when it is missing or older than what it is made from.
#   make demo     the whole chain on a small corpus: results/demo
#   make report   the demo as one HTML page
#   make test     the tests; make torture: the long and hostile ones; make lint
#   make bench    results/bench/summary.csv and speed.svg, on a quiet machine; make bench-gpu: on one with a GPU

PYTHON ?= python3
VENV ?= .venv
CORES ?= all
WORKERS ?= 2
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES) --rerun-incomplete --show-failed-logs

.PHONY: demo report test torture lint bench bench-gpu

demo: $(READY)
	$(SNAKEMAKE)

report: demo
	$(BIN)/snakemake --report results/demo/report.html

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore tests/slurm
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/slurm

torture: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m torture

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

bench: $(READY)
	$(BIN)/python tests/benchmarks/run.py

bench-gpu: $(READY)
	$(BIN)/python tests/gpu/bench_top1.py

$(READY): pyproject.toml envs/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c envs/constraints.txt -e '.[dev]'
	touch $@
