/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * What belongs to no connection, or only to one that is over: of each kind so much gets through
 * in a tick. And who is no stranger.
 */
#ifndef PLIMSOLL_STEER_STRAYS_H
#define PLIMSOLL_STEER_STRAYS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "steer.h"

#define STRAY_TICK_SHIFT 24 /* a tick is 2^24 ns, some 17 ms: clients come in bursts */
/*
 * For nobody, of four ticks: more than the proxies answer (a thousand a second, in bursts of some
 * fifty), so that they choose. As with them chance decides how many of the last: who counts answers
 * must not learn whether others got some.
 */
#define STRAYS_TICKS_SHIFT 2
#define STRAYS_MAX 128
#define STRAYS_BY_CHANCE 32 /* a power of two */
#define STRAYS_TO_LISTENERS_PER_TICK 256
/* Some 122,000 a second: a bare acknowledgement and the first data for each of 50,000 cookies. */
#define STRAYS_WITH_COOKIES_PER_TICK 2048
/* Some 15,000 a second: the stack takes a quarter of as many as it answers with cookies. */
#define SYNS_OF_KNOWN_PER_TICK 256
/* Some 61,000 a second: the ends of more connections than a CPU makes. */
#define LATE_PER_TICK 1024
/* Some 488,000 a second. */
#define ANSWERED_PER_TICK 8192

/*
 * Connections that have no channel any more, and whose peers may still send their end: it has a
 * limit of its own. The oldest give way.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LATE_MAX);
	__type(key, struct connection);
	__type(value, __u8);
} late SEC(".maps");

/* Sources that have ended a handshake. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, KNOWN_MAX);
	__type(key, struct address);
	__type(value, __u8);
} known SEC(".maps");

/* What came for ports that nobody bound. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct strays);
} strays SEC(".maps");

static __always_inline void ends_of(struct connection *key, const struct address *local,
				    const struct address *remote, const struct ports *ports)
{
	key->local = *local;
	key->remote = *remote;
	key->local_port = ports->destination;
	key->remote_port = ports->source;
}

/* Whether a TCP segment may be one of the last of a connection that is over. */
static __always_inline int is_late(const struct address *local, const struct address *remote,
				   const struct ports *ports)
{
	struct connection key;

	ends_of(&key, local, remote, ports);
	return bpf_map_lookup_elem(&late, &key) != NULL;
}

enum stray {
	FOR_NOBODY,
	FOR_LISTENER,
	WITH_COOKIE, /* for a listener that has answered with it */
	OF_KNOWN, /* a SYN of a known source */
	LATE, /* of a connection that is over */
	ANSWERED, /* a SYN that is answered here */
};

/* The count is not exact between CPUs, and need not be. */
static __noinline int stray_passes(enum stray kind)
{
	__u64 tick = bpf_ktime_get_coarse_ns() >> STRAY_TICK_SHIFT;
	__u32 first = 0;
	struct strays *all = bpf_map_lookup_elem(&strays, &first);
	__u64 *passed, most;

	if (!all)
		return 1;
	if (all->tick != tick) {
		if (all->tick >> STRAYS_TICKS_SHIFT != tick >> STRAYS_TICKS_SHIFT)
			all->passed = bpf_get_prandom_u32() & (STRAYS_BY_CHANCE - 1);
		all->tick = tick;
		all->passed_to_listeners = 0;
		all->passed_with_cookies = 0;
		all->passed_of_known = 0;
		all->passed_late = 0;
		all->answered = 0;
	}
	switch (kind) {
	case WITH_COOKIE:
		passed = &all->passed_with_cookies;
		most = STRAYS_WITH_COOKIES_PER_TICK;
		break;
	case LATE:
		passed = &all->passed_late;
		most = LATE_PER_TICK;
		break;
	case OF_KNOWN:
		passed = &all->passed_of_known;
		most = SYNS_OF_KNOWN_PER_TICK;
		break;
	case ANSWERED:
		passed = &all->answered;
		most = ANSWERED_PER_TICK;
		break;
	case FOR_LISTENER:
		passed = &all->passed_to_listeners;
		most = STRAYS_TO_LISTENERS_PER_TICK;
		break;
	default:
		passed = &all->passed;
		most = STRAYS_MAX;
	}
	if (*passed < most) {
		(*passed)++;
		return 1;
	}
	/* What is not answered may be taken or dropped yet. */
	if (kind != ANSWERED)
		__sync_fetch_and_add(&all->dropped, 1);
	return 0;
}

#endif
