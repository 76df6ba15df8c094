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
 * Rules: the default is to admit. A UDP socket discards from its high
 * watermark until it has fallen below the low one; a listener discards new
 * SYNs while its accept queue is at its backlog, and answers them with cookies
 * while its SYN queue is. While input is shed, every channel has its share.
 * Every packet ends in exactly one (kind, outcome) of `totals`.
 *
 * Limits: occupancy is read before the packets of the current batch have
 * landed, so watermarks leave room for a batch. Sockets that the look-up
 * cannot see from here (behind NAT, in another namespace, bound to a VLAN
 * device, chosen by a reuseport program) are admitted. Checksums are left to
 * the stack.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

#include "guard.h"
#include "kernel.h"
#include "parse.h"
#include "cookie.h"
#include "maps.h"

#define WATERMARK_WHOLE_SHIFT 10 /* watermarks are in 1/1024 */
#define NUMA_NODES_MAX 8

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct settings settings = {};

/* The highest slot that ever was taken; 0: none. */
__u32 last_slot = 0;

/* Since Linux 6.2: reads of a kernel object by its BTF type, fault-safe. */
extern void *bpf_rdonly_cast(const void *object, __u32 btf_id) __ksym;

/* What is known of a packet when its verdict falls. */
struct verdict {
	struct channel *channel; /* of a socket; NULL: counted in `totals` only */
	__u32 slot; /* of the channel; 0: none */
	__be16 port; /* destination, of UDP and TCP */
	bool at_backlog; /* a SYN for which some kernels still have room */
	bool ends_handshake; /* an ACK that no connection and no request knows */
	enum channel_kind kind;
	enum outcome outcome;
};

/* A socket's queue as found: bytes for UDP, connections for a listener. */
struct queue {
	__u32 occupancy;
	__u32 capacity;
	__u32 datagrams;
};

static __always_inline struct channel *channel_at(__u32 slot)
{
	__u32 index = bpf_get_smp_processor_id() * CHANNELS_MAX + slot;

	return bpf_map_lookup_elem(&channels, &index);
}

static __always_inline void bound_address(const struct sock_common *sk, struct address *address)
{
	if (sk->skc_family == AF_INET6) {
		address->words[0] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[0];
		address->words[1] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[1];
		address->words[2] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[2];
		address->words[3] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[3];
	} else {
		map_ipv4(address, sk->skc_rcv_saddr);
	}
}

static __always_inline bool same_address(const struct address *a, const struct address *b)
{
	return a->words[3] == b->words[3] && a->words[2] == b->words[2] &&
	       a->words[1] == b->words[1] && a->words[0] == b->words[0];
}

/* The slot of a socket, taken at its first packet; 0: none is left. */
static __always_inline __u32 slot_of(__u64 sk)
{
	__u32 *known = bpf_map_lookup_elem(&slots, &sk);
	__u32 slot = 0;

	if (known)
		return *known;
	if (bpf_map_pop_elem(&free_slots, &slot))
		return 0;
	if (slot > last_slot)
		last_slot = slot;
	if (!bpf_map_update_elem(&slots, &sk, &slot, BPF_NOEXIST))
		return slot;
	/* Another CPU was faster. */
	bpf_map_push_elem(&free_slots, &slot, 0);
	known = bpf_map_lookup_elem(&slots, &sk);
	return known ? *known : 0;
}

/* The part of a bound address that tells most sockets apart, in one read. */
static __always_inline __u32 last_word(const struct sock_common *sk)
{
	return sk->skc_family == AF_INET6 ? sk->skc_v6_rcv_saddr.in6_u.u6_addr32[3] :
					    sk->skc_rcv_saddr;
}

/*
 * Finds the channel of a socket. Without one (no slot is left) the socket is
 * judged without hysteresis and counted in `totals`.
 */
static __always_inline void find_channel(const struct sock_common *sk, struct verdict *verdict)
{
	struct channel *channel;
	__u16 port = sk->skc_num;

	verdict->slot = slot_of((__u64)(long)sk);
	channel = verdict->slot ? channel_at(verdict->slot) : NULL;
	verdict->channel = channel;
	if (!channel)
		return;
	channel->epoch = settings.epoch;
	if (channel->port == port && channel->kind == verdict->kind &&
	    channel->local.words[3] == last_word(sk))
		return;
	/* This CPU's first packet of the socket that now lives here. */
	__builtin_memset(channel, 0, sizeof(*channel));
	channel->socket = (__u64)(long)sk;
	bound_address(sk, &channel->local);
	channel->port = port;
	channel->kind = verdict->kind;
	channel->epoch = settings.epoch;
}

