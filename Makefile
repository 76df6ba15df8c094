# What a newcomer types: `make demo` and `make test`. Both set up first.

.PHONY: demo test setup build lint unit bench bench-core clean

CARGO ?= cargo

# Shows a stock server collapse and a guarded one stay afloat (3 minutes).
demo: setup
	$(CARGO) build --release --locked
	target/release/plimsoll demo

# Lints, then every test. As root: namespaces and BPF programs are real.
test: setup lint unit

setup:
	@scripts/setup

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

unit:
	$(CARGO) test --workspace --locked

clean:
	$(CARGO) clean
