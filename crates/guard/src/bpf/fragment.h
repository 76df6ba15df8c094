/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Fragments: later ones go where the first one went. While input is shed each of them takes a
 * part of the share that the first one had, by the same port: else a first one that is
 * admitted would let through as many later ones as anybody sends.
 */
#ifndef PLIMSOLL_FRAGMENT_H
#define PLIMSOLL_FRAGMENT_H

#include "channel.h"

static __always_inline void fragment_key(const struct packet *packet, struct fragment_key *key)
{
	key->source = packet->source;
	key->destination = packet->destination;
	key->id = packet->fragment_id;
	/* IPv6 reassembles by addresses and identification alone (RFC 8200, 4.5). */
	key->protocol = packet->ipv6 ? 0 : packet->protocol;
}

/*
 * Later fragments share the fate of the first, once that is certain: half a datagram serves
 * nobody, and takes memory until the rest has come. A function of its own for the verifier.
 */
__noinline int remember_fate(const struct packet *packet, __u32 slot, __u32 generation,
			     __u64 fate)
{
	struct fragment_key key;
	struct fragment fragment = {
		.slot = slot,
		.epoch = settings.epoch,
		.generation = generation,
		.port = fate,
		.kind = fate >> 16,
		.outcome = fate >> 24,
		.tunnelled = fate >> 32,
		.shed = fate >> 40,
		.source_port = fate >> 48,
	};

	if (!packet)
		return 0;
	fragment_key(packet, &key);
	return bpf_map_update_elem(&fragments, &key, &fragment, BPF_ANY);
}

static __always_inline void remember_first_fragment(const struct packet *packet,
						    const struct verdict *verdict)
{
	const struct channel *channel = verdict->channel;
	__u64 kind = verdict->kind;

	if (kind != KIND_UDP_SOCKET && kind != KIND_CLOSED_PORT && kind != KIND_MULTICAST)
		return;
	remember_fate(packet, verdict->slot, channel ? channel->generation : 0,
		      verdict->port | kind << 16 | (__u64)verdict->outcome << 24 |
			      (__u64)verdict->tunnelled << 32 | (__u64)verdict->shed << 40 |
			      (__u64)verdict->source_port << 48);
}

static __always_inline void judge_later_fragment(const struct packet *packet,
						 struct verdict *verdict)
{
	struct fragment_key key;
	struct fragment *first;
	struct allowance *owner;
	__u32 slot;

	verdict->kind = KIND_FRAGMENT;
	fragment_key(packet, &key);
	first = bpf_map_lookup_elem(&fragments, &key);
	if (!first || settings.epoch - first->epoch >= FRAGMENT_LIFETIME_S)
		return;
	verdict->kind = first->kind;
	verdict->outcome = first->outcome;
	verdict->port = first->port;
	verdict->source_port = first->source_port;
	verdict->tunnelled = first->tunnelled;
	verdict->shed = first->shed;
	slot = first->slot;
	owner = slot ? bpf_map_lookup_elem(&allowances, &slot) : NULL;
	if (owner && owner->generation == first->generation) {
		verdict->channel = owners_channel(slot, owner);
		verdict->slot = slot;
	}
}

#endif
