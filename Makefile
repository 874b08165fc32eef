# Everything here sets up what it needs, in .venv, from a machine that has Python 3.11 to 3.13 and make.

SHELL := /bin/sh
BIN := .venv/bin
# Whatever an outer environment holds must not leak into the one made here.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
MINUTES := 20
# Node, Chromium and what Debian packages bring, as far as the set-up had to fetch them.
export PATH := $(CURDIR)/.venv/programs:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test fault fault-mutants fault-recovery fault-ha fault-vllm upgrade fuzz hostile check format docs lint types
.PHONY: imports unit k8s-check alerts-check lock clean setup-dev setup-vllm setup-bench setup-node setup-system setup-lint
.PHONY: observe bench-quick bench-broker bench-engine bench-scheduling bench-docs
.PHONY: bench-goodput bench-shards bench-gateway bench-front-end
.PHONY: gpu-proof demo-gateway clients
.PHONY: images images-clean pods long test-long release

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup-vllm ## See a real Redis and a real vLLM worker answer prompts (first time: about two minutes of set-up)
	@$(BIN)/streamfleet demo $(ARGS)

demo-gateway: setup-vllm ## See OpenAI's API over HTTP on real parts: curl, the SDK, a batch, a webhook, the page
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo-gateway.sh $(ARGS)

test: setup-dev setup-vllm setup-bench setup-node setup-system ## Run all tests, the end-to-end run with real vLLM included (ARGS='-k name' for some)
	@bash -c 'TIMEFORMAT="%lR, user %lU, sys %lS"; time "$$@"' - $(BIN)/pytest --numprocesses 5 $(ARGS)

test-long: setup-dev setup-vllm setup-bench setup-node setup-system ## Run the tests that `make test` has no room for: scripts without guards and on Redis 6.2, access rules, all bodies for vLLM (30 minutes)
	@$(BIN)/pytest --numprocesses 2 -m long $(ARGS)

clients: setup-dev setup-vllm setup-node ## Clients of others, SDKs to benchmarks, ask a gateway as they do by default (about 10 minutes)
	@$(BIN)/python -m tests.clients $(ARGS)

fault: setup-dev ## Kill, stop and cut everything under load, and judge what became of each request (about 20 minutes)
	@$(BIN)/python -m tests.fault $(ARGS)
	@$(BIN)/python -m tests.fault.readers

fault-mutants: setup-dev ## Take the guards out one by one: the fault harness has to notice each
	@$(BIN)/python -m tests.fault.mutants $(ARGS)

fault-recovery: setup-dev ## How soon another worker goes on after SIGKILL and SIGTERM
	@$(BIN)/python -m tests.fault.recovery $(ARGS)

fault-ha: setup-dev ## Fail over a Redis behind Sentinel, move and fail over a slot of a Redis Cluster, change passwords, under load
	@$(BIN)/python -m tests.ha sentinel $(ARGS)
	@$(BIN)/python -m tests.ha cluster $(ARGS)
	@$(BIN)/python -m tests.ha wait $(ARGS)

fault-vllm: setup-vllm ## The fault harness with real vLLM, small; 500 answers that are interrupted at random tokens
	@$(BIN)/python -m tests.fault --engine vllm $(ARGS)
	@$(BIN)/python -m tests.fault.resuming

upgrade: setup-dev ## Roll a fleet of the last release to this checkout and back, under kills; and mutants of it (3 minutes)
	@$(BIN)/python -m tests.upgrade $(ARGS)

hostile: setup-vllm ## 500 hostile bodies among 500 good ones, on real vLLM
	@$(BIN)/python -m tests.hostile $(ARGS)

fuzz: setup-dev ## Random histories of the scripts, and 200,000 entries of any kind through real workers
	@$(BIN)/python -m tests.fuzz $(ARGS)

long: setup-dev setup-vllm setup-bench setup-node setup-system ## All long runs, fault to upgrade, or the named ones; about two hours (ARGS='fault fuzz')
	@$(BIN)/python -m tests.long $(ARGS)

observe: setup-dev setup-system ## Ask every panel and alert rule of a real Prometheus that scrapes a fleet under load
	@$(BIN)/python -m monitoring.observe $(ARGS)

bench-quick: setup-dev setup-vllm setup-node ## The measurements at small size: each ratio and target with hold or MISS (about 10 minutes)
	@$(BIN)/python -m bench.quick $(ARGS)

bench-broker: setup-dev setup-node ## Beside other queues and raw redis-py: enqueue, drain, round trips, memory (ARGS=--help for sizes)
	@$(BIN)/python -m bench.broker $(ARGS)

bench-engine: setup-dev setup-vllm ## A worker with real vLLM beside bare AsyncLLM and vllm serve over HTTP
	@$(BIN)/python -m bench.engine $(ARGS)

