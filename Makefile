# Venice from a clone: `make demo` shows it, `make test` tests it, `make help` lists the rest.

PREFIX  ?= /usr/local
DESTDIR ?=
CARGO   ?= cargo

BIN  := target/release/venice
SHIM := target/release/libvenice_preload.so

export PATH := $(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup build lab demo quick test test-all check fmt fuzz soak bench book wheel deb install install-lab uninstall clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what is missing here (Debian packages; needs root only if something is)
	@scripts/setup.sh test

build: ## Build the binary, its shim, the OpenCL and CUDA drivers and the libraries into target/release
	@scripts/setup.sh build
	$(CARGO) build --release --locked -p venice -p venice-preload -p venice-opencl -p venice-cuda -p venice-c -p venice-py

lab: ## Build venice-lab, which `venice bench|paper|sim|model` run, into target/release
	@scripts/setup.sh build
	$(CARGO) build --release --locked -p venice-lab

demo: ## A rack on this machine runs an unmodified redis-server on borrowed memory
	@scripts/setup.sh demo
	$(CARGO) build --release --locked -p venice -p venice-preload
	$(BIN) demo $(ARGS)

quick: ## Formatting, house rules, unit and model tests of the protocol: two minutes, warm
	@$(CARGO) fmt --all --check
	@scripts/tidy.sh
	@scripts/test.sh quick

test: ## The tests before each commit, with all set-up: fifteen minutes, warm
	@scripts/setup.sh test
	@scripts/test.sh test

test-all: ## Every test, guests, kill loops, real programs, fuzzing: GROUP="swap verbs" for some
	@scripts/setup.sh all
	@scripts/test.sh all $(strip $(GROUP))

check: ## Formatting, lints, docs, licences and known vulnerabilities
	@scripts/setup.sh check
	@scripts/check.sh

fmt: ## Format the code
	$(CARGO) fmt --all
	cd fuzz && $(CARGO) fmt

fuzz: ## Fuzz the decoders and the state machines: FUZZ_SECONDS=300 for each target
	@scripts/setup.sh all
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-300} scripts/fuzz.sh

soak: build ## An hour of programs checking every byte while donors die, then fresh seeds: SOAK_MINUTES=60
	@scripts/setup.sh test
	@scripts/soak.sh

bench: build lab ## Measure faults, channels and applications beside their peers; the tables go to stdout
	@scripts/setup.sh demo
	$(BIN) bench fault --json target/bench-fault.json $(ARGS)
	$(BIN) bench memory --json target/bench-memory.json --plots target/bench-memory
	$(BIN) bench channels --json target/bench-channels.json --plots target/bench-channels

wheel: ## The Python package as a wheel, into target/wheels (needs maturin)
	@scripts/setup.sh build
	@scripts/wheel.sh

deb: build ## Debian packages (command, daemons, C library, Python) into target/deb
	@scripts/deb.sh

book: ## Build the book into target/book
	@scripts/book.sh build

install: build ## Install under PREFIX (default /usr/local; DESTDIR for packagers)
	@scripts/install.sh install "$(DESTDIR)$(PREFIX)"

install-lab: lab ## Install venice-lab under PREFIX
	@scripts/install.sh install-lab "$(DESTDIR)$(PREFIX)"

uninstall: ## Remove what `make install` and `make install-lab` put there
	@scripts/install.sh uninstall "$(DESTDIR)$(PREFIX)"

clean: ## Remove what was built
	$(CARGO) clean
