/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Shares of what is admitted while input is shed. */
#ifndef PLIMSOLL_SHARE_H
#define PLIMSOLL_SHARE_H

#include "fairness.h"
#include "protection.h"
#include "tick.h"

/* The clock of shares: parts of ticks, after each of which as much of a tick's packets is due. */
static __always_inline __u32 share_time(__u64 now_ns)
{
	return now_ns >> (TICK_SHIFT - FAIR_BUDGET_PARTS_SHIFT);
}

/* Ticks between two times of that clock. */
static __always_inline __u32 ticks_between(__u32 earlier, __u32 later)
{
	__u32 ticks = (later >> FAIR_BUDGET_PARTS_SHIFT) - (earlier >> FAIR_BUDGET_PARTS_SHIFT);

	return ticks & (~0U >> FAIR_BUDGET_PARTS_SHIFT);
}

/*
 * What of a tick's packets may have come by now, if no queue bounds them: all at its beginning
 * would come faster than they are worked on, and the ring, which is everybody's, would overflow.
 */
static __always_inline __u32 due_by(__u32 time, __u32 packets)
{
	__u32 last = (1 << FAIR_BUDGET_PARTS_SHIFT) - 1;
	__u64 begun = (time & last) + 1, due;

	due = ((packets * begun + last) >> FAIR_BUDGET_PARTS_SHIFT) + FAIR_BUDGET_AHEAD;
	return due < packets ? due : packets;
}

/* Takes one of the packets that a channel may have in a tick. */
static __always_inline bool take_share(struct channel *channel, __u32 time, __u32 packets)
{
	if (ticks_between(channel->share_time, time)) {
		channel->share_time = time;
		channel->share_packets = 0;
	}
	if (channel->share_packets >= packets)
		return false;
	channel->share_packets++;
	return true;
}

static __always_inline __u32 less(__u32 all, __u32 part)
{
	return all > part ? all - part : 0;
}

/*
 * Begins a tick of a share that is divided among sources. Those in profile may overdraw
 * it, and a part of it is kept for known ones. What those in profile left over in the tick
 * before is for the others.
 */
static __always_inline void begin_divided_tick(struct channel *channel, __u32 time,
					       __u32 packets)
{
	__u32 passed = ticks_between(channel->share_time, time);
	bool is_next = passed == 1;
	__u32 overdrawn, in_profile;

	channel->share_time = time;
	if (!passed) {
		/* Packets that came before a cut were allowed, and are no debt. */
		if (packets > channel->share_budget)
			channel->share_budget = packets;
		return;
	}
	overdrawn = is_next ? less(channel->share_packets, channel->share_budget) : 0;
	in_profile = is_next ? channel->share_in_profile : 0;
	channel->share_packets = overdrawn;
	channel->share_budget = packets;
	channel->share_others = less(packets, in_profile + overdrawn);
	channel->share_in_profile = 0;
	channel->share_known = 0;
}

/*
 * A packet of a channel whose share does not suffice for everybody. So many of its packets
 * are `due` by now.
 */
static __always_inline enum outcome take_part(struct channel *channel, __u32 profile,
					      __u32 packets, __u32 due)
{
	struct fair_queue budget = {
		.occupancy = channel->share_packets,
		.high = due,
		.full = due + packets / FAIR_OVERDRAWN_PARTS,
	};
	__u32 kept = (due + FAIR_KNOWN_PARTS - 1) / FAIR_KNOWN_PARTS;
	enum outcome outcome;

	if (is_in_profile(profile)) {
		if (channel->share_in_profile != 0xffff)
			channel->share_in_profile++;
		if (profile & PROFILE_KNOWN && channel->share_known < kept) {
			channel->share_known++;
			channel->share_packets++;
			return OUTCOME_ADMITTED;
		}
		outcome = judge_in_profile(profile, &budget);
		channel->share_packets += outcome == OUTCOME_ADMITTED;
		/* Before it was due: its place is left for others. */
		if (outcome != OUTCOME_ADMITTED && due < packets && channel->share_in_profile)
			channel->share_in_profile--;
		return outcome == OUTCOME_SOCKET_QUEUE ? OUTCOME_SHARE : outcome;
	}
	if (budget.occupancy >= due || !channel->share_others)
		return OUTCOME_SOURCE_SHARE;
	channel->share_others--;
	channel->share_packets++;
	return OUTCOME_ADMITTED;
}

