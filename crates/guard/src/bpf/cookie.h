/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * SYN cookies (RFC 4987, section 3.6) from XDP: a listener past its backlog is
 * answered for, and no memory is spent until the client has shown that its
 * address is its own. The cookie is the kernel's own, so the stack accepts the
 * handshake's end as if it had sent the cookie itself.
 *
 * An answer goes out only where it is known to arrive: for an address of the guarded
 * interface and its own hardware address (a VLAN device's packets may have lost their
 * tag before they came here), to a source that can be one, and while the loader sees
 * that answers arrive (core::answering). Elsewhere the stack makes its own cookies.
 *
 * A listener with keys for signed segments is the stack's: it alone can sign. So is a SYN of
 * Multipath TCP, which the stack's cookies keep, and one that has passed more routers than the
 * listener allows, which the stack throws away.
 *
 * Limits: the answer carries only the MSS option. Window scale, SACK and
 * timestamps would have to be hidden in a timestamp whose offset only the
 * stack knows; a client that connects during a flood does without them.
 *
 * bpf_tcp_gen_syncookie (Linux 5.3) rather than the raw helpers (6.0): it marks
 * the listener as overflowed, without which the stack takes no cookie unless
 * net.ipv4.tcp_syncookies is 2. It refuses when cookies are switched off (0).
 */
#ifndef PLIMSOLL_COOKIE_H
#define PLIMSOLL_COOKIE_H

#include "kernel.h"
#include "parse.h"

#include "address.h"
#include "syn_ack.h"

#define TCP_OPTION_MPTCP 30

/* The listener the packet is for; NULL, or a reference to be released. */
static __always_inline struct bpf_sock *find_listener(const struct handshake *handshake)
{
	struct bpf_sock_tuple tuple;
	struct bpf_sock *found;
	const struct sock_common *sk;
	__u32 size = sizeof(tuple.ipv4);

	if (handshake->ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, &handshake->ipv6_header.saddr, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &handshake->ipv6_header.daddr, 16);
		tuple.ipv6.sport = handshake->tcp.source;
		tuple.ipv6.dport = handshake->tcp.dest;
		size = sizeof(tuple.ipv6);
	} else {
		tuple.ipv4.saddr = handshake->ipv4_header.saddr;
		tuple.ipv4.daddr = handshake->ipv4_header.daddr;
		tuple.ipv4.sport = handshake->tcp.source;
		tuple.ipv4.dport = handshake->tcp.dest;
	}
	found = bpf_skc_lookup_tcp(handshake->ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return NULL;
	sk = bpf_rdonly_cast(found, bpf_core_type_id_kernel(struct sock_common));
	if (sk->skc_state == TCP_LISTEN)
		return found;
	bpf_sk_release(found);
	return NULL;
}

static __always_inline __u16 mss_of_interface(bool ipv6)
{
	return ipv6 ? settings.mss_ipv6 : settings.mss_ipv4;
}

/*
 * The largest segment that this host takes (RFC 9293, section 3.7.1): of the link and its
 * routes, or what the server asked for (TCP_MAXSEG). The MSS in the cookie is the client's.
 */
static __always_inline __u16 mss_of(const struct bpf_sock *listener, bool ipv6)
{
	const struct tcp_sock *tcp =
		bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct tcp_sock));
	__u16 mss = mss_of_interface(ipv6), wanted = tcp->rx_opt.user_mss;

	return wanted && wanted < mss ? wanted : mss;
}

/*
 * How many routers the answer may pass: as the server or, of IPv4, the host says. A neighbour
 * with TTL security takes what began at 255 and nothing else (RFC 5082).
 */
static __always_inline __u8 hops_of(const struct bpf_sock *listener, bool ipv6)
{
	const struct inet_sock *inet =
		bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct inet_sock));
	const struct sock_common *sk =
		bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct sock_common));
	__s64 hops = -1;

	if (!ipv6) {
		hops = inet->uc_ttl;
		return hops < 0 ? sk->skc_net.net->ipv4.sysctl_ip_default_ttl : hops;
	}
	if (bpf_core_field_exists(inet->pinet6))
		hops = (__s64)BPF_CORE_READ_BITFIELD(inet->pinet6, hop_limit);
	return hops < 0 ? HOP_LIMIT_DEFAULT : hops;
}

static __always_inline __s64 cookie_for(struct bpf_sock *listener, struct handshake *syn)
{
	__u64 tcp_bytes = syn->tcp_bytes;

	/* Once more, and in two calls: the verifier wants to know each size. */
	barrier_var(tcp_bytes);
	if (tcp_bytes < sizeof(syn->tcp) || tcp_bytes > TCP_BYTES_MAX)
		return -1;
	if (syn->ipv6)
		return bpf_tcp_gen_syncookie(listener, &syn->ipv6_header, sizeof(syn->ipv6_header),
					     &syn->tcp, tcp_bytes);
	return bpf_tcp_gen_syncookie(listener, &syn->ipv4_header, sizeof(syn->ipv4_header),
				     &syn->tcp, tcp_bytes);
}

