/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Fragments: later ones go where the first one went. */
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

/* Later fragments share the fate of the first: half a datagram serves nobody. */
static __always_inline void remember_first_fragment(const struct packet *packet,
						    const struct verdict *verdict)
{
	struct fragment_key key;
	struct fragment fragment = {
		.slot = verdict->slot,
		.epoch = settings.epoch,
		.generation = verdict->channel ? verdict->channel->generation : 0,
		.kind = verdict->kind,
		.outcome = verdict->outcome,
	};

	if (verdict->kind == KIND_FRAGMENT || verdict->kind == KIND_MALFORMED)
		return;
	fragment_key(packet, &key);
	bpf_map_update_elem(&fragments, &key, &fragment, BPF_ANY);
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
	slot = first->slot;
	owner = slot ? bpf_map_lookup_elem(&allowances, &slot) : NULL;
	if (owner && owner->generation == first->generation) {
		verdict->channel = owners_channel(slot, owner);
		verdict->slot = slot;
	}
}

#endif