/* Divides a channel's share among its sources: core::fairness, judge_shed. */
static __always_inline enum outcome judge_sources_of_share(const struct packet *packet,
							   struct verdict *verdict,
							   struct channel *channel, __u32 slot,
							   __u32 time, __u32 packets)
{
	/* By its queue. */
	bool counted = verdict->profile & PROFILE_COUNTED;
	enum outcome outcome;
	__u32 now = coarse_tick();

	begin_divided_tick(channel, time, packets);
	if (!stays_pressed(channel, slot, now, channel->share_packets >= packets)) {
		channel->share_packets++;
		return OUTCOME_ADMITTED;
	}
	if (!verdict->profile) {
		verdict->profile =
			take_profile(packet, channel, slot, service_of(packet, verdict), now);
		channel->fair_used += is_in_profile(verdict->profile);
	}
	outcome = take_part(channel, verdict->profile, packets,
			    verdict->slot ? packets : due_by(time, packets));
	if (outcome != OUTCOME_ADMITTED) {
		press(channel, slot, now);
		channel->fair_admitted -= counted;
	} else {
		channel->fair_admitted += !counted;
		if (channel->turns && is_in_profile(verdict->profile))
			end_turn(packet, slot, !!(verdict->profile & PROFILE_KNOWN));
	}
	return outcome;
}

/*
 * Proportional shares when input must be shed (Mogul & Ramakrishnan, section
 * 7; Druschel & Banga's accounting): each channel gets what the loader found
 * fair, per tick, and divides it among its sources; all protected traffic is one
 * channel with a guarantee. A fragment that is refused already asks all the same.
 */
static __always_inline void ask_for_share(const struct packet *packet, struct verdict *verdict)
{
	__u32 slot = verdict->slot ? verdict->slot : SLOT_KINDS + verdict->kind;
	__u64 now_ns = bpf_ktime_get_ns(), tick = now_ns >> TICK_SHIFT;
	__u32 time = share_time(now_ns);
	struct allowance *allowance = bpf_map_lookup_elem(&allowances, &slot);
	enum protection protection = PROTECTION_NONE;
	struct channel *channel;
	__u32 packets;
	bool fits;

	if (!is_governed(tick))
		return;
	if (allowance)
		protection = protection_of(packet, verdict, allowance);
	if (protection != PROTECTION_NONE) {
		slot = SLOT_PROTECTED;
		allowance = bpf_map_lookup_elem(&allowances, &slot);
	}
	channel = channel_at(slot);
	if (!allowance || !channel)
		return;
	channel->demand++;
	if (verdict->shed)
		return;
	packets = allowance->share_packets ? allowance->share_packets : settings.share_packets;
	if (verdict->kind == KIND_NEIGHBOUR)
		fits = take_share(channel, time, NEIGHBOUR_PACKETS);
	else if (protection != PROTECTION_NONE)
		fits = take_protected(packet, verdict, protection, tick, packets);
	else if (!settings.fairness)
		fits = take_share(channel, time, packets);
	else {
		verdict->outcome =
			judge_sources_of_share(packet, verdict, channel, slot, time, packets);
		fits = true;
	}
	if (!fits)
		verdict->outcome = OUTCOME_SHARE;
	verdict->shed = verdict->outcome != OUTCOME_ADMITTED;
}

/* What becomes of a packet by its share, in one word: its profile, and above it: */
#define SHARE_OUTCOME_SHIFT 20 /* above all bits of enum profile */
#define SHARE_SHED_SHIFT 24
#define SHARE_ESTABLISHED_SHIFT 25
_Static_assert(PROFILE_COUNTED < 1 << SHARE_OUTCOME_SHIFT, "the highest bit of a profile");
_Static_assert(OUTCOME_COUNT <= 1 << (SHARE_SHED_SHIFT - SHARE_OUTCOME_SHIFT), "any outcome");

/*
 * The same by numbers alone. A function of its own for the verifier: it goes on with one number
 * that it does not know, and not with each way through here.
 */
__noinline int judge_by_share(const struct packet *packet, __u32 kind, __u32 slot, __u32 ports,
			      __u32 word)
{
	struct verdict verdict = {
		.slot = slot,
		.port = ports,
		.source_port = ports >> 16,
		.is_established = word >> SHARE_ESTABLISHED_SHIFT & 1,
		.shed = word >> SHARE_SHED_SHIFT & 1,
		.profile = word & ((1 << SHARE_OUTCOME_SHIFT) - 1),
		.kind = kind,
		.outcome = word >> SHARE_OUTCOME_SHIFT & 0xf,
	};

	if (packet)
		ask_for_share(packet, &verdict);
	return verdict.profile | verdict.outcome << SHARE_OUTCOME_SHIFT |
	       verdict.shed << SHARE_SHED_SHIFT;
}

static __always_inline void judge_share(const struct packet *packet, struct verdict *verdict)
{
	__u32 word = verdict->profile | verdict->outcome << SHARE_OUTCOME_SHIFT |
		     verdict->shed << SHARE_SHED_SHIFT |
		     verdict->is_established << SHARE_ESTABLISHED_SHIFT;

	word = judge_by_share(packet, verdict->kind, verdict->slot, ports_of(verdict), word);
	verdict->profile = word & ((1 << SHARE_OUTCOME_SHIFT) - 1);
	verdict->outcome = word >> SHARE_OUTCOME_SHIFT & 0xf;
	verdict->shed = word >> SHARE_SHED_SHIFT & 1;
}

#endif
