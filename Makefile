# The companion's commands. `make` alone lists them.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV ?= .venv
STAMP := $(VENV)/.installed
# The first Python that is new enough; only looked for when the environment is made.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# `make PY=python figures` uses an environment of your own, conda's for one, and makes none.
ifeq ($(origin PY),command line)
ENV :=
else
PY := $(VENV)/bin/python
ENV := $(STAMP)
endif

# Processes at once. Each runs one thread: two processes of two threads on two cores crawl.
ifeq ($(origin JOBS),undefined)
JOBS := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
endif
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
# The instruction set that all x86-64 processors with AVX2 share, as the companion pins it: the same
# bits on all of one maker, also where torch is imported before it. FEDLIB_PIN=0 frees it.
ifneq ($(FEDLIB_PIN),0)
ifneq ($(shell grep -om1 avx2 /proc/cpuinfo 2>/dev/null),)
export ATEN_CPU_CAPABILITY ?= avx2
export ONEDNN_MAX_CPU_ISA ?= AVX2
export MKL_CBWR ?= AVX2
endif
endif

# A misspelt variable would be ignored by make, and the run would not be what was asked for.
KNOWN := TORCH_INDEX VENV PYTHON PY JOBS SCALE DATASET SEEDS ROUNDS DEVICE ONLY PYTEST STORE WORKERS SECTIONS BLOCKS FILES RAY_ADDRESS
GIVEN := $(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(name)))
UNKNOWN := $(filter-out $(KNOWN) MAKEFLAGS MAKEOVERRIDES -*,$(GIVEN))
$(if $(strip $(UNKNOWN)),$(error unknown variable: $(strip $(UNKNOWN)); known are $(KNOWN)))

# What stands in the environment of whoever calls make is no setting of this run.
SETTINGS := SCALE DATASET SEEDS ROUNDS DEVICE ONLY PYTEST STORE WORKERS SECTIONS BLOCKS FILES
FOREIGN := $(foreach name,$(SETTINGS),$(if $(filter environment%,$(origin $(name))),$(name)))
$(if $(strip $(FOREIGN)),$(warning not used, as only the command line sets them: $(FOREIGN)))
$(foreach name,$(FOREIGN),$(eval override $(name) :=))
unexport $(SETTINGS) JOBS TORCH_INDEX

comma := ,
# A value as one word of the shell, whatever it holds: neither make nor the shell looks into it.
quoted = '$(subst ','\'',$(value $(1)))'
option = $(if $(value $(1)),--$(2) $(call quoted,$(1)))
OPTIONS = $(call option,SCALE,scale) $(call option,DATASET,dataset) $(call option,SEEDS,seeds) \
	$(call option,ROUNDS,rounds) $(call option,DEVICE,device)

# The numbers of a campaign's blocks, which stand in a file in their order.
numbered = $(shell awk '/^\[\[blocks\]\]/ {print ++n}' $(1))
CAMPAIGN = $(call option,SCALE,scale) $(call option,DEVICE,device) $(or $(call option,WORKERS,workers),--workers 1) \
	$(foreach part,$(subst ','\'',$(value SECTIONS)),--section '$(part)') $(foreach number,$(subst ','\'',$(value BLOCKS)),--block '$(number)')

.PHONY: help env figures notebooks results plan campaign paper report site check test wire cluster browser format lab bench \
	determinism gpu robust mutants clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Variables of figures, each optional: SCALE=quick|standard|paper DATASET=name SEEDS=n"
	@echo "  ROUNDS=n DEVICE=auto|cpu|cuda|cuda:N ONLY=00,01 JOBS=processes at once ($(JOBS) here)"
	@echo "  Of plan and paper: SCALE DEVICE WORKERS=n SECTIONS='fourteen:mnist@3 opt_out', in that order"
	@echo "  Of plan and campaign: BLOCKS='1 2', DEVICE, WORKERS"
	@echo "  Of test: PYTEST='options' STORE=folder that keeps what its notebooks train ONLY=00,02"
	@echo "  Of notebooks and browser: ONLY; of results: SCALE; of gpu: DEVICE; of mutants: FILES"

env: $(ENV)  ## make .venv with the pinned packages; instant when nothing changed

# The install is editable: it puts the checkout's root on the path (pyproject.toml says how), and with it
# companion and papers, which are no part of the distribution. TORCH_INDEX is where torch and torchvision
# come from, and nothing else: a second index beside the usual one could serve any package.
$(STAMP): pyproject.toml constraints.txt
	@$(if $(PYTHON),,echo "fedlib needs Python 3.11 or newer: name one with make env PYTHON=..."; exit 1)
	@echo "making $(VENV) with the versions in constraints.txt: a minute or more, about 2 GB"
	@$(PYTHON) -m venv $(VENV)
	@$(if $(value TORCH_INDEX),$(VENV)/bin/python -m pip --quiet install -c constraints.txt --no-deps \
		--index-url $(call quoted,TORCH_INDEX) torch torchvision)
	@$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[companion,notebooks,dev]'
	@touch $@

figures: $(ENV)  ## run every notebook and draw its figures into figures/<scale>/
	$(PY) -m papers figures $(OPTIONS) $(call option,ONLY,only) --jobs $(call quoted,JOBS)

notebooks: $(ENV)  ## run the source notebooks at quick scale and write their outputs back
	$(PY) -m papers notebooks $(call option,ONLY,only) --jobs $(call quoted,JOBS)

