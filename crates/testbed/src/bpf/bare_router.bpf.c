// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * The least that forwards: asks the kernel's table, rewrites three fields, redirects.
 * As the kernel's own sample (samples/bpf/xdp_fwd_kern.c), and nothing more: no martians,
 * no checksum of the header, no limits, no counters. See bare_router.rs.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define AF_INET6 10
#define FLOWINFO_MASK 0x0fffffff

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Where frames may go, by interface index. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} targets SEC(".maps");

static __always_inline int send(struct ethhdr *ethernet, struct bpf_fib_lookup *fib)
{
	__builtin_memcpy(ethernet->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, fib->smac, ETH_ALEN);
	return bpf_redirect_map(&targets, fib->ifindex, XDP_DROP);
}

static __always_inline int forward_v4(struct xdp_md *ctx, struct ethhdr *ethernet, void *end)
{
	struct bpf_fib_lookup fib = { .family = AF_INET, .ifindex = ctx->ingress_ifindex };
	struct iphdr *ip = (void *)(ethernet + 1);
	__u32 check;

	if ((void *)(ip + 1) > end || ip->ttl <= 1)
		return XDP_PASS;
	fib.tos = ip->tos;
	fib.l4_protocol = ip->protocol;
	fib.tot_len = bpf_ntohs(ip->tot_len);
	fib.ipv4_src = ip->saddr;
	fib.ipv4_dst = ip->daddr;
	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return XDP_PASS;
	/* RFC 1624 for a TTL that is one less. */
	check = ip->check + bpf_htons(0x0100);
	ip->check = check + (check >= 0xffff);
	ip->ttl--;
	return send(ethernet, &fib);
}

static __always_inline int forward_v6(struct xdp_md *ctx, struct ethhdr *ethernet, void *end)
{
	struct bpf_fib_lookup fib = { .family = AF_INET6, .ifindex = ctx->ingress_ifindex };
	struct ipv6hdr *ip = (void *)(ethernet + 1);

	if ((void *)(ip + 1) > end || ip->hop_limit <= 1)
		return XDP_PASS;
	fib.flowinfo = *(__be32 *)ip & bpf_htonl(FLOWINFO_MASK);
	fib.l4_protocol = ip->nexthdr;
	fib.tot_len = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	__builtin_memcpy(fib.ipv6_src, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(fib.ipv6_dst, &ip->daddr, sizeof(ip->daddr));
	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return XDP_PASS;
	ip->hop_limit--;
	return send(ethernet, &fib);
}

SEC("xdp")
int bare_router(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = (void *)(long)ctx->data;

	if ((void *)(ethernet + 1) > end)
		return XDP_DROP;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return forward_v4(ctx, ethernet, end);
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		return forward_v6(ctx, ethernet, end);
	return XDP_PASS;
}
