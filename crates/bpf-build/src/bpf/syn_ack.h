/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * The answer to a SYN from XDP: the frame that brought it is turned into it, and goes back where
 * it came from. Which first sequence number, window and segment it names is the program's that
 * includes this.
 */
#ifndef PLIMSOLL_SYN_ACK_H
#define PLIMSOLL_SYN_ACK_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define TCP_BYTES_MAX 60
#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MSS 2
#define TCP_OPTION_MSS_BYTES 4
#define TCP_OPTIONS_MAX 20 /* looked at: more than any stack sends */
#define HOP_LIMIT_DEFAULT 64

/* What became of a SYN that was to be answered. */
enum answer {
	ANSWER_IMPOSSIBLE, /* the SYN is as it was */
	ANSWER_READY, /* the SYN is its answer now, unless that is only observed */
	ANSWER_SPOILT, /* neither */
};

struct syn_ack {
	struct tcphdr tcp;
	__u8 mss_kind;
	__u8 mss_bytes;
	__be16 mss;
};

/* What the pseudo header has besides the addresses (RFC 9293, section 3.1): protocol, length. */
#define TCP_PSEUDO_SUM bpf_htonl(IPPROTO_TCP + sizeof(struct syn_ack))

/* The headers of a packet to a listener, copied out of the frame. */
struct handshake {
	struct xdp_md *ctx;
	__u32 network; /* offset of the IP header */
	__u32 ipv6;
	union {
		struct iphdr ipv4_header;
		struct ipv6hdr ipv6_header;
	};
	union {
		struct tcphdr tcp;
		__u8 options[TCP_BYTES_MAX];
	};
	__u32 tcp_bytes;
};

static __always_inline bool load_handshake(struct xdp_md *ctx, __u32 network, __u32 transport,
					   __u32 ipv6, struct handshake *handshake)
{
	__u64 bytes;

	handshake->ctx = ctx;
	handshake->network = network;
	handshake->ipv6 = ipv6;
	if (ipv6) {
		if (bpf_xdp_load_bytes(ctx, network, &handshake->ipv6_header,
				       sizeof(handshake->ipv6_header)))
			return false;
	} else if (bpf_xdp_load_bytes(ctx, network, &handshake->ipv4_header,
				      sizeof(handshake->ipv4_header))) {
		return false;
	}
	if (bpf_xdp_load_bytes(ctx, transport, &handshake->tcp, sizeof(handshake->tcp)))
		return false;
	bytes = handshake->tcp.doff * 4;
	if (bytes < sizeof(handshake->tcp) || bytes > TCP_BYTES_MAX)
		return false;
	handshake->tcp_bytes = bytes;
	return !bpf_xdp_load_bytes(ctx, transport, handshake->options, bytes);
}

/* Where in `options` one of this kind and of so many bytes at least is; 0: nowhere. */
static __always_inline __u64 find_option(const struct handshake *syn, __u8 wanted, __u8 least)
{
	__u64 at = sizeof(syn->tcp), bytes;
	__u8 kind;

	for (int i = 0; i < TCP_OPTIONS_MAX; i++) {
		barrier_var(at);
		if (at + 1 >= syn->tcp_bytes || at > TCP_BYTES_MAX - 2)
			return 0;
		kind = syn->options[at];
		bytes = kind == TCP_OPTION_NOP ? 1 : syn->options[at + 1];
		if (kind == wanted)
			return bytes >= least && at + bytes <= syn->tcp_bytes ? at : 0;
		if (kind == TCP_OPTION_END || bytes == 0)
			return 0;
		at += bytes;
	}
	return 0;
}

/*
 * Whether a packet may come from this address over a wire: from none that is nobody's (RFC 6890;
 * the stack's "martians"). IPv4 as ::ffff:a.b.c.d.
 */
static __always_inline bool can_be_source(const __be32 words[4], bool ipv6)
{
	__u32 first = bpf_ntohl(words[0]), last = bpf_ntohl(words[3]);
	bool has_no_prefix = !words[0] && !words[1] && !words[2];

	if (!ipv6)
		return last >> 24 != 0 && last >> 24 != 127 && last >> 28 < 0xe;
	/* Multicast, unspecified, loopback, and IPv4 in disguise. */
	return first >> 24 != 0xff && !(has_no_prefix && last <= 1) &&
	       !(!words[0] && !words[1] && words[2] == bpf_htonl(0xffff));
}

