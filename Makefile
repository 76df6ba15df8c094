# What a newcomer types: `make demo` and `make test`. Both set up first.

.PHONY: demo test thorough test-unprivileged setup tools form lint-code lint advisories unit loom tokio-unstable miri no-std mutants bench bench-core bench-sim bench-guard bench-programs bench-stack bench-techniques bench-timers bench-verdict bench-wan no-harm vm-test lab-real lab-snapshot golden deb clean

CARGO ?= cargo

# Shows stock servers collapse and guarded ones stay afloat (4 minutes and the build).
demo: setup
	$(CARGO) build --release --locked
	target/release/plimsoll demo --html target/demo.html

# Every test, and the lints beside them: most tests wait, and clippy and rustdoc compile for
# minutes. As root: namespaces and BPF programs are real. cargo-deny and loom take long to build and
# seldom find anything: `make thorough` runs them as well.
test: setup form
	CARGO=$(CARGO) scripts/tests 'lint-code no-std' $(CALM)

thorough: test lint loom tokio-unstable

setup:
	@scripts/setup

tools:
	@scripts/setup --tools

form:
	$(CARGO) fmt --all --check

# Form, clippy and documentation. The lock file of fuzz is checked since nothing else here
# would notice that it is out of date.
lint-code: form
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --workspace --no-deps --document-private-items --locked
	$(CARGO) metadata --quiet --manifest-path fuzz/Cargo.toml --locked --format-version 1 >/dev/null

# The code, what dependencies may be (deny.toml), and their known faults. The list of faults
# is at github.com: where it cannot be reached, lint says so and passes. It changes without a
# change here, so `make test` does not look at it.
DENY = target/tools/bin/cargo-deny --locked

lint: lint-code tools
	$(DENY) --log-level error check licenses bans sources
	@if $(DENY) --log-level error fetch db; then \
		$(DENY) check --disable-fetch advisories; \
	else \
		echo "Dependencies were NOT checked for known faults: the list at github.com cannot be reached. Run 'make advisories' where it can." >&2; \
	fi

# The known faults alone. Fails where their list cannot be reached.
advisories: tools
	$(DENY) check advisories

# Crates whose tests need neither root nor a quiet machine: none has a second try.
CALM = core lab packets report sim timers tries

# The tests alone. All run also after one has failed: one run tells all that is wrong.
unit:
	CARGO=$(CARGO) scripts/tests '' $(CALM)

# The tests that need no root, as any user; scripts/need-root names the others.
test-unprivileged:
	CARGO=$(CARGO) scripts/tests-unprivileged

# Model-checks what two threads share: every interleaving, every stale load. Fast enough
# without optimisation, which takes longer.
loom:
	RUSTFLAGS="--cfg loom" $(CARGO) --config profile.dev.package.plimsoll-core.opt-level=0 test -p plimsoll-core -p plimsoll-timers --lib --locked --target-dir target/loom loom_tests

# The hooks around each poll of a task exist only in a tokio that is built with this.
tokio-unstable:
	RUSTFLAGS="--cfg tokio_unstable" $(CARGO) test -p plimsoll-timers --test it --locked --target-dir target/tokio-unstable tokio::

# Runs what threads and the kernel share on an interpreter that knows undefined
# behaviour (needs rustup's nightly with miri and rust-src; minutes). Memory of the process is
# in the place of the kernel's: the interpreter knows neither BPF nor shared mappings.
MIRI_TESTS = channel::queue channel::shared channel::pool driver:: mapped:: device::pool device::xdp::ring device::packet::ring

miri:
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2 $(CARGO) +nightly miri test -p plimsoll-core -p plimsoll-kernel -p plimsoll-stack --lib --locked --target-dir target/miri -- $(MIRI_TESTS)

# Builds and runs a program that has no std, to show that core needs none.
no-std:
	$(CARGO) run --quiet --manifest-path crates/core/no-std/Cargo.toml --locked --target-dir target/no-std

# Breaks core, the BPF program and what turns settings in each of the ways listed in
# crates/core/mutations.toml, and requires that a test notices (a quarter of an hour;
# MODULES="poll quota" for some of it; bpf, governor, knobs and session need root).
mutants:
	$(CARGO) run --quiet --locked -p plimsoll-core --example mutants -- $(MODULES)

# All benches but bench-programs and no-harm, each with its JSON document under
# target/bench (an hour and a half).
bench: bench-core bench-timers bench-sim bench-guard bench-stack bench-techniques bench-wan

# What a decision costs, in ns, beside its best peers (a few minutes). The old
# measurements go first: a bench that fails must not be reported from before.
CORE_BENCHES = control demux queues timers
CRITERION_DIR = $(CURDIR)/target/bench/criterion

bench-core:
	$(CARGO) bench --locked -p plimsoll-core --no-run
	rm -rf $(CRITERION_DIR)
	CRITERION_HOME=$(CRITERION_DIR) $(CARGO) bench --locked -p plimsoll-core $(CORE_BENCHES:%=--bench %)
	$(CARGO) bench --locked -p plimsoll-core --bench report -- $(CRITERION_DIR) $(CURDIR)/target/bench/core.json

# What a soft timer costs on this machine's clock, beside a timerfd, tokio's
# timers and a wheel crate, and then in a real server (seven minutes). Needs root and
# 10,000 file descriptors.
TIMERS_CRITERION_DIR = $(CURDIR)/target/bench/criterion-timers

