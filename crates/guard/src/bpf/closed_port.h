/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Closed UDP ports. A flood of one costs the stack far more than its answers are
 * worth, so it is held to what can be answered. But that no socket is found from
 * here does not make a port closed: translation, another namespace or a socket
 * bound to an upper device may take the packet. The evidence is the stack's own:
 * a tracepoint tells of each packet that it threw away for want of a socket, if it came
 * by the guarded interface or one above.
 *
 * Limits: one address's ports have a place each; those of several addresses may
 * share one, and then only one of the two is capped. A flow that conntrack does
 * not know is capped with its port while strangers are nearly all who use that
 * port.
 */
#ifndef PLIMSOLL_CLOSED_PORT_H
#define PLIMSOLL_CLOSED_PORT_H

#include "address.h"
#include "conntrack.h"
#include "hidden.h"
#include "share.h"

#define REVIEW_SHIFT (TICK_SHIFT + REVIEW_TICKS_SHIFT)

/* The place of a destination, whoever has it now. */
static __always_inline struct unclaimed_port *unclaimed_port_entry(const struct address *address,
								   __be16 port)
{
	__u32 hash = address->words[0] ^ address->words[1] ^ address->words[2] ^ address->words[3];
	__u32 index = port ^ (__u16)(hash ^ hash >> 16);

	index &= UNCLAIMED_PORTS - 1;
	return bpf_map_lookup_elem(&unclaimed_ports, &index);
}

static __always_inline bool is_entry_of(const struct unclaimed_port *entry,
					const struct address *address, __be16 port)
{
	return entry->port == port && same_address(&entry->destination, address);
}

/* Whether these are too few refusals for a closed port. */
static __always_inline bool has_takers(const struct unclaimed_port *entry)
{
	return !entry->fresh && entry->refused * 2 < entry->admitted;
}

/*
 * Once in a while: does the stack refuse nearly all that it was given, or hardly
 * half? In between the answer stays. Without a packet there is nothing to learn. A
 * closed port is doubted first: the refusals of the last packets may be still to
 * come, and a few packets show nothing.
 */
static __always_inline void review(struct unclaimed_port *entry, __u32 now)
{
	if (entry->reviewed == now)
		return;
	entry->reviewed = now;
	if (now - entry->refused_at >= REFUSAL_REVIEWS) {
		entry->closed = false;
	} else if (!entry->fresh && entry->admitted &&
		   entry->refused * 8 >= entry->admitted * 7) {
		entry->closed = true;
	} else if (has_takers(entry) && entry->doubted && entry->admitted < DOUBT_PACKETS) {
		return;
	} else if (has_takers(entry) && entry->closed && !entry->doubted) {
		entry->admitted = 0;
		entry->refused = 0;
		entry->doubted = true;
		return;
	} else if (has_takers(entry)) {
		entry->closed = false;
	}
	entry->admitted = 0;
	entry->refused = 0;
	entry->fresh = false;
	entry->doubted = false;
}

/* The stack has thrown a packet away: no socket. */
static __always_inline void note_refusal(const struct address *address, __be16 port)
{
	struct unclaimed_port *entry = unclaimed_port_entry(address, port);
	__u32 now = bpf_ktime_get_ns() >> REVIEW_SHIFT;

	if (!entry)
		return;
	if (!is_entry_of(entry, address, port)) {
		if (entry->port && now - entry->refused_at < 2)
			return;
		__builtin_memset(entry, 0, sizeof(*entry));
		entry->destination = *address;
		entry->reviewed = now;
		entry->fresh = true;
		entry->port = port;
	}
	review(entry, now);
	entry->refused_at = now;
	__sync_fetch_and_add(&entry->refused, 1);
}

/* Whether the guarded interface may have received what comes up by this one. */
static __always_inline bool may_come_from_guarded(const struct net_device *device)
{
	__u32 index = device->ifindex;

	return settings.receiving[index / 64 % RECEIVING_WORDS] >> index % 64 & 1;
}

/* A UDP packet for which the stack found no socket. */
static __always_inline void note_refused_packet(const struct sk_buff *trusted)
{
	const struct sk_buff *skb = bpf_rdonly_cast(trusted, bpf_core_type_id_kernel(struct sk_buff));
	const struct net_device *device = skb->dev;
	const void *network = skb->head + skb->network_header;
	struct address address;
	struct udphdr udp;

	if (!device || !may_come_from_guarded(device) ||
	    device->nd_net.net->ns.inum != settings.namespace_inode)
		return;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_probe_read_kernel(&ip, sizeof(ip), network) || ip.protocol != IPPROTO_UDP)
			return;
		map_ipv4(&address, ip.daddr);
	} else {
		struct ipv6hdr ip;

		/* Behind extension headers: not worth the walk. */
		if (bpf_probe_read_kernel(&ip, sizeof(ip), network) || ip.nexthdr != IPPROTO_UDP)
			return;
		__builtin_memcpy(&address, &ip.daddr, sizeof(address));
	}
	if (!bpf_probe_read_kernel(&udp, sizeof(udp), skb->head + skb->transport_header))
		note_refusal(&address, udp.dest);
}

/* What is for closed ports beyond the bound, but not to be discarded. */
static __always_inline bool is_spared(struct xdp_md *ctx, const struct packet *packet,
				      const struct verdict *verdict)
{
	__u32 slot = SLOT_CLOSED_PORTS;
	struct allowance *allowance = bpf_map_lookup_elem(&allowances, &slot);

	return !allowance || protection_of(packet, verdict, allowance) != PROTECTION_NONE ||
	       may_be_for_hidden(IPPROTO_UDP, bpf_ntohs(verdict->port)) ||
	       (flow_of(ctx, packet, verdict->source_port, verdict->port) & FLOW_TAKEN);
}

/*
 * A UDP packet without a socket, admitted so far: what is for closed ports has
 * one bound for all of them. The same port of TCP may be translated, or be a listener's
 * that is not seen from here: nobody tells of its refusals.
 */
static __always_inline void judge_closed_port(struct xdp_md *ctx, const struct packet *packet,
					      struct verdict *verdict)
{
	struct unclaimed_port *entry = unclaimed_port_entry(&packet->destination, verdict->port);
	__u32 slot = SLOT_CLOSED_PORTS;
	struct channel *channel = channel_at(slot);
	__u64 now_ns, tick;

	/* The stack refuses a datagram once, whatever it came in. */
	if (packet->protocol != IPPROTO_UDP || packet->fragment_part == LATER_FRAGMENT ||
	    !entry || !channel ||
	    !is_entry_of(entry, &packet->destination, verdict->port))
		return;
	now_ns = bpf_ktime_get_ns();
	tick = now_ns >> TICK_SHIFT;
	review(entry, tick >> REVIEW_TICKS_SHIFT);
	if (entry->closed && !settings.readers && is_governed(tick) &&
	    !take_share(channel, share_time(now_ns), CLOSED_PORT_PACKETS) &&
	    !is_spared(ctx, packet, verdict))
		verdict->outcome = OUTCOME_SHARE;
	if (verdict->outcome == OUTCOME_ADMITTED || settings.observing)
		__sync_fetch_and_add(&entry->admitted, 1);
}

#endif
