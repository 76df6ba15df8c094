/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * A UDP socket's receive queue as a channel: how full it is, and whether it takes
 * one more packet (feedback with hysteresis).
 */
#ifndef PLIMSOLL_UDP_QUEUE_H
#define PLIMSOLL_UDP_QUEUE_H

#include "fairness.h"
#include "observing.h"

#define NUMA_NODES_MAX 8

/* A socket's queue as found: bytes for UDP, connections for a listener. */
struct queue {
	__u32 occupancy;
	__u32 capacity;
	__u32 datagrams;
};

/*
 * Bytes charged to a UDP socket's receive buffer. What the consumer has taken
 * but not yet given back (forward_deficit) is no longer queued; what producers
 * have left in the per-node queues (Linux 6.18) is not yet in rmem_alloc.
 */
static __always_inline struct queue udp_queue(const struct sock *sk, const struct udp_sock *udp)
{
	struct queue queue = { .capacity = sk->sk_rcvbuf };
	int bytes = sk->sk_backlog.rmem_alloc.counter - udp->forward_deficit;

	if (bpf_core_field_exists(udp->udp_prod_queue)) {
		__u32 type = bpf_core_type_id_kernel(struct udp_prod_queue);
		const struct udp_prod_queue *node = udp->udp_prod_queue;

		for (__u32 i = 0; i < NUMA_NODES_MAX && i < settings.numa_nodes; i++) {
			bytes += node->rmem_alloc.counter;
			/* The kernel's type, not ours, has the size of an element. */
			node = bpf_rdonly_cast((void *)node + bpf_core_type_size(*node), type);
		}
	}
	queue.occupancy = bytes > 0 ? bytes : 0;
	queue.datagrams = sk->sk_receive_queue.qlen + udp->reader_queue.qlen;
	barrier_var(queue.datagrams); /* one number on the stack, not two */
	return queue;
}

static __always_inline __u64 watermark_bytes(const struct queue *queue, __u32 watermark)
{
	return ((__u64)queue->capacity * watermark) >> WATERMARK_WHOLE_SHIFT;
}

/* The occupancy from which on the socket gets no more packets. */
static __always_inline __u64 limit_bytes(const struct queue *queue, __u32 slot, bool discarding)
{
	__u64 high = watermark_bytes(queue, settings.high_watermark);
	__u64 low = watermark_bytes(queue, settings.low_watermark);

	if (settings.delay_targets && is_governed(now_tick())) {
		struct allowance *allowance = bpf_map_lookup_elem(&allowances, &slot);

		if (allowance && allowance->limit_bytes && allowance->limit_bytes < high) {
			low = low * allowance->limit_bytes / (high | 1);
			high = allowance->limit_bytes;
		}
	}
	if (!discarding)
		return high;
	if (low + DRAINED_BYTES_MAX < high)
		return high - DRAINED_BYTES_MAX;
	/* An empty queue is below it, however small the buffer. */
	return low ? low : 1;
}

/* Where the queue stands as fairness among its sources wants to know it. */
static __always_inline enum outcome judge_full_queue(const struct packet *packet,
						     struct verdict *verdict,
						     const struct queue *queue, bool discarding)
{
	struct fair_queue marks = {
		.occupancy = queue->occupancy,
		.high = limit_bytes(queue, verdict->slot, false),
	};

	marks.full = (__u64)marks.high * settings.full_watermark >> WATERMARK_WHOLE_SHIFT;
	return judge_source(packet, verdict, &marks, discarding);
}

/* Whether a datagram of the mean size of those in the queue finds no room any more. */
static __always_inline bool has_no_room(const struct queue *queue)
{
	return queue->occupancy >= queue->capacity ||
	       (__u64)(queue->capacity - queue->occupancy) * queue->datagrams < queue->occupancy;
}

/* Of how much the socket has dropped, as much as `filling` holds; not 0. */
static __always_inline __u8 drops_mark(const struct sock *sk)
{
	return 1 + (__u32)socket_drops(sk) % 255;
}

