/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * A source's credit: its host's, its subnet's and its network's, at their levels. The
 * rules, and why they are so, are core::fairness's.
 */
#ifndef PLIMSOLL_SOURCE_CREDIT_H
#define PLIMSOLL_SOURCE_CREDIT_H

#include "channel.h"
#include "known_source.h"
#include "verifier.h"

/* How a packet stands with its source's credit. */
enum profile {
	PROFILE_UNKNOWN, /* nobody has asked */
	PROFILE_OUT,
	PROFILE_IN, /* and above: the part of its credit that was left, of 256 */
	PROFILE_PARTS = 0xffff,
	PROFILE_KNOWN = 0x10000, /* a bit: the source is known from before the overload */
	PROFILE_WAITING = 0x20000, /* a bit: the source gets no credit in this tick */
	PROFILE_SILENT = 0x40000, /* a bit: the source asks for far less than its share */
	PROFILE_COUNTED = 0x80000, /* a bit: the packet is in `fair_admitted` */
};

/* Whose an entry of a table was. */
enum owner {
	OWNER_SAME,
	OWNER_OTHER,
	OWNER_NOBODY,
};

/* Who sent a packet, by level: hashes. */
struct fair_path {
	__u32 network;
	__u32 subnet;
	__u32 host;
};

/* The most credit that can be saved at a level. */
static __always_inline __u32 fair_cap(__u32 level)
{
	__u32 credit = level * FAIR_BURST_TICKS;

	return credit > FAIR_BURST_PACKETS * FAIR_PACKET ? credit :
							   FAIR_BURST_PACKETS * FAIR_PACKET;
}

/* The credit that the first owner of an entry begins with. */
static __always_inline __u32 fair_initial(__u32 level)
{
	__u32 credit = level * FAIR_BURST_TICKS;

	return credit > FAIR_PACKET ? credit : FAIR_PACKET;
}

static __always_inline __u32 fair_refill(__u32 credit, __u32 level, __u16 elapsed)
{
	__u64 all = credit + (__u64)level * elapsed;
	__u32 cap = fair_cap(level);

	return all < cap ? all : cap;
}

/* Takes one packet's credit, if there is as much. */
static __always_inline __u32 fair_spend(__u32 *credit, __u32 level)
{
	__u32 part;

	if (*credit < FAIR_PACKET)
		return PROFILE_OUT;
	part = ((__u64)*credit << FAIR_PART_SHIFT) / fair_cap(level);
	*credit -= FAIR_PACKET;
	return PROFILE_IN + part;
}

/* What follows a level, or a part: by a factor of 1/256: one of FAIR_STEP_PARTS of the way. */
static __always_inline __u64 fair_moved(__u32 level, __u64 factor)
{
	if (factor < FAIR_PART / FAIR_STEP_MAX)
		factor = FAIR_PART / FAIR_STEP_MAX;
	if (factor > FAIR_PART * FAIR_STEP_MAX)
		factor = FAIR_PART * FAIR_STEP_MAX;
	return level * (factor + (FAIR_STEP_PARTS - 1) * FAIR_PART) /
	       (FAIR_STEP_PARTS * FAIR_PART);
}

/* Whether an epoch of so many ticks at a level has taught enough. */
static __always_inline bool fair_is_over(__u32 ticks, __u32 level, bool enough_packets)
{
	if (ticks < FAIR_EPOCH_TICKS)
		return false;
	return (enough_packets && (__u64)ticks * level >= FAIR_EPOCH_CREDIT_PACKETS * FAIR_PACKET) ||
	       ticks >= FAIR_EPOCH_TICKS_MAX;
}

static __always_inline __u16 fair_tag(__u32 hash)
{
	__u16 tag = hash >> 16;

	return tag ? tag : 1;
}

/* The place of a set in a table of which every CPU has a part. */
static __always_inline __u32 fair_set(__u32 hash, __u32 mask)
{
	return bpf_get_smp_processor_id() * (mask + 1) + (hash & mask);
}

/*
 * The way of a tag's entry, which a newcomer takes over from who has been idle for longest, and
 * above its two bits whose it was. Nodes and hosts differ in their types only.
 */
