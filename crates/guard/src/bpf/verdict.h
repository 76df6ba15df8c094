/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What is found out about one packet, from its first look-up to its count. */
#ifndef PLIMSOLL_VERDICT_H
#define PLIMSOLL_VERDICT_H

#include "guard.h"
#include "maps.h"
#include "parse.h"

/* What is known of a packet when its verdict falls. */
struct verdict {
	struct channel *channel; /* of a socket; NULL: counted in `totals` only */
	__u32 slot; /* of the channel; 0: none */
	__be16 port; /* destination, of UDP and TCP */
	__be16 source_port; /* of UDP and TCP */
	bool is_established; /* of a connection that is past its handshake */
	bool at_backlog; /* a SYN: some kernels still have room; an ACK: the SYN queue is full */
	bool ends_handshake; /* an ACK that no connection and no request knows */
	bool has_cookie; /* such an ACK with a valid cookie */
	bool tunnelled; /* admitted by a UDP socket whose packets a tunnel takes in the kernel */
	bool shed; /* it has found no share, or the first fragment of its datagram has not */
	struct backlog backlog; /* of a listener */
	__u32 profile; /* see fairness.h; 0: not yet asked for */
	enum channel_kind kind;
	enum outcome outcome;
};

/* Both ports in one word. */
static __always_inline __u32 ports_of(const struct verdict *verdict)
{
	return (__u32)verdict->source_port << 16 | verdict->port;
}

#endif