/*
 * Bytes charged to a UDP socket's receive buffer. What the consumer has taken
 * but not yet given back (forward_deficit) is no longer queued; what producers
 * have left in the per-node queues (Linux 6.18) is not yet in rmem_alloc.
 */
static __always_inline struct queue udp_queue(const struct sock *sk, const struct udp_sock *udp)
{
	struct queue queue = { .capacity = sk->sk_rcvbuf };
	int bytes = sk->sk_backlog.rmem_alloc.counter - udp->forward_deficit;

	if (bpf_core_field_exists(udp->udp_prod_queue)) {
		__u32 type = bpf_core_type_id_kernel(struct udp_prod_queue);
		const struct udp_prod_queue *node = udp->udp_prod_queue;

		for (__u32 i = 0; i < NUMA_NODES_MAX && i < settings.numa_nodes; i++) {
			bytes += node->rmem_alloc.counter;
			/* The kernel's type, not ours, has the size of an element. */
			node = bpf_rdonly_cast((void *)node + bpf_core_type_size(*node), type);
		}
	}
	queue.occupancy = bytes > 0 ? bytes : 0;
	queue.datagrams = sk->sk_receive_queue.qlen + udp->reader_queue.qlen;
	return queue;
}

static __always_inline __u64 watermark_bytes(const struct queue *queue, __u32 watermark)
{
	return ((__u64)queue->capacity * watermark) >> WATERMARK_WHOLE_SHIFT;
}

/* The occupancy from which on the socket gets no more packets. */
static __always_inline __u64 limit_bytes(const struct queue *queue, __u32 slot, bool discarding)
{
	__u64 high = watermark_bytes(queue, settings.high_watermark);
	__u64 low = watermark_bytes(queue, settings.low_watermark);

	if (settings.delay_targets) {
		struct allowance *allowance = bpf_map_lookup_elem(&allowances, &slot);

		if (allowance && allowance->limit_bytes && allowance->limit_bytes < high) {
			low = low * allowance->limit_bytes / (high | 1);
			high = allowance->limit_bytes;
		}
	}
	if (!discarding)
		return high;
	return low + DRAINED_BYTES_MAX < high ? high - DRAINED_BYTES_MAX : low;
}

/* Feedback from the consumer's queue with hysteresis (Mogul & Ramakrishnan 6.6.1). */
static __always_inline enum outcome judge_queue(const struct verdict *verdict,
						const struct queue *queue)
{
	struct channel *channel = verdict->channel;
	bool discard;

	if (!channel)
		return queue->occupancy >= limit_bytes(queue, 0, false) ? OUTCOME_SOCKET_QUEUE :
									  OUTCOME_ADMITTED;
	discard = queue->occupancy >= limit_bytes(queue, verdict->slot, channel->discarding);
	channel->discarding = discard;
	channel->occupancy = queue->occupancy;
	channel->capacity = queue->capacity;
	channel->queued = queue->datagrams;
	return discard ? OUTCOME_SOCKET_QUEUE : OUTCOME_ADMITTED;
}

/*
 * Addresses and ports of a TCP or UDP packet as the socket look-up wants them;
 * returns the tuple's size, which tells the family.
 */
static __always_inline __u32 socket_tuple(const struct packet *packet, __be16 source_port,
					  __be16 destination_port, struct bpf_sock_tuple *tuple)
{
	if (packet->ipv6) {
		__builtin_memcpy(tuple->ipv6.saddr, &packet->source, sizeof(tuple->ipv6.saddr));
		__builtin_memcpy(tuple->ipv6.daddr, &packet->destination,
				 sizeof(tuple->ipv6.daddr));
		tuple->ipv6.sport = source_port;
		tuple->ipv6.dport = destination_port;
		return sizeof(tuple->ipv6);
	}
	tuple->ipv4.saddr = packet->source.words[3];
	tuple->ipv4.daddr = packet->destination.words[3];
	tuple->ipv4.sport = source_port;
	tuple->ipv4.dport = destination_port;
	return sizeof(tuple->ipv4);
}