#define FAIR_FIND(ways, wanted, now)                                                 \
	({                                                                           \
		__u32 _way = FAIR_WAYS, _oldest = 0, _age;                           \
		enum owner _owner = OWNER_SAME;                                      \
		_Pragma("unroll") for (__u32 _i = 0; _i < FAIR_WAYS; _i++)           \
			if ((ways)[_i].tag == (wanted))                              \
				_way = _i;                                           \
		if (_way == FAIR_WAYS) {                                             \
			_Pragma("unroll") for (__u32 _i = 0; _i < FAIR_WAYS; _i++) { \
				_age = (__u16)((now) - (ways)[_i].tick) + 1;         \
				if (!(ways)[_i].tag)                                 \
					_age = 1 << 17;                              \
				if (_age > _oldest) {                                \
					_oldest = _age;                              \
					_way = _i;                                   \
				}                                                    \
			}                                                            \
			_owner = _oldest == 1 << 17 ? OWNER_NOBODY : OWNER_OTHER;    \
		}                                                                    \
		_owner << 2 | (_way & (FAIR_WAYS - 1));                              \
	})

/* The share of each of those within a node whose own is `own_level`. */
static __always_inline __u32 fair_level_within(const struct fair_node *node, __u32 own_level)
{
	__u32 level = (__u64)own_level * node->part >> FAIR_WHOLE_SHIFT;

	return level > FAIR_LEVEL_MIN ? level : FAIR_LEVEL_MIN;
}

static __always_inline __u32 fair_review(struct fair_node *node, __u32 own_level, __u16 tick)
{
	__u32 level = fair_level_within(node, own_level);
	__u32 ticks = (__u16)(tick - node->began);
	__u64 wanted, part;

	if (!fair_is_over(ticks, level, node->passed >= FAIR_NODE_EPOCH_PACKETS))
		return level;
	if (ticks > FAIR_STALE_TICKS)
		ticks = FAIR_STALE_TICKS;
	wanted = (__u64)own_level * ticks * (FAIR_NODE_UNWANTED_PARTS - 1) /
		 FAIR_NODE_UNWANTED_PARTS;
	wanted >>= FAIR_PACKET_SHIFT - FAIR_PART_SHIFT;
	part = fair_moved(node->part, wanted / (node->passed ? node->passed : 1));
	node->part = part < 1 ? 1 : part < FAIR_WHOLE ? part : FAIR_WHOLE;
	node->began = tick;
	node->passed = 0;
	return fair_level_within(node, own_level);
}

/*
 * Brings a network or subnet up to date, whose own credit grows at `own_level`; returns
 * the level of those within. A function of its own for the verifier.
 */
__noinline int fair_refresh(struct fair_node *node, __u32 own_level, __u32 now, __u32 tag,
			    __u32 owner)
{
	__u16 tick = now, elapsed;

	if (!node)
		return own_level;
	elapsed = tick - node->tick;
	node->tag = tag;
	node->credit = owner == OWNER_NOBODY ? fair_initial(own_level) :
					       fair_refill(node->credit, own_level, elapsed);
	node->tick = tick;
	if (owner == OWNER_NOBODY || elapsed >= FAIR_EPOCH_TICKS_MAX) {
		node->part = FAIR_WHOLE;
		node->began = tick;
		node->passed = 0;
	}
	return fair_review(node, own_level, tick);
}

/* One more is within: where there were n, each has a part of n + 1. */
static __always_inline __u32 fair_divide(struct fair_node *node, __u32 own_level, __u32 level)
{
	__u64 part = node->part;

	if (level >= FAIR_NEWCOMER_LEVEL)
		return level;
	part = (part << FAIR_WHOLE_SHIFT) / (part + FAIR_WHOLE);
	node->part = part ? part : 1;
	return fair_level_within(node, own_level);
}

/*
 * Whether a packet that is in profile below is so here as well. The last of
 * FAIR_SAVERS_PARTS of the credit is for those who have saved theirs.
 */
static __always_inline __u32 fair_pass(struct fair_node *node, __u32 own_level, __u32 below)
{
	__u32 own, left;

	if (below == PROFILE_OUT)
		return PROFILE_OUT;
	if (node->passed != 0xffff)
		node->passed++;
	if (node->credit < FAIR_PACKET)
		return PROFILE_OUT;
	left = ((__u64)node->credit << FAIR_PART_SHIFT) / fair_cap(own_level);
	if (below - PROFILE_IN + FAIR_SAVERS_PARTS * left < FAIR_PART)
		return PROFILE_OUT;
	own = fair_spend(&node->credit, own_level);
	return own < below ? own : below;
}

static __always_inline bool fair_is_waiting(const struct fair_host *host, __u16 tick)
{
	return (__u16)(tick - host->tick) < host->wait;
}

static __always_inline void fair_go_on_waiting(struct fair_host *host, __u16 tick)
{
	host->wait -= (__u16)(tick - host->tick);
	host->tick = tick;
}

