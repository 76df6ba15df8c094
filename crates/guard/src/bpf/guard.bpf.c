// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Early demultiplexing and early discard (Druschel & Banga 1996, sections 3
 * and 3.2) for sockets of the Linux stack.
 *
 * Intuition: a packet for a socket that cannot take it should cost as little
 * as possible. XDP runs before anything is allocated; here the destination
 * socket is looked up, the kernel's own socket queue is the channel, and its
 * occupancy is read where the kernel keeps it. Only what fits goes on.
 *
 * Rules: the default is to admit. A UDP socket takes all that fits. Once it was full it
 * discards, for a while, from its high watermark until it has fallen below the low one, but
 * not the packets of sources that have not had their fair share. A listener discards new
 * SYNs while its accept queue is beyond its backlog, and answers them with cookies
 * while its SYN queue is. The last places of a server that is behind, or makes no cookies, are
 * for sources that have not had their share. While input is shed, every channel has its share.
 * Every packet ends in exactly one (kind, outcome) of `totals`.
 *
 * A UDP port without a socket here is closed only if the stack says so itself.
 *
 * Limits: occupancy is read before the packets of the current batch have
 * landed, so watermarks leave room for a batch. Packets for sockets that the
 * look-up cannot see from here (behind NAT, in another namespace, bound to a
 * VLAN device, chosen by a reuseport program) are admitted. Checksums are left
 * to the stack.
 *
 * Here is the way of a frame; each step has its header: parse.h (headers),
 * address.h (whose destination), udp.h with known_socket.h, sharing.h and udp_queue.h,
 * tcp.h with backlog.h, connection.h, known_connection.h, cookie.h and transmit.h (and
 * bpf-build's syn_ack.h and refusals.h), fragment.h, channel.h (a socket's slot and books),
 * fairness.h with source_credit.h and known_source.h (whose packets an overloaded channel takes),
 * observing.h (how full a queue would be), share.h and protection.h (shedding), closed_port.h,
 * readers.h, and translation.h with conntrack.h and hidden.h. verdict.h is what is found out on the
 * way, maps.h what stays between two packets, tick.h the clock, and verifier.h is for the kernel's
 * verifier.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

#include "closed_port.h"
#include "fragment.h"
#include "readers.h"
#include "share.h"
#include "tcp.h"
#include "translation.h"
#include "transmit.h"
#include "udp.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static __always_inline void judge_transport(struct xdp_md *ctx, const struct packet *packet,
					    enum destination destination, struct verdict *verdict)
{
	__u8 icmp = packet->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP;

	if (packet->protocol == IPPROTO_UDP)
		judge_udp(ctx, packet, destination, verdict);
	else if (packet->fragment_part != WHOLE)
		verdict->kind = KIND_FRAGMENT;
	else if (packet->protocol == IPPROTO_TCP)
		judge_tcp(ctx, packet, destination, verdict);
	else if (packet->protocol == icmp)
		verdict->kind = icmp_kind(ctx, packet);
	else
		verdict->kind = KIND_OTHER;
}

static __always_inline void judge_ip(struct xdp_md *ctx, struct packet *packet,
				     enum destination destination, struct verdict *verdict)
{
	if (destination == DESTINATION_LOCAL && settings.bridged && is_bridged_on(ctx))
		destination = DESTINATION_FORWARD;
	if (destination == DESTINATION_FORWARD) {
		verdict->kind = KIND_FORWARD;
		return;
	}
	if (packet->ipv6) {
		if (packet->left == 0 && packet->protocol != IPPROTO_NONE) {
			verdict->kind = KIND_OTHER; /* a jumbogram (RFC 2675) */
			return;
		}
		switch (parse_ipv6_extensions(ctx, packet)) {
		case EXTENSIONS_MALFORMED:
			verdict->kind = KIND_MALFORMED;
			return;
		case EXTENSIONS_OTHER:
			verdict->kind = KIND_OTHER;
			return;
		case EXTENSIONS_DONE:
			break;
		}
	}
	if (packet->fragment_part == LATER_FRAGMENT) {
		judge_later_fragment(packet, verdict);
		return;
	}
	judge_transport(ctx, packet, destination, verdict);
}

static __always_inline void judge_frame(struct xdp_md *ctx, struct packet *packet,
					struct verdict *verdict)
{
	switch (parse_frame(ctx, packet)) {
	case FRAME_MALFORMED:
		verdict->kind = KIND_MALFORMED;
		break;
	case FRAME_NEIGHBOUR:
		verdict->kind = KIND_NEIGHBOUR;
		break;
	case FRAME_IP:
		judge_ip(ctx, packet, destination_class(packet), verdict);
		break;
	default:
		verdict->kind = KIND_OTHER;
	}
}