/*
 * Whether a program selects the member of the socket's group: the look-up from
 * here does not ask it, so what was found may be another member, and says
 * nothing about the one that gets the packet.
 */
static __always_inline bool is_selected_by_program(const void *socket,
						   const struct sock_common *common)
{
	const struct sock *sk;

	if (!BPF_CORE_READ_BITFIELD(common, skc_reuseport))
		return false;
	sk = bpf_rdonly_cast(socket, bpf_core_type_id_kernel(struct sock));
	return sk->sk_reuseport_cb && sk->sk_reuseport_cb->prog;
}

static __always_inline void judge_udp_queue(const void *socket, struct verdict *verdict)
{
	const struct sock *sk = bpf_rdonly_cast(socket, bpf_core_type_id_kernel(struct sock));
	const struct udp_sock *udp =
		bpf_rdonly_cast(socket, bpf_core_type_id_kernel(struct udp_sock));
	struct queue queue = udp_queue(sk, udp);

	verdict->outcome = judge_queue(verdict, &queue);
}

static __always_inline struct known_socket *known_socket_entry(const struct packet *packet,
							       __be16 port)
{
	__u32 key = 0;
	struct known_sockets *table = bpf_map_lookup_elem(&known_sockets, &key);
	__u32 index = packet->destination.words[3] ^ port ^ (port >> 8);

	index ^= index >> 24;
	return table ? &table->entries[index & (KNOWN_SOCKETS - 1)] : NULL;
}

/*
 * Fast path: judges by the socket that the destination had a moment ago.
 * Reads through the address are fault-safe. Should the socket have closed
 * since, at most KNOWN_PACKETS packets of one tick are judged by what its
 * memory holds now.
 */
static __always_inline bool judge_known_socket(const struct packet *packet, __be16 port,
					       struct verdict *verdict)
{
	struct known_socket *known = known_socket_entry(packet, port);

	if (!known || !known->packets_left || known->port != port ||
	    known->tick != bpf_jiffies64() ||
	    !same_address(&known->destination, &packet->destination))
		return false;
	known->packets_left--;
	verdict->slot = known->slot;
	verdict->channel = channel_at(verdict->slot);
	if (known->full) {
		verdict->outcome = OUTCOME_SOCKET_QUEUE;
		return true;
	}
	judge_udp_queue((void *)known->socket, verdict);
	known->full = verdict->outcome != OUTCOME_ADMITTED;
	return true;
}

/*
 * Remembers a destination's socket, if the destination alone tells it: one
 * that is connected, or may share its port (SO_REUSEADDR, SO_REUSEPORT, bound
 * to a device), need not be the one that the next packet is for.
 */
static __always_inline void remember_socket(const struct packet *packet, __be16 port,
					    const struct sock_common *sk,
					    const struct verdict *verdict)
{
	struct known_socket *known;

	if (sk->skc_state != TCP_CLOSE || BPF_CORE_READ_BITFIELD(sk, skc_reuse) ||
	    BPF_CORE_READ_BITFIELD(sk, skc_reuseport) || sk->skc_bound_dev_if || !verdict->slot)
		return;
	known = known_socket_entry(packet, port);
	if (!known)
		return;
	known->destination = packet->destination;
	known->tick = bpf_jiffies64();
	known->socket = (__u64)(long)sk;
	known->slot = verdict->slot;
	known->port = port;
	known->packets_left = KNOWN_PACKETS;
	known->full = verdict->outcome != OUTCOME_ADMITTED;
}

static __always_inline void judge_udp_socket(struct xdp_md *ctx, const struct packet *packet,
					     const struct udphdr *udp, struct verdict *verdict)
{
	struct bpf_sock_tuple tuple;
	struct bpf_sock *found;
	const struct sock_common *sk;
	__be16 port = udp->dest;
	__u32 size;

	verdict->kind = KIND_UDP_SOCKET;
	verdict->port = port;
	if (judge_known_socket(packet, port, verdict))
		return;
	size = socket_tuple(packet, udp->source, port, &tuple);
	found = bpf_sk_lookup_udp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found) {
		verdict->kind = KIND_CLOSED_PORT;
		return;
	}
	sk = bpf_rdonly_cast(found, bpf_core_type_id_kernel(struct sock_common));
	find_channel(sk, verdict);
	if (!is_selected_by_program(found, sk)) {
		judge_udp_queue(found, verdict);
		remember_socket(packet, port, sk, verdict);
	}
	bpf_sk_release(found);
}