/* It waits until it has one packet's credit, and has it then. */
static __always_inline void fair_wait(struct fair_host *host, __u32 level)
{
	__u32 ticks;

	host->wait = 0;
	if (host->credit >= FAIR_PACKET)
		return;
	ticks = (FAIR_PACKET - host->credit + level - 1) / level;
	if (ticks > FAIR_WAIT_TICKS_MAX)
		ticks = FAIR_WAIT_TICKS_MAX;
	host->wait = ticks;
	host->credit += level * ticks;
}

/* Whether sources with this share have turns. */
static __always_inline bool has_turns(__u32 level)
{
	return level < FAIR_PACKET / FAIR_TURN_TICKS;
}

/* In so many ticks a packet is earned. */
static __always_inline __u16 turn_of(__u32 level)
{
	return (FAIR_PACKET + level - 1) / level;
}

/* In profile is who has waited for a turn. */
static __always_inline __u32 fair_take_turn(struct fair_host *host, __u32 level, __u16 tick,
					    enum owner owner)
{
	__u16 turn = turn_of(level), age, left;
	__u32 credit;

	if (owner == OWNER_NOBODY || (__u16)(tick - host->tick) >= FAIR_TURN_AGE_MAX) {
		__u32 newcomers = (__u32)turn * FAIR_NEWCOMER_TURNS;

		host->since = tick - (newcomers < FAIR_TURN_AGE_MAX ? newcomers : FAIR_TURN_AGE_MAX);
	}
	age = tick - host->since;
	if (age > FAIR_TURN_AGE_MAX)
		age = FAIR_TURN_AGE_MAX;
	credit = (__u32)age * level;
	if (credit > fair_cap(level))
		credit = fair_cap(level);
	host->since = tick - age;
	host->tick = tick;
	host->credit = credit;
	left = age < turn ? turn - age : 0;
	host->wait = left < FAIR_WAIT_TICKS_MAX ? left : FAIR_WAIT_TICKS_MAX;
	return left ? PROFILE_OUT : PROFILE_IN + (credit << FAIR_PART_SHIFT) / fair_cap(level);
}

static __always_inline __u32 fair_host_take(struct fair_host *host, __u32 level, __u16 tick,
					    enum owner owner)
{
	__u16 elapsed = tick - host->tick;
	__u32 profile;

	if (has_turns(level))
		return fair_take_turn(host, level, tick, owner);
	if (owner == OWNER_NOBODY)
		host->credit = fair_initial(level);
	else if (fair_is_waiting(host, tick)) /* what another one was promised is void */
		host->credit = fair_refill(0, level, elapsed ? elapsed : 1);
	else
		host->credit = fair_refill(host->credit, level, elapsed - host->wait);
	host->tick = tick;
	profile = fair_spend(&host->credit, level);
	if (profile != PROFILE_OUT)
		host->since = tick;
	fair_wait(host, level);
	return profile;
}

static __always_inline void fair_path_of(const struct packet *packet, __u32 slot, bool known,
					 struct fair_path *path)
{
	const __u64 *keys = settings.fair_keys;
	const __u64 *words = keys + FAIR_KEY_WORDS;
	__u64 base = keys[FAIR_KEY_FIRST] + keys[FAIR_KEY_CHANNEL] * slot +
		     keys[FAIR_KEY_CLASS] * (known | (packet->ipv6 ? 2 : 0));
	__u32 last = bpf_ntohl(packet->source.words[3]);

	if (packet->ipv6) {
		__u64 sum = base + words[0] * bpf_ntohl(packet->source.words[0]);
		__u32 second = bpf_ntohl(packet->source.words[1]);

		path->network = fair_hash(sum + words[1] * (second & ~0U << FAIR_NETWORK_BITS));
		sum += words[1] * second;
		path->subnet = fair_hash(sum);
		/* A known host of IPv6 is its /64: interface identifiers change. */
		if (!known)
			sum += words[2] * bpf_ntohl(packet->source.words[2]) + words[3] * last;
		path->host = fair_hash(sum);
	} else {
		path->network = fair_hash(base + words[3] * (last & ~0U << FAIR_NETWORK_BITS));
		path->subnet = fair_hash(base + words[3] * (last & ~0U << FAIR_SUBNET_BITS));
		path->host = fair_hash(base + words[3] * last);
	}
}

/* Credit per tick of each of a channel's networks. */
static __always_inline __u32 fair_level(const struct fair_share *share)
{
	return share->level ? share->level : FAIR_PACKET;
}

