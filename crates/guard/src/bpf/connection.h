/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * What a TCP connection takes. Whoever knows a connection's addresses and ports can
 * flood it, and each of his segments would go all the way up the stack, only to be thrown
 * away there. Two of the stack's own conditions are known here already:
 *
 * - While a process is in a system call on the connection, segments wait in its backlog.
 *   Beyond its limit the stack throws away all but what continues its last segment.
 * - A segment outside of the connection's window is thrown away whatever it says. All
 *   that comes of it is an answer, by which an honest peer learns where the window is.
 *   So a few may pass in each tick. Segments that lie as little behind as a peer's own
 *   window can make them, and probes of a closed window, all pass.
 *
 * Whatever else comes is the stack's: acknowledgements, however many are equal, and all
 * inside of the window, also if there is no memory for it.
 *
 * Limits: who knows where the window is can flood what is in it; while input is shed, each
 * connection has a cap (protection.h). A backlog that is full when a packet is seen here
 * may be empty when the packet would have got there. Connections whose keyed hash is the
 * same share what may pass.
 */
#ifndef PLIMSOLL_CONNECTION_H
#define PLIMSOLL_CONNECTION_H

#include "protection.h"
#include "tick.h"

/* The stack appends what continues the backlog's last segment, whatever the limit. */
static __always_inline bool continues_backlog(const struct sock *sk, __u32 sequence)
{
	const struct sk_buff *tail = sk->sk_backlog.tail;
	const struct tcp_skb_cb *last;

	if (!tail)
		return false;
	last = bpf_rdonly_cast((void *)tail + bpf_core_field_offset(tail->cb),
			       bpf_core_type_id_kernel(struct tcp_skb_cb));
	return last->end_seq == sequence;
}

/* The kernel's own condition: tcp_add_backlog, sk_rcvqueues_full. */
static __always_inline bool is_backlog_full(const struct sock *sk, __u32 sequence)
{
	__u64 limit;
	__u32 bytes;

	if (!sk->sk_lock.owned)
		return false;
	limit = ((__u64)(__u32)sk->sk_rcvbuf << 1) + ((__u32)sk->sk_sndbuf >> 1) +
		BACKLOG_HEADROOM;
	bytes = sk->sk_backlog.len + sk->sk_backlog.rmem_alloc.counter;
	return bytes > limit && !continues_backlog(sk, sequence);
}

/* From what was acknowledged to the furthest end that the peer may know of (tcp_receive_window). */
static __always_inline struct sequences window_of(const struct tcp_sock *tcp)
{
	__u32 end = tcp->rcv_wup + tcp->rcv_wnd, next = tcp->rcv_nxt;

	if (bpf_core_field_exists(tcp->rcv_mwnd_seq) && (__s32)(tcp->rcv_mwnd_seq - end) > 0)
		end = tcp->rcv_mwnd_seq;
	return (struct sequences){
		.begin = tcp->rcv_wup,
		.end = (__s32)(end - next) > 0 ? end : next,
	};
}

static __always_inline struct sequences sequences_of(const struct packet *packet,
						     const struct tcphdr *tcp)
{
	__u32 begin = bpf_ntohl(tcp->seq);

	return (struct sequences){
		.begin = begin,
		.end = begin + packet->left - tcp->doff * 4 + tcp->syn + tcp->fin,
	};
}

/* Nothing of the segment is in the window (tcp_sequence), and it is no honest peer's. */
static __always_inline bool is_outside(const struct tcp_sock *tcp, struct sequences window,
				       struct sequences segment)
{
	__s32 beyond = segment.begin - window.end;
	__s32 behind = window.begin - segment.end;
	__s32 largest = tcp->window_clamp;

	if (largest < WINDOW_BEHIND_MIN)
		largest = WINDOW_BEHIND_MIN;
	/* A byte at the window's end is a probe (RFC 9293, section 3.8.6.1), maybe with a FIN. */
	return beyond > 0 || (beyond == 0 && segment.end - segment.begin > 2) || behind > largest;
}

/* All of the segment is in the window. */
static __always_inline bool is_inside(struct sequences window, struct sequences segment)
{
	return (__s32)(segment.begin - window.begin) >= 0 && (__s32)(window.end - segment.end) >= 0;
}

/* Takes one of the packets outside of its window that a connection may have in a tick. */
static __always_inline bool take_outside(const struct packet *packet, __u32 ports,
					 struct outside_use *use)
{
	__u32 hash = connection_hash(packet, ports >> 16, ports) & (CONNECTION_CAPS - 1);
	__u64 tick = coarse_tick();

	if (use->tick != tick) {
		__builtin_memset(use->packets, 0, sizeof(use->packets));
		use->tick = tick;
	}
	if (use->packets[hash] >= OUTSIDE_PACKETS)
		return false;
	use->packets[hash]++;
	return true;
}

/*
 * Whether the connection in `use` takes a segment between these sequence numbers. A
 * function of its own for the verifier, and for the stack.
 */
__noinline int takes_segment(const struct packet *packet, struct outside_use *use, __u32 ports,
			     __u32 begin, __u32 end)
{
	struct sequences segment = { begin, end };
	const struct tcp_sock *tcp;
	const struct sock *sk;

	if (!packet || !use)
		return true;
	sk = bpf_rdonly_cast((void *)use->socket, bpf_core_type_id_kernel(struct sock));
	tcp = bpf_rdonly_cast((void *)use->socket, bpf_core_type_id_kernel(struct tcp_sock));
	if (is_backlog_full(sk, begin))
		return false;
	use->window = window_of(tcp);
	return !is_outside(tcp, use->window, segment) || take_outside(packet, ports, use);
}

#endif
