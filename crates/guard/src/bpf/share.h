/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Shares of what is admitted while input is shed, and of closed ports always. */
#ifndef PLIMSOLL_SHARE_H
#define PLIMSOLL_SHARE_H

#include "channel.h"

static __always_inline bool is_protected(const struct packet *packet,
					 const struct verdict *verdict,
					 const struct allowance *allowance)
{
	__u32 port = bpf_ntohs(verdict->port);
	__u8 protocol = packet->protocol == IPPROTO_TCP ? PROTECTED_TCP : PROTECTED_UDP;
	__u8 *protocols;

	if (verdict->kind == KIND_NEIGHBOUR || allowance->protected ||
	    (verdict->kind == KIND_TCP_CONNECTION && settings.protect_connections))
		return true;
	protocols = port ? bpf_map_lookup_elem(&protected_ports, &port) : NULL;
	if (protocols && *protocols & protocol)
		return true;
	if (settings.protect_prefixes) {
		struct prefix source = { .bits = 128, .address = packet->source };

		return bpf_map_lookup_elem(&protected_prefixes, &source);
	}
	return false;
}

/* A UDP packet that nobody waits for: worth no more than the stack's answer. */
static __always_inline bool is_for_closed_port(const struct packet *packet,
					       const struct verdict *verdict)
{
	return verdict->kind == KIND_CLOSED_PORT && packet->protocol == IPPROTO_UDP;
}

/*
 * Proportional shares when input must be shed (Mogul & Ramakrishnan, section
 * 7; Druschel & Banga's accounting): each channel gets what the loader found
 * fair, per tick; all protected traffic is one channel with a guarantee.
 */
static __always_inline void judge_share(const struct packet *packet, struct verdict *verdict)
{
	__u32 slot = verdict->slot ? verdict->slot : SLOT_KINDS + verdict->kind;
	__u64 tick = bpf_ktime_get_ns() >> SHARE_TICK_SHIFT;
	struct allowance *allowance = bpf_map_lookup_elem(&allowances, &slot);
	struct channel *channel;
	__u32 packets;

	if (allowance && is_protected(packet, verdict, allowance)) {
		if (!settings.shedding)
			return;
		slot = SLOT_PROTECTED;
		allowance = bpf_map_lookup_elem(&allowances, &slot);
	}
	channel = channel_at(slot);
	if (!allowance || !channel)
		return;
	channel->demand++;
	if (channel->share_tick != tick) {
		channel->share_tick = tick;
		channel->share_packets = 0;
	}
	packets = allowance->share_packets ? allowance->share_packets : settings.share_packets;
	if (is_for_closed_port(packet, verdict) &&
	    (!settings.shedding || packets > CLOSED_PORT_PACKETS))
		packets = CLOSED_PORT_PACKETS;
	if (channel->share_packets >= packets)
		verdict->outcome = OUTCOME_SHARE;
	else
		channel->share_packets++;
}

#endif