bench-timers: setup
	@mkdir -p target/bench
	$(CARGO) bench --locked -p plimsoll-timers --no-run
	rm -rf $(TIMERS_CRITERION_DIR)
	CRITERION_HOME=$(TIMERS_CRITERION_DIR) $(CARGO) bench --locked -p plimsoll-timers --bench timers
	$(CARGO) bench --locked -p plimsoll-timers --bench intervals -- $(CURDIR)/target/bench/intervals.json
	$(CARGO) bench --locked -p plimsoll-timers --bench report -- $(TIMERS_CRITERION_DIR) $(CURDIR)/target/bench/timers.json
	$(CARGO) build --release --locked
	target/release/plimsoll bench timers --json target/bench/events.json

# Simulated packets per second, beside a naive event queue (a minute).
bench-sim:
	@mkdir -p target/bench
	$(CARGO) bench --locked -p plimsoll-sim --bench packets -- --json $(CURDIR)/target/bench/sim.json

# What the guard's verdict costs per packet, by the kernel's test-run facility. Needs root.
bench-verdict:
	mkdir -p target/bench
	$(CARGO) bench --locked -p plimsoll-guard --bench verdict -- --json $(CURDIR)/target/bench/verdict.json

# Every promised figure of the guard on real packets, beside stock, nftables and
# threaded polling (about forty minutes). Needs root.
bench-guard: setup bench-verdict
	$(CARGO) build --release --locked
	target/release/plimsoll bench guard --json target/bench/guard.json --html target/bench/guard.html

# The router, the screening firewall and the monitor on real packets, beside what people
# take today (20 minutes; PROGRAMS_WINDOW_MS=1000 measures longer). Needs root.
PROGRAMS_WINDOW_MS ?= 500
bench-programs: setup
	@mkdir -p target/bench
	$(CARGO) build --release --locked
	for program in forward screen capture; do \
		target/release/plimsoll bench $$program --window-ms $(PROGRAMS_WINDOW_MS) \
			--json target/bench/$$program.json || exit 1; \
	done

# What the user-space stack receives, by receive path, beside the kernel's sockets,
# testpmd, nginx and NSD (twenty minutes). Needs root.
bench-stack: setup
	@mkdir -p target/bench
	$(CARGO) build --release --locked
	target/release/plimsoll bench stack --json target/bench/stack.json

# The 1994 paper's techniques in the stack's path, with and without, in ns (two minutes). bench-core
# measures the others.
TECHNIQUES_CRITERION_DIR = $(CURDIR)/target/bench/criterion-techniques

bench-techniques:
	$(CARGO) bench --locked -p plimsoll-stack --bench techniques --bench report --no-run
	rm -rf $(TECHNIQUES_CRITERION_DIR)
	CRITERION_HOME=$(TECHNIQUES_CRITERION_DIR) $(CARGO) bench --locked -p plimsoll-stack --bench techniques
	$(CARGO) bench --locked -p plimsoll-stack --bench report -- $(TECHNIQUES_CRITERION_DIR) $(CURDIR)/target/bench/techniques.json

# TCP transfers over a wide-area path, with slow start and paced (a quarter of an hour). Needs
# root.
bench-wan: setup
	@mkdir -p target/bench
	$(CARGO) build --release --locked
	target/release/plimsoll bench wan --json target/bench/wan.json

# Whether any set-up that operators have is worse off with the guard (some twenty
# minutes); fails if one is. Needs root. On a veth it fails today: docs/measurements.md
# names the goals of bulk TCP, short connections, a full router and a full gateway
# (masquerade-full) that are missed. A flood that overloads nobody, and by which nothing is missed, is named
# and is no failure. Where throughput counts, a guard that stands by is judged, as on any veth.
no-harm: setup
	@mkdir -p target/bench
	$(CARGO) build --release --locked
	target/release/plimsoll bench no-harm --strict --json target/bench/no-harm.json

# The guard on Debian's kernels in QEMU, with each driver: needs neither root nor
# hardware virtualisation, and an hour. Some of it:
# make vm-test KERNELS=6.12 DRIVERS=vmxnet3 KILLS=100
KERNELS ?= 6.1 6.12 6.12-rt 6.18 7.2 7.3
DRIVERS ?= virtio_net vmxnet3 igb e1000e veth
KILLS ?= 5
VM_LIMIT_SECONDS ?= 360

vm-test:
	@mkdir -p target/bench
	scripts/vm-files $(KERNELS)
	$(CARGO) build --release --locked -p plimsoll-cli -p plimsoll-vm
	target/release/plimsoll-vm --kernels $(KERNELS) --drivers $(DRIVERS) \
		--kills $(KILLS) --limit $(VM_LIMIT_SECONDS) --json target/bench/vm.json

# The papers' figures on this machine's kernel, with real packets (half an hour). Needs
# root.
lab-real: setup
	@mkdir -p target/bench
	$(CARGO) build --release --locked
	target/release/plimsoll lab run real --values --json target/bench/lab-real.json

# Writes the table of all claims with one seed and that of their bounds, which the tests
# compare with: review the difference.
lab-snapshot:
	PLIMSOLL_RENEW_CLAIMS=1 $(CARGO) test --locked -p plimsoll-lab --test it reviewed

# Writes the texts that the commands' golden tests compare with: review the difference.
golden:
	PLIMSOLL_RENEW_GOLDEN=1 $(CARGO) test --locked -p plimsoll-cli --lib golden

# A Debian package under target/debian.
deb:
	@mkdir -p target/debian
	$(CARGO) build --release --locked
	scripts/deb target/release/plimsoll target/debian

clean:
	$(CARGO) clean
