/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Whose a destination address is, as the host had it when the loader last looked. */
#ifndef PLIMSOLL_ADDRESS_H
#define PLIMSOLL_ADDRESS_H

#include "syn_ack.h"
#include "verdict.h"

static __always_inline bool same_address(const struct address *a, const struct address *b)
{
	return a->words[3] == b->words[3] && a->words[2] == b->words[2] &&
	       a->words[1] == b->words[1] && a->words[0] == b->words[0];
}

static __always_inline enum destination destination_class(const struct packet *packet)
{
	__u32 first = bpf_ntohl(packet->destination.words[0]);
	__u32 last = bpf_ntohl(packet->destination.words[3]);
	__u8 *class;

	if (packet->ipv6 ? first >> 24 == 0xff : last >> 28 == 0xe)
		return DESTINATION_MULTICAST;
	if (!packet->ipv6 && last == 0xffffffff)
		return DESTINATION_BROADCAST;
#pragma unroll
	for (int i = 0; i < FREQUENT_ADDRESSES; i++)
		if (same_address(&settings.frequent[i], &packet->destination))
			return DESTINATION_LOCAL;
	class = bpf_map_lookup_elem(&local_addresses, &packet->destination);
	return class ? *class & ADDRESS_CLASS : DESTINATION_FORWARD;
}

/*
 * Whether a bridge hands a frame on to another host, which may have this host's IP address as well
 * (direct server return): it is for none of this host's Ethernet addresses. Of 4,096 other ones one
 * has the hash of one of these, and is taken for it. A function of its own for the stack.
 */
__noinline int is_bridged_on(struct xdp_md *ctx)
{
	__u8 bytes[ETH_ALEN];
	__u32 first, hash;
	__u16 last;

	if (bpf_xdp_load_bytes(ctx, 0, bytes, sizeof(bytes)) || bytes[0] & 1)
		return false;
	__builtin_memcpy(&first, bytes, sizeof(first));
	__builtin_memcpy(&last, bytes + sizeof(first), sizeof(last));
	hash = (first ^ last * ETHERNET_MIXER) * ETHERNET_MIXER >> ETHERNET_SHIFT;
	return !(settings.ethernet[hash / 64 % ETHERNET_WORDS] >> hash % 64 & 1);
}

/* Whether an address is one of the guarded interface itself. */
static __always_inline bool is_of_interface(const struct address *address)
{
	__u8 *local = bpf_map_lookup_elem(&local_addresses, address);

	return local && *local == (DESTINATION_LOCAL | ADDRESS_OF_INTERFACE);
}

/* Whether an IPv6 address is one of the link alone (RFC 4291, 2.5.6). */
static __always_inline bool is_link_local(const struct address *address)
{
	return bpf_ntohl(address->words[0]) >> 22 == 0xfe80 >> 6;
}

/* Whether a packet may come from this source over a wire: not from an address of this host. */
static __always_inline bool is_possible_source(const struct packet *packet)
{
	const struct address *source = &packet->source;

	return can_be_source(source->words, packet->ipv6) &&
	       !bpf_map_lookup_elem(&local_addresses, source);
}

#endif
