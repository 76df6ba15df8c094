/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * A listener's queues as channels: whose connections have room in them. The rules, and
 * why they are so, are core::fairness's (`Backlog`); a test shows both the same packets.
 */
#ifndef PLIMSOLL_BACKLOG_H
#define PLIMSOLL_BACKLOG_H

#include "fairness.h"

static __always_inline struct backlog backlog_of(const void *listener)
{
	const struct sock *sk = bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct sock));
	const struct inet_connection_sock *connection =
		bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct inet_connection_sock));

	return (struct backlog){
		.accept_queue = sk->sk_ack_backlog,
		.syn_queue = connection->icsk_accept_queue.qlen.counter,
		.capacity = sk->sk_max_ack_backlog,
	};
}

/*
 * The kernel's own conditions: sk_acceptq_is_full, reqsk_queue_is_full. The latter
 * begins at the backlog or one above, as the release has it.
 */
static __always_inline bool is_accept_queue_full(const struct backlog *backlog)
{
	return backlog->accept_queue > backlog->capacity;
}

static __always_inline bool is_syn_queue_full(const struct backlog *backlog)
{
	return backlog->syn_queue >= backlog->capacity;
}

/* Whether sources are told apart at all. */
static __always_inline bool is_divided(const struct backlog *backlog)
{
	return settings.fairness && backlog->capacity >= BACKLOG_MIN;
}

/* The server accepts more slowly than connections come. */
static __always_inline bool is_behind(const struct backlog *backlog)
{
	return backlog->accept_queue >=
	       backlog->capacity - backlog->capacity / BACKLOG_BEHIND_PARTS;
}

/*
 * A packet finds the server behind. Returns whether it has been for longer than a burst.
 * A function of its own for the stack.
 */
__noinline int is_long_behind(__u32 slot)
{
	struct fair_share *share = bpf_map_lookup_elem(&fair_shares, &slot);
	__u16 tick = coarse_tick();

	if (!share)
		return false;
	if ((__u16)(tick - share->behind_at) >= BACKLOG_BURST_TICKS)
		share->behind_since = tick;
	share->behind_at = tick;
	return (__u16)(tick - share->behind_since) >= BACKLOG_BURST_TICKS;
}

/* What a SYN finds: with a server that is behind, each handshake will want a place. */
static __always_inline __u32 occupancy_for_syn(const struct backlog *backlog)
{
	__u32 sum = backlog->accept_queue + backlog->syn_queue;

	if (is_accept_queue_full(backlog) || is_syn_queue_full(backlog))
		return backlog->capacity + 1;
	if (!is_behind(backlog))
		return backlog->syn_queue;
	return sum < backlog->capacity ? sum : backlog->capacity;
}

/*
 * Judges a packet of a listener, of whose places so many are taken. Returns the outcome,
 * and above its byte the packet's profile. A function of its own for the verifier, and
 * for the stack.
 */
__noinline int judge_divided_places(const struct packet *packet, __u32 slot, __u32 service,
				    __u32 occupancy, __u32 capacity)
{
	struct fair_queue queue = {
		.occupancy = occupancy,
		.high = capacity - capacity / BACKLOG_KEPT_PARTS,
		.full = capacity + 1,
	};
	struct verdict verdict = { .slot = slot, .channel = channel_at(slot) };
	bool discarding = occupancy >= queue.high;
	enum outcome outcome;

	if (!packet || !verdict.channel || (!discarding && !verdict.channel->pressed))
		return OUTCOME_ADMITTED;
	verdict.port = bpf_htons(service);
	if (discarding && !is_known_source(packet, service))
		queue.full -= capacity / BACKLOG_KNOWN_PARTS;
	outcome = judge_source(packet, &verdict, &queue, discarding);
	return outcome | verdict.profile << 8;
}

static __always_inline enum outcome judge_places(const struct packet *packet,
						 struct verdict *verdict, __u32 occupancy)
{
	int judged = judge_divided_places(packet, verdict->slot, service_of(packet, verdict),
					  occupancy, verdict->backlog.capacity);

	verdict->profile = (__u32)judged >> 8;
	return judged & 0xff;
}

#endif
