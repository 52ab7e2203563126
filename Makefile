# Everything runs from a virtual environment in .venv, made and filled on first use.
#
#   make demo          the embedded study: 16 trainings on this machine, then the report
#   make install       makes .venv with what studies need, and nothing else; the targets below add what they need
#   make quick         a first look at a change, a minute at most: rules of batches, two gloo ranks, a plan, a page
#   make check         before a commit: linter, format, types and the unit tests, some minutes
#   make test          the unit tests on all cores, then those that share one Ray, without those that are marked slow: five
#                      minutes on two cores, twelve on slow ones
#   make test-long     tests with clusters of their own, signals and faults, and those marked slow; some quarter of an hour
#   make test-system   the tests that need Debian's Chromium and PostgreSQL, root, or a package index
#                      (.ci/run installs what they need, and runs lint, test, test-long and test-system)
#   make dist          the wheel and the sdist, in dist/
#   make docs          the documentation as a site, in site/
#   make bench         measurements, an hour and more, on Fashion-MNIST among others (scalestudy data fetch fashion_mnist); BENCH="packing recovery" names parts, BENCH=--small is a trial run
#   make bench BENCH=decision   what a grid and three adaptive studies recommend, on 15 fresh seeds of Fashion-MNIST; some 65 minutes, and
#                      not part of the above. Whatever ends it, the same command goes on; the studies stay in runs/decision
#   make bench-peers   the same study by scalestudy, stock Ray, torchrun and Optuna, half an hour; BENCH_PEERS="--trials 6" runs less
#   make chaos         the tests that are marked chaos: long waits, many worlds, and faults beside those of test-long.
#                      Then studies under random faults on a cluster of four raylets, some minutes each;
#                      CHAOS="--seed 5 --faults 20 --studies 10"; CHAOS="--schedules 100000": random schedules of
#                      the pool's leases, a quarter of an hour
#   make gpu           proofs and figures for a machine with one GPU, at most 9 minutes; makes no .venv and installs nothing:
#                      PYTHON=python3 is one that has PyTorch 2.11 or newer, and need not have Ray. DATA=folder has
#                      FashionMNIST/raw; PART="resume compile" names parts; OUT=folder is for the results, else runs/gpu
#
# TORCH_INDEX=URL adds a package index for torch, such as PyTorch's own index of CPU builds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUICK := $(addprefix tests/unit/,training/test_batches.py training/gradient_sync/test_explicit.py experiments/spec/test_checks.py \
	experiments/plan/test_plan.py experiments/analysis/measures/test_cells.py orchestration/groups/test_placement.py experiments/report/test_page.py)
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest  # small matrices: threads would only wait for each other
PROCESSES := $(shell echo $$(( $$(nproc) + 1 )))  # one more than cores: some tests wait
# what is imported is compiled then: half of an installation's time would go into modules that nobody imports
PIP_INSTALL = $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check $(PIP_INDEX) -c constraints.txt
PACKAGES = "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
PIP_INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

export PYTHONDONTWRITEBYTECODE :=  # what is not compiled when it is installed has to be kept when it is compiled

EXTRA_tests := [test]
EXTRA_tools := [dev]
HAS_installed := installed
HAS_tests := installed tests
HAS_tools := installed tests tools

.NOTPARALLEL:  # two calls of pip at once would spoil an environment
.PHONY: install demo quick check test test-unit test-ray test-long test-system lint dist docs bench bench-peers chaos gpu clean

install: $(VENV)/installed

demo:
	@test -e $(VENV)/installed || echo "Installing into $(VENV): PyTorch, Ray, MLflow and what they need, 1.5 GB; then 16 trainings. Some two minutes on a fast machine, five on a slow one."
	@$(MAKE) --no-print-directory install
	$(BIN)/scalestudy run digits-quick --address local
	@echo "To go on: . $(BIN)/activate; scalestudy open latest shows the report, scalestudy new my-study begins your own."

quick: $(VENV)/tests
	$(PYTEST) -m "not slow and not chaos" $(QUICK)

check: lint test-unit

test: test-unit test-ray

test-unit: $(VENV)/tests
	$(PYTEST) -m "not slow and not chaos" --bounds unit --numprocesses $(PROCESSES) --dist loadfile  # testpaths in pyproject.toml

test-ray: $(VENV)/tests
	$(PYTEST) -m "not slow and not chaos" --bounds ray tests/ray

test-long: $(VENV)/tools
	$(PYTEST) -m "not chaos" tests/long
	$(PYTEST) -m slow --numprocesses $(PROCESSES) --dist loadfile tests/unit
	$(PYTEST) -m slow tests/ray

test-system: $(VENV)/tools
	$(PYTEST) -m "not chaos" tests/system

lint: $(VENV)/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dist: $(VENV)/tools
	rm -rf build dist
	$(BIN)/python -m build

docs: $(VENV)/tools
	$(BIN)/python infra/docs/spec_keys.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html; with a search: $(BIN)/python -m http.server -d site, then http://127.0.0.1:8000"

bench: $(VENV)/tools
	$(BIN)/python -m tests.bench $(BENCH)

bench-peers: $(VENV)/tools
	$(BIN)/python -m tests.bench.compare_peers $(BENCH_PEERS)

chaos: $(VENV)/tools
	$(PYTEST) -m chaos tests/long tests/unit
	$(PYTEST) -m chaos tests/ray
	$(PYTEST) -m chaos tests/system  # as test-system, needs Debian packages and root
	$(BIN)/python -m tests.bench.chaos $(CHAOS)

gpu:  # without .venv: the clone itself is the package
	PYTHONPATH="$(CURDIR)" $(PYTHON) -m tests.gpu $(if $(DATA),--data "$(DATA)") $(if $(PART),--part "$(PART)") $(if $(OUT),--out "$(OUT)")

# each file says that the environment has what it names: studies, tests, tools; a larger set is one call of pip as well
$(VENV)/installed $(VENV)/tests $(VENV)/tools: pyproject.toml constraints.txt infra/venv/scalestudy_torchvision.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e ".$(EXTRA_$(@F))"
	cp infra/venv/scalestudy_torchvision.py $(PACKAGES)
	echo "import scalestudy_torchvision" > $(PACKAGES)/scalestudy_torchvision.pth
	touch $(HAS_$(@F):%=$(VENV)/%)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site *.egg-info
