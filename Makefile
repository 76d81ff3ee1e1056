# Every target does its own set-up: a fresh clone needs git, make, g++, python3 (>= 3.11), python3-dev and python3-venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
STAMPS := $(VENV)/.stamps
export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

TOOLS  := 'meson-python>=0.17' 'meson>=1.4' 'ninja>=1.11' 'pybind11>=2.13' 'wheel>=0.41'
LINT   := 'ruff>=0.6' 'mypy>=1.11' 'types-PyYAML>=6.0' 'types-jsonschema>=4.18' 'types-tqdm>=4.66' 'clang-format>=18,<20'

# Wheels, in the order in which they build: the contract, the core, then every plugin folder.
X86_ONLY   := avx2 avx512 amx
PLUGINS    := $(sort $(patsubst plugins/%/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml)))
ifneq ($(shell uname -m),x86_64)
PLUGINS    := $(filter-out $(X86_ONLY),$(PLUGINS))
endif
sources     = $(shell find $(1) -type f -not -path '*/build/*' -not -name '*.pyc' 2>/dev/null)
INSTALL    := pip install --quiet --no-build-isolation

.PHONY: setup demo test test-slow sanitize bench wheels lint format clean check-machine
.DEFAULT_GOAL := setup
.NOTPARALLEL: # pip and the shared build folders take one writer at a time

setup: $(STAMPS)/abi $(STAMPS)/core $(PLUGINS:%=$(STAMPS)/plugin-%)

check-machine:
	@sh .ci/check-machine $(PYTHON)

$(STAMPS)/venv: | check-machine
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@echo "making $(VENV) with the build tools"
	@$(BIN)/python -m pip install --quiet $(TOOLS)
	@touch $@

$(STAMPS)/lint: $(STAMPS)/venv
	@$(BIN)/python -m pip install --quiet $(LINT)
	@touch $@

$(STAMPS)/abi: $(STAMPS)/venv $(call sources,abi)
	@echo "building infeng-abi"
	@cd abi && $(INSTALL) . -Cbuild-dir=$(CURDIR)/build/abi
	@touch $@

$(STAMPS)/core: $(STAMPS)/venv $(STAMPS)/abi pyproject.toml meson.build $(call sources,infeng_core) $(call sources,manifests)
	@echo "building infeng-core"
	@$(INSTALL) '.[test]' -Cbuild-dir=$(CURDIR)/build/core
	@touch $@

define plugin_rule
$(STAMPS)/plugin-$(1): $(STAMPS)/venv $(STAMPS)/abi $(call sources,plugins/$(1)) | $(STAMPS)/core
	@echo "building infeng-$(1)"
	@cd plugins/$(1) && $(INSTALL) . -Cbuild-dir=$(CURDIR)/build/$(1)
	@touch $$@
endef
$(foreach plugin,$(PLUGINS),$(eval $(call plugin_rule,$(plugin))))

demo: setup
	@$(BIN)/infeng demo

test: setup
	$(BIN)/python -P -m pytest --benchmark-skip -m 'not slow' tests

test-slow: setup
	$(BIN)/python -P -m pytest --benchmark-skip -m slow tests

# The executor under address, undefined-behaviour and thread sanitizers, with the reference kernels.
sanitize: $(STAMPS)/venv
	@mkdir -p build; for kind in address,undefined thread; do \
	  folder=build/sanitize-$$kind; \
	  test -d $$folder || meson setup $$folder -Dbuildtype=debugoptimized -Db_sanitize=$$kind -Db_lundef=false -Dnative_tests=true >$$folder.log || { cat $$folder.log; exit 1; }; \
	  meson compile -C $$folder native_stress infeng_reference >$$folder.log 2>&1 || { cat $$folder.log; exit 1; }; \
	  echo "native tests under -fsanitize=$$kind"; \
	  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $$folder/tests/core/native/native_stress \
	    $$folder/infeng_core/reference/libinfeng_reference.so || exit 1; done

bench: setup
	$(BIN)/python -P -m pytest --benchmark-only --benchmark-columns=min,median,iqr,rounds tests/bench

wheels: setup
	@for wheel in ./abi . $(PLUGINS:%=./plugins/%); do \
	  pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist $$wheel || exit 1; done
	@ls -1 dist/*.whl

lint: setup $(STAMPS)/lint
	ruff check .
	ruff format --check .
	mypy
	clang-format --dry-run --Werror $$(git ls-files '*.c' '*.cc' '*.h')

format: $(STAMPS)/lint
	ruff check --fix-only .
	ruff format .
	clang-format -i $$(git ls-files '*.c' '*.cc' '*.h')

clean:
	rm -rf build dist plugins/*/build abi/build $(STAMPS)
