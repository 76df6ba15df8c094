/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * The fast path of TCP: the connections that were looked up a moment ago. A segment inside
 * of the window that such a one had then costs no look-up.
 *
 * A window only moves forward (but for net.ipv4.tcp_shrink_window), so what was inside is of
 * use to the stack, or a late copy. What begins or ends something (SYN, FIN, RST) is always looked up.
 *
 * Limits: should the connection have ended since, its window shrunk, or its backlog be full, at most
 * KNOWN_PACKETS segments of one tick are still taken for its own. The stack refuses them.
 */
#ifndef PLIMSOLL_KNOWN_CONNECTION_H
#define PLIMSOLL_KNOWN_CONNECTION_H

#include "connection.h"

static __always_inline struct known_connection *
known_connection_entry(const struct packet *packet, __u32 ports)
{
	__u32 key = 0, hash = (packet->source.words[3] ^ ports) * 0x9e3779b1;
	struct known_connections *table = bpf_map_lookup_elem(&known_connections, &key);

	/* The highest bits are of all that was multiplied (Knuth 6.4). */
	return table ? &table->entries[hash >> (32 - KNOWN_CONNECTIONS_SHIFT)] : NULL;
}

/* A segment that goes on with a connection: nothing but an ACK, and maybe data. */
static __always_inline bool is_of_middle(const struct tcphdr *tcp)
{
	return tcp->ack && !tcp->syn && !tcp->fin && !tcp->rst;
}

/* Fast path: judges by the window that the connection had a moment ago. */
static __always_inline bool judge_known_connection(const struct packet *packet,
						   const struct tcphdr *tcp,
						   struct verdict *verdict)
{
	struct known_connection *known;

	if (!is_of_middle(tcp))
		return false;
	known = known_connection_entry(packet, ports_of(verdict));
	if (!known || !known->packets_left || known->ports != ports_of(verdict) ||
	    known->tick != bpf_jiffies64() || !same_address(&known->source, &packet->source) ||
	    !same_address(&known->destination, &packet->destination) ||
	    !is_inside(known->window, sequences_of(packet, tcp)))
		return false;
	known->packets_left--;
	verdict->kind = KIND_TCP_CONNECTION;
	verdict->is_established = true;
	return true;
}

static __always_inline void remember_connection(const struct packet *packet,
						const struct outside_use *use,
						const struct verdict *verdict)
{
	struct known_connection *known = known_connection_entry(packet, ports_of(verdict));

	if (!known)
		return;
	known->source = packet->source;
	known->destination = packet->destination;
	known->tick = bpf_jiffies64();
	known->ports = ports_of(verdict);
	known->window = use->window;
	known->packets_left = KNOWN_PACKETS;
}

#endif
