/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * While outcomes are only counted, packets pass that would have been discarded, and a
 * flooded queue is always full. Judged by that queue, everything would be discarded,
 * those of sources that have not had their share too. So it is judged by the queue that
 * would be there: a packet that was *spared* stands in the queue, or the consumer took it
 * in the place of another, or the socket dropped it. The first two are missing from the
 * queue that would be there. Hence its length is queued - (spared - dropped).
 *
 * Limits: it is never longer than twice the queue that is there, nor shorter than nothing,
 * so old drops and those of packets from elsewhere are forgotten.
 */
#ifndef PLIMSOLL_OBSERVING_H
#define PLIMSOLL_OBSERVING_H

#include "channel.h"

/* Datagrams that the socket has dropped so far. */
static __always_inline __u32 socket_drops(const struct sock *sk)
{
	if (bpf_core_field_exists(sk->sk_drop_counters)) {
		const struct numa_drop_counters *drops = sk->sk_drop_counters;

		if (drops)
			return drops->drops0.counter + drops->drops1.counter;
	}
	return sk->sk_drops.counter;
}

/* A packet passes that would have been discarded. */
static __always_inline void note_spared(const struct verdict *verdict)
{
	__u32 slot = verdict->slot;
	struct fair_share *share = bpf_map_lookup_elem(&fair_shares, &slot);

	if (share && verdict->kind == KIND_UDP_SOCKET)
		__sync_fetch_and_add(&share->spared, 1);
}

/*
 * The bytes that would be in a queue, after the socket has dropped so many datagrams. A
 * function of its own for the verifier.
 */
__noinline int unobserved_bytes(__u32 slot, __u32 bytes, __u32 datagrams, __u32 drops)
{
	struct fair_share *share = bpf_map_lookup_elem(&fair_shares, &slot);
	__s32 most = datagrams < 1 << 24 ? datagrams : 1 << 24;
	__s32 missing;

	if (!share)
		return bytes;
	missing = share->spared - drops - share->settled;
	if (missing > most || missing < -most) {
		missing = missing > 0 ? most : -most;
		share->settled = share->spared - drops - missing;
	}
	return (__u64)bytes * (most - missing) / (most ? most : 1);
}

#endif
