/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * TCP: connections are admitted, a listener takes SYNs while its queues have room.
 * Beyond the SYN queue cookies stand in for it.
 */
#ifndef PLIMSOLL_TCP_H
#define PLIMSOLL_TCP_H

#include "cookie.h"
#include "fairness.h"
#include "protection.h"

/* A new connection request: refused while a queue it needs is at its backlog. */
static __always_inline void judge_syn(const void *listener, struct verdict *verdict)
{
	const struct sock *sk = bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct sock));
	const struct inet_connection_sock *connection =
		bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct inet_connection_sock));
	__u32 backlog = sk->sk_max_ack_backlog;
	__u32 accept_queue = sk->sk_ack_backlog;
	__u32 syn_queue = connection->icsk_accept_queue.qlen.counter;

	/*
	 * The kernel's own conditions: sk_acceptq_is_full, reqsk_queue_is_full.
	 * The latter begins at the backlog or one above, as the release has it.
	 */
	verdict->at_backlog = syn_queue == backlog;
	if (accept_queue > backlog)
		verdict->outcome = OUTCOME_ACCEPT_QUEUE;
	else if (syn_queue >= backlog)
		verdict->outcome = OUTCOME_SYN_QUEUE;
	if (verdict->channel) {
		verdict->channel->discarding =
			verdict->outcome == OUTCOME_ADMITTED  ? DISCARDING_NOTHING :
			verdict->outcome == OUTCOME_SYN_QUEUE ? DISCARDING_SYNS :
								DISCARDING_FULL;
		verdict->channel->occupancy =
			accept_queue > syn_queue ? accept_queue : syn_queue;
		verdict->channel->capacity = backlog;
	}
}

static __always_inline void judge_listener(const void *listener, const struct tcphdr *tcp,
					   struct verdict *verdict)
{
	if (tcp->syn && !tcp->ack && !tcp->rst && !tcp->fin)
		judge_syn(listener, verdict);
	else if (tcp->ack && !tcp->syn && !tcp->rst)
		verdict->ends_handshake = true;
}

/* Whoever has a connection has shown who he is. */
static __always_inline void learn_connected(const struct packet *packet,
					    const struct verdict *verdict)
{
	if (verdict->is_established && !settings.shedding && may_learn())
		learn_source(packet, service_of(packet, verdict), 1);
}

static __always_inline void judge_tcp_socket(struct xdp_md *ctx, const struct packet *packet,
					     const struct tcphdr *tcp, struct verdict *verdict)
{
	struct bpf_sock_tuple tuple;
	struct bpf_sock *found;
	const struct sock_common *sk;
	__u32 size = socket_tuple(packet, tcp->source, tcp->dest, &tuple);

	verdict->port = tcp->dest;
	verdict->source_port = tcp->source;
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
	} else {
		verdict->kind = KIND_TCP_LISTENER;
		find_channel(sk, verdict);
		if (!is_selected_by_program(found, sk))
			judge_listener(found, tcp, verdict);
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

/* A SYN past the listener's SYN queue, and what the stack would do with it. */
static __always_inline enum outcome judge_excess_syn(struct xdp_md *ctx,
						     const struct packet *packet,
						     const struct verdict *verdict)
{
	if (settings.answering == ANSWERING_NOBODY)
		return verdict->at_backlog ? OUTCOME_ADMITTED : OUTCOME_SYN_QUEUE;
	if (settings.answering != ANSWERING_DRIVER || !may_answer(ctx, packet))
		return OUTCOME_ADMITTED;
	/* To make one would tell the listener that it overflows. */
	if (settings.observing)
		return OUTCOME_SYN_COOKIE;
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

/*
 * A listener past its SYN queue: its SYNs are answered with cookies, and the
 * ends of handshakes must carry one. Without it the stack could only refuse.
 */
static __always_inline void judge_handshake(struct xdp_md *ctx, const struct packet *packet,
					    struct verdict *verdict)
{
	if (verdict->outcome == OUTCOME_SYN_QUEUE) {
		verdict->outcome = judge_excess_syn(ctx, packet, verdict);
	} else if (settings.answering && verdict->ends_handshake && verdict->channel &&
		   verdict->channel->discarding == DISCARDING_SYNS) {
		if (has_cookie(ctx, packet->network_offset, packet->transport_offset,
			       packet->ipv6))
			__sync_fetch_and_add(&answers.returned, 1);
		else
			verdict->outcome = OUTCOME_NO_COOKIE;
	}
}

#endif
