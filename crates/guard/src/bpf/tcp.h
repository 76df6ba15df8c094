/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * TCP: a connection gets what it takes, a listener takes SYNs while its queues have room.
 * Beyond the SYN queue cookies stand in for it.
 */
#ifndef PLIMSOLL_TCP_H
#define PLIMSOLL_TCP_H

#include "backlog.h"
#include "cookie.h"
#include "known_connection.h"
#include "protection.h"

/*
 * The places that are left are divided among sources. Where cookies are made there is
 * nothing to divide of a SYN queue: while it has room, none can be made.
 */
static __always_inline void judge_syn_source(const struct packet *packet,
					     struct verdict *verdict)
{
	const struct backlog *backlog = &verdict->backlog;
	bool behind = is_behind(backlog);
	enum outcome outcome;

	if (!is_divided(backlog) || (!behind && settings.answering != ANSWERING_NOBODY))
		return;
	if (behind && !is_long_behind(verdict->slot) && !verdict->channel->pressed)
		return;
	outcome = judge_places(packet, verdict, occupancy_for_syn(backlog));
	if (outcome != OUTCOME_ADMITTED && verdict->outcome == OUTCOME_ADMITTED)
		verdict->outcome = OUTCOME_SOURCE_SHARE;
}

static __always_inline enum discarding discarding_of(const struct verdict *verdict)
{
	if (is_accept_queue_full(&verdict->backlog))
		return DISCARDING_FULL;
	if (is_syn_queue_full(&verdict->backlog))
		return DISCARDING_SYNS;
	return verdict->channel->pressed ? DISCARDING_SOURCES : DISCARDING_NOTHING;
}

/* A new connection request: refused while a queue it needs is at its backlog. */
static __always_inline void judge_syn(const struct packet *packet, struct verdict *verdict)
{
	const struct backlog *backlog = &verdict->backlog;
	struct channel *channel = verdict->channel;

	verdict->at_backlog = backlog->syn_queue == backlog->capacity;
	if (is_accept_queue_full(backlog))
		verdict->outcome = OUTCOME_ACCEPT_QUEUE;
	else if (is_syn_queue_full(backlog))
		verdict->outcome = OUTCOME_SYN_QUEUE;
	if (!channel)
		return;
	judge_syn_source(packet, verdict);
	channel->discarding = discarding_of(verdict);
	channel->occupancy = backlog->accept_queue > backlog->syn_queue ? backlog->accept_queue :
									  backlog->syn_queue;
	channel->capacity = backlog->capacity;
}

static __always_inline void judge_end_of_handshake(struct verdict *verdict)
{
	verdict->ends_handshake = true;
	verdict->at_backlog = is_syn_queue_full(&verdict->backlog);
}

static __always_inline void judge_listener(const struct packet *packet, const void *listener,
					   const struct tcphdr *tcp, struct verdict *verdict)
{
	verdict->backlog = backlog_of(listener);
	if (tcp->syn && !tcp->ack && !tcp->rst && !tcp->fin)
		judge_syn(packet, verdict);
	else if (tcp->ack && !tcp->syn && !tcp->rst)
		judge_end_of_handshake(verdict);
}

/* Whoever has a connection has shown who he is. */
static __always_inline void learn_connected(const struct packet *packet,
					    const struct verdict *verdict)
{
	if (verdict->is_established && !settings.shedding && may_learn())
		learn_source(packet, service_of(packet, verdict), 1);
}

/* A connection past its handshake, as it was found just now: a full socket. */
static __always_inline void judge_connection(const struct packet *packet, const void *socket,
					     const struct tcphdr *tcp, struct verdict *verdict)
{
	struct sequences segment = sequences_of(packet, tcp);
	__u32 key = 0;
	struct outside_use *use = bpf_map_lookup_elem(&outside_uses, &key);

	if (!use)
		return;
	use->socket = (__u64)(long)socket;
	if (takes_segment(packet, use, ports_of(verdict), segment.begin, segment.end))
		remember_connection(packet, use, verdict);
	else
		verdict->outcome = OUTCOME_SOCKET_QUEUE;
}

static __always_inline void judge_tcp_socket(struct xdp_md *ctx, const struct packet *packet,
					     const struct tcphdr *tcp, struct verdict *verdict)
{
	struct bpf_sock_tuple tuple;
	struct bpf_sock *found;
	const struct sock_common *sk;
	__u32 size;

	verdict->port = tcp->dest;
	verdict->source_port = tcp->source;
	if (judge_known_connection(packet, tcp, verdict))
		return;
	size = socket_tuple(packet, tcp->source, tcp->dest, &tuple);
	found = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found) {
		verdict->kind = KIND_CLOSED_PORT;
		return;
	}
	/* A connection may be a request or time-wait socket: common fields only. */
	sk = bpf_rdonly_cast(found, bpf_core_type_id_kernel(struct sock_common));
	if (sk->skc_state != TCP_LISTEN) {
		verdict->kind = KIND_TCP_CONNECTION;
		verdict->is_established = is_established(sk);
		learn_connected(packet, verdict);
		if (verdict->is_established)
			judge_connection(packet, found, tcp, verdict);
	} else {
		verdict->kind = KIND_TCP_LISTENER;
		find_channel(sk, verdict);
		if (!is_chosen_elsewhere(found, sk))
			judge_listener(packet, found, tcp, verdict);
	}
	bpf_sk_release(found);
}

