// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The load generator: writes a frame, waits for its departure, redirects it.
 *
 * `blast` is run by BPF_PROG_TEST_RUN with live frames: the kernel calls it in
 * batches of `schedule.batch_runs`, each call with a page that holds a frame,
 * and sends what it redirected at the latest when the batch ends. Between
 * batches the kernel lets others run and looks for signals; inside one it does
 * neither. So a run never waits longer than SPIN_NS. If the next departure is
 * further away, this run and the rest of its batch return XDP_DROP, which sends
 * nothing and only gives the kernel its turn.
 *
 * `on_transmit` sees what became of each group of frames, and when: a departure
 * is the moment the link has taken the frame, not the moment it was written.
 *
 * One blast runs on one CPU at a time, so nothing here is atomic.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <stdbool.h>

#include "blast.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The longest wait inside one run; what another process on this CPU waits. */
#define SPIN_NS 10000
/* Each look at the clock takes 15 ns or more. */
#define SPIN_LOOKS_MAX 1024
/* Frames wait this long for company, unless it is about to come: ending a batch
 * early takes its unused runs. Each of them returns its page through the lock
 * that the receiving CPU returns pages through, so at high rates it is the
 * receiver who pays for them. */
#define GROUP_WAIT_NS 3000
#define ABOUT_TO_COME_NS 2500

const volatile struct blast_flow flow;
const volatile struct blast_schedule schedule;

/* Of a recorded schedule; user space makes it as large as that. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} departures SEC(".maps");
const volatile __u32 log_table[LOG_STEPS + 1];
/* Unused, but it takes the constants into the type information. */
const volatile enum blast_constants constants;

struct blast_progress progress;
struct blast_group group;
__u64 departure_errors[ERROR_BUCKETS];

/* --- Random numbers ------------------------------------------------------ */

/* splitmix64 (Steele, Lea and Flood, OOPSLA 2014): passes BigCrush, and its
 * state is a counter. */
