/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Channels of sockets: each has a slot, found by the address of its struct sock,
 * and each CPU its own part of the channel, written without any lock.
 */
#ifndef PLIMSOLL_CHANNEL_H
#define PLIMSOLL_CHANNEL_H

#include "kernel.h"
#include "verdict.h"

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

#endif