static __always_inline void judge_tcp(struct xdp_md *ctx, const struct packet *packet,
				      enum destination destination, struct verdict *verdict)
{
	struct tcphdr copy, *tcp = header_at(ctx, packet->transport_offset, &copy, sizeof(copy));

	if (packet->left < sizeof(*tcp) || !tcp || tcp->doff < 5 ||
	    tcp->doff * 4 > packet->left) {
		verdict->kind = KIND_MALFORMED;
		return;
	}
	if (destination != DESTINATION_LOCAL)
		verdict->kind = KIND_OTHER;
	else
		judge_tcp_socket(ctx, packet, tcp, verdict);
}

/*
 * A SYN that finds the SYN queue full, and what the stack would do with it. While the loader is
 * silent, nobody knows what the host allows and whether an answer would arrive.
 */
static __always_inline enum outcome judge_excess_syn(struct xdp_md *ctx,
						     const struct packet *packet,
						     const struct verdict *verdict)
{
	if (!is_governed(now_tick()))
		return OUTCOME_ADMITTED;
	if (settings.answering == ANSWERING_NOBODY)
		return verdict->at_backlog ? OUTCOME_ADMITTED : OUTCOME_SYN_QUEUE;
	if (settings.answering != ANSWERING_DRIVER || !may_answer(ctx, packet))
		return OUTCOME_ADMITTED;
	switch (answer_with_cookie(ctx, packet->network_offset, packet->transport_offset,
				   packet->ipv6)) {
	case ANSWER_READY:
		return OUTCOME_SYN_COOKIE;
	case ANSWER_SPOILT:
		return OUTCOME_SYN_QUEUE;
	default:
		return OUTCOME_ADMITTED;
	}
}

/* The end of a handshake that a cookie began. */
static __always_inline enum outcome judge_cookie(const struct packet *packet,
						 struct verdict *verdict)
{
	const struct backlog *backlog = &verdict->backlog;

	verdict->has_cookie = true;
	if (!is_divided(backlog) || !is_behind(backlog) || !is_long_behind(verdict->slot))
		return OUTCOME_ADMITTED;
	if (judge_places(packet, verdict, backlog->accept_queue) == OUTCOME_ADMITTED)
		return OUTCOME_ADMITTED;
	/* The stack counts what finds no place at all. */
	return is_accept_queue_full(backlog) ? OUTCOME_ADMITTED : OUTCOME_SOURCE_SHARE;
}

/*
 * Whether the look-up from here finds each connection that a segment may be of. One that is bound
 * to a device above this interface (a bridge, a bond, a VLAN, a VRF) is not found, and a listener
 * is found in its place. Connections of link-local peers are bound.
 */
static __always_inline bool sees_connections(const struct packet *packet)
{
	return is_of_interface(&packet->destination) && !settings.enslaved &&
	       !(packet->ipv6 && (is_link_local(&packet->source) ||
				  is_link_local(&packet->destination)));
}

/*
 * A listener past its SYN queue: its SYNs are answered with cookies, and the
 * ends of handshakes must carry one. Without it the stack could only refuse. Cookies come
 * back after the queue has room again as well: then nothing is refused for want of one.
 */
static __always_inline void judge_handshake(struct xdp_md *ctx, const struct packet *packet,
					    struct verdict *verdict)
{
	enum discarding discarding = verdict->channel ? verdict->channel->discarding :
							DISCARDING_NOTHING;

	if (verdict->outcome == OUTCOME_SYN_QUEUE) {
		verdict->outcome = judge_excess_syn(ctx, packet, verdict);
	} else if (settings.answering && verdict->ends_handshake &&
		   discarding >= DISCARDING_SYNS) {
		if (has_cookie(ctx, packet->network_offset, packet->transport_offset,
			       packet->ipv6))
			verdict->outcome = judge_cookie(packet, verdict);
		else if (discarding == DISCARDING_SYNS && verdict->at_backlog &&
			 is_governed(now_tick()) && sees_connections(packet))
			verdict->outcome = OUTCOME_NO_COOKIE;
	}
}

/*
 * An answer has arrived. If the stack gets the handshake's end and does not take it, it has
 * refused it. What is discarded here says nothing of that.
 */
static __always_inline void count_returned(const struct verdict *verdict)
{
	if (!verdict->has_cookie)
		return;
	__sync_fetch_and_add(&answers.returned, 1);
	if (verdict->outcome == OUTCOME_ADMITTED || settings.observing)
		__sync_fetch_and_add(&answers.passed, 1);
}

#endif