/*
 * Whether a packet is a flood's: of a socket's channel that is overloaded, and of a
 * source that is neither known nor asks for less than its share.
 */
static __always_inline bool is_of_flood(const struct verdict *verdict)
{
	return verdict->profile && verdict->channel && verdict->kind == KIND_UDP_SOCKET &&
	       !(verdict->profile & (PROFILE_KNOWN | PROFILE_SILENT));
}

/*
 * Whether a packet is for a tunnel that ends in the kernel: as a rule no process waits for it.
 * Without a branch, of each of which the verifier would follow both ways.
 */
static __always_inline __u64 is_tunnelled(const struct packet *packet,
					  const struct verdict *verdict)
{
	__u64 kind = verdict->kind, protocol = packet->protocol;
	__u64 by_protocol = 1 << KIND_OTHER | 1 << KIND_FRAGMENT;

	by_protocol = by_protocol >> (kind & 31) & settings.tunnels >> (protocol & 63) &
		      1 >> (protocol >> 6);
	return (by_protocol & 1) | verdict->tunnelled;
}

static __always_inline void count(struct xdp_md *ctx, const struct packet *packet,
				  const struct verdict *verdict)
{
	/* 64 bits: the verifier loses the bounds of what clang zero-extends. */
	__u64 kind = verdict->kind, outcome = verdict->outcome;
	__u32 key = 0;
	struct totals *counters = bpf_map_lookup_elem(&totals, &key);

	barrier_var(kind);
	barrier_var(outcome);
	if (!counters || kind >= KIND_COUNT || outcome >= OUTCOME_COUNT)
		return;
	counters->packets[kind][outcome]++;
	if (!is_of_flood(verdict))
		counters->company++;
	/* What the connection does not take asks for nothing. */
	if (verdict->is_established && verdict->outcome != OUTCOME_SOCKET_QUEUE)
		counters->established++;
	counters->tunnelled += is_tunnelled(packet, verdict);
	count_leaving(ctx, packet, verdict, counters);
	if (verdict->channel) {
		note_change(verdict->channel, verdict->slot);
		verdict->channel->packets[outcome]++;
		count_judged(verdict);
	}
}

static __always_inline int action(const struct verdict *verdict)
{
	if (verdict->outcome == OUTCOME_ADMITTED)
		return XDP_PASS;
	if (settings.observing) {
		note_spared(verdict);
		return XDP_PASS;
	}
	if (verdict->outcome != OUTCOME_SYN_COOKIE)
		return XDP_DROP;
	return settings.redirects_answers ? bpf_redirect(settings.ifindex, 0) : XDP_TX;
}

SEC("xdp.frags")
int plimsoll_guard(struct xdp_md *ctx)
{
	struct packet packet = {};
	struct verdict verdict = { .kind = KIND_OTHER, .outcome = OUTCOME_ADMITTED };

	judge_frame(ctx, &packet, &verdict);
	leave_to_others(ctx, &packet, &verdict);
	spare_readers(&packet, &verdict);
	if (verdict.kind == KIND_TCP_LISTENER)
		judge_handshake(ctx, &packet, &verdict);
	if ((verdict.outcome == OUTCOME_ADMITTED || verdict.shed) && settings.shedding)
		judge_share(&packet, &verdict);
	if (verdict.outcome == OUTCOME_ADMITTED && verdict.kind == KIND_CLOSED_PORT)
		judge_closed_port(ctx, &packet, &verdict);
	count_returned(&verdict);
	if (packet.fragment_part == FIRST_FRAGMENT)
		remember_first_fragment(&packet, &verdict);
	count(ctx, &packet, &verdict);
	return action(&verdict);
}

/* For the loader, which runs it once: whether connection tracking can be asked. */
SEC("xdp")
int plimsoll_asks_tracking(struct xdp_md *ctx)
{
	return bpf_ksym_exists(bpf_xdp_ct_lookup) && bpf_ksym_exists(bpf_ct_release);
}

/* The kernel throws a packet away. */
SEC("tp_btf/kfree_skb")
int BPF_PROG(plimsoll_refused, struct sk_buff *skb, void *location, enum skb_drop_reason reason)
{
	if (reason == bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_NO_SOCKET))
		note_refused_packet(skb);
	return 0;
}
