/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * The fast path: the socket that a destination had a moment ago. A full one costs
 * no look-up and no read of its queue.
 */
#ifndef PLIMSOLL_KNOWN_SOCKET_H
#define PLIMSOLL_KNOWN_SOCKET_H

#include "address.h"
#include "sharing.h"

static __always_inline struct known_socket *known_socket_entry(const struct packet *packet,
							       __be16 port)
{
	__u32 key = 0;
	struct known_sockets *table = bpf_map_lookup_elem(&known_sockets, &key);
	__u32 index = packet->destination.words[3] ^ port ^ (port >> 8);

	index ^= index >> 24;
	return table ? &table->entries[index & (KNOWN_SOCKETS - 1)] : NULL;
}

/* Whether the socket's queue has room for nobody, or for packets in profile only. */
static __always_inline bool is_discarding(const struct verdict *verdict)
{
	return verdict->channel ? verdict->channel->discarding :
				  verdict->outcome != OUTCOME_ADMITTED;
}

/*
 * A packet for a full queue: whether it is worth a look at the queue, since its source
 * has not yet had its share.
 */
static __always_inline bool judge_source_first(const struct packet *packet, __u32 tick,
					       struct verdict *verdict)
{
	if (!settings.fairness || !verdict->channel) {
		verdict->outcome = OUTCOME_SOCKET_QUEUE;
		return false;
	}
	verdict->profile = take_profile(packet, verdict->channel, verdict->slot,
					service_of(packet, verdict), tick);
	if (is_in_profile(verdict->profile))
		return true;
	verdict->outcome = OUTCOME_SOURCE_SHARE;
	return false;
}

/*
 * Fast path: judges by the socket that the destination had a moment ago.
 * Reads through the address are fault-safe. Should the socket have closed
 * since, at most KNOWN_PACKETS packets of one tick are judged by what its
 * memory holds now.
 */
static __always_inline bool judge_known_socket(const struct packet *packet, __be16 port,
					       struct verdict *verdict)
{
	struct known_socket *known = known_socket_entry(packet, port);

	if (!known || !known->packets_left || known->port != port ||
	    known->jiffies != bpf_jiffies64() ||
	    !same_address(&known->destination, &packet->destination))
		return false;
	known->packets_left--;
	verdict->slot = known->slot;
	verdict->channel = channel_at(verdict->slot);
	if (known->full && !judge_source_first(packet, known->tick, verdict))
		return true;
	/* Which member a group's packet is for, only a look-up tells. */
	if (known->shared)
		return false;
	judge_udp_queue(packet, (void *)known->socket, verdict);
	known->full = is_discarding(verdict);
	return true;
}

/*
 * Remembers a destination's socket, if the destination alone tells whether the
 * next packet is taken.
 */
static __always_inline void remember_socket(const struct packet *packet, __be16 port,
					    const struct sock_common *sk,
					    const struct verdict *verdict)
{
	bool full = is_discarding(verdict);
	struct known_socket *known;
	enum sharing sharing;

	if (!verdict->slot)
		return;
	sharing = sharing_of(sk, verdict->slot, full);
	if (sharing == SHARING_UNKNOWN)
		return;
	known = known_socket_entry(packet, port);
	if (!known)
		return;
	known->destination = packet->destination;
	known->jiffies = bpf_jiffies64();
	known->tick = coarse_tick();
	known->socket = (__u64)(long)sk;
	known->slot = verdict->slot;
	known->port = port;
	known->packets_left = KNOWN_PACKETS;
	known->full = full;
	known->shared = sharing == SHARING_FULL_GROUP;
}

#endif
