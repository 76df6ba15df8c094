/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Whose a destination address is, as the host had it when the loader last looked. */
#ifndef PLIMSOLL_ADDRESS_H
#define PLIMSOLL_ADDRESS_H

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

/*
 * Whether a packet may come from this source over a wire: not from an address of
 * this host, nor from one that is nobody's (RFC 6890; the stack's "martians").
 */
static __always_inline bool is_possible_source(const struct packet *packet)
{
	const struct address *source = &packet->source;
	__u32 first = bpf_ntohl(source->words[0]), last = bpf_ntohl(source->words[3]);

	if (packet->ipv6) {
		bool has_no_prefix = !source->words[0] && !source->words[1] && !source->words[2];

		/* Multicast, unspecified, loopback, and IPv4 in disguise. */
		if (first >> 24 == 0xff || (has_no_prefix && last <= 1) ||
		    (!source->words[0] && !source->words[1] &&
		     source->words[2] == bpf_htonl(0xffff)))
			return false;
	} else if (last >> 24 == 0 || last >> 24 == 127 || last >> 28 >= 0xe) {
		return false;
	}
	return !bpf_map_lookup_elem(&local_addresses, source);
}

#endif
