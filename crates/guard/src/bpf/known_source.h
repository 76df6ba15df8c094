/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Sources that were served before an overload. While it lasts, they have a part for
 * themselves: nothing else tells a client from forged addresses.
 *
 * Learning. Whoever is served by a calm channel, or has a connection, in three periods of
 * four seconds is known at that port. At most one packet per kernel tick and CPU is looked
 * at, and only where the socket was looked up anyway: who sends more is seen sooner. An
 * overloaded socket teaches nothing, nor does anybody while input is shed.
 *
 * What is remembered is 32 bits of a keyed hash for each source, so the memory is
 * fixed and tells nobody's address. A newcomer takes the
 * place of one that is not yet known, or not any more; if there is none, the place of
 * nobody. So nobody drives known sources out.
 *
 * Whole prefixes can be known from the start, at every port (`known_prefixes`).
 *
 * Periods are 16 bits, which begin anew after three days. The loader forgets entries in
 * time, once in some minutes (`known.rs`). Here nothing would: nobody looks at the entry of
 * who stays away.
 *
 * Limits: someone who sends slowly for a while becomes known, too, as in real life. He
 * then has one client's part.
 */
#ifndef PLIMSOLL_KNOWN_SOURCE_H
#define PLIMSOLL_KNOWN_SOURCE_H

#include "maps.h"
#include "parse.h"

/* When a CPU last looked at a packet. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} learnt_at SEC(".maps");

static __always_inline __u16 known_period(void)
{
	return settings.epoch >> KNOWN_PERIOD_SHIFT;
}

/* The hash of words whose products with their keys have this sum: core's `Keys::hash`. */
static __always_inline __u32 fair_hash(__u64 sum)
{
	__u32 half = sum >> 32;

	half ^= half >> FAIR_MIX_SHIFT;
	half *= FAIR_MIX_FIRST_FACTOR;
	half ^= half >> FAIR_MIX_MIDDLE_SHIFT;
	half *= FAIR_MIX_SECOND_FACTOR;
	return half ^ half >> FAIR_MIX_SHIFT;
}

/* An IPv4 address, or a /64 of IPv6, at a port. */
static __always_inline __u32 known_hash(const struct packet *packet, __u32 service)
{
	const __u64 *keys = settings.fair_keys;
	const __u64 *words = keys + FAIR_KEY_WORDS;
	/* No channel has so high a number, so no other hash is of the same words. */
	__u64 sum = keys[FAIR_KEY_FIRST] + keys[FAIR_KEY_CHANNEL] * (service | 1U << 31);

	if (!packet->ipv6)
		return fair_hash(sum + words[3] * bpf_ntohl(packet->source.words[3]));
	sum += keys[FAIR_KEY_CLASS] * 2 + words[0] * bpf_ntohl(packet->source.words[0]);
	return fair_hash(sum + words[1] * bpf_ntohl(packet->source.words[1]));
}

static __always_inline struct known_sources *known_set(__u32 hash)
{
	__u32 index = hash & (KNOWN_SOURCE_SETS - 1);

	return bpf_map_lookup_elem(&known_sources, &index);
}

static __always_inline __u32 known_tag(__u32 hash)
{
	return hash ? hash : 1;
}

static __always_inline bool is_still_known(const struct known_source *entry)
{
	return entry->periods >= KNOWN_PERIODS_MIN &&
	       (__u16)(known_period() - entry->seen) < KNOWN_AGE_PERIODS;
}

/* Of a prefix that was known from the start. */
static __always_inline bool is_of_known_prefix(const struct packet *packet)
{
	struct prefix source = { .bits = 128, .address = packet->source };
	__u8 *is_meant;

	if (!settings.know_prefixes)
		return false;
	is_meant = bpf_map_lookup_elem(&known_prefixes, &source);
	return is_meant && *is_meant;
}

static __always_inline bool is_known_source(const struct packet *packet, __u32 service)
{
	__u32 hash = known_hash(packet, service);
	struct known_sources *set = known_set(hash);
	__u32 tag = known_tag(hash);

	if (is_of_known_prefix(packet))
		return true;
	if (!set)
		return false;
#pragma unroll
	for (int i = 0; i < KNOWN_SOURCE_WAYS; i++) {
		struct known_source *entry = &set->ways[i];

		if (entry->tag != tag)
			continue;
		if (!is_still_known(entry))
			break;
		/* It does not grow old while the overload lasts. */
		if (entry->seen != known_period())
			entry->seen = known_period();
		return true;
	}
	return false;
}

/* A source was served. A function of its own for the verifier. */
__noinline int learn_source(const struct packet *packet, __u32 service, __u32 periods)
{
	struct known_source *place = NULL;
	struct known_sources *set;
	__u16 now = known_period();
	__u32 tag, hash;

	if (!packet)
		return 0;
	hash = known_hash(packet, service);
	tag = known_tag(hash);
	set = known_set(hash);
	if (!set)
		return 0;
	for (int i = 0; i < KNOWN_SOURCE_WAYS; i++) {
		struct known_source *entry = &set->ways[i];

		if (entry->tag == tag) {
			place = entry;
			break;
		}
		if (is_still_known(entry))
			continue;
		if (!place || !entry->tag ||
		    (place->tag && (__u16)(now - entry->seen) > (__u16)(now - place->seen)))
			place = entry;
	}
	if (!place)
		return 0;
	if (place->tag != tag) {
		place->tag = tag;
		place->periods = periods;
	} else if (periods > place->periods || (__u16)(now - place->seen) >= KNOWN_AGE_PERIODS) {
		place->periods = periods;
	} else if (place->seen != now && place->periods < KNOWN_PERIODS_MIN) {
		place->periods++;
	}
	place->seen = now;
	return 0;
}

/* Whether this CPU has not yet looked at a packet in this tick of the kernel. */
static __always_inline bool may_learn(void)
{
	__u64 now = bpf_jiffies64(), *last;
	__u32 key = 0;

	if (!settings.learning)
		return false;
	last = bpf_map_lookup_elem(&learnt_at, &key);
	if (!last || *last == now)
		return false;
	*last = now;
	return true;
}

#endif