/* Whether the socket has dropped nothing since its queue rose above the high watermark. */
static __always_inline bool is_filling(struct channel *channel, const struct sock *sk)
{
	__u8 mark = drops_mark(sk);

	if (!channel->filling) {
		channel->filling = mark;
		channel->pressed_tick = coarse_tick();
	}
	return channel->filling == mark;
}

/*
 * Whether the socket gets no more packets, but for those in profile: feedback with
 * hysteresis (Mogul & Ramakrishnan 6.6.1). A queue that was not full lately takes all
 * that fits, as it would without the guard: a burst is no overload. It is full without
 * room for one more, or when the socket drops: the stack counts what the consumer has
 * taken as well, until much of it is given back.
 */
static __always_inline bool is_full(const struct queue *queue, const struct verdict *verdict,
				    const struct sock *sk)
{
	struct channel *channel = verdict->channel;
	bool over = queue->occupancy >=
		    limit_bytes(queue, verdict->slot, channel && channel->discarding);

	if (!channel)
		return over && has_no_room(queue);
	if (queue->occupancy < watermark_bytes(queue, settings.high_watermark)) {
		channel->filling = 0;
		return over;
	}
	return over && (channel->pressed || has_no_room(queue) || !is_filling(channel, sk));
}

/*
 * What this CPU knows of the queue may be of a flood long ago, if its packets came to other
 * CPUs since. A function of its own for the verifier.
 */
__noinline int forget_old_pressure(__u32 slot)
{
	struct channel *channel = channel_at(slot);

	if (channel && coarse_tick() - channel->pressed_tick >= FAIR_CALM_TICKS) {
		channel->discarding = DISCARDING_NOTHING;
		channel->pressed = false;
		channel->filling = 0;
	}
	return 0;
}

static __always_inline enum outcome judge_queue(const struct packet *packet,
						struct verdict *verdict, const struct sock *sk,
						struct queue *queue)
{
	struct channel *channel = verdict->channel;
	bool discard;

	if (channel && (channel->discarding || channel->pressed || channel->filling))
		forget_old_pressure(verdict->slot);
	if (channel && !queue->occupancy)
		note_empty(channel);
	discard = is_full(queue, verdict, sk);
	if (!channel)
		return discard ? OUTCOME_SOCKET_QUEUE : OUTCOME_ADMITTED;
	channel->occupancy = queue->occupancy;
	channel->capacity = queue->capacity;
	channel->queued = queue->datagrams;
	if (discard && settings.observing) {
		queue->occupancy = unobserved_bytes(verdict->slot, queue->occupancy,
						    queue->datagrams, socket_drops(sk));
		discard = is_full(queue, verdict, sk);
	}
	channel->discarding = discard;
	if (!discard && !channel->pressed)
		return OUTCOME_ADMITTED;
	if (settings.fairness)
		return judge_full_queue(packet, verdict, queue, discard);
	stays_pressed(channel, verdict->slot, coarse_tick(), discard);
	return discard ? OUTCOME_SOCKET_QUEUE : OUTCOME_ADMITTED;
}

/* A tunnel takes most of the socket's packets before they reach its queue. */
static __always_inline void spare_tunnel(struct verdict *verdict)
{
	verdict->tunnelled = true;
	if (!verdict->channel)
		return;
	verdict->channel->discarding = DISCARDING_NOTHING;
	verdict->channel->pressed = false;
	verdict->channel->filling = 0;
}

static __always_inline void judge_udp_queue(const struct packet *packet, const void *socket,
					    struct verdict *verdict)
{
	const struct sock *sk = bpf_rdonly_cast(socket, bpf_core_type_id_kernel(struct sock));
	const struct udp_sock *udp =
		bpf_rdonly_cast(socket, bpf_core_type_id_kernel(struct udp_sock));
	struct queue queue;

	if (udp->encap_rcv) {
		spare_tunnel(verdict);
		return;
	}
	queue = udp_queue(sk, udp);
	verdict->outcome = judge_queue(packet, verdict, sk, &queue);
}

#endif
