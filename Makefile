# attnd. `make run` starts the server, `make test` tests it, `make help` names the rest.
#
# Everything built lies in build/<config>/, where <config> is release, asan, tsan (SAN=...), lint or
# fuzz. Sources are found, not listed: engine/, server/, one executable per tests/unit/test_*.c, per
# tests/bench/*.c and per tests/fuzz/fuzz_*.c.

SHELL := /bin/bash
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all
.SECONDEXPANSION:
.DELETE_ON_ERROR:

ifeq ($(origin CC),default)
CC := gcc
endif
PYTHON := /usr/bin/python3
PORT ?= 8080
ARGS ?=
WERROR ?=
SAN ?=

# Commands are shown shortened; V=1 shows them whole. Without a -j of the user's, all CPUs build; with
# one, a recipe that builds needs a + to take part in it.
V ?=
Q := $(if $(V),,@)
show = $(if $(V),@:,@echo "  $(1) $@")
PARALLEL_MAKE = $(MAKE) --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

ifneq ($(filter-out asan tsan,$(SAN)),)
$(error SAN is asan or tsan, not "$(SAN)")
endif
CONFIG := $(or $(SAN),release)
BUILD := build/$(CONFIG)
BINARY := $(BUILD)/attnd

# ------------------------------------------------------------------------------------- flags

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes \
    -Wmissing-prototypes -Wundef -Wvla -Wpointer-arith -Wcast-qual -Wwrite-strings -Wformat=2 \
    -Wnull-dereference -Wdouble-promotion

# Only written fused multiply-adds are fused: every build must compute the same bits.
NUMERICS := -ffp-contract=off

OPTIMIZE := -O2

SANITIZE_release :=
SANITIZE_asan := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
SANITIZE_tsan := -fsanitize=thread -fno-omit-frame-pointer
SANITIZE_fuzz := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
    -fno-omit-frame-pointer
SANITIZE := $(SANITIZE_$(CONFIG))

CPPFLAGS := -I. -D_GNU_SOURCE -MMD -MP
CFLAGS = -std=c11 -g -pthread $(OPTIMIZE) $(NUMERICS) $(WARNINGS) $(WERROR) $(SANITIZE) $(ISA)
LDFLAGS := -pthread $(SANITIZE)
LDLIBS := -lmicrohttpd -lcjson -lpcre2-8 -lutf8proc -lm

# What the sanitized programs are told at run time.
RUN_asan := ATTND_TEST_SLOWDOWN=4 ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
RUN_tsan := ATTND_TEST_SLOWDOWN=10 TSAN_OPTIONS=second_deadlock_stack=1
RUN := $(RUN_$(CONFIG))

# ----------------------------------------------------------------------------------- sources

find_sources = $(sort $(shell find $(1) -name '*.c' -o -name '*.S' 2>/dev/null))
object = $(patsubst %,$(BUILD)/obj/%.o,$(basename $(1)))

