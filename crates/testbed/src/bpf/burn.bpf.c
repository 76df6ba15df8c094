// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Spends a known time on each frame and says how much it spent in all: a load in
 * the receive path to try a CPU meter with. See burner.rs.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Loops that no frame needs: some 10 ns each. */
#define ROUNDS_MAX (1 << 22)

__u64 burn_ns;   /* for each frame; 0: every frame passes */
__u64 drops;     /* not 0: every frame is dropped at once instead */
__u64 burned_ns; /* so far */

struct burn {
	__u64 since_ns;
	__u64 spent_ns;
};

static long burn_on(__u64 round, struct burn *burn)
{
	burn->spent_ns = bpf_ktime_get_ns() - burn->since_ns;
	return burn->spent_ns >= burn_ns;
}

SEC("xdp")
int burner(struct xdp_md *ctx)
{
	struct burn burn = {};

	if (drops)
		return XDP_DROP;
	if (!burn_ns)
		return XDP_PASS;
	burn.since_ns = bpf_ktime_get_ns();
	bpf_loop(ROUNDS_MAX, burn_on, &burn, 0);
	__sync_fetch_and_add(&burned_ns, burn.spent_ns);
	return XDP_DROP;
}
