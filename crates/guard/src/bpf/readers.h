/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Programs that read packets beside the stack's sockets. A DHCP client, for one, may have a UDP
 * socket only so that the stack sends no errors, and never read it: its queue is full for good, and
 * says nothing of who reads the packets. So while there are such programs a few packets pass
 * that find no room. They take nobody's place, since the stack throws them away when they were read.
 */
#ifndef PLIMSOLL_READERS_H
#define PLIMSOLL_READERS_H

#include "udp_queue.h"

/* Whether one more packet for a slot's socket passes, of which the queue has no room. */
__noinline int passes_for_readers(__u32 slot)
{
	struct channel *channel = slot ? channel_at(slot) : NULL;
	__u32 key = 0, tick = coarse_tick();
	struct totals *counters = bpf_map_lookup_elem(&totals, &key);

	/* Without a channel it was judged by its end. */
	if (channel) {
		struct queue queue = {
			.occupancy = channel->occupancy,
			.capacity = channel->capacity,
			.datagrams = channel->queued,
		};

		if (!has_no_room(&queue))
			return false;
	}
	if (!counters)
		return false;
	if (counters->readers_tick != tick) {
		counters->readers_tick = tick;
		counters->readers_packets = 0;
	}
	if (counters->readers_packets >= READERS_PACKETS)
		return false;
	counters->readers_packets++;
	return true;
}

/* Observed, all passes anyway. */
static __always_inline void spare_readers(const struct packet *packet, struct verdict *verdict)
{
	if (!settings.readers || settings.observing || verdict->kind != KIND_UDP_SOCKET ||
	    verdict->outcome == OUTCOME_ADMITTED || packet->fragment_part == LATER_FRAGMENT)
		return;
	if (passes_for_readers(verdict->slot))
		verdict->outcome = OUTCOME_ADMITTED;
}

#endif
