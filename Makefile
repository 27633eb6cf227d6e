# Every target installs what it needs into VENV. Only make and Python 3.11 or newer with pip have to be there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
SYNC := UV_PROJECT_ENVIRONMENT=$(abspath $(VENV)) $(BIN)/uv sync -q --frozen --inexact
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.ready-bench
DURABLE := .venv-durable
NODE_READY := $(VENV)/.ready-node
DOCS_READY := $(VENV)/.ready-docs
SCORE_READY := $(VENV)/.ready-score

# The fast lane: the core, approvals, the runtime, both stores, the commands, the MCP tools and who may answer over MCP.
QUICK := tests/agent/core tests/agent/approval tests/storage tests/project tests/server/api tests/server/cli \
	$(addprefix tests/agent/runtime/test_,steps.py artifacts.py living_with_changes.py) \
	$(addprefix tests/server/mcp/test_,tools.py approvals.py prompts.py)

# make 3.81, which macOS ships, cannot keep the output of parallel targets apart.
OUTPUT_SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# Tests and benchmarks start hundreds of processes, which find their bytecode as installed ones do.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo bundle clean format check lint types imports size quick test exhaustive browser postgres downstream clients guard conformance campaign \
	campaign-teeth campaign-sum teeth ticks fuzz soak docs screenshots pictures show walk bench bench-scale bench-sizes bench-against bench-tokens bench-gate durable eval providers score

help: ## Show this list
	@awk '/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { name = $$1; sub(/:.*/, "", name); sub(/^[^#]*## /, ""); printf "  %-18s%s\n", name, $$0 }' Makefile

$(READY): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "planwarden needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip > /dev/null
	@$(BIN)/python -m pip install -q --disable-pip-version-check uv
	@$(SYNC)
	@touch $@

$(BENCH_READY): $(READY)
	@$(SYNC) --group bench
	@touch $@

$(NODE_READY): $(READY)
	@$(SYNC) --group conformance
	@touch $@

$(DOCS_READY): $(READY)
	@$(SYNC) --group docs
	@touch $@

$(SCORE_READY): $(READY)
	@$(SYNC) --group score
	@touch $@

##@ Use
demo: $(READY) ## Run the main job in the terminal: a plan, a question, a result
	@$(BIN)/planwarden demo $(if $(shell test -t 0 && echo tty),,--yes)

bundle: $(READY) ## Pack dist/planwarden.mcpb for hosts that install bundles; needs npx
	@$(RUN) dev.manifest
	@mkdir -p dist
	@npx -y @anthropic-ai/mcpb@2.1.2 pack . dist/planwarden.mcpb

clean: ## Delete everything that the other targets made
	rm -rf .venv .venv-3.* $(DURABLE) .clients .conformance .pytest_cache .ruff_cache .hypothesis .import_linter_cache .cache build dist

##@ Develop
format: $(READY) ## Format the code
	@$(RUN) ruff check -q --fix .
	@$(RUN) ruff format .

check: $(READY) ## Lint, types, imports and the fast lane of tests; run it before every commit
	@$(MAKE) --no-print-directory -j 2 $(OUTPUT_SYNC) types quick lint imports

lint: $(READY) ## Check style, formatting, and that every import is declared
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) deptry agent tools storage server

types: $(READY) ## Check types, strictly, in code and tests
	@$(RUN) pyright

imports: $(READY) ## Check that imports point one way and make no circle
	@$(BIN)/lint-imports

size: $(READY) ## Count lines, modules and words, against what they may be
	@$(RUN) dev.size

quick: $(READY) ## Test the most used behaviours
	@$(RUN) pytest -q -n auto --dist worksteal -m "not slow and not browser" $(QUICK)

##@ Test
test: $(READY) ## Run all tests that need neither a browser nor a registry
	@$(RUN) pytest -n auto --dist worksteal -m "not browser"

exhaustive: $(READY) ## Run the variants that `make test` leaves out, and hundreds of examples for each property; SEED= draws others
	@$(RUN) pytest -n auto --dist worksteal --exhaustive -m exhaustive $(if $(SEED),--hypothesis-seed=$(SEED))

browser: $(NODE_READY) ## Test the inbox in a real Chromium, with axe-core from npm; installs Chromium with apt-get where it is missing
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null \
		|| { apt-get update -qq && apt-get install -y -qq chromium; }
	@$(RUN) pytest -m browser

postgres: $(READY) ## Test PostgreSQL at length, behind PgBouncer and on a full disk; installs pgbouncer with apt-get where it is missing
	@command -v pgbouncer > /dev/null || test -x /usr/sbin/pgbouncer || { apt-get update -qq && apt-get install -y -qq pgbouncer; }
	@$(RUN) pytest -n auto --dist worksteal --postgres --exhaustive -m postgres