static __always_inline void judge_udp(struct xdp_md *ctx, const struct packet *packet,
				      enum destination destination, struct verdict *verdict)
{
	struct udphdr *udp = header_at(ctx, packet->transport_offset, sizeof(*udp));
	__u32 length;

	if (packet->left < sizeof(*udp) || !udp) {
		verdict->kind = packet->fragment_part == WHOLE ? KIND_MALFORMED : KIND_FRAGMENT;
		return;
	}
	length = bpf_ntohs(udp->len);
	if (length < sizeof(*udp) || udp->dest == 0 ||
	    (packet->fragment_part == WHOLE && length > packet->left)) {
		verdict->kind = KIND_MALFORMED;
		return;
	}
	if (destination != DESTINATION_LOCAL)
		verdict->kind = KIND_MULTICAST;
	else
		judge_udp_socket(ctx, packet, udp, verdict);
}

/* A new connection request: refused while a queue it needs is at its backlog. */
static __always_inline void judge_syn(const void *listener, struct verdict *verdict)
{
	const struct sock *sk = bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct sock));
	const struct inet_connection_sock *connection =
		bpf_rdonly_cast(listener, bpf_core_type_id_kernel(struct inet_connection_sock));
	__u32 backlog = sk->sk_max_ack_backlog;
	__u32 accept_queue = sk->sk_ack_backlog;
	__u32 syn_queue = connection->icsk_accept_queue.qlen.counter;

	/*
	 * The kernel's own conditions: sk_acceptq_is_full, reqsk_queue_is_full.
	 * The latter begins at the backlog or one above, as the release has it.
	 */
	verdict->at_backlog = syn_queue == backlog;
	if (accept_queue > backlog)
		verdict->outcome = OUTCOME_ACCEPT_QUEUE;
	else if (syn_queue >= backlog)
		verdict->outcome = OUTCOME_SYN_QUEUE;
	if (verdict->channel) {
		verdict->channel->discarding =
			verdict->outcome == OUTCOME_ADMITTED  ? DISCARDING_NOTHING :
			verdict->outcome == OUTCOME_SYN_QUEUE ? DISCARDING_SYNS :
								DISCARDING_FULL;
		verdict->channel->occupancy =
			accept_queue > syn_queue ? accept_queue : syn_queue;
		verdict->channel->capacity = backlog;
	}
}

static __always_inline void judge_listener(const void *listener, const struct tcphdr *tcp,
					   struct verdict *verdict)
{
	if (tcp->syn && !tcp->ack && !tcp->rst && !tcp->fin)
		judge_syn(listener, verdict);
	else if (tcp->ack && !tcp->syn && !tcp->rst)
		verdict->ends_handshake = true;
}

static __always_inline void judge_tcp_socket(struct xdp_md *ctx, const struct packet *packet,
					     const struct tcphdr *tcp, struct verdict *verdict)
{
	struct bpf_sock_tuple tuple;
	struct bpf_sock *found;
	const struct sock_common *sk;
	__u32 size = socket_tuple(packet, tcp->source, tcp->dest, &tuple);

	verdict->port = tcp->dest;
	found = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found) {
		verdict->kind = KIND_CLOSED_PORT;
		return;
	}
	/* A connection may be a request or time-wait socket: common fields only. */
	sk = bpf_rdonly_cast(found, bpf_core_type_id_kernel(struct sock_common));
	if (sk->skc_state != TCP_LISTEN) {
		verdict->kind = KIND_TCP_CONNECTION;
	} else {
		verdict->kind = KIND_TCP_LISTENER;
		find_channel(sk, verdict);
		if (!is_selected_by_program(found, sk))
			judge_listener(found, tcp, verdict);
	}
	bpf_sk_release(found);
}

static __always_inline void judge_tcp(struct xdp_md *ctx, const struct packet *packet,
				      enum destination destination, struct verdict *verdict)
{
	struct tcphdr *tcp = header_at(ctx, packet->transport_offset, sizeof(*tcp));