/* The same for a known source: all of them together are a network of their own. */
static __always_inline __u32 take_of_known(struct channel *channel, struct fair_host *host,
					   __u32 level, __u32 taken, __u16 tick,
					   enum owner owner)
{
	enum owner before = channel->known.tag ? OWNER_SAME : OWNER_NOBODY;
	__u32 profile, host_level, part = taken / FAIR_KNOWN_PARTS;

	if (part > FAIR_LEVEL_MAX)
		part = FAIR_LEVEL_MAX;
	if (level < part)
		level = part;
	host_level = fair_refresh(&channel->known, level, tick, 1, before);
	if (owner == OWNER_NOBODY && before != OWNER_NOBODY)
		host_level = fair_divide(&channel->known, level, host_level);
	profile = fair_host_take(host, host_level, tick, owner);
	channel->turns = has_turns(host_level);
	return fair_pass(&channel->known, level, profile) | PROFILE_KNOWN;
}

/* The entry of a source of a channel, and whose it was. */
static __always_inline struct fair_host *fair_host_of(__u32 hash, __u32 slot,
						      enum source_class class, __u16 tick,
						      enum owner *owner)
{
	__u32 index = fair_set(hash, settings.fair_host_mask);
	struct fair_hosts *hosts = bpf_map_lookup_elem(&fair_hosts, &index);
	struct fair_host *host;
	__u64 way;

	if (!hosts)
		return NULL;
	way = FAIR_FIND(hosts->ways, fair_tag(hash), tick);
	forget(way, hash);
	host = &hosts->ways[way & (FAIR_WAYS - 1)];
	*owner = way >> 2 & 3;
	if (*owner != OWNER_SAME) {
		host->tag = fair_tag(hash);
		host->slot = slot;
		host->class = class;
	}
	return host;
}

static __always_inline struct fair_nodes *networks_at(__u32 hash)
{
	__u32 index = fair_set(hash, settings.fair_network_mask);

	return bpf_map_lookup_elem(&fair_networks, &index);
}

/*
 * The way of a network or subnet in its set, and above its two bits whose it was. A
 * function of its own for the verifier.
 */
__noinline int fair_way_of(const struct fair_nodes *set, __u32 hash, __u32 now)
{
	return set ? FAIR_FIND(set->ways, fair_tag(hash), (__u16)now) : 0;
}

/* A network's entry, and the most that each host within can have as it stands. */
struct network_found {
	struct fair_node *node;
	enum owner owner;
	__u32 own_level;
	__u32 bound; /* FAIR_LEVEL_MAX: unknown */
};

static __always_inline bool find_network(__u32 hash, const struct fair_share *share, __u16 tick,
					 struct network_found *found)
{
	struct fair_nodes *networks = networks_at(hash);
	__u32 way;

	if (!networks)
		return false;
	way = fair_way_of(networks, hash, tick);
	found->node = &networks->ways[way & (FAIR_WAYS - 1)];
	found->owner = way >> 2;
	found->own_level = fair_level(share);
	found->bound = FAIR_LEVEL_MAX;
	if (found->owner != OWNER_NOBODY &&
	    (__u16)(tick - found->node->tick) < FAIR_EPOCH_TICKS_MAX)
		found->bound = fair_level_within(found->node, found->own_level);
	return true;
}

/* Whether a newcomer finds no credit in the place of somebody who waits. */
static __always_inline bool has_none_for(const struct fair_host *host, __u32 bound, __u16 tick)
{
	__u16 elapsed = tick - host->tick;

	return elapsed < host->wait && bound != FAIR_LEVEL_MAX &&
	       (__u64)bound * (elapsed ? elapsed : 1) < FAIR_PACKET;
}

/* Strangers: newcomers without credit. */
static __always_inline void note_stranger(struct channel *channel, bool stranger)
{
	__u32 strangers = channel->strangers;

	if (stranger && strangers < FAIR_STRANGERS_MAX)
		channel->strangers = strangers + 1;
	else if (!stranger && strangers)
		channel->strangers = strangers - 1;
}

/* Whether a packet is refused without a look, which would miss all caches. */
static __always_inline bool is_passed_over(struct channel *channel, __u32 network,
					   const struct fair_share *share, __u16 tick)
{
	struct network_found found;

	if (channel->strangers < FAIR_STRANGERS_MIN)
		return false;
	if (!find_network(network, share, tick, &found) ||
	    found.bound >= FAIR_PACKET / FAIR_STRANGERS_TICKS)
		return false;
	channel->strangers_passed_over =
		(channel->strangers_passed_over + 1) % FAIR_STRANGERS_LOOK;
	return channel->strangers_passed_over;
}

