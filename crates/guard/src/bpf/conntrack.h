/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * What connection tracking knows of a packet for which no socket is found: whether somebody
 * takes it, and whether it goes on to another host. A flood's packets are tracked as well,
 * but nobody answers them, and they stay here.
 *
 * Limits: the first packet of a flow is not known yet. The kernel's connection tracking must
 * be there when the program is loaded.
 */
#ifndef PLIMSOLL_CONNTRACK_H
#define PLIMSOLL_CONNTRACK_H

#include "channel.h"

/* Bits of what is known of a flow. */
#define FLOW_TAKEN 1 /* translated, or answered before */
#define FLOW_LEAVES 2 /* its packets this way are for another host */
#define FLOW_TRANSLATED 4
#define FLOW_KNOWN 8
#define FLOW_PUBLISHED 16 /* this way it goes on to another address than it was sent to */

/* The first 12 bytes of the kernel's, which every release takes. */
struct bpf_ct_opts___plimsoll {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

/* Without connection tracking in the kernel these are not there. */
extern struct nf_conn *bpf_xdp_ct_lookup(struct xdp_md *ctx, struct bpf_sock_tuple *tuple,
					 __u32 tuple_bytes, struct bpf_ct_opts___plimsoll *options,
					 __u32 options_bytes) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *connection) __ksym __weak;

/*
 * Whether a flow's packets this way end at none of this host's addresses: who would answer
 * them has another one. A port that is only redirected to a process here does not leave.
 */
static __always_inline bool leaves(const struct nf_conn *connection, bool is_reply, bool ipv6)
{
	struct address end = {};
	const void *place = is_reply ? &connection->tuplehash[0].tuple.src.u3 :
				       &connection->tuplehash[1].tuple.src.u3;

	if (bpf_probe_read_kernel(&end, sizeof(end), place))
		return false;
	if (!ipv6)
		map_ipv4(&end, end.words[0]);
	return !bpf_map_lookup_elem(&local_addresses, &end);
}

/* What is known of a packet's flow. A function of its own for the verifier. */
__noinline int flow_of(struct xdp_md *ctx, const struct packet *packet, __u32 source_port,
		       __u32 port)
{
	struct bpf_ct_opts___plimsoll options = { .netns_id = BPF_F_CURRENT_NETNS };
	struct bpf_sock_tuple tuple;
	struct nf_conn *connection;
	int known = FLOW_KNOWN;
	__u32 bytes;

	if (!packet || !bpf_ksym_exists(bpf_xdp_ct_lookup) || !bpf_ksym_exists(bpf_ct_release))
		return 0;
	options.l4proto = packet->protocol;
	bytes = socket_tuple(packet, source_port, port, &tuple);
	connection = bpf_xdp_ct_lookup(ctx, &tuple, bytes, &options, sizeof(options));
	if (!connection)
		return 0;
	if (connection->status & (IPS_SRC_NAT | IPS_DST_NAT))
		known |= FLOW_TAKEN | FLOW_TRANSLATED;
	if (connection->status & IPS_DST_NAT && !options.dir)
		known |= FLOW_PUBLISHED;
	if (connection->status & IPS_SEEN_REPLY)
		known |= FLOW_TAKEN;
	if (leaves(connection, options.dir, packet->ipv6))
		known |= FLOW_LEAVES;
	bpf_ct_release(connection);
	return known;
}

/*
 * Counts packets that look like the host's own and go on to other hosts, or may, by one of each
 * FLOW_PARTS, and which one is left to chance: so no sender can have his own looked at.
 */
static __always_inline void count_leaving(struct xdp_md *ctx, const struct packet *packet,
					  const struct verdict *verdict, struct totals *counters)
{
	__u32 place;

	if (verdict->kind != KIND_CLOSED_PORT)
		return;
	place = counters->unclaimed++ % FLOW_PARTS;
	if (place == counters->looked_at &&
	    (settings.hiding & MAY_LEAVE ||
	     flow_of(ctx, packet, verdict->source_port, verdict->port) & FLOW_LEAVES))
		counters->translated += FLOW_PARTS;
	if (place == FLOW_PARTS - 1)
		counters->looked_at = bpf_get_prandom_u32() % FLOW_PARTS;
}

#endif
