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

/* The last one released is the first one taken: small numbers first. */
static long release_slot(__u32 released, void *nothing)
{
	__u32 slot = CHANNELS_MAX - 1 - released;

	return bpf_map_push_elem(&free_slots, &slot, 0) ? 1 : 0;
}

/*
 * Every slot is free. The loader has this run once, by the test-run facility: a system call
 * for each would be most of those of a guard's start.
 */
SEC("xdp")
int fill_free_slots(struct xdp_md *ctx)
{
	return bpf_loop(CHANNELS_MAX - SLOT_SOCKETS, release_slot, NULL, 0);
}

/*
 * The slot of a socket, taken at its first packet; 0: none is left. Then it is asked for
 * again a second later: the map of free slots has one lock for all CPUs.
 */
static __always_inline __u32 slot_of(__u64 sk)
{
	__u32 *known = bpf_map_lookup_elem(&slots, &sk);
	__u32 slot = 0;

	if (known)
		return *known;
	if (no_slot_in == settings.epoch)
		return 0;
	if (bpf_map_pop_elem(&free_slots, &slot)) {
		no_slot_in = settings.epoch;
		return 0;
	}
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

/* A socket's inode tells it from any other that lived at its address. */
static __always_inline __u64 inode_of(const struct sock_common *common)
{
	const struct sock *sk = bpf_rdonly_cast(common, bpf_core_type_id_kernel(struct sock));
	const struct socket_alloc *file;

	if (!sk->sk_socket)
		return 0;
	file = bpf_rdonly_cast(sk->sk_socket, bpf_core_type_id_kernel(struct socket_alloc));
	return file->vfs_inode.i_ino;
}

/* Sees to it that the slot is this socket's. */
static __always_inline void claim_slot(struct allowance *allowance, const struct sock_common *sk,
				       enum channel_kind kind)
{
	__u64 inode = inode_of(sk);
	__u16 port = sk->skc_num;

	if (allowance->inode == inode && allowance->port == port &&
	    allowance->local.words[3] == last_word(sk) && allowance->socket)
		return;
	allowance->share_packets = 0;
	allowance->limit_bytes = 0;
	allowance->protected = false;
	allowance->translated_at = 0;
	allowance->published_at = 0;
	allowance->inode = inode;
	bound_address(sk, &allowance->local);
	allowance->port = port;
	allowance->kind = kind;
	allowance->generation++;
	allowance->socket = (__u64)(long)sk;
}

/* This CPU's part of a slot's channel, for the slot's owner. */
static __always_inline struct channel *owners_channel(__u32 slot,
						      const struct allowance *allowance)
{
	struct channel *channel = channel_at(slot);

	if (channel && channel->generation != allowance->generation) {
		/* This CPU's first packet of the socket that now has the slot. */
		__builtin_memset(channel, 0, sizeof(*channel));
		channel->generation = allowance->generation;
	}
	return channel;
}

/*
 * Finds the channel of a socket. Without one (no slot is left) the socket is
 * judged without hysteresis, by its buffer's end, and counted in `totals`.
 */
static __always_inline void find_channel(const struct sock_common *sk, struct verdict *verdict)
{
	__u32 slot = slot_of((__u64)(long)sk);
	struct allowance *allowance = slot ? bpf_map_lookup_elem(&allowances, &slot) : NULL;

	verdict->slot = slot;
	if (!allowance)
		return;
	claim_slot(allowance, sk, verdict->kind);
	verdict->channel = owners_channel(slot, allowance);
}

/* Lets the loader know that there is something new to read. */
static __always_inline void note_change(struct channel *channel, __u32 slot)
{
	__u32 index = bpf_get_smp_processor_id() * (CHANNELS_MAX / CHANGES_BITS) +
		      slot / CHANGES_BITS;
	__u64 *word;

	if (channel->reading == settings.reading)
		return;
	channel->reading = settings.reading;
	word = bpf_map_lookup_elem(&changes, &index);
	if (word)
		__sync_fetch_and_or(word, 1ULL << slot % CHANGES_BITS);
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
 * Whether the stack may choose another member of the socket's group than was found: a program
 * selects it, which is not asked from here, or members are for one CPU each (SO_INCOMING_CPU), and
 * packets are steered to other CPUs than this one. So what was found says nothing about the one
 * that gets the packet.
 */
static __always_inline bool is_chosen_elsewhere(const void *socket,
						const struct sock_common *common)
{
	const struct sock_reuseport *group;
	const struct sock *sk;

	if (!BPF_CORE_READ_BITFIELD(common, skc_reuseport))
		return false;
	sk = bpf_rdonly_cast(socket, bpf_core_type_id_kernel(struct sock));
	group = sk->sk_reuseport_cb;
	if (!group)
		return false;
	return group->prog || (settings.steered && bpf_core_field_exists(group->incoming_cpu) &&
			       group->incoming_cpu);
}

#endif
