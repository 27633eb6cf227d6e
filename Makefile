# Everything installs what it needs into .venv; Python 3.11 or newer with pip is all that has to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.ready-bench
NODE_READY := $(VENV)/.ready-node
DOCS_READY := $(VENV)/.ready-docs

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types imports format browser screenshots pictures downstream conformance docs bundle bench bench-tokens bench-downstream eval providers walk campaign clean clients

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "planwarden needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip > /dev/null
	@$(BIN)/python -m pip install -q --disable-pip-version-check uv
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv sync -q --frozen --inexact
	@touch $@

$(BENCH_READY): $(READY)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv sync -q --frozen --inexact --group bench
	@touch $@

$(NODE_READY): $(READY)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv sync -q --frozen --inexact --group conformance
	@touch $@

$(DOCS_READY): $(READY)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv sync -q --frozen --inexact --group docs
	@touch $@

demo: $(READY) ## Run the main job in the terminal: a plan, a question, the outcome
	@$(BIN)/planwarden demo $(if $(shell test -t 0 && echo tty),,--yes)

test: $(READY) ## Run the tests
	@$(RUN) pytest -n auto --dist worksteal -m "not browser"

check: lint types imports test ## Everything that has to be green before a commit

lint: $(READY) ## Lint and formatting
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .

types: $(READY) ## Strict types over code and tests
	@$(RUN) pyright

imports: $(READY) ## Imports point one way
	@$(BIN)/lint-imports

format: $(READY) ## Format the code
	@$(RUN) ruff check -q --fix .
	@$(RUN) ruff format .

downstream: $(READY) ## Plans over public MCP servers from PyPI and npm; fetches them the first time
	@$(RUN) pytest --downstream -m downstream

clients: $(NODE_READY) ## Real clients and hosts from PyPI and npm, fetched the first time; writes docs/clients.md
	@$(RUN) pytest --clients -m clients -s

bench: $(BENCH_READY) ## Measure against LangGraph and the floor; writes benchmarks/README.md
	@$(RUN) benchmarks.run

bench-tokens: $(READY) ## Sizes of prompts with 10 to 1,000 tools
	@$(RUN) benchmarks.tokens

bench-downstream: $(READY) ## 200 tools from 5 servers: start, search, calls, memory
	@$(RUN) benchmarks.downstream

eval: $(READY) ## Models with every bad manner; writes docs/evaluation.md
	@$(RUN) benchmarks.evaluate

providers: $(READY) ## A run against a double of each provider; writes docs/providers.md
	@$(RUN) benchmarks.providers

browser: $(READY) ## The inbox in a real Chromium, installed from the system's packages where it is missing
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null \
		|| { apt-get update -qq && apt-get install -y -qq chromium; }
	@$(RUN) pytest -m browser

screenshots: $(READY) ## The pictures of docs/inbox.md
	@$(RUN) dev.pictures.inbox

pictures: $(NODE_READY) ## The pictures of real hosts and of the demo: terminals that are drawn as they are, with Chromium
	@$(RUN) dev.pictures.hosts

walk: $(READY) ## A model tries to approve itself, a person decides; writes docs/walk.md
	@$(RUN) dev.walk

campaign: $(READY) ## 1,000 kill -9 rounds and 10,000 decision races; takes long
	@$(RUN) pytest --long -m long -s

conformance: $(NODE_READY) ## The protocol's own suite, with its own Node; writes docs/conformance.md
	@$(RUN) tests.conformance

docs: $(DOCS_READY) ## The documentation in dist/docs: generated parts written, built as a site, its links checked
	@$(RUN) dev.reference
	@$(RUN) dev.site

bundle: $(READY) ## dist/planwarden.mcpb, to be opened with a host that installs bundles; needs Node's npx
	@$(RUN) dev.manifest
	@mkdir -p dist
	@npx -y @anthropic-ai/mcpb@2.1.2 pack . dist/planwarden.mcpb

clean: ## Remove what the other targets made
	rm -rf $(VENV) .clients .conformance .pytest_cache .ruff_cache .hypothesis .import_linter_cache .cache build dist