	if (packet->left < sizeof(*tcp) || !tcp || tcp->doff < 5 ||
	    tcp->doff * 4 > packet->left) {
		verdict->kind = KIND_MALFORMED;
		return;
	}
	if (destination != DESTINATION_LOCAL)
		verdict->kind = KIND_OTHER;
	else
		judge_tcp_socket(ctx, packet, tcp, verdict);
}

static __always_inline enum channel_kind icmp_kind(struct xdp_md *ctx,
						    const struct packet *packet)
{
	__u8 *type = header_at(ctx, packet->transport_offset, ICMPV6_BYTES);
	__u32 header = packet->ipv6 ? ICMPV6_BYTES : ICMP_BYTES;

	if (packet->left < header || !type)
		return KIND_MALFORMED;
	if (packet->ipv6 && *type >= NEIGHBOUR_TYPE_FIRST && *type <= NEIGHBOUR_TYPE_LAST)
		return KIND_NEIGHBOUR;
	return KIND_ICMP;
}

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

static __always_inline void fragment_key(const struct packet *packet, struct fragment_key *key)
{
	key->source = packet->source;
	key->destination = packet->destination;
	key->id = packet->fragment_id;
	/* IPv6 reassembles by addresses and identification alone (RFC 8200, 4.5). */
	key->protocol = packet->ipv6 ? 0 : packet->protocol;
}

/* Later fragments share the fate of the first: half a datagram serves nobody. */
static __always_inline void remember_first_fragment(const struct packet *packet,
						    const struct verdict *verdict)
{
	struct fragment_key key;
	struct fragment fragment = {
		.slot = verdict->slot,
		.epoch = settings.epoch,
		.port = verdict->channel ? verdict->channel->port : 0,
		.kind = verdict->kind,
		.outcome = verdict->outcome,
	};

	if (verdict->kind == KIND_FRAGMENT || verdict->kind == KIND_MALFORMED)
		return;
	fragment_key(packet, &key);
	bpf_map_update_elem(&fragments, &key, &fragment, BPF_ANY);
}

static __always_inline void judge_later_fragment(const struct packet *packet,
						 struct verdict *verdict)
{
	struct fragment_key key;
	struct fragment *first;
	struct channel *channel;

	verdict->kind = KIND_FRAGMENT;
	fragment_key(packet, &key);
	first = bpf_map_lookup_elem(&fragments, &key);
	if (!first || settings.epoch - first->epoch >= FRAGMENT_EPOCHS)
		return;
	verdict->kind = first->kind;
	verdict->outcome = first->outcome;
	channel = first->slot ? channel_at(first->slot) : NULL;
	if (channel && channel->kind == first->kind && channel->port == first->port) {
		verdict->channel = channel;
		verdict->slot = first->slot;
	}
}

static __always_inline void judge_ip(struct xdp_md *ctx, struct packet *packet,
				     enum destination destination, struct verdict *verdict)
{
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
	if (packet->fragment_part == FIRST_FRAGMENT)
		remember_first_fragment(packet, verdict);
}

static __always_inline enum destination destination_class(const struct packet *packet)
{
	__u32 first = bpf_ntohl(packet->destination.words[0]);
	__u32 last = bpf_ntohl(packet->destination.words[3]);
	__u8 *class;

	if (packet->ipv6 ? first >> 24 == 0xff : last >> 28 == 0xe)
		return DESTINATION_MULTICAST;
	if (!packet->ipv6 && last == 0xffffffff)
		return DESTINATION_BROADCAST;
#pragma unroll
	for (int i = 0; i < FREQUENT_ADDRESSES; i++)
		if (same_address(&settings.frequent[i], &packet->destination))
			return DESTINATION_LOCAL;
	class = bpf_map_lookup_elem(&local_addresses, &packet->destination);
	return class ? *class : DESTINATION_FORWARD;
}

/*
 * A listener past its SYN queue: its SYNs are answered with cookies, and the
 * ends of handshakes must carry one. Without it the stack could only refuse.
 */