/* Whether a peer may take signed segments only (RFC 2385, RFC 5925), which ours are not. */
static __always_inline bool has_keys(const struct bpf_sock *listener)
{
	const struct tcp_sock *tcp =
		bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct tcp_sock));

	if (bpf_core_field_exists(tcp->md5sig_info) && tcp->md5sig_info)
		return true;
	return bpf_core_field_exists(tcp->ao_info) && tcp->ao_info;
}

/* Whether the SYN has passed more routers than the listener allows (RFC 5082). */
static __always_inline bool is_too_far(const struct bpf_sock *listener,
				       const struct handshake *syn)
{
	const struct inet_sock *inet =
		bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct inet_sock));

	if (!syn->ipv6)
		return syn->ipv4_header.ttl < inet->min_ttl;
	return bpf_core_field_exists(inet->pinet6) &&
	       syn->ipv6_header.hop_limit < inet->pinet6->min_hopcount;
}

/* Whether the stack has to treat the SYN, whatever comes of it. */
static __always_inline bool is_for_stack(const struct bpf_sock *listener,
					 const struct handshake *syn)
{
	const struct tcp_sock *tcp =
		bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct tcp_sock));

	if (has_keys(listener) || is_too_far(listener, syn))
		return true;
	return bpf_core_field_exists(tcp->is_mptcp) && tcp->is_mptcp &&
	       find_option(syn, TCP_OPTION_MPTCP, 0);
}

/* Whether an answer would arrive, as far as the SYN itself can tell. */
static __always_inline bool may_answer(struct xdp_md *ctx, const struct packet *packet)
{
	__u8 mac[ETH_ALEN];

	if (!mss_of_interface(packet->ipv6) || bpf_xdp_load_bytes(ctx, 0, mac, sizeof(mac)))
		return false;
	for (int i = 0; i < ETH_ALEN; i++)
		if (mac[i] != settings.mac[i])
			return false;
	return is_of_interface(&packet->destination) && is_possible_source(packet);
}

/*
 * Turns the SYN into its answer, to be sent back where it came from: enum answer. One that is
 * only observed stays as it is.
 *
 * A function of its own for the verifier, which checks it once and not for
 * every way that leads here.
 */
__noinline int answer_with_cookie(struct xdp_md *ctx, __u32 network, __u32 transport, __u32 ipv6)
{
	struct handshake syn = {};
	struct syn_ack answer = {};
	struct bpf_sock *listener;
	const struct sock *sk;
	__s64 cookie;
	__u32 window;
	__u16 mss;
	__u8 hops;

	if (!load_handshake(ctx, network, transport, ipv6, &syn))
		return ANSWER_IMPOSSIBLE;
	listener = find_listener(&syn);
	if (!listener)
		return ANSWER_IMPOSSIBLE;
	if (is_for_stack(listener, &syn)) {
		bpf_sk_release(listener);
		return ANSWER_IMPOSSIBLE;
	}
	/* To make a cookie would tell the listener that it overflows. */
	if (settings.observing) {
		bpf_sk_release(listener);
		return ANSWER_READY;
	}
	cookie = cookie_for(listener, &syn);
	sk = bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct sock));
	window = (__u32)sk->sk_rcvbuf >> 1; /* half the buffer, as in the stack */
	mss = mss_of(listener, ipv6);
	hops = hops_of(listener, ipv6);
	bpf_sk_release(listener);
	if (cookie < 0)
		return ANSWER_IMPOSSIBLE;
	build_syn_ack(&syn, (__u32)cookie, window, mss, &answer);
	return turn_into(&syn, &answer, hops);
}

/* Whether the end of a handshake carries a cookie that the stack will take. */
__noinline int has_cookie(struct xdp_md *ctx, __u32 network, __u32 transport, __u32 ipv6)
{
	struct handshake ack = {};
	struct bpf_sock *listener;
	long answer;

	if (!load_handshake(ctx, network, transport, ipv6, &ack))
		return false;
	listener = find_listener(&ack);
	if (!listener)
		return false;
	if (ipv6)
		answer = bpf_tcp_check_syncookie(listener, &ack.ipv6_header,
						 sizeof(ack.ipv6_header), &ack.tcp, sizeof(ack.tcp));
	else
		answer = bpf_tcp_check_syncookie(listener, &ack.ipv4_header,
						 sizeof(ack.ipv4_header), &ack.tcp, sizeof(ack.tcp));
	bpf_sk_release(listener);
	return answer == 0;
}

#endif