static __always_inline __u64 draw(__u64 *state)
{
	__u64 z = *state += 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

/* A 32-bit draw scaled to 0 .. span. */
static __always_inline __u32 scale(__u32 random, __u32 span)
{
	return (__u64)random * span >> 32;
}

static __always_inline __u32 log2_floor(__u64 value)
{
	__u32 log = 0;

	if (value >> 32) { value >>= 32; log += 32; }
	if (value >> 16) { value >>= 16; log += 16; }
	if (value >> 8) { value >>= 8; log += 8; }
	if (value >> 4) { value >>= 4; log += 4; }
	if (value >> 2) { value >>= 2; log += 2; }
	return log + (value >> 1);
}

/*
 * An exponential deviate of mean 1, in 2^-16: -ln U. With U = 2^-(k+1) (1 + f),
 * k the leading zeros of a random word and f the bits behind its first one,
 * that is (k+1) ln 2 - ln(1 + f). The table gives ln(1 + f) within 2e-6.
 */
static __always_inline __u64 exponential(__u64 random)
{
	__u32 log = log2_floor(random | 1);
	__u64 fraction = log ? random << (64 - log) : 0;
	__u32 step = fraction >> 56;
	__u32 between = (fraction >> 40) & 0xffff;
	__u32 low, high;

	step &= LOG_STEPS - 1;
	low = log_table[step];
	high = log_table[step + 1];
	return (__u64)(64 - log) * log_table[LOG_STEPS] - low - ((high - low) * between >> 16);
}

/* --- Frames -------------------------------------------------------------- */

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The whole header, every time: a page comes back as its last receiver left it. */
static __always_inline void copy_header(void *frame, const __u32 bytes)
{
	__u64 *words = frame;
	__u32 i = 0;

#pragma unroll
	for (; i < bytes / 8; i++)
		words[i] = flow.header[i];
	if (bytes % 8 >= 4)
		*(__u32 *)(words + i) = *(const volatile __u32 *)(flow.header + i);
	if (bytes % 4 >= 2)
		*(__u16 *)(frame + bytes - 2) = *(const volatile __u16 *)((const volatile char *)flow.header + bytes - 2);
}

/* Of the frame at hand, where lengths are mixed. */
static __always_inline const volatile struct blast_length *length(void)
{
	__u32 place = progress.departed % LENGTH_ORDER;

	/* The verifier knows a remainder's bound only by the mask, which the compiler
	 * would leave out. */
	barrier_var(place);
	place &= LENGTH_PLACES - 1;
	return &flow.lengths[flow.order[place] & (LENGTHS_MAX - 1)];
}

static __always_inline __u32 ip_sum(void)
{
	return flow.is_mixed ? length()->ip_sum : flow.ip_sum;
}

static __always_inline __u32 transport_sum(void)
{
	return flow.is_mixed ? length()->transport_sum : flow.transport_sum;
}

/*
 * Has the frame its length. False if the kernel refuses.
 *
 * A page comes back as whoever received it has left it: also cut to the length of an answer that was not
 * sent. The kernel sets a frame's length anew only where this program has changed it, so each SYN comes
 * with some bytes too many (SPARE_BYTES), and none is ever as long as that.
 */
static __always_inline bool cut_to_length(struct xdp_md *ctx)
{
	__u32 wanted, bytes;

	if (!flow.is_mixed && !flow.is_tcp)
		return true;
	wanted = flow.bytes - (flow.is_mixed ? length()->cut : 0);
	bytes = bpf_xdp_get_buff_len(ctx);
	return bytes == wanted || !bpf_xdp_adjust_tail(ctx, (int)(wanted - bytes));
}

static __always_inline void write_lengths(void *ip, const __u32 ip_bytes)
{
	struct udphdr *udp = ip + ip_bytes;

	if (ip_bytes == sizeof(struct iphdr))
		((struct iphdr *)ip)->tot_len = length()->ip_bytes;
	else
		((struct ipv6hdr *)ip)->payload_len = length()->ip_bytes;
	udp->len = length()->udp_bytes;
}

/* Which network, and which host in it. */
struct place {
	__u32 network;
	__u32 host;
};

static __always_inline struct place draw_place(__u32 random)
{
	struct place place = { .host = scale(random, flow.source.hosts) };

	if (flow.source.networks > 1) {
		place.network = place.host % flow.source.networks;
		place.host /= flow.source.networks;
	}
	return place;
}

/* Draws the source address. Returns its part of the transport checksum. */
static __always_inline __u64 write_source_v4(struct iphdr *ip, __u32 random)
{
	struct place place = draw_place(random);
	__u32 source = bpf_htonl(flow.source.v4_base + place.network * flow.source.v4_distance +
				 place.host);

	ip->saddr = source;
	ip->check = ~fold((__u64)ip_sum() + source);
	return source;
}

static __always_inline __u64 write_source_v6(struct ipv6hdr *ip, __u64 random)
{
	__u64 upper = flow.source.v6_upper, lower = flow.source.v6_lower;

	if (flow.source.hosts) {
		struct place place = draw_place(random);

		upper += place.network * flow.source.v6_distance;
		lower += place.host;
	} else {
		lower |= random & flow.source.v6_lower_mask;
		if (flow.source.v6_upper_mask)
			upper |= draw(&progress.frame_random) & flow.source.v6_upper_mask;
	}
	upper = bpf_cpu_to_be64(upper);
	lower = bpf_cpu_to_be64(lower);
	*(__u64 *)&ip->saddr.s6_addr32[0] = upper;
	*(__u64 *)&ip->saddr.s6_addr32[2] = lower;
	return (upper & 0xffffffff) + (upper >> 32) + (lower & 0xffffffff) + (lower >> 32);
}

static __always_inline void write_transport(void *transport, __u64 sum)
{
	__u64 random = draw(&progress.frame_random);
	__u16 source = bpf_htons(flow.source_port_base + scale(random, flow.source_port_span));
	__u16 destination = bpf_htons(flow.destination_port_base +
				      scale(random >> 32, flow.destination_port_span));

	sum += (__u64)transport_sum() + source + destination;
	if (flow.is_tcp) {
		struct tcphdr *tcp = transport;
		__u32 sequence = draw(&progress.frame_random);

		tcp->source = source;
		tcp->dest = destination;
		tcp->seq = sequence;
		tcp->check = ~fold(sum + sequence);
	} else {
		struct udphdr *udp = transport;
		__u16 check = ~fold(sum);

		udp->source = source;
		udp->dest = destination;
		/* 0 would mean "not computed" (RFC 768). */
		udp->check = check ? check : 0xffff;
	}
}

/* False if the frame is shorter than its header, which user space rules out. */
static __always_inline bool write_frame(struct xdp_md *ctx, const __u32 ip_bytes,
					const __u32 transport_bytes)
{
	const __u32 bytes = sizeof(struct ethhdr) + ip_bytes + transport_bytes;
	void *frame = (void *)(long)ctx->data;
	void *ip = frame + sizeof(struct ethhdr);
	__u64 random, sum;

	if (frame + bytes > (void *)(long)ctx->data_end)
		return false;
	copy_header(frame, bytes);
	if (flow.is_mixed)
		write_lengths(ip, ip_bytes);
	random = draw(&progress.frame_random);
	sum = ip_bytes == sizeof(struct iphdr) ? write_source_v4(ip, random) :
						 write_source_v6(ip, random);
	write_transport(ip + ip_bytes, sum);
	return true;
}

#define TCP_BYTES (sizeof(struct tcphdr) + 20)

static __always_inline bool write_any_frame(struct xdp_md *ctx)
{
	if (flow.is_ipv6)
		return flow.is_tcp ?
			       write_frame(ctx, sizeof(struct ipv6hdr), TCP_BYTES) :
			       write_frame(ctx, sizeof(struct ipv6hdr), sizeof(struct udphdr));
	return flow.is_tcp ? write_frame(ctx, sizeof(struct iphdr), TCP_BYTES) :
			     write_frame(ctx, sizeof(struct iphdr), sizeof(struct udphdr));
}

/* --- Schedule ------------------------------------------------------------ */

static __always_inline __u64 ramp_gap_ticks(__u64 due_ticks)
{
	__u64 from = schedule.ramp_from_pps, to = schedule.ramp_to_pps;
	__u64 at_us = (due_ticks >> TICK_BITS) / 1000;
	__u64 rate;

	if (at_us > schedule.ramp_us)
		at_us = schedule.ramp_us;
	rate = from < to ? from + (to - from) * at_us / schedule.ramp_us :
			   from - (from - to) * at_us / schedule.ramp_us;
	return (1000000000ULL << TICK_BITS) / rate;
}

/* After the last one there is none, and `count_frames` ends the blast. */
static __always_inline void schedule_recorded(void)
{
	__u32 next = progress.departed + 1;
	__u64 *at_ns = bpf_map_lookup_elem(&departures, &next);

	if (at_ns)
		progress.due_ticks = (*at_ns << TICK_BITS) + progress.given_up_ticks;
}

/* Moves `due_ticks` to the departure after this one. */
static __always_inline void schedule_next(void)
{
	switch (schedule.kind) {
	case SCHEDULE_FIXED:
		progress.due_ticks += schedule.gap_ticks;
		break;
	case SCHEDULE_POISSON:
		/* 46 bits of gap at 1 packet/s and 22 of deviate: keep 40 of the gap. */
		progress.due_ticks += (schedule.gap_ticks >> 6) *
				      exponential(draw(&progress.gap_random)) >> 10;
		break;
	case SCHEDULE_BURSTS:
		if (progress.burst_left == 0)
			progress.burst_left = schedule.burst_frames;
		if (--progress.burst_left == 0)
			progress.due_ticks += schedule.gap_ticks;
		break;
	case SCHEDULE_RAMP:
		progress.due_ticks += ramp_gap_ticks(progress.due_ticks);
		break;
	case SCHEDULE_RECORDED:
		schedule_recorded();
		break;
	case SCHEDULE_UNLIMITED:
		break;
	}
}

/* --- Catching up --------------------------------------------------------- */

/*
 * The earliest moment for the next departure: as scheduled, but after an absence
 * no faster than the catch-up rate once the burst it allows is used (a token
 * bucket, written as the generic cell rate algorithm of ITU-T I.371).
 */
static __always_inline __u64 release_ticks(__u64 now_ticks)
{
	__u64 limited = progress.catch_up_ticks;

	if (progress.due_ticks + schedule.lag_max_ticks < now_ticks) {
		__u64 given_up = now_ticks - schedule.lag_max_ticks - progress.due_ticks;

		progress.given_up_ticks += given_up;
		progress.due_ticks += given_up;
	}
	limited = limited > schedule.catch_up_burst_ticks ?
			  limited - schedule.catch_up_burst_ticks : 0;
	return limited > progress.due_ticks ? limited : progress.due_ticks;
}

static __always_inline void note_catch_up(__u64 now_ticks)
{
	if (progress.catch_up_ticks < now_ticks)
		progress.catch_up_ticks = now_ticks;
	progress.catch_up_ticks += schedule.catch_up_gap_ticks;
}

static __always_inline void note_absence(__u64 now_ns)
{
	__u64 absent_ns = now_ns - progress.seen_ns;

	if (absent_ns < ABSENCE_NS)
		return;
	progress.absences++;
	progress.absent_ns += absent_ns;
	if (absent_ns > progress.absence_max_ns)
		progress.absence_max_ns = absent_ns;
}

/* --- Batches, waiting, bounds -------------------------------------------- */

static __always_inline void finish(__u64 elapsed_ns)
{
	progress.elapsed_ns = elapsed_ns;
	progress.finished = 1;
}

static __always_inline __u64 elapsed_ns(void)
{
	return bpf_ktime_get_ns() - progress.origin_ns;
}

static __always_inline void begin(void)
{
	progress.origin_ns = bpf_ktime_get_ns();
	/* A Poisson process does not begin with an event. */
	if (schedule.kind == SCHEDULE_POISSON)
		schedule_next();
}

/* Keeps track of the batch. False if this run is only there to end it. */
static __always_inline bool enter_run(void)
{
	bool first = progress.batch_run == 0;

	if (++progress.batch_run >= schedule.batch_runs)
		progress.batch_run = 0;
	if (first) {
		/* Frames of the last batch that no link was found for. */
		progress.failed += group.frames;
		group.frames = 0;
		progress.batch_closing = 0;
		progress.batch_began_ns = 0;
	}
	return !progress.batch_closing;
}

struct spin {
	__u64 until_ns;
	__u64 now_ns;
};

static long spin_look(__u32 index, struct spin *spin)
{
	spin->now_ns = elapsed_ns();
	return spin->now_ns >= spin->until_ns;
}

/* Waits for `release_ns`, but not beyond this run's or this batch's share. */
static __always_inline __u64 spin_until(__u64 release_ns, __u64 now_ns)
{
	__u64 limit_ns = now_ns + SPIN_NS;
	struct spin spin = { .now_ns = now_ns };

	if (group.frames && release_ns > progress.batch_began_ns + GROUP_WAIT_NS &&
	    release_ns > now_ns + ABOUT_TO_COME_NS)
		return now_ns;
	spin.until_ns = release_ns < limit_ns ? release_ns : limit_ns;
	bpf_loop(SPIN_LOOKS_MAX, spin_look, &spin, 0);
	return spin.now_ns;
}

/* Waits for the next departure. False if it is not due in this run. */
static __always_inline bool departure_is_due(void)
{
	__u64 now_ns = elapsed_ns(), release_ns;

	note_absence(now_ns);
	if (!progress.batch_began_ns)
		progress.batch_began_ns = now_ns;
	release_ns = release_ticks(now_ns << TICK_BITS) >> TICK_BITS;
	if (release_ns > now_ns)
		now_ns = spin_until(release_ns, now_ns);
	progress.seen_ns = now_ns;
	if (now_ns >= schedule.duration_ns) {
		finish(schedule.duration_ns);
		return false;
	}
	if (release_ns > now_ns)
		return false;
	note_catch_up(now_ns << TICK_BITS);
	return true;
}

/* Without a schedule the clock is read once per batch. */
static __always_inline bool time_is_left(void)
{
	if (progress.batch_run == 1 || schedule.batch_runs == 1) {
		progress.seen_ns = elapsed_ns();
		if (progress.seen_ns >= schedule.duration_ns)
			finish(schedule.duration_ns);
	}
	return !progress.finished;
}

static __always_inline void note_departure(void)
{
	__u32 slot = group.frames++;

	if (slot < GROUP_MAX_FRAMES)
		group.due_ns[slot] = progress.due_ticks >> TICK_BITS;
	schedule_next();
	if (++progress.departed < schedule.count_frames)
		return;
	/* The last frame's gap belongs to the blast, or its rate comes out high. */
	finish(schedule.kind == SCHEDULE_UNLIMITED ||
			       progress.due_ticks >> TICK_BITS < progress.seen_ns ?
		       progress.seen_ns : progress.due_ticks >> TICK_BITS);
}

SEC("xdp")
int blast(struct xdp_md *ctx)
{
	if (!progress.origin_ns)
		begin();
	if (!enter_run() || progress.finished)
		return XDP_DROP;
	if (schedule.kind == SCHEDULE_UNLIMITED ? !time_is_left() : !departure_is_due()) {
		progress.batch_closing = 1;
		return XDP_DROP;
	}
	if (!cut_to_length(ctx) || !write_any_frame(ctx))
		return XDP_ABORTED;
	group.cpu = bpf_get_smp_processor_id();
	note_departure();
	return bpf_redirect(flow.ifindex, 0);
}

/* --- What became of them ------------------------------------------------- */

static __always_inline void note_error(__u64 error_ns)
{
	__u32 bucket = error_ns;

	if (error_ns >> ERROR_SUB_BUCKETS_LOG2) {
		__u32 shift = log2_floor(error_ns) - ERROR_SUB_BUCKETS_LOG2;

		bucket = ((shift + 1) << ERROR_SUB_BUCKETS_LOG2) +
			 ((error_ns >> shift) & ((1 << ERROR_SUB_BUCKETS_LOG2) - 1));
	}
	if (bucket < ERROR_BUCKETS)
		departure_errors[bucket]++;
}

/* Out of line: one walk of the verifier instead of one per frame. */
static long note_frame_error(__u32 index, __u64 *now_ns)
{
	if (index >= GROUP_MAX_FRAMES)
		return 1;
	note_error(*now_ns - group.due_ns[index]);
	return 0;
}

static __always_inline void note_errors(__u32 frames)
{
	__u64 now_ns = elapsed_ns();

	bpf_loop(frames, note_frame_error, &now_ns, 0);
}

/*
 * Runs after a group of frames was handed to a link. Soft interrupts are off on
 * this CPU from the redirect to here, so a transmission on the CPU where our
 * group is pending is our group's. The frame whose redirect set the transmission
 * off begins the next group.
 */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(on_transmit, const void *from, const void *to, int sent, int drops, int error)
{
	__u32 frames = sent + drops, pending = group.frames;

	if (!pending || group.cpu != bpf_get_smp_processor_id())
		return 0;
	progress.accepted += sent;
	if (error)
		progress.failed += drops;
	else
		progress.ring_full += drops;
	if (schedule.kind != SCHEDULE_UNLIMITED)
		note_errors(frames);
	if (frames < GROUP_MAX_FRAMES)
		group.due_ns[0] = group.due_ns[frames];
	group.frames = frames < pending ? pending - frames : 0;
	return 0;
}
