/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Shares of what is admitted while input is shed. */
#ifndef PLIMSOLL_SHARE_H
#define PLIMSOLL_SHARE_H

#include "protection.h"
#include "tick.h"

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
	enum protection protection = PROTECTION_NONE;
	struct channel *channel;
	__u32 packets;
	bool fits;

	if (!is_governed(tick))
		return;
	if (allowance)
		protection = protection_of(packet, verdict, allowance);
	if (protection != PROTECTION_NONE) {
		slot = SLOT_PROTECTED;
		allowance = bpf_map_lookup_elem(&allowances, &slot);
	}
	channel = channel_at(slot);
	if (!allowance || !channel)
		return;
	channel->demand++;
	packets = allowance->share_packets ? allowance->share_packets : settings.share_packets;
	if (verdict->kind == KIND_NEIGHBOUR)
		fits = take_share(channel, tick, NEIGHBOUR_PACKETS);
	else if (protection != PROTECTION_NONE)
		fits = take_protected(packet, verdict, protection, tick, packets);
	else
		fits = take_share(channel, tick, packets);
	if (!fits)
		verdict->outcome = OUTCOME_SHARE;
}

#endif