/* The same for a source that does not wait, or not in its own place. */
static __always_inline __u32 take_of_levels(struct fair_host *host, enum owner owner,
					    const struct fair_path *path,
					    struct channel *channel,
					    const struct fair_share *share, __u16 tick)
{
	__u32 index = fair_set(path->subnet, settings.fair_subnet_mask);
	struct fair_nodes *subnets = bpf_map_lookup_elem(&fair_subnets, &index);
	__u32 level, host_level, profile, way, silent = 0;
	struct network_found network;
	struct fair_node *subnet;

	if (!subnets || !find_network(path->network, share, tick, &network))
		return PROFILE_IN;
	if (owner == OWNER_OTHER && has_none_for(host, network.bound, tick)) {
		note_stranger(channel, true);
		fair_go_on_waiting(host, tick);
		return PROFILE_OUT | PROFILE_WAITING;
	}
	level = fair_refresh(network.node, network.own_level, tick, fair_tag(path->network),
			     network.owner);
	way = fair_way_of(subnets, path->subnet, tick);
	subnet = &subnets->ways[way & (FAIR_WAYS - 1)];
	if (way >> 2 == OWNER_NOBODY && network.owner != OWNER_NOBODY)
		level = fair_divide(network.node, network.own_level, level);
	host_level = fair_refresh(subnet, level, tick, fair_tag(path->subnet), way >> 2);
	if (owner == OWNER_NOBODY && way >> 2 != OWNER_NOBODY)
		host_level = fair_divide(subnet, level, host_level);
	profile = fair_host_take(host, host_level, tick, owner);
	channel->turns = has_turns(host_level);
	if (owner == OWNER_SAME && profile >= PROFILE_IN + FAIR_SILENT)
		silent = PROFILE_SILENT;
	note_stranger(channel, owner == OWNER_OTHER && profile == PROFILE_OUT);
	profile = fair_pass(subnet, level, profile);
	return fair_pass(network.node, network.own_level, profile) | silent;
}

/*
 * Takes a packet's credit from its host, then its subnet, then its network: enum
 * profile. Who waits for credit is refused before any level is looked at. A function
 * of its own for the verifier, which checks it once.
 */
__noinline int take_credit(const struct packet *packet, __u32 slot, __u32 service, __u32 now)
{
	struct fair_share *share = bpf_map_lookup_elem(&fair_shares, &slot);
	struct channel *channel = channel_at(slot);
	struct fair_host *host;
	struct fair_path path;
	enum owner owner;
	__u16 tick = now;
	__u32 known;

	if (!packet || !share || !channel)
		return PROFILE_IN;
	known = is_known_source(packet, service) ? PROFILE_KNOWN : 0;
	fair_path_of(packet, slot, known, &path);
	if (!known && is_passed_over(channel, path.network, share, tick))
		return PROFILE_OUT;
	host = fair_host_of(path.host, slot, known ? CLASS_KNOWN : CLASS_UNKNOWN, tick, &owner);
	if (!host)
		return PROFILE_IN;
	if (owner == OWNER_SAME && fair_is_waiting(host, tick)) {
		fair_go_on_waiting(host, tick);
		note_stranger(channel, false);
		return PROFILE_OUT | PROFILE_WAITING | known;
	}
	if (known)
		return take_of_known(channel, host, fair_level(share), share->taken, tick, owner);
	return take_of_levels(host, owner, &path, channel, share, tick);
}

/*
 * A source is served: if it has turns, this one ends. Who is refused has waited for longer
 * next time. A function of its own for the stack.
 */
__noinline int end_turn(const struct packet *packet, __u32 slot, __u32 known)
{
	struct channel *channel = channel_at(slot);
	struct fair_hosts *hosts;
	struct fair_path path;
	__u32 index;

	if (!packet || !channel || !channel->turns)
		return 0;
	fair_path_of(packet, slot, known, &path);
	index = fair_set(path.host, settings.fair_host_mask);
	hosts = bpf_map_lookup_elem(&fair_hosts, &index);
	if (!hosts)
		return 0;
	for (__u32 i = 0; i < FAIR_WAYS; i++) {
		struct fair_host *host = &hosts->ways[i];

		if (host->tag != fair_tag(path.host))
			continue;
		host->since = host->tick;
		host->credit = 0;
		host->wait = 1;
	}
	return 0;
}

#endif