downstream: $(NODE_READY) ## Test plans over public MCP servers from PyPI and npm
	@$(RUN) pytest --downstream -m downstream

clients: $(NODE_READY) ## Test with real clients and hosts from PyPI and npm; writes docs/clients.md
	@$(RUN) pytest --clients -m clients -s

guard: $(NODE_READY) ## Test real hosts from npm under the guard, which must run nothing unasked; writes into docs/guard.md
	@$(RUN) pytest --guard -m guard -s

conformance: $(NODE_READY) ## Run the protocol's own suite, with its own Node; writes docs/reference/conformance.md
	@$(RUN) tests.conformance

campaign: $(READY) ## Run 9 minutes of mishaps: PART=1 (2, 3...), postgres, kills, decisions or pairs; SEED=, ROUNDS=
	@$(RUN) tests.campaign $(if $(PART),--part $(PART)) $(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS))

campaign-teeth: $(READY) ## See that the campaign finds each planted bug
	@$(RUN) tests.campaign --teeth

campaign-sum: $(READY) ## Add up all parts of the campaign that have run here
	@$(RUN) tests.campaign --summary

teeth: $(READY) ## Plant bugs in a copy of the tree, and see that tests find each: PART=1/4, NAMES="...", ALL=1 for whole folders
	@$(RUN) tests.teeth $(if $(PART),--part $(PART)) $(if $(ALL),--all) $(NAMES)

ticks: $(READY) ## Start the ticks of schedules over two processes killed at random, each once: TICKS=100000, SEED=
	@$(RUN) tests.race.ticks --ticks $(or $(TICKS),100000) $(if $(SEED),--seed $(SEED))

fuzz: $(READY) ## Send INPUTS=10000 broken inputs to every entrance, with SEED=; ends within 10 minutes
	@$(RUN) tests.fuzz --inputs $(or $(INPUTS),10000) $(if $(SEED),--seed $(SEED)) $(if $(ENTRANCE),--entrance $(ENTRANCE))

soak: $(READY) ## Load two servers for MINUTES (95), hold that nothing grows; writes docs/images/soak.svg
	@$(RUN) tests.soak $(MINUTES)

##@ Document
docs: $(DOCS_READY) ## Write the generated reference, build the site in dist/docs, check its links
	@$(RUN) dev.reference
	@$(RUN) dev.site

screenshots: $(READY) ## Draw the pictures of the inbox and of the MCP App; needs Chromium
	@$(RUN) dev.pictures inbox app

pictures: $(NODE_READY) ## Draw the pictures of hosts, of the guard and of the demo; needs Chromium
	@$(RUN) dev.pictures hosts guard

show: $(NODE_READY) ## Write docs/saved-plans.md: one plan over real servers, killed, retried, from everywhere; needs npm and PyPI
	@$(RUN) dev.show.page

walk: $(READY) ## Write docs/walk.md, where a model tries to approve itself; then walk as each of four users, in minutes
	@$(RUN) dev.walk
	@$(RUN) dev.users

##@ Measure
bench: $(BENCH_READY) ## Measure against LangGraph and bare commits; writes benchmarks/README.md
	@$(RUN) benchmarks.run

bench-scale: $(BENCH_READY) ## Measure 1, 2 and 4 processes on one PostgreSQL against DBOS, LangGraph and procrastinate
	@$(RUN) benchmarks.scale

bench-sizes: $(READY) ## Measure what grows with steps, executions at once and a million finished ones; 5 GB, minutes
	@$(RUN) benchmarks.sizes

bench-against: $(READY) ## Measure against another checkout of planwarden: TREE=../other, with its own .venv
	@$(RUN) benchmarks.run --against $(TREE)

bench-tokens: $(READY) ## Measure what a calling model reads and writes
	@$(RUN) benchmarks.tokens

bench-gate: $(READY) ## Measure what a gate adds: calls, start, memory, and the time from a decision to the effect
	@$(RUN) benchmarks.gate

durable: $(READY) ## Kill the same job on planwarden, LangGraph, DBOS and others, and answer it twice; writes benchmarks/durable
	@test -x $(DURABLE)/bin/python || $(PYTHON) -m venv $(DURABLE)
	@$(DURABLE)/bin/python -m pip install -q --disable-pip-version-check -e '.[postgres]' -r benchmarks/durable/requirements.txt
	@$(RUN) benchmarks.durable.with_postgres $(abspath $(DURABLE))/bin/python

eval: $(READY) ## Measure models with every bad habit; writes docs/reference/evaluation.md
	@$(RUN) benchmarks.evaluate

providers: $(READY) ## Run a plan against a double of each provider; writes docs/reference/providers.md
	@$(RUN) benchmarks.providers

score: $(SCORE_READY) ## Play published attack vectors and 300 labelled calls; writes docs/score.md; CHECK=1 only compares
	@$(RUN) benchmarks.score $(if $(CHECK),--check)
