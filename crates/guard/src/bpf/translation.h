/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * What translation takes before the socket that was found. A port of this host may be that of a
 * server and of a connection that is masqueraded for a host behind this one; a published port
 * may be that of its proxy as well. How full such a socket is says nothing of what is translated.
 * Nor does it of what is for a socket that is not found from here (`may_be_for_hidden`).
 *
 * So before a packet is discarded for a socket, connection tracking is asked: while there is
 * time for it, and at a port where translated packets were found lately always. A few packets of
 * flows that it does not know pass: if they are translated, it knows the next ones.
 *
 * Limits: a flood of a full socket may take all looks of a tick. Then a translated flow at
 * that port loses packets until one of its own is looked at.
 */
#ifndef PLIMSOLL_TRANSLATION_H
#define PLIMSOLL_TRANSLATION_H

#include "conntrack.h"
#include "hidden.h"

/* Times of evidence: some seconds since boot, and never 0. */
static __always_inline __u16 evidence_time(void)
{
	__u16 now = coarse_tick() >> EVIDENCE_SHIFT;

	return now ? now : 1;
}

static __always_inline bool is_evident(__u16 since)
{
	return since && (__u16)(evidence_time() - since) < EVIDENCE_TIMES;
}

/* Of this CPU's looks of a tick, takes the next one. The first is 1; 0: there are none left. */
static __always_inline __u32 take_look(void)
{
	__u32 key = 0, tick = coarse_tick();
	struct totals *counters = bpf_map_lookup_elem(&totals, &key);

	if (!counters)
		return 0;
	if (counters->flows_tick != tick) {
		counters->flows_tick = tick;
		counters->flows_asked = 0;
	}
	if (counters->flows_asked >= FLOWS_ASKED_MAX)
		return 0;
	return ++counters->flows_asked;
}

/* What a flow that connection tracking does not know is taken for, if it is asked at all. */
enum unknown_flow {
	UNKNOWN_FLOW_NOT_ASKED,
	UNKNOWN_FLOW_FOR_SOCKET,
	UNKNOWN_FLOW_TRANSLATED,
	UNKNOWN_FLOW_FOR_HIDDEN, /* connection tracking need not be asked */
};

/*
 * Whether the flow of a packet for a slot's socket is to be asked for, which the socket refuses
 * or not. Functions of their own, here and below, for the stack.
 */
__noinline int may_ask_for_flow(__u32 slot, __u32 protocol, __u32 port, __u32 is_refused)
{
	struct allowance *evidence = bpf_map_lookup_elem(&allowances, &slot);
	__u32 look;

	if (may_be_for_hidden(protocol, port))
		return UNKNOWN_FLOW_FOR_HIDDEN;
	if (!evidence || !settings.tracking)
		return UNKNOWN_FLOW_NOT_ASKED;
	look = take_look();
	if ((look == 1 && is_refused) || is_evident(evidence->published_at))
		return UNKNOWN_FLOW_TRANSLATED;
	if (look || is_evident(evidence->translated_at))
		return UNKNOWN_FLOW_FOR_SOCKET;
	return UNKNOWN_FLOW_NOT_ASKED;
}

/* What is known of the flow says whether translation takes the packet. */
__noinline int is_translated(__u32 slot, __u32 flow, __u32 unknown)
{
	struct allowance *evidence = bpf_map_lookup_elem(&allowances, &slot);

	if (!(flow & FLOW_KNOWN))
		return unknown == UNKNOWN_FLOW_TRANSLATED;
	if (evidence && flow & FLOW_TRANSLATED)
		evidence->translated_at = evidence_time();
	if (evidence && flow & FLOW_PUBLISHED)
		evidence->published_at = evidence_time();
	return !!(flow & FLOW_TRANSLATED);
}

/* Whether the socket that was found decides, now or by its share, what becomes of a packet. */
static __always_inline bool is_at_risk(const struct verdict *verdict)
{
	return (verdict->kind == KIND_UDP_SOCKET || verdict->kind == KIND_TCP_LISTENER) &&
	       (verdict->outcome != OUTCOME_ADMITTED || verdict->ends_handshake ||
		settings.shedding);
}

/* A packet that another one takes than the socket that was found has no socket here. */
static __always_inline void leave_to_others(struct xdp_md *ctx, const struct packet *packet,
					    struct verdict *verdict)
{
	__u32 unknown, flow;

	if (!(settings.tracking | settings.hiding) || !is_at_risk(verdict))
		return;
	unknown = may_ask_for_flow(verdict->slot, packet->protocol, bpf_ntohs(verdict->port),
				   verdict->outcome != OUTCOME_ADMITTED);
	if (unknown == UNKNOWN_FLOW_NOT_ASKED)
		return;
	if (unknown != UNKNOWN_FLOW_FOR_HIDDEN) {
		flow = flow_of(ctx, packet, verdict->source_port, verdict->port);
		if (!is_translated(verdict->slot, flow, unknown))
			return;
	}
	verdict->kind = KIND_CLOSED_PORT;
	verdict->outcome = OUTCOME_ADMITTED;
	verdict->channel = NULL;
	verdict->slot = SLOT_NONE;
	verdict->profile = 0;
	verdict->ends_handshake = false;
}

#endif