results: $(ENV)  ## keep the finished runs of SCALE with the project, in results/
	$(PY) -m papers results $(call option,SCALE,scale)

plan: $(ENV)  ## the campaign's blocks and what is done; of SCALE, SECTIONS or BLOCKS what is left
	$(PY) -m papers $(if $(value SCALE)$(value SECTIONS)$(value BLOCKS),campaign --plan $(CAMPAIGN),blocks)

campaign: $(ENV)  ## train BLOCKS of the campaign in their order, or all, and continue them
	$(if $(value SCALE)$(value SECTIONS),$(error blocks have scales and sections of their own: make paper takes SCALE and SECTIONS))
	$(PY) -m papers campaign $(if $(BLOCKS),,$(foreach n,$(call numbered,papers/campaign.toml),--block $(n))) $(CAMPAIGN)

paper: $(ENV)  ## train all of SCALE (the papers' own) or SECTIONS of it, here or on a Ray cluster (RAY_ADDRESS=)
	$(PY) -m papers campaign $(CAMPAIGN)

report: $(ENV)  ## write docs/FINDINGS.md, its figure and README's table from what is stored
	$(PY) -m papers report

site: $(ENV)  ## the notebooks, figures and API as static pages in build/site/
	@$(PY) -c 'import sphinx, myst_nb, furo, latex2mathml' 2>/dev/null || \
		$(PY) -m pip install --quiet -c constraints.txt -e '.[site]'
	$(PY) docs/site/build.py

define LINT
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
endef

check: $(ENV)  ## lint, types, and the tests that train little: what to run while working
	$(LINT)
	$(PY) -m pytest -n $(call quoted,JOBS) --dist worksteal -m 'not slow' $(PYTEST)

test: $(ENV)  ## lint, types, all tests, and the notebooks against their stored outputs and verdicts
	$(LINT)
	$(PY) -m pytest -n $(call quoted,JOBS) --dist worksteal $(PYTEST)
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	echo "notebooks, from an empty results store, against their stored outputs:" && \
	export FEDLIB_FIGURES=$$scratch/figures && \
	FEDLIB_QUIET=1 FEDLIB_RUNS=$(if $(value STORE),$(call quoted,STORE),$$scratch/runs) \
		$(PY) -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=900 \
		-o faulthandler_timeout=1000 -n $(call quoted,JOBS) --dist loadscope \
		$(or $(foreach part,$(subst $(comma), ,$(subst ','\'',$(value ONLY))),notebooks/'$(part)'_*.ipynb),notebooks) && \
	$(PY) -m papers verdicts $(call option,ONLY,only)

wire:  ## play experiments between Flower's processes, in an environment of its own
	@test -x build/flower/bin/flwr || { $(PYTHON) -m venv build/flower && \
		build/flower/bin/python -m pip install --quiet -e '.[dev]' -e ./examples/flower; }
	build/flower/bin/python -m pytest examples/flower $(PYTEST)

cluster:  ## sweep over two nodes of a Ray cluster, in an environment of its own
	@test -x build/cluster/bin/ray || { $(PYTHON) -m venv build/cluster && \
		build/cluster/bin/python -m pip install --quiet -c constraints.txt -e '.[companion,dev,ray]'; }
	build/cluster/bin/python -m pytest tests/fedlib/test_cluster.py $(PYTEST)

browser: $(ENV)  ## run notebooks in JupyterLab in headless Chromium and move their widgets
	@$(PY) -c 'import selenium' 2>/dev/null || \
		$(PY) -m pip install --quiet -c constraints.txt -e '.[browser]'
	$(PY) benchmarks/browser.py $(foreach part,$(subst $(comma), ,$(subst ','\'',$(value ONLY))),'$(part)')

format: $(ENV)  ## format code and notebooks, and fix what the linter can
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

lab: $(ENV)  ## open the notebooks in JupyterLab
	$(PY) -m jupyter lab --config=docs/lab.py --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

bench: $(ENV)  ## measure speed and memory against a plain loop and the bare arithmetic
	$(PY) -m benchmarks
	$(PY) -m benchmarks.simulated_gpu

gpu: $(ENV)  ## on a GPU: measure speed, distance from a CPU's numbers, and what the papers' scale costs
	$(PY) -m benchmarks.graphs $(call option,DEVICE,device)
	$(PY) -m benchmarks.gpu $(call option,DEVICE,device) $(call option,JOBS,jobs)

determinism: $(ENV)  ## measure which runs have the same bits, and how far apart the others are
	$(PY) -m benchmarks.determinism

robust: $(ENV)  ## kill, starve and mislead it, and count what breaks: some minutes
	$(PY) -m benchmarks.robustness

mutants: $(ENV)  ## change FILES a little, one change at a time, and count what no test sees: hours
	@$(PY) -c 'import mutmut' 2>/dev/null || \
		$(PY) -m pip install --quiet -c constraints.txt -e '.[mutants]'
	$(PY) -m benchmarks.mutants $(foreach file,$(subst ','\'',$(value FILES)),'$(file)')

clean:  ## delete executed copies and caches; never results, runs or figures
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find fedlib fedrun companion papers tests benchmarks notebooks \( -name __pycache__ -o -name .ipynb_checkpoints \) \
		-type d -prune -exec rm -rf {} + 2>/dev/null || true