static __always_inline __u16 fold(__s64 sum)
{
	__u32 folded = (__u32)sum;

	folded = (folded & 0xffff) + (folded >> 16);
	folded = (folded & 0xffff) + (folded >> 16);
	return ~folded;
}

static __always_inline void build_syn_ack(const struct handshake *syn, __u32 cookie, __u32 window,
					  __u16 mss, struct syn_ack *answer)
{
	answer->tcp.source = syn->tcp.dest;
	answer->tcp.dest = syn->tcp.source;
	answer->tcp.seq = bpf_htonl(cookie);
	answer->tcp.ack_seq = bpf_htonl(bpf_ntohl(syn->tcp.seq) + 1);
	answer->tcp.doff = sizeof(*answer) / 4;
	answer->tcp.syn = 1;
	answer->tcp.ack = 1;
	answer->tcp.window = bpf_htons(window > 0xffff ? 0xffff : window);
	answer->mss_kind = TCP_OPTION_MSS;
	answer->mss_bytes = TCP_OPTION_MSS_BYTES;
	answer->mss = bpf_htons(mss);
}

/* Swaps the Ethernet addresses; tags and ethertype stay. */
static __always_inline bool store_ethernet(struct xdp_md *ctx)
{
	__u8 addresses[2 * ETH_ALEN], swapped[2 * ETH_ALEN];

	if (bpf_xdp_load_bytes(ctx, 0, addresses, sizeof(addresses)))
		return false;
	__builtin_memcpy(swapped, addresses + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(swapped + ETH_ALEN, addresses, ETH_ALEN);
	return !bpf_xdp_store_bytes(ctx, 0, swapped, sizeof(swapped));
}

static __always_inline bool store_ipv4(const struct handshake *syn, struct syn_ack *answer,
				       __u8 hops)
{
	struct iphdr ip = {
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(sizeof(ip) + sizeof(*answer)),
		.frag_off = bpf_htons(0x4000), /* don't fragment */
		.ttl = hops,
		.protocol = IPPROTO_TCP,
		.saddr = syn->ipv4_header.daddr,
		.daddr = syn->ipv4_header.saddr,
	};
	__s64 sum = bpf_csum_diff(0, 0, &ip.saddr, 2 * sizeof(ip.saddr), TCP_PSEUDO_SUM);

	ip.check = fold(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0));
	answer->tcp.check = fold(bpf_csum_diff(0, 0, (__be32 *)answer, sizeof(*answer), sum));
	return !bpf_xdp_store_bytes(syn->ctx, syn->network, &ip, sizeof(ip)) &&
	       !bpf_xdp_store_bytes(syn->ctx, syn->network + sizeof(ip), answer,
				    sizeof(*answer));
}

static __always_inline bool store_ipv6(const struct handshake *syn, struct syn_ack *answer,
				       __u8 hops)
{
	struct ipv6hdr ip = {
		.version = 6,
		.payload_len = bpf_htons(sizeof(*answer)),
		.nexthdr = IPPROTO_TCP,
		.hop_limit = hops,
		.saddr = syn->ipv6_header.daddr,
		.daddr = syn->ipv6_header.saddr,
	};
	__s64 sum = bpf_csum_diff(0, 0, (__be32 *)&ip.saddr, 2 * sizeof(ip.saddr), TCP_PSEUDO_SUM);

	answer->tcp.check = fold(bpf_csum_diff(0, 0, (__be32 *)answer, sizeof(*answer), sum));
	return !bpf_xdp_store_bytes(syn->ctx, syn->network, &ip, sizeof(ip)) &&
	       !bpf_xdp_store_bytes(syn->ctx, syn->network + sizeof(ip), answer,
				    sizeof(*answer));
}

/* Has the frame of the SYN be its answer. */
static __always_inline enum answer turn_into(struct handshake *syn, struct syn_ack *answer,
					     __u8 hops)
{
	struct xdp_md *ctx = syn->ctx;
	__u32 bytes = syn->network + sizeof(*answer);

	bytes += syn->ipv6 ? sizeof(syn->ipv6_header) : sizeof(syn->ipv4_header);
	if (bpf_xdp_adjust_tail(ctx, (int)(bytes - bpf_xdp_get_buff_len(ctx))))
		return ANSWER_IMPOSSIBLE;
	if (syn->ipv6 ? !store_ipv6(syn, answer, hops) : !store_ipv4(syn, answer, hops))
		return ANSWER_SPOILT;
	return store_ethernet(ctx) ? ANSWER_READY : ANSWER_SPOILT;
}

#endif
