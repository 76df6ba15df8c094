/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * What the router looks at in an IP packet, and in nothing else: the same as
 * stack/src/forwarding.rs, in the same order.
 */
#ifndef PLIMSOLL_PLAIN_H
#define PLIMSOLL_PLAIN_H

#include "frame.h"

#include "forward.h"

#define DONT_FRAGMENT 0x4000
/* More fragments, and the offset. */
#define FRAGMENT 0x3fff

/* A valid packet that is neither for a group nor special. */
struct plain {
	struct ethhdr *ethernet;
	union {
		struct iphdr *v4;
		struct ipv6hdr *v6;
	};
	bool is_v6;
};

/* The sum over a header without options; 0xffff if it is right. */
static __always_inline __u32 header_sum(const struct iphdr *ip)
{
	const __u16 *words = (const void *)ip;
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline bool is_multicast_v4(__be32 address)
{
	return (address & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000);
}

static __always_inline bool is_loopback_v4(__be32 address)
{
	return (address & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

/* OUTCOME_COUNT: plain. */
static __always_inline __u32 examine_v4(const struct iphdr *ip, const void *end)
{
	__u32 length;

	if ((const void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return OUTCOME_MALFORMED;
	length = bpf_ntohs(ip->tot_len);
	if (length < ip->ihl * 4U || length > end - (const void *)ip)
		return OUTCOME_MALFORMED;
	if (is_multicast_v4(ip->daddr) || ip->daddr == 0xffffffff)
		return OUTCOME_MULTICAST;
	if (ip->ihl > 5)
		return OUTCOME_OPTIONS;
	if (header_sum(ip) != 0xffff)
		return OUTCOME_MALFORMED;
	if (!ip->saddr || ip->saddr == 0xffffffff || is_multicast_v4(ip->saddr) ||
	    is_loopback_v4(ip->saddr) || !ip->daddr || is_loopback_v4(ip->daddr))
		return OUTCOME_MARTIAN;
	return OUTCOME_COUNT;
}

/* :: and ::1. */
static __always_inline bool is_nobody_v6(const struct in6_addr *address)
{
	const __be32 *words = address->in6_u.u6_addr32;

	return !(words[0] | words[1] | words[2]) &&
	       (!words[3] || words[3] == bpf_htonl(1));
}

static __always_inline bool is_link_local_v6(const struct in6_addr *address)
{
	return (address->in6_u.u6_addr32[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

static __always_inline __u32 examine_v6(const struct ipv6hdr *ip, const void *end)
{
	if ((const void *)(ip + 1) > end || ip->version != 6)
		return OUTCOME_MALFORMED;
	if (bpf_ntohs(ip->payload_len) > end - (const void *)(ip + 1))
		return OUTCOME_MALFORMED;
	if (ip->daddr.in6_u.u6_addr8[0] == 0xff)
		return OUTCOME_MULTICAST;
	if (ip->nexthdr == IPPROTO_HOPOPTS)
		return OUTCOME_OPTIONS;
	if (ip->saddr.in6_u.u6_addr8[0] == 0xff || is_nobody_v6(&ip->saddr) ||
	    is_nobody_v6(&ip->daddr))
		return OUTCOME_MARTIAN;
	if (is_link_local_v6(&ip->saddr) || is_link_local_v6(&ip->daddr))
		return OUTCOME_LINK_LOCAL;
	return OUTCOME_COUNT;
}

/* Of the packet, without its Ethernet header. */
static __always_inline __u32 length_of(const struct plain *plain)
{
	return plain->is_v6 ? bpf_ntohs(plain->v6->payload_len) + sizeof(*plain->v6) :
			      bpf_ntohs(plain->v4->tot_len);
}

/* What is too long is cut by the kernel, which answers nothing. */
static __always_inline bool may_be_cut(const struct plain *plain)
{
	return !plain->is_v6 && !(plain->v4->frag_off & bpf_htons(DONT_FRAGMENT));
}

static __always_inline __u8 ttl_of(const struct plain *plain)
{
	return plain->is_v6 ? plain->v6->hop_limit : plain->v4->ttl;
}

/* Protocols whose ports the kernel finds at their beginning (proto_ports_offset). */
static __always_inline bool has_ports(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_SCTP:
	case IPPROTO_DCCP:
	case IPPROTO_ESP:
		return true;
	default:
		return false;
	}
}

/* Source and destination; 0: there are none, or, as in the kernel, it is a fragment. Behind
 * extension headers of IPv6 nobody looks here. */
static __always_inline const __be16 *ports_of(const struct plain *plain, const void *end)
{
	const __be16 *ports;

	if (plain->is_v6) {
		if (!has_ports(plain->v6->nexthdr))
			return 0;
		ports = (const void *)(plain->v6 + 1);
	} else {
		if (!has_ports(plain->v4->protocol) || plain->v4->frag_off & bpf_htons(FRAGMENT))
			return 0;
		ports = (const void *)(plain->v4 + 1);
	}
	return (const void *)(ports + 2) > end ? 0 : ports;
}

#endif
