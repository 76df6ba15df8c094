// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/* Passes every frame: an end of a veth pair with a program takes what the other
 * end's program sends back. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

SEC("xdp.frags")
int pass_all(struct xdp_md *ctx)
{
	return XDP_PASS;
}
