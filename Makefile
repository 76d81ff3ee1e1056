# Every target does its own set-up: a fresh clone needs git, make, g++, python3 (>= 3.11), python3-dev and python3-venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
STAMPS := $(VENV)/.stamps
export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# pip resolves and meson configures on one core while compilers use the others. A compiler gets half a gigabyte.
MAKEFLAGS += --jobs=3
SHELL     := /bin/bash

# Wheels: the contract, the core and every plugin folder; `make demo` builds only what this processor runs.
X86_ONLY   := avx2 avx512 amx cuda onednn
ARM_ONLY   := neon
PLUGINS    := $(sort $(patsubst plugins/%/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml)))
MACHINE    := $(shell uname -m)
ELSEWHERE  := $(if $(filter x86_64,$(MACHINE)),,$(X86_ONLY)) $(if $(filter aarch64,$(MACHINE)),,$(ARM_ONLY))
PLUGINS    := $(filter-out $(ELSEWHERE),$(PLUGINS))
# Wheels for another processor, which `make wheels` compiles where there is a cross compiler.
CROSS      := $(if $(shell command -v aarch64-linux-gnu-g++),$(filter $(ARM_ONLY),$(ELSEWHERE)))
# Kernels for GPUs take minutes, so only `make wheels` compiles them, where there is a compiler for them.
GPUS       := $(if $(shell command -v nvcc),$(filter cuda,$(PLUGINS)))
KERNELS     = $(shell sh .ci/kernels)
sources     = $(shell find $(1) -type f -not -path '*/build/*' -not -name '*.pyc' 2>/dev/null)
installed   = $(1:%=$(STAMPS)/%)
# One writer at a time.
PIP        := flock $(STAMPS)/lock "$(BIN)/python" -m pip install --quiet
# Another Python has another VENV and folders of its own: make wheels PYTHON=python3.13 VENV=.venv-3.13 DIST=dist-3.13
BUILD      := $(CURDIR)/build$(if $(filter-out .venv,$(VENV)),/$(VENV))
WHEELS     := $(BUILD)/wheels
DIST       ?= dist

.PHONY: setup demo test test-slow test-nightly neon sanitize bench wheels lint format clean check-machine
.DEFAULT_GOAL := setup

setup: $(call installed,core $(PLUGINS:%=plugin-%) test wheels)

check-machine:
	@sh .ci/check-machine $(PYTHON)

$(STAMPS)/venv: pyproject.toml | check-machine
	@echo "making $(VENV) with the build tools"
	@test -x "$(BIN)/python" || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@$(PIP) $$("$(BIN)/python" .ci/requirements build)
	@touch $@

