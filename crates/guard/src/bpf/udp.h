/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* UDP: the destination's socket, and whether its queue takes the packet. */
#ifndef PLIMSOLL_UDP_H
#define PLIMSOLL_UDP_H

#include "known_socket.h"

/* A packet that a calm channel takes: its source is being served. */
static __always_inline void learn_served(const struct packet *packet,
					 const struct verdict *verdict)
{
	if (verdict->channel && !verdict->channel->pressed && !settings.shedding && may_learn())
		learn_source(packet, service_of(packet, verdict), 1);
}

static __always_inline void judge_udp_socket(struct xdp_md *ctx, const struct packet *packet,
					     const struct udphdr *udp, struct verdict *verdict)
{
	struct bpf_sock_tuple tuple;
	struct bpf_sock *found;
	const struct sock_common *sk;
	__be16 port = udp->dest;
	__u32 size;

	verdict->kind = KIND_UDP_SOCKET;
	verdict->port = port;
	verdict->source_port = udp->source;
	if (judge_known_socket(packet, port, verdict))
		return;
	size = socket_tuple(packet, udp->source, port, &tuple);
	found = bpf_sk_lookup_udp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found) {
		verdict->kind = KIND_CLOSED_PORT;
		return;
	}
	sk = bpf_rdonly_cast(found, bpf_core_type_id_kernel(struct sock_common));
	find_channel(sk, verdict);
	if (!is_chosen_elsewhere(found, sk)) {
		judge_udp_queue(packet, found, verdict);
		remember_socket(packet, port, sk, verdict);
		learn_served(packet, verdict);
	}
	bpf_sk_release(found);
}

static __always_inline void judge_udp(struct xdp_md *ctx, const struct packet *packet,
				      enum destination destination, struct verdict *verdict)
{
	struct udphdr copy, *udp = header_at(ctx, packet->transport_offset, &copy, sizeof(copy));
	__u32 length;

	if (packet->left < sizeof(*udp) || !udp) {
		verdict->kind = packet->fragment_part == WHOLE ? KIND_MALFORMED : KIND_FRAGMENT;
		return;
	}
	length = bpf_ntohs(udp->len);
	if (length < sizeof(*udp) || udp->dest == 0 ||
	    (packet->fragment_part == WHOLE && length > packet->left)) {
		verdict->kind = KIND_MALFORMED;
		return;
	}
	if (destination != DESTINATION_LOCAL)
		verdict->kind = KIND_MULTICAST;
	else
		judge_udp_socket(ctx, packet, udp, verdict);
}

#endif
