# `make` alone lists the targets. Every target sets up .venv by itself; PYTHON=... chooses the interpreter it is made with.

PYTHON ?=
PYTEST_ARGS ?=
BIN := .venv/bin
# In processes of their own: they put a recorder in the place of the file layer, beside which nothing else may.
CUT_TESTS := tests/test_crash_points.py tests/test_power_cut.py

# The first that is at least 3.11 and really runs: a version manager's shim may be on the PATH and still fail.
CANDIDATES := python3.13 python3.12 python3.11 python3
NEW_ENOUGH := import sys, venv; sys.exit(sys.version_info < (3, 11))
HAS_PIP := import sys, pip; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint crashes cuts soak bench wheel mutants venv clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)$$/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-8s %s\n' "$$name" "$$text"; done

demo: .venv/.done ## run the demonstration
	@$(BIN)/orchestrator demo

test: lint ## lint, types, all tests, several at once (PYTEST_ARGS="-m 'not slow'" for the quick ones, "-n 0" one by one)
	@$(BIN)/python -m pytest -q -n auto $(addprefix --ignore=,$(CUT_TESTS)) $(PYTEST_ARGS)
	@$(BIN)/python -m pytest -q -n auto $(CUT_TESTS)

crashes: .venv/.done ## play EXAMPLES=1000 scripts to the product and its model; let TRIALS=all operations fail, die before TRIALS=all lines, ruin every file in every way: hours, TRIALS=2000 some ten minutes
	@ORCHESTRATOR_TEST_EXAMPLES=$(or $(EXAMPLES),1000) $(BIN)/python -m pytest -q tests/test_model.py tests/test_fuzz.py
	@ORCHESTRATOR_TEST_TRIALS=$(or $(TRIALS),all) $(BIN)/python -m pytest -v -n auto -rP tests/test_disk_faults.py tests/test_crash_lines.py \
		tests/test_ruined.py tests/test_ruined_running.py tests/test_damage.py

soak: .venv/.done ## kill workers and coordinators at random moments for MINUTES=2, replaying SEED=; see that nothing is lost
	@cd tests && exec ../$(BIN)/python soak.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

lint: .venv/.done ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

cuts: .venv/.done ## cut runs off at every file operation, by kill and by power cut, and recover each (CUTS="--kind power")
	@cd tests && exec ../$(BIN)/python crashing.py $(CUTS)

bench: .venv/.done ## run every benchmark
	@for file in benchmarks/[!_]*.py; do \
		[ -e "$$file" ] || { echo "no benchmarks yet"; break; }; \
		echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

wheel: .venv/.done ## build the wheel into dist/
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist .

mutants: .venv/.done ## change the product on purpose, and see that the tests notice (docs/mutants.md)
	@PYTHONPATH=tests $(BIN)/python -m mutants $(if $(ONLY),--only $(ONLY)) $(if $(MODULE),--module $(MODULE)) \
		$(if $(NAME),--name "$(NAME)") $(if $(ALL),--all) $(if $(FRESH),--fresh) $(if $(WRITE),--write) \
		$(if $(JOBS),--jobs $(JOBS))

venv: .venv/.done ## make the environment

clean: ## remove what was built and cached (.venv and workspaces stay)
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis htmlcov .coverage
	@find . -path ./.venv -prune -o -path ./workspaces -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

.venv/.done: pyproject.toml
	@set -eu; \
	if ! $(BIN)/python -c '$(HAS_PIP)' 2>/dev/null; then \
		python=; \
		for candidate in $(if $(PYTHON),"$(PYTHON)",$(CANDIDATES)); do \
			if "$$candidate" -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
		done; \
		if [ -z "$$python" ]; then \
			echo "make: no Python 3.11 or newer among: $(if $(PYTHON),$(PYTHON),$(CANDIDATES))" >&2; \
			echo "  name one that runs: make PYTHON=/path/to/python3" >&2; exit 1; \
		fi; \
		echo "making .venv with $$("$$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
		if ! "$$python" -m venv --clear .venv >/dev/null 2>&1; then \
			if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
				own=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
				echo "installing python3-venv, without which this Python makes no environment"; \
				apt-get update -qq; \
				DEBIAN_FRONTEND=noninteractive apt-get install -qq -y python3-venv "$$own" \
					|| DEBIAN_FRONTEND=noninteractive apt-get install -qq -y python3-venv; \
			else \
				"$$python" -c 'import ensurepip' 2>/dev/null || { \
					echo "make: this Python cannot make environments; run once:" >&2; \
					echo "  sudo apt-get install -y python3-venv" >&2; exit 1; }; \
			fi; \
			"$$python" -m venv --clear .venv; \
		fi; \
	fi; \
	echo "installing the project and its development tools"; \
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'; \
	touch $@