# What the wheels need at run time (dependencies), to be tested, checked and tagged, from the tables of pyproject.toml.
$(call installed,dependencies test lint wheels): $(STAMPS)/%: $(STAMPS)/venv $(wildcard plugins/*/pyproject.toml)
	@echo "installing what pyproject.toml lists for: $*"
	@$(PIP) $$("$(BIN)/python" .ci/requirements $*) && touch $@

# The folder infeng has the wheel that requires the others, and no code.
wheel_name = $(if $(filter infeng,$(1)),infeng,infeng-$(1))

# $(call wheel_rule,name,folder,sources,platform,settings): stamp wheel-name is the built wheel, which touches no environment.
# A wheel for another machine has its platform and further settings.
define wheel_rule
$(STAMPS)/wheel-$(1): $(3) | $(STAMPS)/venv
	@echo "building $(call wheel_name,$(1))"
	@rm -rf "$(WHEELS)/$(1)" && cd $(2) && $(if $(4),_PYTHON_HOST_PLATFORM=$(4)) \
	  "$(BIN)/python" -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$(WHEELS)/$(1)" \
	    --config-settings=build-dir="$(BUILD)/$(1)" --config-settings=compile-args=-j$$$$(nproc) $(5) . && \
	  echo "built $(call wheel_name,$(1)) in $$$$SECONDS s"
	@touch $$@
endef
install_wheel = @$(PIP) --no-deps --force-reinstall "$(WHEELS)/$(1)"/*.whl && touch $@

$(eval $(call wheel_rule,abi,abi,$(call sources,abi)))
$(eval $(call wheel_rule,core,.,pyproject.toml meson.build meson.options $(call sources,abi infeng_core manifests)))
$(foreach plugin,$(PLUGINS),$(eval $(call wheel_rule,$(plugin),plugins/$(plugin),$(call sources,plugins/$(plugin)) $(STAMPS)/abi)))
$(foreach plugin,$(CROSS),$(eval $(call wheel_rule,$(plugin),plugins/$(plugin),$(call sources,plugins/$(plugin)) $(STAMPS)/abi,linux-aarch64,\
  --config-settings=setup-args=--cross-file="$(CURDIR)/plugins/neon/aarch64.ini")))
$(foreach plugin,$(GPUS),$(eval $(call wheel_rule,$(plugin)-gpu,plugins/$(plugin),$(call sources,plugins/$(plugin)) $(STAMPS)/abi,,\
  --config-settings=setup-args=-Dgpu=enabled)))

$(STAMPS)/abi: $(STAMPS)/wheel-abi
	$(call install_wheel,abi)

$(STAMPS)/core: $(STAMPS)/wheel-core $(STAMPS)/abi | $(STAMPS)/dependencies
	$(call install_wheel,core)

$(STAMPS)/plugin-%: $(STAMPS)/wheel-% | $(STAMPS)/core
	$(call install_wheel,$*)

ifneq ($(filter demo,$(MAKECMDGOALS)),)
$(info the demo needs the core, conversion, a small model and, for this processor, the kernels: $(or $(KERNELS),of the core))
endif
demo: $(call installed,core $(KERNELS:%=plugin-%) plugin-packing plugin-inspect plugin-convert plugin-peft plugin-tokenizers plugin-processors plugin-run plugin-doctor plugin-demo)
	@"$(BIN)/infeng" demo

# Minutes on two cores after the build: the fast suite 8, the slow one 20. What proves the same on more sizes is nightly.
# A file's tests stay in one process, which has their fixtures; files are taken in the order of tests/conftest.py.
PYTEST := "$(BIN)/python" -P -m pytest --benchmark-skip --durations=20 --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

test: setup
	$(PYTEST) -m 'not slow and not nightly' tests

test-slow: setup
	$(PYTEST) -m 'slow and not nightly' tests

test-nightly: setup
	INFENG_NIGHTLY=1 $(PYTEST) -m 'nightly or (hypothesis and not slow)' tests

# $(call sanitized,kind,source folder,build folder,targets): set up and compile, silently where nothing is wrong.
define sanitized
  test -d $(3) || meson setup $(3) $(2) -Dbuildtype=debugoptimized -Db_sanitize=$(1) -Db_lundef=false -Dnative_tests=true >$(3).log || { cat $(3).log; exit 1; }; \
  meson compile -C $(3) $(4) >$(3).log 2>&1 || { cat $(3).log; exit 1; }
endef

# The AArch64 kernels, cross-compiled, against the reference under qemu; CASES is the share of the cases.
CASES ?= 1

neon: $(STAMPS)/abi
	@sh plugins/neon/check $(CASES)

SANITIZERS ?= address,undefined thread

# The native code under address, undefined-behaviour and thread sanitizers: the executor with the reference kernels, and calibration.
sanitize: $(STAMPS)/abi
	@mkdir -p build; for kind in $(SANITIZERS); do \
	  core=build/sanitize-$$kind calibrate=build/sanitize-calibrate-$$kind; \
	  $(call sanitized,$$kind,.,$$core,native_stress infeng_reference); \
	  $(call sanitized,$$kind,plugins/calibrate,$$calibrate,calibrate_stress); \
	  echo "native tests under -fsanitize=$$kind"; \
	  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1; \
	  $$core/tests/core/native/native_stress $$core/infeng_core/reference/libinfeng_reference.so || exit 1; \
	  $$calibrate/calibrate_stress || exit 1; done

bench: setup
	"$(BIN)/python" -P -m pytest --benchmark-only --benchmark-columns=min,median,iqr,rounds tests/bench

wheels: $(call installed,wheel-abi wheel-core $(patsubst %,wheel-%,$(filter-out $(GPUS),$(PLUGINS)) $(GPUS:%=%-gpu) $(CROSS)) wheels)
	@rm -rf $(DIST) && sh .ci/tag-wheels $(DIST) $$(ls "$(WHEELS)"/*/*.whl $(GPUS:%=| grep -v /%/)) && ls -1sh $(DIST)
	@$(if $(GPUS),,echo "left out, for want of nvcc: the kernels of infeng-cuda for GPUs")
	@$(if $(filter-out $(CROSS),$(ELSEWHERE)),echo "left out, for want of a compiler for their processors: $(patsubst %,infeng-%,$(filter-out $(CROSS),$(ELSEWHERE)))")

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
