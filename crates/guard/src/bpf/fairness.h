/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Which packets of an overloaded channel are discarded: those of the sources that
 * have had their fair share. The rules, and why they are so, are core::fairness's;
 * a test shows both the same packets.
 *
 * What a CPU knows of sources is its own. What a channel's networks get is the same on
 * all CPUs: each tells the channel's share once per tick what it admitted. Should two
 * CPUs end an epoch at once, the later one finds that nothing was admitted in it, and
 * changes nothing.
 */
#ifndef PLIMSOLL_FAIRNESS_H
#define PLIMSOLL_FAIRNESS_H

#include "source_credit.h"
#include "tick.h"

/* The epoch of a channel's share has ended: what its networks get follows from it. */
static __always_inline void follow_consumer(struct fair_share *share, __u64 admitted,
					    __u64 used, __u32 began, __u32 ticks)
{
	__u64 taken = (admitted << FAIR_PACKET_SHIFT) / ticks;
	__u64 factor = admitted * (FAIR_PART - FAIR_PART / FAIR_CHANNEL_UNWANTED_PARTS) / (used ? used : 1);
	__u64 level;

	share->taken = taken < 0xffffffff ? taken : 0xffffffff;
	/* Without a discard nobody has too large a share. */
	if (share->discarded_at - began >= FAIR_STALE_TICKS && factor < FAIR_PART)
		factor = FAIR_PART;
	level = fair_moved(fair_level(share), factor);
	share->level = level < FAIR_LEVEL_MIN ? FAIR_LEVEL_MIN :
		       level < FAIR_LEVEL_MAX ? level :
						FAIR_LEVEL_MAX;
}

/* The slot has another owner than the share. */
static __always_inline void begin_fair_share(struct fair_share *share, __u32 generation)
{
	share->admitted_before = share->admitted;
	share->used_before = share->used;
	share->level = 0;
	share->taken = 0;
	share->generation = generation;
}

/* Once per tick and CPU. A function of its own for the verifier. */
__noinline int end_fair_tick(__u32 slot, __u32 tick)
{
	struct fair_share *share = bpf_map_lookup_elem(&fair_shares, &slot);
	struct channel *channel = channel_at(slot);
	__u64 admitted, used;
	__u32 began, ticks, enough;

	if (!share || !channel)
		return 0;
	if (share->generation != channel->generation)
		begin_fair_share(share, channel->generation);
	channel->fair_tick = tick;
	channel->loud_profile = PROFILE_UNKNOWN;
	__sync_fetch_and_add(&share->admitted, channel->fair_admitted);
	__sync_fetch_and_add(&share->used, channel->fair_used);
	channel->fair_admitted = 0;
	channel->fair_used = 0;
	began = share->began;
	ticks = tick - began;
	admitted = share->admitted - share->admitted_before;
	enough = channel->turns ? FAIR_TURNS_EPOCH_PACKETS : FAIR_CHANNEL_EPOCH_PACKETS;
	if (!fair_is_over(ticks, fair_level(share), admitted >= enough))
		return 0;
	share->began = tick;
	used = share->used - share->used_before;
	share->admitted_before += admitted;
	share->used_before += used;
	/* Nothing admitted: nothing is known of the consumer's rate. */
	if (admitted && ticks < FAIR_STALE_TICKS)
		follow_consumer(share, admitted, used, began, ticks);
	return 0;
}

/* The tick's other packets of a source that waits need no look at its entry. */
static __always_inline void note_loudest(struct channel *channel, __u32 profile, __u32 hash)
{
	if (channel->loud_profile)
		return;
	channel->loud = hash;
	channel->loud_profile = profile;
}

/*
 * Notes whose packet it is, for whoever asks who floods a channel. A function of its own
 * for the verifier.
 */
__noinline int sample_source(const struct packet *packet, __u32 slot, __u32 tick)
{
	/* Channels begin at places of their own, and overwrite each other's oldest. */
	__u32 place = (tick + slot * (FAIR_SAMPLES * 5 / 8 + 1)) % FAIR_SAMPLES;
	__u32 index = bpf_get_smp_processor_id() * FAIR_SAMPLES + place;
	struct fair_sample *sample = bpf_map_lookup_elem(&fair_samples, &index);
	struct channel *channel = channel_at(slot);
	__u32 judged = 0;

	if (!packet || !sample || !channel)
		return 0;
	for (int class = 0; class < CLASS_COUNT; class++)
		judged += channel->judged[class].admitted + channel->judged[class].discarded;
	sample->source = packet->source;
	sample->slot = slot;
	sample->generation = channel->generation;
	sample->tick = tick;
	sample->judged = judged;
	return 0;
}

/*
 * Whether a packet of a slot is in profile (enum profile); takes its credit. `service`:
 * destination port and protocol.
 */
