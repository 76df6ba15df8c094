/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * What survives while input is shed, and from whom: protected traffic has one share
 * with a guarantee. A flood may look like protected traffic, so its reasons do not
 * starve each other: each has a quarter of the share for certain, and what the others
 * did not use in the last tick. One connection has a quarter of that, however fast it
 * sends. Neighbour discovery, without which nothing else arrives, has a cap of its own.
 *
 * Limits: a reason that begins to use its quarter may lift the share's sum for one
 * tick. Connections whose keyed hash is the same have one cap.
 */
#ifndef PLIMSOLL_PROTECTION_H
#define PLIMSOLL_PROTECTION_H

#include "channel.h"

/* States in which both sides have shown who they are (RFC 9293, section 3.3.2). */
#define ESTABLISHED_STATES \
	(1 << TCP_ESTABLISHED | 1 << TCP_FIN_WAIT1 | 1 << TCP_FIN_WAIT2 | 1 << TCP_CLOSE_WAIT | \
	 1 << TCP_LAST_ACK | 1 << TCP_CLOSING)

static __always_inline bool is_established(const struct sock_common *sk)
{
	return 1 << (sk->skc_state & 31) & ESTABLISHED_STATES;
}

/* Whether a source is of a protected prefix. A function of its own for the stack. */
__noinline int is_protected_source(const struct packet *packet)
{
	struct prefix source = { .bits = 128 };
	__u8 *is_meant;

	if (!packet)
		return false;
	source.address = packet->source;
	is_meant = bpf_map_lookup_elem(&protected_prefixes, &source);
	return is_meant && *is_meant;
}

/* A connection comes first: new ones to a protected port must not starve it. */
static __always_inline enum protection protection_of(const struct packet *packet,
						     const struct verdict *verdict,
						     const struct allowance *allowance)
{
	__u32 port = bpf_ntohs(verdict->port);
	__u8 protocol = packet->protocol == IPPROTO_TCP ? PROTECTED_TCP : PROTECTED_UDP;
	__u8 *properties;

	if (verdict->is_established && settings.protect_connections)
		return PROTECTION_CONNECTION;
	if (allowance->protected)
		return PROTECTION_PROCESS;
	properties = port ? bpf_map_lookup_elem(&ports, &port) : NULL;
	if (properties && *properties & protocol)
		return PROTECTION_PORT;
	return settings.protect_prefixes && is_protected_source(packet) ? PROTECTION_SOURCE :
									  PROTECTION_NONE;
}

static __always_inline void begin_tick(struct protected_use *use, __u64 tick)
{
	bool is_next = use->tick + 1 == tick;

	if (use->tick == tick)
		return;
	for (int i = 0; i < PROTECTION_COUNT; i++) {
		use->before[i] = is_next ? use->packets[i] : 0;
		use->packets[i] = 0;
	}
	__builtin_memset(use->connections, 0, sizeof(use->connections));
	use->tick = tick;
}

/* Multiplicative, of all words (Knuth 6.4); nobody outside knows the secret. */
static __always_inline __u32 connection_hash(const struct packet *packet, __be16 source_port,
					     __be16 port)
{
	__u64 hash = settings.secret ^ ((__u32)source_port << 16 | port);

	for (int i = 0; i < 4; i++) {
		hash = (hash ^ packet->source.words[i]) * 0x9e3779b97f4a7c15;
		hash ^= hash >> 32;
		hash = (hash ^ packet->destination.words[i]) * 0x9e3779b97f4a7c15;
		hash ^= hash >> 32;
	}
	return hash;
}

/* Whether a connection has sent less than its part of a reason's packets. */
static __always_inline bool take_of_connection(struct protected_use *use,
					       const struct packet *packet,
					       const struct verdict *verdict, __u32 limit)
{
	__u32 hash = connection_hash(packet, verdict->source_port, verdict->port);
	__u16 *packets = &use->connections[hash & (CONNECTION_CAPS - 1)];

	if (*packets >= limit / PROTECTION_PARTS + 1)
		return false;
	(*packets)++;
	return true;
}

/*
 * How many packets a reason may have in a tick, given what the others had in the one
 * before. A function of its own for the verifier.
 */
__noinline int limit_of_reason(struct protected_use *use, __u32 protection, __u32 share,
			       __u64 tick)
{
	__u32 part = share / PROTECTION_PARTS + 1, limit = share;

	if (!use)
		return 0;
	begin_tick(use, tick);
	for (__u32 i = 0; i < PROTECTION_COUNT; i++) {
		__u32 used = use->before[i] < part ? use->before[i] : part;

		if (i != protection)
			limit = limit > used ? limit - used : 0;
	}
	return limit > part ? limit : part;
}

/* Takes one of the `share` packets that protected traffic may have in a tick. */
static __always_inline bool take_protected(const struct packet *packet,
					   const struct verdict *verdict,
					   enum protection protection, __u64 tick, __u32 share)
{
	__u32 key = 0, limit;
	struct protected_use *use = bpf_map_lookup_elem(&protected_uses, &key);

	if (!use || protection >= PROTECTION_COUNT)
		return true;
	limit = limit_of_reason(use, protection, share, tick);
	if (use->packets[protection] >= limit)
		return false;
	if (protection == PROTECTION_CONNECTION &&
	    !take_of_connection(use, packet, verdict, limit))
		return false;
	use->packets[protection]++;
	return true;
}

#endif
