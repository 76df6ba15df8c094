/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Shares of what is admitted while input is shed. */
#ifndef PLIMSOLL_SHARE_H
#define PLIMSOLL_SHARE_H

#include "channel.h"
#include "tick.h"

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

/* Takes one of the packets that a channel may have in a tick. */
static __always_inline bool take_share(struct channel *channel, __u64 tick, __u32 packets)
{
	if (channel->share_tick != tick) {
		channel->share_tick = tick;
		channel->share_packets = 0;
	}
	if (channel->share_packets >= packets)
		return false;
	channel->share_packets++;
	return true;
}

/*
 * Proportional shares when input must be shed (Mogul & Ramakrishnan, section
 * 7; Druschel & Banga's accounting): each channel gets what the loader found
 * fair, per tick; all protected traffic is one channel with a guarantee.
 */
static __always_inline void judge_share(const struct packet *packet, struct verdict *verdict)
{
	__u32 slot = verdict->slot ? verdict->slot : SLOT_KINDS + verdict->kind;
	__u64 tick = now_tick();
	struct allowance *allowance = bpf_map_lookup_elem(&allowances, &slot);
	struct channel *channel;
	__u32 packets;

	if (!is_governed(tick))
		return;
	if (allowance && is_protected(packet, verdict, allowance)) {
		slot = SLOT_PROTECTED;
		allowance = bpf_map_lookup_elem(&allowances, &slot);
	}
	channel = channel_at(slot);
	if (!allowance || !channel)
		return;
	channel->demand++;
	packets = allowance->share_packets ? allowance->share_packets : settings.share_packets;
	if (!take_share(channel, tick, packets))
		verdict->outcome = OUTCOME_SHARE;
}

#endif