static __always_inline void judge_handshake(struct xdp_md *ctx, const struct packet *packet,
					    struct verdict *verdict)
{
	if (verdict->outcome == OUTCOME_SYN_QUEUE) {
		if (answer_with_cookie(ctx, packet->network_offset,
				       packet->transport_offset, packet->ipv6, settings.observing))
			verdict->outcome = OUTCOME_SYN_COOKIE;
		else if (verdict->at_backlog)
			verdict->outcome = OUTCOME_ADMITTED;
	} else if (verdict->ends_handshake && verdict->channel &&
		   verdict->channel->discarding == DISCARDING_SYNS) {
		if (!has_cookie(ctx, packet->network_offset, packet->transport_offset,
				packet->ipv6))
			verdict->outcome = OUTCOME_NO_COOKIE;
	}
}

static __always_inline bool is_protected(const struct packet *packet,
					 const struct verdict *verdict,
					 const struct allowance *allowance)
{
	__u32 port = bpf_ntohs(verdict->port);
	__u8 protocol = packet->protocol == IPPROTO_TCP ? PROTECTED_TCP : PROTECTED_UDP;
	__u8 *protocols;

	if (verdict->kind == KIND_NEIGHBOUR || allowance->protected ||
	    (verdict->kind == KIND_TCP_CONNECTION && settings.protect_connections))
		return true;
	protocols = port ? bpf_map_lookup_elem(&protected_ports, &port) : NULL;
	if (protocols && *protocols & protocol)
		return true;
	if (settings.protect_prefixes) {
		struct prefix source = { .bits = 128, .address = packet->source };

		return bpf_map_lookup_elem(&protected_prefixes, &source);
	}
	return false;
}

/* A UDP packet that nobody waits for: worth no more than the stack's answer. */
static __always_inline bool is_for_closed_port(const struct packet *packet,
					       const struct verdict *verdict)
{
	return verdict->kind == KIND_CLOSED_PORT && packet->protocol == IPPROTO_UDP;
}

/*
 * Proportional shares when input must be shed (Mogul & Ramakrishnan, section
 * 7; Druschel & Banga's accounting): each channel gets what the loader found
 * fair, per tick; all protected traffic is one channel with a guarantee.
 */
static __always_inline void judge_share(const struct packet *packet, struct verdict *verdict)
{
	__u32 slot = verdict->slot ? verdict->slot : SLOT_OF_KIND(verdict->kind);
	__u64 tick = bpf_ktime_get_ns() >> SHARE_TICK_SHIFT;
	struct allowance *allowance = bpf_map_lookup_elem(&allowances, &slot);
	struct channel *channel;
	__u32 packets;

	if (allowance && is_protected(packet, verdict, allowance)) {
		if (!settings.shedding)
			return;
		slot = SLOT_PROTECTED;
		allowance = bpf_map_lookup_elem(&allowances, &slot);
	}
	channel = channel_at(slot);
	if (!allowance || !channel)
		return;
	channel->demand++;
	if (channel->share_tick != tick) {
		channel->share_tick = tick;
		channel->share_packets = 0;
	}
	packets = allowance->share_packets ? allowance->share_packets : settings.share_packets;
	if (is_for_closed_port(packet, verdict) &&
	    (!settings.shedding || packets > CLOSED_PORT_PACKETS))
		packets = CLOSED_PORT_PACKETS;
	if (channel->share_packets >= packets)
		verdict->outcome = OUTCOME_SHARE;
	else
		channel->share_packets++;
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

static __always_inline void count(const struct verdict *verdict)
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
	if (verdict->channel)
		verdict->channel->packets[outcome]++;
}

static __always_inline int action(enum outcome outcome)
{
	if (outcome == OUTCOME_ADMITTED || settings.observing)
		return XDP_PASS;
	return outcome == OUTCOME_SYN_COOKIE ? XDP_TX : XDP_DROP;
}

SEC("xdp.frags")
int plimsoll_guard(struct xdp_md *ctx)
{
	struct packet packet = {};
	struct verdict verdict = { .kind = KIND_OTHER, .outcome = OUTCOME_ADMITTED };

	judge_frame(ctx, &packet, &verdict);
	if (settings.cookies && verdict.kind == KIND_TCP_LISTENER)
		judge_handshake(ctx, &packet, &verdict);
	if (verdict.outcome == OUTCOME_ADMITTED &&
	    (settings.shedding || is_for_closed_port(&packet, &verdict)))
		judge_share(&packet, &verdict);
	count(&verdict);
	return action(verdict.outcome);
}
