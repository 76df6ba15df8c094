/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * SYNs for a listener that has given all its own answers are answered here, with the cookie that
 * it would give (tcp/cookie.rs): whoever brings it back is connected, and nothing is kept before.
 *
 * An answer is as the stack's, but for a SYN whose options contradict themselves. It is given to a
 * frame for this interface's Ethernet address and from an address that can be another host's, while
 * answers are seen to arrive (device/xdp/answering.rs).
 *
 * Limits: nobody looks at a SYN's checksum. Where it is wrong the client gets an answer to what it
 * did not say, and resets that.
 */
#ifndef PLIMSOLL_STEER_ANSWER_H
#define PLIMSOLL_STEER_ANSWER_H

#include "address.h"
#include "answers.h"
#include "cookie.h"
#include "strays.h"
#include "syn_ack.h"

/* What a SYN without a word about it takes (RFC 9293, 3.7.1). */
#define SEGMENT_IPV4 536
#define SEGMENT_IPV6 1220

/* Whether a SYN that the listener does not take is answered now. */
static __always_inline int answers_syns(void)
{
	__u32 place = ANSWERS_WANTED;
	__u64 *wanted = bpf_map_lookup_elem(&answers, &place);

	return wanted && *wanted && stray_passes(ANSWERED);
}

/* The largest segment that a SYN's sender takes. */
static __always_inline __u16 segment_of(const struct handshake *syn)
{
	__u64 at = find_option(syn, TCP_OPTION_MSS, TCP_OPTION_MSS_BYTES);

	if (at < sizeof(syn->tcp) || at > TCP_BYTES_MAX - TCP_OPTION_MSS_BYTES)
		return syn->ipv6 ? SEGMENT_IPV6 : SEGMENT_IPV4;
	return syn->options[at + 2] << 8 | syn->options[at + 3];
}

/* Whoever takes less than the least must take that. */
static __always_inline __u32 class_of(__u16 segment)
{
	return (segment >= COOKIE_SEGMENT_1) + (segment >= COOKIE_SEGMENT_2) +
	       (segment >= COOKIE_SEGMENT_3) + (segment >= COOKIE_SEGMENT_4) +
	       (segment >= COOKIE_SEGMENT_5) + (segment >= COOKIE_SEGMENT_6) +
	       (segment >= COOKIE_SEGMENT_7);
}

/* Whether the packet is as long as its headers say, and none of those that nobody answers. */
static __always_inline bool is_answerable(const struct handshake *syn, __u32 ip_bytes,
					  const struct asked *asked,
					  const volatile struct told *told)
{
	__u32 bytes = syn->ipv6 ? bpf_ntohs(syn->ipv6_header.payload_len) + ip_bytes :
				  bpf_ntohs(syn->ipv4_header.tot_len);
	__be32 words[4];
	__u8 to[ETH_ALEN];

	__builtin_memcpy(words, &asked->ends.remote, sizeof(words));
	if (bytes < ip_bytes + syn->tcp_bytes || syn->tcp.rst || syn->tcp.fin ||
	    !syn->tcp.source || !can_be_source(words, syn->ipv6) ||
	    possession_of(&asked->ends.remote) != NOT_OURS ||
	    bpf_xdp_load_bytes(syn->ctx, 0, to, sizeof(to)))
		return false;
	for (int i = 0; i < ETH_ALEN; i++)
		if (to[i] != told->mac[i])
			return false;
	return true;
}

static __always_inline void ask(const struct handshake *syn, struct asked *asked)
{
	if (syn->ipv6) {
		__builtin_memcpy(&asked->ends.local, &syn->ipv6_header.daddr, 16);
		__builtin_memcpy(&asked->ends.remote, &syn->ipv6_header.saddr, 16);
	} else {
		map_ipv4(&asked->ends.local, syn->ipv4_header.daddr);
		map_ipv4(&asked->ends.remote, syn->ipv4_header.saddr);
	}
	asked->ends.local_port = syn->tcp.dest;
	asked->ends.remote_port = syn->tcp.source;
	asked->sequence = syn->tcp.seq;
}

/* Has the frame of a SYN be its answer, if it is to have one. */
static __noinline enum answer answer_syn(struct xdp_md *ctx, __u32 network,
					 const volatile struct told *told)
{
	struct handshake syn = {};
	struct syn_ack answer = {};
	struct asked asked;
	__u32 ip_bytes, told_in, cookie;
	enum answer became;
	__u8 first, ipv6;

	if (bpf_xdp_load_bytes(ctx, network, &first, sizeof(first)))
		return ANSWER_IMPOSSIBLE;
	ipv6 = first >> 4 == 6;
	ip_bytes = ipv6 ? sizeof(struct ipv6hdr) : (first & 0xf) * 4;
	if (!load_handshake(ctx, network, network + ip_bytes, ipv6, &syn))
		return ANSWER_IMPOSSIBLE;
	ask(&syn, &asked);
	if (!is_answerable(&syn, ip_bytes, &asked, told))
		return ANSWER_IMPOSSIBLE;
	told_in = cookie_unit() << COOKIE_CLASS_BITS | class_of(segment_of(&syn));
	cookie = told_in << COOKIE_HASH_BITS | cookie_tag(told, &asked, told_in);
	build_syn_ack(&syn, cookie, told->window, told->segments[ipv6], &answer);
	became = turn_into(&syn, &answer, HOP_LIMIT_DEFAULT);
	/* The driver does not lengthen frames: of the next ones neither. */
	if (became == ANSWER_IMPOSSIBLE)
		refuse_answers(1);
	return became;
}

#endif