bench-front-end: setup-dev setup-vllm ## CPU of a worker's front end a request, beside bare AsyncLLM, at a GPU's pace without a GPU (12 minutes)
	@$(BIN)/python -m bench.front_end $(ARGS)

bench-scheduling: setup-dev ## Idle fleets, and pulls by the depth of the queue
	@$(BIN)/python -m bench.scheduling $(ARGS)

bench-goodput: setup-dev setup-vllm ## What a fleet gets done in time: urgent beside patient work, tenants, deadlines, sessions (10 minutes; ARGS='--only vllm': real vLLM)
	@$(BIN)/python -m bench.goodput $(ARGS)

bench-shards: setup-dev ## What one Redis carries: costs of a request by verb, fleets of 1,000 workers, a cluster
	@$(BIN)/python -m bench.shards $(ARGS)

bench-gateway: setup-dev setup-vllm ## A thousand streams through one gateway, and what it adds beside vllm serve
	@$(BIN)/python -m bench.gateway $(ARGS)

# On a GPU machine vLLM is that of PYTHON, because nothing here could know which release fits its driver.
gpu-proof: ## Prove on an NVIDIA GPU that all of it works, within MINUTES=20; without one, a dry run on CPU
	@if command -v nvidia-smi >/dev/null; then \
		$${PYTHON:-python3} -m bench.gpu --minutes $(MINUTES) $(ARGS); \
	else \
		tools/setup.sh dev vllm && $(BIN)/python -m bench.gpu --minutes $(MINUTES) $(ARGS); \
	fi

bench-docs: setup-dev setup-bench ## Write tables and pictures of docs/performance.md and gpu.md from bench/results
	@$(BIN)/python -m bench.pages $(ARGS)
	@$(BIN)/python -m bench.gpu.page $(ARGS)

k8s-check: setup-dev ## Render, validate and test the manifests and the Helm chart: a line for each overlay and example
	@$(BIN)/python -m tests.integration.k8s_check
	@$(BIN)/pytest -q -m "" tests/integration/test_k8s*.py $(ARGS)

alerts-check: setup-dev setup-system ## Check the alert rules, and play their tests with promtool
	@$(BIN)/pytest -q tests/unit/test_alert_rules.py $(ARGS)

check: setup-dev lint types imports unit ## Format, lint, strict types, import contracts, the tests that need nothing, the size of the house, the long runs' ages
	@$(BIN)/python tools/house.py
	@$(BIN)/python -m tests.long --ages

lint: setup-dev setup-lint
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/python -m tests.scripts.assembled
	$(BIN)/python tools/reference_pages.py --check
	$(BIN)/python tools/protocol_tables.py --check
	$(BIN)/python -m bench.pages --check
	$(BIN)/python -m bench.gpu.page --check
	$(BIN)/python -m monitoring.panels --check
	$(BIN)/python tools/commits.py

types: setup-dev
	$(BIN)/mypy

imports: setup-dev
	$(BIN)/lint-imports

unit: setup-dev
	$(BIN)/pytest -q tests/unit

format: setup-dev ## Format the sources, and repair what the linter can repair by itself
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup-dev ## Write the pages of docs/ that are made from the code
	$(BIN)/python tools/reference_pages.py
	$(BIN)/python tools/protocol_tables.py
	$(BIN)/python -m monitoring.panels

lock: ## Pin the newest versions of all dependencies in requirements/ (needs uv)
	tools/lock.sh

# Not with docker alone: what `make pods` runs has to be in podman's store.
images: ## Build the images client, gateway, worker and worker-cpu with docker, podman or buildah (5 minutes; ARGS=--help)
	@$${PYTHON:-python3} tools/images.py $(ARGS)

release: setup-dev ## Build wheel and sdist into dist/, and check them: each extra in a fresh environment, the first request of README
	@$(BIN)/python tools/release.py $(ARGS)

images-clean: ## Remove those images
	@$${PYTHON:-python3} tools/images.py --remove $(ARGS)

pods: setup-dev setup-vllm ## Run what the chart gives for dev-cpu and gateway, and compose.yaml, by podman without a cluster (root; 8 minutes)
	@$(BIN)/python -m tests.pods

clean: ## Remove .venv, caches and builds
	rm -rf .venv build dist tests/ui/node_modules tests/e2e/node/node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup-dev:
	@tools/setup.sh dev

setup-vllm:
	@tools/setup.sh vllm

setup-node: setup-dev
	@tools/setup.sh node

setup-system:
	@tools/setup.sh system

setup-lint: setup-dev
	@tools/setup.sh lint

setup-bench:
	@tools/setup.sh bench
