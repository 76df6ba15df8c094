/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Types that the load generator's BPF program shares with user space.
 *
 * User space fills `flow` and `schedule` before loading (read-only data, so the
 * verifier drops the branches a blast does not need) and `progress` before each
 * run, and reads `progress` and `departure_errors` afterwards. The Rust types
 * come from the skeleton, never by hand.
 *
 * Time inside a blast counts from its first run. `_ns` is nanoseconds; `_ticks`
 * is nanoseconds / 2^TICK_BITS, so that a gap of 333.33 ns between departures
 * adds up without drift: half a tick per frame is 4e-8 of a 200 ns gap.
 */
#ifndef PLIMSOLL_BLAST_H
#define PLIMSOLL_BLAST_H

#include <linux/types.h>

enum blast_constants {
	TICK_BITS = 16,
	/* Runs further apart than this mean that the thread was not on its CPU. */
	ABSENCE_NS = 100000,
	/* The longest header: Ethernet 14, IPv6 40, TCP 20 with 20 of options;
	 * rounded up to whole 8-byte words. */
	HEADER_MAX_BYTES = 96,
	/* The kernel sends redirected frames on in groups of 16
	 * (DEV_MAP_BULK_SIZE), or fewer at the end of a batch. It does so when
	 * it is given the frame after them, so 17 can be pending. */
	GROUP_MAX_FRAMES = 17,
	/* ln(1 + i / LOG_STEPS), in 2^-16, for i = 0 ..= LOG_STEPS. */
	LOG_STEPS = 256,
	/* Log-linear histogram: below 16 ns exact, then 16 buckets per octave. */
	ERROR_SUB_BUCKETS_LOG2 = 4,
	ERROR_BUCKETS = (64 - ERROR_SUB_BUCKETS_LOG2 + 1) << ERROR_SUB_BUCKETS_LOG2,
	/* A power of two. */
	LENGTHS_MAX = 4,
	/* Lengths come again in this order; then the power of two above. */
	LENGTH_ORDER = 12,
	LENGTH_PLACES = 16,
};

/*
 * Where frames claim to come from: a draw among `hosts` in `networks`, which are
 * `distance` apart, or (with `hosts` 0) the bits of an IPv6 prefix. Host order.
 */
struct blast_source {
	/* Both halves of the IPv6 address: base, bits to draw, between networks. */
	__u64 v6_upper;
	__u64 v6_lower;
	__u64 v6_upper_mask;
	__u64 v6_lower_mask;
	__u64 v6_distance;
	/* The IPv4 address: the first, and between networks. */
	__u32 v4_base;
	__u32 v4_distance;
	__u32 hosts;
	__u32 networks;
};

/* What is different in frames of one length, where a blast has several. */
struct blast_length {
	/* Bytes to take off the longest frame. */
	__u32 cut;
	/* Instead of those of the flow. */
	__u32 ip_sum;
	__u32 transport_sum;
	/* In network order. */
	__u16 ip_bytes;
	__u16 udp_bytes;
};

/* What each frame looks like. */
struct blast_flow {
	/* Ethernet, IP and transport header, with the randomised fields and the
	 * checksums' dependence on them left out (all zero). */
	__u64 header[HEADER_MAX_BYTES / 8];
	/* One's-complement sums, unfolded and in memory order, over everything
	 * the checksum covers except the randomised fields. */
	__u32 ip_sum;
	__u32 transport_sum;
	struct blast_source source;
	__u32 source_port_base;
	__u32 source_port_span;
	__u32 destination_port_base;
	__u32 destination_port_span;
	/* Of the only length, or the longest. */
	__u32 bytes;
	__u32 ifindex;
	/* Of UDP, with `is_mixed`: by `order`, over and over. */
	struct blast_length lengths[LENGTHS_MAX];
	__u8 order[LENGTH_PLACES];
	__u8 is_mixed;
	__u8 is_ipv6;
	__u8 is_tcp;
};

enum blast_schedule_kind {
	SCHEDULE_FIXED,
	SCHEDULE_POISSON,
	SCHEDULE_BURSTS,
	SCHEDULE_RAMP,
	/* At the times in the map `departures`, in nanoseconds. */
	SCHEDULE_RECORDED,
	SCHEDULE_UNLIMITED,
};

/* When each frame departs, and when the blast ends. */
struct blast_schedule {
	/* Fixed: between departures. Poisson: their mean. Bursts: between bursts. */
	__u64 gap_ticks;
	__u64 burst_frames;
	/* The ramp's ends, in packets per second, and its length. */
	__u64 ramp_from_pps;
	__u64 ramp_to_pps;
	__u64 ramp_us;
	/* Catching up: this far apart, after this much at once. */
	__u64 catch_up_gap_ticks;
	__u64 catch_up_burst_ticks;
	/* Departures later than this are given up. */
	__u64 lag_max_ticks;
	/* The bounds. */
	__u64 duration_ns;
	__u64 count_frames;
	__u32 batch_runs;
	enum blast_schedule_kind kind;
};

/* Where a run is. User space zeroes it and sets the two random states. */
struct blast_progress {
	/* splitmix64 states: one for frames and one for gaps, so that the same
	 * seed gives the same frames under every schedule. */
	__u64 frame_random;
	__u64 gap_random;
	/* Monotonic clock at the first run; 0 before. */
	__u64 origin_ns;
	/* The next departure as scheduled. */
	__u64 due_ticks;
	/* The catch-up limiter's theoretical departure time. */
	__u64 catch_up_ticks;
	__u64 burst_left;
	/* When the last run left, to notice that the thread was away. */
	__u64 seen_ns;
	/* Every departure ends in exactly one: accepted + ring_full + failed. */
	__u64 departed;
	__u64 accepted;
	__u64 ring_full;
	__u64 failed;
	__u64 absences;
	__u64 absent_ns;
	__u64 absence_max_ns;
	__u64 given_up_ticks;
	/* Length of the blast; set when it is finished. */
	__u64 elapsed_ns;
	__u64 batch_began_ns;
	__u32 batch_run;
	__u32 batch_closing;
	__u32 finished;
};

/* Frames redirected and not yet sent on. */
struct blast_group {
	__u64 due_ns[GROUP_MAX_FRAMES];
	__u32 frames;
	__u32 cpu;
};

#endif
