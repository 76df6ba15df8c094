/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Who else has a UDP socket's port. A socket with SO_REUSEADDR or SO_REUSEPORT may
 * share it: with a connected socket, which gets its peer's packets, or with the
 * members of its group. The kernel counts the sockets of each port in its table; if
 * these are all known, the destination alone tells enough. Not so where a program of the
 * network namespace chooses sockets (sk_lookup): it may go by the source.
 *
 * Limits: ports whose hash collides count together, and then nothing is known.
 */
#ifndef PLIMSOLL_SHARING_H
#define PLIMSOLL_SHARING_H

#include "udp_queue.h"

#define GROUP_MAX 32 /* members looked at; of a larger group nothing is known */

/* Sockets in the place of the kernel's table where this one's port is (udp_hashfn). */
static __always_inline __u32 sockets_at_port(const struct sock_common *sk)
{
	const struct net *net = sk->skc_net.net;
	const struct udp_table *table = net->ipv4.udp_table;
	__u64 index = (sk->skc_num + net->hash_mix) & table->mask;
	__u64 place = (__u64)(long)table->hash + index * bpf_core_type_size(struct udp_hslot);
	const struct udp_hslot *slot =
		bpf_rdonly_cast((void *)place, bpf_core_type_id_kernel(struct udp_hslot));

	return slot->count;
}

/*
 * Whether a member of a group takes no packet now, as its own look-up would find. A flood of
 * few sources presses few members: the others' queues may have been full before it came. A
 * function of its own for the verifier, which would look at it once for each member.
 */
__noinline int is_member_full(__u64 member)
{
	const struct sock *sk =
		bpf_rdonly_cast((void *)member, bpf_core_type_id_kernel(struct sock));
	const struct udp_sock *udp =
		bpf_rdonly_cast((void *)member, bpf_core_type_id_kernel(struct udp_sock));
	struct queue queue = udp_queue(sk, udp);
	__u32 *known = bpf_map_lookup_elem(&slots, &member);
	__u32 slot = known ? *known : 0;
	struct channel *channel = slot ? channel_at(slot) : NULL;

	if (udp->encap_rcv)
		return false;
	return queue.occupancy >= limit_bytes(&queue, slot, channel && channel->discarding) &&
	       ((channel && channel->pressed) || has_no_room(&queue));
}

/*
 * Whether the slot's socket is in a group that has its port alone, and of whose
 * members none takes a packet. A function of its own for the verifier.
 */
__noinline int is_group_full(__u32 slot)
{
	struct allowance *owner = bpf_map_lookup_elem(&allowances, &slot);
	const struct sock_reuseport *group;
	const struct sock *sk;
	__u32 members;

	if (!owner)
		return false;
	sk = bpf_rdonly_cast((void *)owner->socket, bpf_core_type_id_kernel(struct sock));
	group = sk->sk_reuseport_cb;
	if (!group)
		return false;
	members = group->num_socks;
	if (members > GROUP_MAX || BPF_CORE_READ_BITFIELD(group, has_conns) ||
	    sockets_at_port(&sk->__sk_common) != members)
		return false;
	for (__u32 i = 0; i < GROUP_MAX && i < members; i++) {
		__u64 place = (__u64)(long)group + bpf_core_field_offset(struct sock_reuseport, socks) +
			      i * sizeof(__u64);
		__u64 member;

		if (bpf_probe_read_kernel(&member, sizeof(member), (void *)place) ||
		    !is_member_full(member))
			return false;
	}
	return true;
}

/* What the destination alone tells of the socket that was found for it. */
enum sharing {
	SHARING_ALONE, /* every packet is for this socket */
	SHARING_FULL_GROUP, /* no packet is taken, whichever member it is for */
	SHARING_UNKNOWN,
};

/* Whether a program chooses the sockets of this one's network namespace. */
static __always_inline bool are_sockets_chosen(const struct sock_common *sk)
{
	const struct net *net = sk->skc_net.net;

	return bpf_core_field_exists(net->bpf.run_array) &&
	       net->bpf.run_array[NETNS_BPF_SK_LOOKUP];
}

static __always_inline enum sharing sharing_of(const struct sock_common *sk, __u32 slot,
					       bool full)
{
	bool group = BPF_CORE_READ_BITFIELD(sk, skc_reuseport);

	if (sk->skc_state != TCP_CLOSE || sk->skc_bound_dev_if || are_sockets_chosen(sk))
		return SHARING_UNKNOWN;
	if ((!group && !BPF_CORE_READ_BITFIELD(sk, skc_reuse)) || sockets_at_port(sk) == 1)
		return SHARING_ALONE;
	/* While everything passes, all queues of a flooded group are full. */
	return group && full && !settings.observing && is_group_full(slot) ? SHARING_FULL_GROUP :
									     SHARING_UNKNOWN;
}

#endif
