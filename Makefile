# Everything runs in .venv, which `make setup` creates; no other target needs to be called first.

# The first interpreter that is new enough; override with `make PYTHON=/path/to/python3.12 ...`.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$python" && break; \
	done)
VENV := .venv
IN_VENV := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
FOR_DEMO := $(VENV)/.installed-for-demo
EXTRAS := train,pettingzoo,ray,tune,sweep,serve,cli,plot,offline,jax,docs,dev
DEMO_EXTRAS := train,plot
SOURCES := $(wildcard menv tests examples benchmarks)
# Handed to the command of the target: make bench ARGS="--json"
ARGS ?=
# Processes that the tests are shared out to
JOBS ?= 4
# Processes beside each other have no use for threads that wait for each other. Hundreds of them import the same
# modules, so these are compiled once, also where the environment says that nothing should be kept (`make clean` deletes it).
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(IN_VENV) -m pytest

# The files with tests that run one by one; `make check` runs those of the house.
ALONE = $$(grep -rl --include="*.py" --exclude-dir=house "mark\.alone" tests)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-timed test-soak test-gpu test-versions check bench benchmark-learning benchmark-peers docs gallery format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

setup: $(INSTALLED)  ## create .venv and install menv with everything that training and testing need

# What the demo needs, and nothing for developers.
$(INSTALLED) $(FOR_DEMO): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make setup: no Python >= 3.11 found; install one, or make PYTHON=/path/to/python3.11 setup"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make setup: $(PYTHON) is not Python >= 3.11; choose another with make PYTHON=/path/to/python3.11 setup"; exit 1; }
	@$(IN_VENV) -m pip --version >/dev/null 2>&1 || { echo "creating $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); }
	@echo "installing menv into $(VENV) with the extras $(if $(filter $@,$(FOR_DEMO)),$(DEMO_EXTRAS),$(EXTRAS)); the first time takes a few minutes"
	$(IN_VENV) -m pip install --disable-pip-version-check -c constraints.txt --config-settings editable_mode=compat -e ".[$(if $(filter $@,$(FOR_DEMO)),$(DEMO_EXTRAS),$(EXTRAS))]"
	@# pgx installs a package named tests, which would hide this one in worker processes.
	@rm -rf $(VENV)/lib/python*/site-packages/tests
	@touch $@
	@echo "menv is installed: '. $(VENV)/bin/activate' gives you the command menv, 'make help' lists what else make can do"

demo: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(FOR_DEMO))  ## train TicTacToe by self-play and show the result
	$(IN_VENV) examples/tictactoe.py $(ARGS)
	@echo "Losing lines are the games that the policies lose against an opponent that tries every move: with 0 they cannot be beaten."
	@echo "Play against them: $(VENV)/bin/menv play $$(ls -td runs/tictactoe-PPO-* | head -1) --as player2"

test: setup  ## run the tests, without the slow ones; with ARGS="tests/test_registry.py -x" those, in one process
ifeq ($(strip $(ARGS)),)
	$(PYTEST) -rs -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --ignore=tests/house -m "not slow and not soak and not gpu and not alone"
	$(PYTEST) -rs -m "alone and not slow and not soak and not gpu" $(ALONE)
else
	$(PYTEST) -rs $(ARGS)
endif

test-slow: setup  ## run the slow tests only: learning curves, long enumerations, and the like of what `make test` runs
	$(PYTEST) -rs -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m "slow and not alone and not soak and not gpu" $(ARGS)

test-timed: setup  ## run the slow tests that measure time, one by one, on a machine that does nothing else
	$(PYTEST) -rs -m "slow and alone and not soak" $(ALONE)

test-soak: setup  ## run the tests that repeat a fault many times, such as processes killed while they save
	PYTHONDONTWRITEBYTECODE= $(IN_VENV) -m pytest -m soak $(ARGS)

test-gpu: setup  ## run the tests that need a GPU, each against the CPU; without one they are skipped
	$(PYTEST) -rs -m gpu tests/algorithms_e2e/test_devices.py $(ARGS)

test-versions: setup  ## test the wheel with the lowest and newest versions on Python 3.11 to 3.13; ARGS="python3.13"
	$(IN_VENV) -m tests.versions $(ARGS)

check: setup  ## check format, lint, types, budgets and the direction of imports
	$(IN_VENV) -m ruff format --check $(SOURCES)
	$(IN_VENV) -m ruff check $(SOURCES)
	$(IN_VENV) -m mypy $(SOURCES)
	PYTHONDONTWRITEBYTECODE= $(IN_VENV) -m pytest -q tests/house

bench: setup  ## measure against the bare environment loop; ARGS="--json" for machines
	$(IN_VENV) -m benchmarks $(ARGS)

docs: setup  ## build the documentation into site/, which needs no web server; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(IN_VENV) -m mkdocs build --strict $(ARGS)

gallery: setup  ## run each example and draw its picture for docs/gallery.md; ARGS="cartpole shoal" runs these alone
	$(IN_VENV) -m benchmarks.gallery $(ARGS)

benchmark-learning: setup  ## train what benchmarks/learning lists and write docs/benchmarks/learning.md; ARGS="--only CartPole-v1"
	$(IN_VENV) -m benchmarks.learning $(ARGS)

benchmark-peers: setup  ## measure menv against other libraries, each in an environment of its own, and write docs/benchmarks/peers.md
	$(IN_VENV) -m benchmarks.peers --install --save $(ARGS)

format: setup  ## format the code and fix what the linter can fix
	$(IN_VENV) -m ruff format $(SOURCES)
	$(IN_VENV) -m ruff check --fix $(SOURCES)

clean:  ## delete caches and build products; .venv stays
	rm -rf build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
