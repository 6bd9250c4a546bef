# `make demo` is the whole of ztune on one machine. `make setup` installs and builds, and is quick when all is there.

VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= demo-out
export VENV

.PHONY: help setup build demo studies lab test-lab test-servers test-tools check test test-all coverage lint style format wheel docs bench bench-lab clean

help:
	@echo 'make setup   install what ztune needs (Debian, Ubuntu) and build it; ztune is then $(BIN)/ztune'
	@echo 'make demo    the whole loop on a PostgreSQL of our own; results in $(OUT)/'
	@echo 'make studies   published studies and claims tried again by replay, and their page in $(STUDIES_PAGE); it goes on where it was cut'
	@echo 'make lab     install QEMU and build the lab, where layouts are tried in a virtual machine (ten to twenty minutes, once)'
	@echo 'make check   style, types and unit tests in a minute or two; installs nothing, needs neither root nor servers nor what is compiled'
	@echo 'make test    set up, install the databases of the workloads, check style and types, run the tests'
	@echo 'make test-all   the same with the tests that take minutes each'
	@echo 'make lint    style and types only'
	@echo 'make format  lay out the Python and the C'
	@echo 'make coverage   what of the Python the unit tests run; with UNIT= all tests'
	@echo 'make wheel   the package, in dist/: it works away from the source tree (docs/setup.md)'
	@echo 'make docs    write again the parts of docs/ that are made from the code'
	@echo 'make bench   cost of recording, speed of screening and of reading traces'
	@echo 'make bench-lab   the same for the lab, its disks and the accuracy of screening; many hours under emulation'
	@echo 'make build   compile the engine, the mount, the recorder and the shaped disk only'
	@echo 'make clean   remove what was built; the Python environment and installed packages stay'

setup:
	@scripts/setup.sh

# Everything compiled. Objects made for another version of the OpenZFS library must not be linked again.
build:
	@scripts/stale-engine.sh
	@$(MAKE) -s --no-print-directory -C engine
	@$(MAKE) -s --no-print-directory -C recorder
	@$(MAKE) -s --no-print-directory -C disk
	@$(MAKE) -s --no-print-directory -C mount

# 370 MiB against an ARC of 64 MiB, at a pace that most layouts keep on the modelled disk.
DEMO = -p rate=30 --budget 25 --settings 0

demo: setup
	$(BIN)/ztune tune postgres-oltp $(DEMO) --out $(OUT)

# What is done already is not done again. A study whose database is not set up (1) does not keep the rest off the page.
STUDIES_PAGE ?= studies.html

studies: setup
	@for step in 'claims test' 'studies run' 'studies page --out $(STUDIES_PAGE)'; do \
	echo "ztune $$step"; $(BIN)/ztune $$step; status=$$?; \
	[ $$status -le 1 ] || exit $$status; \
	[ $$status = 0 ] || failed=1; \
	done; \
	[ -z "$$failed" ] || { echo 'make studies: some could not be run (above); the page says which' >&2; exit 1; }

C_FILES := $(wildcard engine/src/*.[ch] engine/include/*/*.h mount/src/*.[ch] disk/src/*.[ch] recorder/*.[ch] lab/*.c)
SHELL_FILES := $(wildcard scripts/*.sh) .ci/run

# Style and types. Nothing is installed or built: `lint` does that before, `check` does without.
style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	$(BIN)/shellcheck $(SHELL_FILES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

lint: setup
	@$(MAKE) --no-print-directory style

format:
	$(BIN)/ruff check --quiet --select I --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

# A guest in user mode is for hosts on which no kernel boots under KVM. It takes root.
USER_MODE = [ "$$(id -u)" != 0 ] || $(BIN)/ztune lab list --json | grep -q '"accel": "kvm"' || $(BIN)/ztune lab build --user-mode

lab: setup
	@scripts/setup.sh lab
	$(BIN)/ztune lab build
	@$(USER_MODE)

# Where QEMU or the packages can't be had (3) the lab's tests are skipped and say so; a build that fails is an error.
test-lab: setup
	@scripts/setup.sh lab && $(BIN)/ztune lab build; status=$$?; \
	case $$status in \
	0) $(USER_MODE) || echo 'make test: no guest in user mode here (above); its tests are skipped' ;; \
	3) echo 'make test: no lab here (above); its tests are skipped' ;; \
	*) exit $$status ;; \
	esac

# The databases that the workloads run. Where one can't be had its tests are skipped and say so.
SERVERS = mariadb-oltp rocksdb valkey mongo-restore orientdb-graph ldap-import http

test-servers: setup
	@for workload in $(SERVERS); do \
	$(BIN)/ztune setup $$workload || echo "make test: no $$workload here (above); its tests are skipped"; \
	done

# Programs that look for faults in file systems, for the tests of the mount.
test-tools: setup
	@scripts/test-tools.sh

# A file's tests run one by one, and so do the lab's, which share a guest; tests/conftest.py says which begin.
PYTEST = $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
# Two more at a time than two processors take: most tests wait, for servers, guests and disks.
ALL = -n 4
# Those that need nothing but Python; tests/conftest.py says which others need what.
UNIT = -m 'not (native or server or mount or lab or root or slow or long)'

# Tests start ztune hundreds of times: its bytecode is kept, also where the shell says otherwise.
check coverage test test-all: export PYTHONDONTWRITEBYTECODE =

check:
	@for tool in ruff clang-format shellcheck mypy lint-imports pytest; do \
	[ -x $(BIN)/$$tool ] || { echo "make check: there is no $(BIN)/$$tool; run 'make setup' first" >&2; exit 3; }; \
	done
	@$(MAKE) --no-print-directory style
	$(PYTEST) $(UNIT)

coverage: setup
	$(PYTEST) $(UNIT) --cov --cov-report=term

test: lint test-servers test-tools test-lab
	$(PYTEST) $(ALL)

test-all: lint test-servers test-tools test-lab
	$(PYTEST) $(ALL) --long

wheel: setup
	$(BIN)/pip wheel --quiet --no-deps -w dist .

docs: setup
	$(BIN)/python -m ztune.databases.docs docs/workloads.md
	$(BIN)/python -m ztune.databases.skeleton docs/adding-a-database.md
	$(BIN)/python -m ztune.cli.docs docs/commands.md
	$(BIN)/python -m ztune.study.docs docs/study-format.md
	$(BIN)/python -m ztune.study.docs docs/advice.md
	$(BIN)/python -m ztune.claims.docs docs/claims-format.md
	$(BIN)/python -m ztune.claims.studies_docs docs/studies.md
	$(BIN)/python -m ztune.results.docs docs/results-format.md
	$(BIN)/python -m ztune.advice.findings_docs docs/findings.md
	$(BIN)/python -m ztune.study.schema > docs/study.schema.json

BENCH = screening_speed recording_cost observe_cost trace_reading engine_facts
BENCH_LAB = lab_resume probe_cost disk_fidelity disk_profile_back aa accuracy

bench: setup
	@for script in $(BENCH); do $(BIN)/python bench/$$script.py || exit 1; done

bench-lab: setup
	@for script in $(BENCH_LAB); do $(BIN)/python bench/$$script.py || exit 1; done

clean:
	-$(MAKE) --no-print-directory -C engine clean
	-$(MAKE) --no-print-directory -C recorder clean
	-$(MAKE) --no-print-directory -C disk clean
	-$(MAKE) --no-print-directory -C mount clean
	rm -rf build dist demo-out .coverage .mypy_cache .import_linter_cache .ruff_cache .pytest_cache .hypothesis