static __always_inline __u32 take_profile(const struct packet *packet, struct channel *channel,
					  __u32 slot, __u32 service, __u32 tick)
{
	struct fair_path path;
	__u32 profile;

	if (channel->fair_tick != tick) {
		end_fair_tick(slot, tick);
		if (!channel->sample_in)
			channel->sample_in =
				1 + (bpf_get_prandom_u32() & (FAIR_SAMPLE_PACKETS - 1));
	}
	if (channel->sample_in && !--channel->sample_in)
		sample_source(packet, slot, tick);
	fair_path_of(packet, slot, false, &path);
	if (channel->loud_profile && channel->loud == path.host)
		return channel->loud_profile;
	profile = take_credit(packet, slot, service, tick);
	if (profile & PROFILE_WAITING)
		note_loudest(channel, profile, path.host);
	return profile;
}

static __always_inline __u32 service_of(const struct packet *packet, const struct verdict *verdict)
{
	return bpf_ntohs(verdict->port) | packet->protocol << 16;
}

static __always_inline bool is_in_profile(__u32 profile)
{
	return (profile & PROFILE_PARTS) != PROFILE_OUT;
}

/* The channel has not room for everybody: it is pressed. */
static __always_inline void press(struct channel *channel, __u32 slot, __u32 tick)
{
	struct fair_share *share = bpf_map_lookup_elem(&fair_shares, &slot);

	channel->pressed = true;
	channel->pressed_tick = tick;
	if (share && share->discarded_at != tick)
		share->discarded_at = tick;
}

/* Whether the channel is pressed: it has no room now, or had none a moment ago. */
static __always_inline bool stays_pressed(struct channel *channel, __u32 slot, __u32 tick,
					  bool discarding)
{
	if (discarding)
		press(channel, slot, tick);
	else if (tick - channel->pressed_tick >= FAIR_CALM_TICKS)
		channel->pressed = false;
	return channel->pressed;
}

/* An idle consumer has taken all that was queued: what comes now is a burst, no flood. */
static __always_inline void note_empty(struct channel *channel)
{
	if (channel->pressed && coarse_tick() - channel->pressed_tick >= FAIR_EMPTY_CALM_TICKS)
		channel->pressed = false;
}

/* A packet's class, if packets of its channel are judged by source. */
static __always_inline void count_judged(const struct verdict *verdict)
{
	__u32 class = verdict->profile & PROFILE_KNOWN ? CLASS_KNOWN : CLASS_UNKNOWN;

	/* Whoever got a cookie has lost nothing. */
	if (!verdict->profile || verdict->outcome == OUTCOME_SYN_COOKIE)
		return;
	if (verdict->outcome == OUTCOME_ADMITTED)
		verdict->channel->judged[class].admitted++;
	else
		verdict->channel->judged[class].discarded++;
}

/* Where a queue stands, in its own unit. */
struct fair_queue {
	__u32 occupancy;
	__u32 high;
	__u32 full;
};

/*
 * How far a queue above its high watermark is filled, of 256. Who has less than this
 * part of its credit left is refused: the last room is for the quiet ones.
 */
static __always_inline __u32 fair_pressure(const struct fair_queue *queue)
{
	__u32 room;

	if (queue->occupancy <= queue->high)
		return 0;
	room = queue->full > queue->high ? queue->full - queue->high : 1;
	return ((__u64)(queue->occupancy - queue->high) << FAIR_PART_SHIFT) / room;
}

/* A packet in profile finds room up to the queue's end. */
static __always_inline enum outcome judge_in_profile(__u32 profile,
						     const struct fair_queue *queue)
{
	if (queue->occupancy >= queue->full)
		return OUTCOME_SOCKET_QUEUE;
	if ((profile & PROFILE_PARTS) - PROFILE_IN < fair_pressure(queue))
		return OUTCOME_SOURCE_SHARE;
	return OUTCOME_ADMITTED;
}

/*
 * Judges a packet of a channel that is overloaded, or was a moment ago. `discarding`:
 * the queue has room for packets in profile only.
 */
static __always_inline enum outcome judge_source(const struct packet *packet,
						 struct verdict *verdict,
						 const struct fair_queue *queue, bool discarding)
{
	struct channel *channel = verdict->channel;
	enum outcome outcome = OUTCOME_ADMITTED;
	__u32 tick = coarse_tick();

	if (!stays_pressed(channel, verdict->slot, tick, discarding))
		return OUTCOME_ADMITTED;
	if (!verdict->profile)
		verdict->profile = take_profile(packet, channel, verdict->slot,
						service_of(packet, verdict), tick);
	if (is_in_profile(verdict->profile)) {
		channel->fair_used++;
		outcome = judge_in_profile(verdict->profile, queue);
	} else if (discarding) {
		outcome = OUTCOME_SOURCE_SHARE;
	}
	if (outcome != OUTCOME_ADMITTED)
		return outcome;
	channel->fair_admitted++;
	verdict->profile |= PROFILE_COUNTED;
	if (channel->turns && is_in_profile(verdict->profile))
		end_turn(packet, verdict->slot, !!(verdict->profile & PROFILE_KNOWN));
	return outcome;
}

#endif
