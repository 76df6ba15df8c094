/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Addresses as steer.bpf.c's tables have them, and whose they are. */
#ifndef PLIMSOLL_STEER_ADDRESS_H
#define PLIMSOLL_STEER_ADDRESS_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "steer.h"

static __always_inline void map_ipv4(struct address *address, __be32 ipv4)
{
	__builtin_memset(address, 0, 10);
	address->bytes[10] = 0xff;
	address->bytes[11] = 0xff;
	__builtin_memcpy(&address->bytes[12], &ipv4, sizeof(ipv4));
}

static __always_inline int is_ipv4(const struct address *address)
{
	__be32 words[3];

	__builtin_memcpy(words, address->bytes, sizeof(words));
	return !words[0] && !words[1] && words[2] == bpf_htonl(0xffff);
}

/* To enum possession. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ADDRESSES_MAX);
	__type(key, struct address);
	__type(value, __u8);
} addresses SEC(".maps");

static __always_inline __u8 possession_of(const struct address *address)
{
	__u8 *possession = bpf_map_lookup_elem(&addresses, address);

	return possession ? *possession : NOT_OURS;
}

#endif