WEB_FILES := $(sort $(wildcard clients/web/*))
LIBRARY_SOURCES := $(filter-out server/main.c,$(call find_sources,engine server))
TEST_SOURCES := $(sort $(wildcard tests/unit/test_*.c))
TEST_SUPPORT := $(filter-out $(TEST_SOURCES),$(sort $(wildcard tests/unit/*.c)))
FUZZ_SOURCES := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZED_SOURCES := $(call find_sources,engine/base engine/model server/json) \
    engine/compute/rope.c server/buf.c
BENCH_SUPPORT := tests/bench/machine_limits.c tests/bench/bench_model.c
ECHO_SOURCES := tests/bench/echo_engine.c
TORTURE_SOURCES := tests/torture/failing.c
BENCH_SOURCES := $(filter-out $(BENCH_SUPPORT) $(ECHO_SOURCES),$(sort $(wildcard tests/bench/*.c)))
C_FILES = $(sort $(shell find engine server clients tests -name '*.[ch]' 2>/dev/null))

LIBRARY := $(BUILD)/libattnd.a
# ThreadSanitizer does not live with allocations that fail, and has nothing to see in what one thread
# does alone.
ONE_THREAD := attention buf checkpoint config float_text fuzz_corpus json_read json_write kernels \
    philox rope stream tokenizer_files
UNSEEN := $(if $(filter tsan,$(SAN)),$(patsubst %,tests/unit/test_%.c,torture $(ONE_THREAD)))
TESTS := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(filter-out $(UNSEEN),$(TEST_SOURCES)))
FUZZERS := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzzers/%,$(FUZZ_SOURCES))
BENCHES := $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(BENCH_SOURCES))
ECHO_SERVER := $(BUILD)/bench/echo_attnd
TORTURE_SERVER := $(BUILD)/torture/attnd
LOAD_SOURCES := $(sort $(wildcard clients/load/*.c))
LOAD := $(BUILD)/attn-load
OBJECTS := $(call object,$(LIBRARY_SOURCES) server/main.c $(TEST_SOURCES) $(TEST_SUPPORT) \
    $(FUZZ_SOURCES) $(BENCH_SOURCES) $(BENCH_SUPPORT) $(ECHO_SOURCES) $(TORTURE_SOURCES) \
    $(LOAD_SOURCES))

# ---------------------------------------------------------------------------------- packages

RUN_PACKAGES := gcc libc6-dev libmicrohttpd-dev libcjson-dev libpcre2-dev libutf8proc-dev curl
TEST_PACKAGES := $(RUN_PACKAGES) jq libcmocka-dev python3-pytest \
    python3-pytest-xdist python3-numpy python3-jsonschema
LINT_PACKAGES := $(TEST_PACKAGES) clang-format
WEB_PACKAGES := $(RUN_PACKAGES) chromium fonts-wqy-microhei \
    $(if $(shell command -v node),,nodejs) $(if $(shell command -v npm),,npm)
FUZZ_PACKAGES := $(RUN_PACKAGES) clang libclang-rt-dev

# Installs those of the Debian packages $(1) that are missing; quick when none is.
define install
	@command -v dpkg-query >/dev/null || { echo 'not a Debian system; needed: $(1)'; exit 0; }; \
	have=$$(dpkg-query -W -f '$${Package} $${db:Status-Status}\n' $(1) 2>/dev/null | \
	    sed -n 's/ installed$$//p'); \
	missing=$$(printf '%s\n' $(1) | grep -vxF "$$have" | tr '\n' ' '); \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" != 0 ]; then \
	    echo "missing packages; install them with: sudo apt-get install -y $$missing"; exit 1; \
	fi; \
	apt-get -q -o DPkg::Lock::Timeout=300 update; \
	DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 install -y \
	    --no-install-recommends $$missing
endef

# --------------------------------------------------------------------------------------- help

.PHONY: all load run test unit http web-test check fuzz fuzzers fuzz-corpus soak scenario bench \
    float-sweep lint format everything build-deps install-deps clean help

help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22
	@echo
	@echo '  SAN=asan|tsan before a target builds and tests with that sanitizer; WERROR=-Werror'
	@echo '  makes warnings errors; ATTND_TEST_MODELS names a folder of real models to test with.'

# -------------------------------------------------------------------------------- build rules

all: $(BINARY) $(LOAD) ## the server and the load tester, build/release/attnd and attn-load
	@:

load: $(LOAD) ## only the load tester, build/release/attn-load
	@:

everything: $(BINARY) $(LOAD) $(TESTS) $(BENCHES) $(ECHO_SERVER) $(TORTURE_SERVER)

$(BINARY): $(call object,server/main.c) $(LIBRARY)
	$(call show,LINK)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

$(LOAD): $(call object,$(LOAD_SOURCES))
	$(call show,LINK)
	$(Q)$(CC) $(LDFLAGS) $^ -lcjson -lm -o $@

$(LIBRARY): $(call object,$(LIBRARY_SOURCES)) $(BUILD)/web/web_files.o
$(BUILD)/libfuzzed.a: $(call object,$(FUZZED_SOURCES))
$(LIBRARY) $(BUILD)/libfuzzed.a:
	$(call show,AR)
	$(Q)rm -f $@
	$(Q)ar rcs $@ $^

$(TESTS): $(BUILD)/tests/%: $(BUILD)/obj/tests/unit/%.o $(call object,$(TEST_SUPPORT)) $(LIBRARY)
	@mkdir -p $(@D)
	$(call show,LINK)
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(LDLIBS) -o $@

# Replays what the fuzzers have found; their targets are functions named as their files.
$(BUILD)/tests/test_fuzz_corpus: $(call object,$(FUZZ_SOURCES))
$(BUILD)/obj/tests/fuzz/%.o: DEFINES = $(if $(filter fuzz,$(CONFIG)),,-DLLVMFuzzerTestOneInput=$(*F))

# Programs whose allocations can be made to fail. What fails them stands between the program and the
# sanitizer and works before that does, so it is not sanitized.
$(BUILD)/obj/tests/torture/failing.o: SANITIZE :=
$(BUILD)/obj/tests/torture/failing.o: DEFINES := -DREAL=$(if $(SAN),__interceptor_,__libc_)
$(BUILD)/tests/test_torture: $(call object,$(TORTURE_SOURCES))
$(TORTURE_SERVER): $(call object,server/main.c $(TORTURE_SOURCES)) $(LIBRARY)
	@mkdir -p $(@D)
	$(call show,LINK)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

$(FUZZERS): $(BUILD)/fuzzers/%: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/libfuzzed.a
	@mkdir -p $(@D)
	$(call show,LINK)
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer $^ $(LDLIBS) -o $@

$(BENCHES): $(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o $(call object,$(BENCH_SUPPORT)) $(LIBRARY)
	@mkdir -p $(@D)
	$(call show,LINK)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

# The server on an engine that does not compute: its objects come before the library's.
$(ECHO_SERVER): $(call object,server/main.c $(ECHO_SOURCES)) $(LIBRARY)
	@mkdir -p $(@D)
	$(call show,LINK)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call show,CC)
	$(Q)$(CC) $(CPPFLAGS) $(DEFINES) $(CFLAGS) -c $< -o $@

# A .S file embeds the files whose paths it quotes.
$(BUILD)/obj/%.o: %.S Makefile $$(shell sed -n 's|.*"\([^"\\]*/[^"\\]*\)".*|\1|p' $$*.S)
	@mkdir -p $(@D)
	$(call show,AS)
	$(Q)$(CC) $(CPPFLAGS) -Wa,--noexecstack -c $< -o $@

# The web page in the program: each file as it is and compressed, and the table that server/web.c
# reads. The folder itself is a prerequisite because files may come and go.
$(BUILD)/web/%.gz: clients/web/%
	@mkdir -p $(@D)
	$(Q)gzip -9nc $< >$@

$(BUILD)/web/web_files.S: $(patsubst clients/web/%,$(BUILD)/web/%.gz,$(WEB_FILES)) $(WEB_FILES) \
    clients/web Makefile
	$(call show,GEN)
	$(Q){ echo '.section .rodata'; \
	i=0; for file in $(notdir $(WEB_FILES)); do i=$$((i + 1)); \
	    echo "n$$i: .asciz \"$$file\""; \
	    echo "p$$i: .incbin \"clients/web/$$file\""; \
	    echo "z$$i: .incbin \"$(BUILD)/web/$$file.gz\""; echo "e$$i:"; \
	done; \
	echo '.section .data.rel.ro, "aw"'; echo '.balign 8'; \
	echo '.global srv_web_files, srv_web_files_end'; echo 'srv_web_files:'; \
	for i in $$(seq $(words $(WEB_FILES))); do echo ".quad n$$i, p$$i, z$$i, z$$i, e$$i"; done; \
	echo 'srv_web_files_end:'; } >$@

$(BUILD)/web/web_files.o: $(BUILD)/web/web_files.S
	$(call show,AS)
	$(Q)$(CC) -Wa,--noexecstack -c $< -o $@

# Sanitizers make the unrolled kernels slow to compile; -O1 keeps that bearable.
$(BUILD)/obj/engine/compute/%.o: OPTIMIZE := $(if $(SAN),-O1,-O3)
$(BUILD)/obj/engine/compute/kernels_avx2.o: ISA := -mavx2 -mfma -mf16c
$(BUILD)/obj/engine/compute/kernels_avx512.o: \
    ISA := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c


-include $(OBJECTS:.o=.d)

# ---------------------------------------------------------------------------------------- run

run: build-deps ## build and start the server, a model built in (PORT=8080, ARGS="--threads 2")
	+@$(PARALLEL_MAKE) all
	@url=http://127.0.0.1:$(PORT); \
	echo 'In a second terminal, in this folder:'; echo; \
	echo "  curl $$url/prefill -d '{\"session\":\"story\",\"text\":\"Once upon a time\"}'"; \
	echo "  curl -N $$url/decode -d '{\"session\":\"story\",\"steps\":256,\"temperature\":0.7,\"seed\":6,\"stream\":true}'"; \
	echo "  curl $$url/sessions/story/tokens"; echo
	@exec $(BINARY) --port $(PORT) $(ARGS)

# -------------------------------------------------------------------------------------- tests

test: ## build, then run every test (SAN=asan|tsan: sanitized)
	$(call install,$(TEST_PACKAGES))
	+@status=0; \
	for part in unit http; do $(PARALLEL_MAKE) $$part || status=1; done; \
	exit $$status

# Unit tests that run at once. Each one's output comes in one piece.
UNIT_JOBS ?= 2

unit: $(TESTS) ## only the unit tests
	@printf '%s\n' $(TESTS) | $(RUN) xargs -P $(UNIT_JOBS) -I@ sh -c '\
	    { echo "== @"; timeout 600 @ || echo "FAILED: @"; } >@.log 2>&1; \
	    flock $(BUILD)/tests cat @.log'; \
	! grep -h "^FAILED: " $(TESTS:=.log)

PYTEST_ARGS := $(if $(filter tsan,$(SAN)),-m 'not slow')

# Servers that are tested at once: now and then one waits for a deadline.
PYTEST_JOBS ?= 3

http: $(BINARY) $(LOAD) $(if $(filter tsan,$(SAN)),,$(TORTURE_SERVER)) ## only the whole-server tests (PYTEST_ARGS='-k decode')
	@[ ! -d tests/http ] || $(RUN) ATTND_BINARY=$(CURDIR)/$(BINARY) \
	    $(PYTHON) -m pytest -q -rfEs -p no:cacheprovider -n $(PYTEST_JOBS) --dist loadfile \
	    $(PYTEST_ARGS) tests/http

# The browser comes from Debian, what drives it from npm; both are for the tests alone.
web-test: $(BINARY) ## the web page in a real browser, and its modules (WEB_TEST=page.test.mjs)
	$(call install,$(WEB_PACKAGES))
	@cd tests/web && { cmp -s package-lock.json node_modules/.installed || { \
	    npm ci --silent --no-audit --no-fund && cp package-lock.json node_modules/.installed; }; }
	@cd tests/web && $(RUN) ATTND_BINARY=$(CURDIR)/$(BINARY) node --test --test-reporter=tap $(WEB_TEST)

WEB_TEST := modules.test.mjs page.test.mjs

check: ## every test under AddressSanitizer + UBSan, then under ThreadSanitizer
	@$(MAKE) --no-print-directory SAN=asan test
	@$(MAKE) --no-print-directory SAN=tsan test

FUZZ_SECONDS := 60
FUZZ_NAMES := $(patsubst tests/fuzz/fuzz_%.c,%,$(FUZZ_SOURCES))
FUZZ_LIMITS := -rss_limit_mb=2048 -malloc_limit_mb=256 -timeout=10
FUZZER_MAKE = $(PARALLEL_MAKE) CONFIG=fuzz CC=clang WARNINGS= fuzzers

fuzz: ## feed every parser what it never saw (FUZZ_SECONDS=60 each, FUZZ_NAMES="json model")
	$(call install,$(FUZZ_PACKAGES))
	+@$(FUZZER_MAKE)
	@failed=; \
	for name in $(FUZZ_NAMES); do \
	    echo "== $$name"; mkdir -p build/fuzz/corpus/$$name; \
	    build/fuzz/fuzzers/fuzz_$$name $(FUZZ_LIMITS) -max_total_time=$(FUZZ_SECONDS) \
	        -print_final_stats=1 -dict=tests/fuzz/$$name.dict -artifact_prefix=build/fuzz/$$name- \
	        build/fuzz/corpus/$$name tests/fuzz/corpus/$$name || failed="$$failed $$name"; \
	done; \
	for name in $$failed; do echo "FAILED: $$name"; done; [ -z "$$failed" ]

fuzzers: $(FUZZERS)

# Inputs with names of their own stay; those named by a hash are chosen anew.
fuzz-corpus: ## keep of what the fuzzers have found the few inputs that reach all of it
	$(call install,$(FUZZ_PACKAGES))
	+@$(FUZZER_MAKE)
	@for name in $(FUZZ_NAMES); do \
	    kept=tests/fuzz/corpus/$$name; found=build/fuzz/corpus/$$name; mkdir -p $$found; \
	    find $$kept -regextype egrep -regex '.*/[0-9a-f]{40}' -exec mv -t $$found {} +; \
	    build/fuzz/fuzzers/fuzz_$$name $(FUZZ_LIMITS) -use_counters=0 -set_cover_merge=1 \
	        $$kept $$found 2>&1 | tail -1; \
	done

SOAK_SECONDS ?= 120

soak: $(BINARY) $(LOAD) ## load, kills and expiries for SOAK_SECONDS=120, then: is anything left behind?
	@$(RUN) ATTND_BINARY=$(CURDIR)/$(BINARY) $(PYTHON) tests/soak.py $(SOAK_SECONDS)

NAME ?= cycles

scenario: $(BINARY) $(LOAD) ## a load of minutes (NAME=crowd|cycles|long-prefill|many|waste, NAME="crowd idle=500")
	@ATTND_BINARY=$(CURDIR)/$(BINARY) $(PYTHON) tests/scenarios.py $(NAME)

bench: $(BENCHES) $(BINARY) $(ECHO_SERVER) ## the engine against this machine's limits, HTTP without computing
	@$(BUILD)/bench/bench $(ARGS)
	@$(BUILD)/bench/http_bench $(BINARY) $(ECHO_SERVER)

float-sweep: $(BUILD)/bench/float_sweep ## print and read back every float32 (minutes)
	$< $(ARGS)

lint: ## formatting, layers, banned calls, numerics, warnings as errors, syntax
	$(call install,$(LINT_PACKAGES))
	+@status=0; \
	for step in tests/lint/*.sh; do \
	    if bash $$step; then echo "lint ok: $$step"; \
	    else echo "lint FAILED: $$step"; status=1; fi; \
	done; \
	exit $$status

format: ## reformat all C
	clang-format -i $(C_FILES)

build-deps: ## install only what building needs
	$(call install,$(RUN_PACKAGES))

install-deps: ## install what building, testing and linting need
	$(call install,$(LINT_PACKAGES))

clean: ## remove everything built
	rm -rf build
