// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * The screen's end in the driver: frames of flows whose verdict is remembered are
 * discarded or sent on here, all others go to the AF_XDP socket of their queue.
 *
 * Intuition: a screen that decides by addresses and ports says the same of each packet
 * of a flow. User space finds out for which flows that is so (screen/memory.rs), and
 * says until when. This program only looks up, so it never decides more than the screen
 * did: what it cannot read as one plain TCP or UDP packet is nobody's flow.
 *
 * Frames that need no decision go to a socket of their own, so that none of them waits
 * behind those that do, or is lost with them.
 *
 * A queue without a socket (the process is gone, or on its way out) leaves its frames to
 * the kernel, or to nobody if the screen fails closed.
 */
#include "frame.h"

#include "classic.h"
#include "screen.h"
#include "sockets.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Verdicts are remembered. */
const volatile __u32 remembers;

/* Nothing passes but by the process. */
const volatile __u32 fails_closed;

/* Unused, but they take the constants into the type information. */
const volatile enum screen_bounds bounds;
const volatile enum plain_ipv4 plain_ipv4;
const volatile enum remembered remembered_verdicts;

/* Verdicts of another generation are forgotten. Never 0 where any are valid. */
__u32 generation;

/* The other interface. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} other SEC(".maps");

/* User space says how many. Which flow is forgotten for a new one: who was not seen for
 * longest. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow);
	__type(value, struct verdict);
} verdicts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* Only these have ports where read_flow reads them. */
static __always_inline bool has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

static __always_inline bool read_ports(const __be16 *ports, const void *end, struct flow *flow)
{
	if ((const void *)(ports + 2) > end)
		return false;
	flow->source_port = ports[0];
	flow->destination_port = ports[1];
	return true;
}

static __always_inline bool read_v4(const struct iphdr *ip, const void *end, struct flow *flow)
{
	if ((const void *)(ip + 1) > end || *(const __u8 *)ip != PLAIN_IPV4 ||
	    ip->frag_off & bpf_htons(FRAGMENT) || !has_ports(ip->protocol))
		return false;
	__builtin_memcpy(flow->source, &ip->saddr, 4);
	__builtin_memcpy(flow->destination, &ip->daddr, 4);
	flow->fragment = ip->frag_off;
	flow->protocol = ip->protocol;
	return read_ports((const void *)(ip + 1), end, flow);
}

static __always_inline bool read_v6(const struct ipv6hdr *ip, const void *end, struct flow *flow)
{
	if ((const void *)(ip + 1) > end || ip->version != 6 || !has_ports(ip->nexthdr))
		return false;
	__builtin_memcpy(flow->source, &ip->saddr, 16);
	__builtin_memcpy(flow->destination, &ip->daddr, 16);
	flow->protocol = ip->nexthdr;
	return read_ports((const void *)(ip + 1), end, flow);
}

/* The same as Flow::of in screen/flow.rs; a test compares them. */
static __always_inline bool read_flow(const struct xdp_md *ctx, struct flow *flow)
{
	const struct ethhdr *ethernet = (void *)(long)ctx->data;
	const void *end = (void *)(long)ctx->data_end;

	if ((const void *)(ethernet + 1) > end)
		return false;
	flow->ethernet_type = ethernet->h_proto;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return read_v4((const void *)(ethernet + 1), end, flow);
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		return read_v6((const void *)(ethernet + 1), end, flow);
	return false;
}

/* The flow's verdict, if one is remembered; 0: none. */
static __always_inline __u32 remembered(const struct xdp_md *ctx)
{
	struct verdict *verdict;
	struct flow flow = {};

	if (!read_flow(ctx, &flow))
		return 0;
	verdict = bpf_map_lookup_elem(&verdicts, &flow);
	if (!verdict || verdict->generation != generation ||
	    bpf_ktime_get_ns() >= verdict->until_ns)
		return 0;
	return verdict->verdict;
}

/* Does as remembered; XDP_PASS: nothing is. */
static __always_inline int enforce(__u32 verdict, struct counters *all)
{
	if (verdict == REMEMBERED_DISCARD) {
		all->discarded++;
		return XDP_DROP;
	}
	if (verdict == REMEMBERED_ACCEPT &&
	    bpf_redirect_map(&other, 0, XDP_PASS) == XDP_REDIRECT) {
		all->redirected++;
		return XDP_REDIRECT;
	}
	return XDP_PASS;
}

SEC("xdp")
int screen(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;
	struct counters *all;
	__u32 key = 0;

	all = bpf_map_lookup_elem(&counters, &key);
	if (!all)
		return XDP_DROP;
	if (!bpf_map_lookup_elem(&sockets, &queue)) {
		all->unserved++;
		all->unserved_queue = queue;
		/* Before what is remembered: a dead process forgets nothing. */
		if (fails_closed)
			return XDP_DROP;
	}
	if (remembers) {
		int action = enforce(remembered(ctx), all);

		if (action != XDP_PASS)
			return action;
	}
	if (accepts(ctx)) {
		all->chosen++;
		if (bpf_redirect_map(&chosen_sockets, queue, XDP_PASS) == XDP_REDIRECT)
			return XDP_REDIRECT;
	}
	return bpf_redirect_map(&sockets, queue, fails_closed ? XDP_DROP : XDP_PASS);
}
