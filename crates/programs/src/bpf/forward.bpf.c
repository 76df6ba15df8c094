// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * The router: which frames are plain forwarding, and what becomes of the others.
 *
 * Intuition: most of a router's packets need a look into two tables, three rewritten
 * fields and nothing else. Those are sent on from the driver, before anything is
 * allocated. All others go to the kernel as if this program were not there, so that
 * routing protocols, ARP, ICMP errors and fragmentation stay the kernel's.
 *
 * The order of decisions is that of stack/src/forwarding.rs, and one corpus of frames runs
 * through both:
 *   Ethernet type, station, validity, group addresses, options, martians, link-local
 *   addresses; own addresses; the route, the source, TTL (here, or in user space).
 *
 * A flood of packets that the kernel must answer would only move the livelock there.
 * So each kind of them has a limit (Mogul & Ramakrishnan's rule: drop before work is
 * done). ARP is never limited here, nor are packets for own addresses, but for those
 * with options: they are told by these before anybody looks whom they are for.
 *
 * One instance of the program per interface: its address and settings are constants
 * or variables of the instance, and cost no look-up.
 */
#include "frame.h"

#include "classic.h"
#include "forward.h"
#include "plain.h"
#include "sockets.h"

#define AF_INET 2
#define AF_INET6 10
#define FLOWINFO_MASK 0x0fffffff
#define FAMILY_BITS 32
/* linux/bpf.h of older kernels lacks it (6.3). */
#define FIB_LOOKUP_SKIP_NEIGHBOUR (1U << 2)

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Which enum forward_path. */
const volatile __u32 path;
/* By enum limit_kind, in packets per second and CPU; 0: none. */
const volatile __u64 limits_pps[LIMIT_COUNT];
/* How sources are looked at was asked for, and is not just what the kernel does. */
const volatile __u32 reverse_path_is_asked;

/* Unused, but they take the constants into the type information. */
const volatile enum forward_outcome outcomes;
const volatile enum forward_bounds bounds;
const volatile enum reverse_path reverse_paths;
const volatile enum limit_kind limit_kinds;
const volatile enum forward_path paths;
const volatile enum limit_times limit_times;
const volatile enum prefix_kind prefix_kinds;

/* Of this instance's interface; may change. */
struct port_settings settings;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LIMIT_COUNT);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

/* Interfaces that are forwarded to, by index. All instances share it. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, DEVICES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} devices SEC(".maps");

/* Which enum prefix_kind. All instances share it. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, PREFIXES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u8);
} prefixes SEC(".maps");

/* --- Counting ------------------------------------------------------------ */

static __always_inline int count(__u32 outcome, int action)
{
	struct counters *all;
	__u32 key = 0;

	all = bpf_map_lookup_elem(&counters, &key);
	if (all && outcome < OUTCOME_COUNT)
		all->packets[outcome]++;
	return action;
}

/* Time stands for tokens: a packet takes SECOND_NS / limit of it. */
static __always_inline bool is_within(__u32 kind)
{
	__u64 limit = limits_pps[kind], now, cost, room;
	struct bucket *bucket;

	if (!limit)
		return true;
	bucket = bpf_map_lookup_elem(&buckets, &kind);
	if (!bucket)
		return true;
	now = bpf_ktime_get_ns();
	cost = (__u64)SECOND_NS / limit;
	room = cost > BURST_NS ? cost : BURST_NS;
	bucket->tokens_ns += now - bucket->at_ns;
	bucket->at_ns = now;
	if (bucket->tokens_ns > room)
		bucket->tokens_ns = room;
	if (bucket->tokens_ns < cost)
		return false;
	bucket->tokens_ns -= cost;
	return true;
}

static __always_inline int to_kernel(__u32 outcome)
{
	return count(outcome, XDP_PASS);
}

static __always_inline int to_kernel_within(__u32 kind, __u32 outcome)
{
	if (!is_within(kind))
		return count(OUTCOME_LIMITED, XDP_DROP);
	return to_kernel(outcome);
}

static __always_inline int drop(__u32 outcome)
{
	return count(outcome, XDP_DROP);
}

/* What becomes of a frame that is not plain forwarding. */
static __always_inline int dispose(__u32 outcome)
{
	switch (outcome) {
	case OUTCOME_MALFORMED:
	case OUTCOME_MARTIAN:
	case OUTCOME_REVERSE_PATH:
		return drop(outcome);
	case OUTCOME_TTL_EXPIRED:
	case OUTCOME_TOO_BIG:
	case OUTCOME_NO_ROUTE:
		return to_kernel_within(LIMIT_ANSWERED, outcome);
	case OUTCOME_NO_NEIGHBOUR:
		return to_kernel_within(LIMIT_UNRESOLVED, outcome);
	case OUTCOME_OPTIONS:
	case OUTCOME_KERNEL_ROUTE:
	case OUTCOME_OTHER_HOST:
	case OUTCOME_DOUBTFUL_SOURCE:
		return to_kernel_within(LIMIT_SLOW, outcome);
	default:
		return to_kernel(outcome);
	}
}

/* --- Looking at a frame -------------------------------------------------- */

static __always_inline bool is_own_station(const struct ethhdr *ethernet)
{
	__u32 difference = 0;

#pragma unroll
	for (int i = 0; i < ETH_ALEN; i++)
		difference |= ethernet->h_dest[i] ^ settings.station[i];
	return !difference;
}

static __always_inline __u32 examine(void *data, void *end, struct plain *plain)
{
	struct ethhdr *ethernet = data;

	if ((void *)(ethernet + 1) > end)
		return OUTCOME_MALFORMED;
	plain->ethernet = ethernet;
	if (ethernet->h_proto == bpf_htons(ETH_P_ARP))
		return OUTCOME_ADDRESS_RESOLUTION;
	plain->is_v6 = ethernet->h_proto == bpf_htons(ETH_P_IPV6);
	if (!plain->is_v6 && ethernet->h_proto != bpf_htons(ETH_P_IP))
		return OUTCOME_OTHER_PROTOCOL;
	if (ethernet->h_dest[0] & 1)
		return OUTCOME_MULTICAST;
	if (!is_own_station(ethernet))
		return OUTCOME_OTHER_HOST;
	if (plain->is_v6) {
		plain->v6 = (void *)(ethernet + 1);
		return examine_v6(plain->v6, end);
	}
	plain->v4 = (void *)(ethernet + 1);
	return examine_v4(plain->v4, end);
}

/* The kind of the longest prefix; PREFIX_OTHER as well where there is none. */
static __always_inline __u32 kind_of(const struct prefix *key)
{
	const __u8 *kind = bpf_map_lookup_elem(&prefixes, key);

	return kind ? *kind : PREFIX_OTHER;
}

static __always_inline __u32 kind_of_v4(__be32 address)
{
	struct prefix key = { .bits = FAMILY_BITS + 32, .family = AF_INET };

	__builtin_memcpy(key.address, &address, sizeof(address));
	return kind_of(&key);
}

/* The kind of the destination. */
static __always_inline __u32 kind_of_destination(const struct plain *plain)
{
	struct prefix key = { .bits = FAMILY_BITS + 128, .family = AF_INET6 };

	if (!plain->is_v6)
		return kind_of_v4(plain->v4->daddr);
	__builtin_memcpy(key.address, &plain->v6->daddr, sizeof(key.address));
	return kind_of(&key);
}

static __always_inline bool is_for_own(const struct plain *plain)
{
	return kind_of_destination(plain) == PREFIX_OWN;
}

/* Not own within such is own all the same where the kernel's tables of IPv4 were parted by routing
 * rules, also when these are gone. */
static __always_inline bool may_be_for_own(const struct plain *plain)
{
	__u32 kind = kind_of_destination(plain);

	return kind == PREFIX_OWN || kind == PREFIX_WITHIN_OWN;
}

/* Linux takes no such packet of IPv4 unless accept_local says so. It forwards those of
 * IPv6. */
static __always_inline bool is_from_own(const struct plain *plain)
{
	return !plain->is_v6 && kind_of_v4(plain->v4->saddr) == PREFIX_OWN;
}

/* Cuts off what is behind the packet, as the kernel does: the next link may be too short for it. A
 * frame of the least length (ETH_ZLEN) stays as it came. The packet cannot be looked at afterwards. */
static __always_inline void trim(struct xdp_md *ctx, const struct plain *plain)
{
	__u32 wanted = sizeof(*plain->ethernet) + length_of(plain);
	__u32 has = ctx->data_end - ctx->data;

	if (wanted < ETH_ZLEN)
		wanted = ETH_ZLEN;
	if (has > wanted)
		bpf_xdp_adjust_tail(ctx, (int)(wanted - has));
}

/* --- Forwarding here ----------------------------------------------------- */

static __always_inline void ask(const struct plain *plain, const void *end,
				struct bpf_fib_lookup *fib)
{
	const __be16 *ports = ports_of(plain, end);

	/* Rules may be about them, and they may choose one of several next hops. */
	if (ports) {
		fib->sport = ports[0];
		fib->dport = ports[1];
	}
	fib->tot_len = length_of(plain);
	if (plain->is_v6) {
		const struct ipv6hdr *ip = plain->v6;

		fib->family = AF_INET6;
		fib->flowinfo = *(const __be32 *)ip & bpf_htonl(FLOWINFO_MASK);
		fib->l4_protocol = ip->nexthdr;
		__builtin_memcpy(fib->ipv6_src, &ip->saddr, 16);
		__builtin_memcpy(fib->ipv6_dst, &ip->daddr, 16);
		return;
	}
	fib->family = AF_INET;
	fib->tos = plain->v4->tos;
	fib->l4_protocol = plain->v4->protocol;
	fib->ipv4_src = plain->v4->saddr;
	fib->ipv4_dst = plain->v4->daddr;
}

/* Whether a packet to the source would leave by the interface that this one came
 * in by (strict), or by any (loose); OUTCOME_COUNT: so it is. Of several next hops the
 * table tells one alone, so "no" may be wrong. */
static __always_inline __u32 examine_source(struct xdp_md *ctx, __u32 ingress,
					    const struct plain *plain)
{
	__u32 how = plain->is_v6 ? settings.reverse_path_v6 : settings.reverse_path_v4;
	struct bpf_fib_lookup back = { .ifindex = ingress };
	long answer;

	if (is_from_own(plain))
		return OUTCOME_DOUBTFUL_SOURCE;
	if (how == REVERSE_PATH_OFF)
		return OUTCOME_COUNT;
	if (plain->is_v6) {
		back.family = AF_INET6;
		__builtin_memcpy(back.ipv6_src, &plain->v6->daddr, 16);
		__builtin_memcpy(back.ipv6_dst, &plain->v6->saddr, 16);
	} else {
		back.family = AF_INET;
		back.ipv4_src = plain->v4->daddr;
		back.ipv4_dst = plain->v4->saddr;
	}
	answer = bpf_fib_lookup(ctx, &back, sizeof(back), FIB_LOOKUP_SKIP_NEIGHBOUR);
	if (!answer && (how == REVERSE_PATH_LOOSE || back.ifindex == ingress))
		return OUTCOME_COUNT;
	if (!reverse_path_is_asked || answer == BPF_FIB_LKUP_RET_UNSUPP_LWT)
		return OUTCOME_DOUBTFUL_SOURCE;
	return OUTCOME_REVERSE_PATH;
}

/* What an answer of the table means; OUTCOME_COUNT: forward. */
static __always_inline __u32 meaning(long answer, const struct plain *plain)
{
	switch (answer) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return OUTCOME_COUNT;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
	case BPF_FIB_LKUP_RET_UNREACHABLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return OUTCOME_NO_ROUTE;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return may_be_for_own(plain) ? OUTCOME_LOCAL : OUTCOME_NO_ROUTE;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		if (is_for_own(plain))
			return OUTCOME_LOCAL;
		/* Of IPv6 the kernel does not ask the interface's own switch. */
		return plain->is_v6 && settings.forwards_v6 ? OUTCOME_KERNEL_ROUTE :
							      OUTCOME_FORWARDING_OFF;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return OUTCOME_NO_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return OUTCOME_TOO_BIG;
	default:
		return OUTCOME_KERNEL_ROUTE;
	}
}

static __always_inline void rewrite(const struct plain *plain, const struct bpf_fib_lookup *fib)
{
	__builtin_memcpy(plain->ethernet->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(plain->ethernet->h_source, fib->smac, ETH_ALEN);
	if (plain->is_v6) {
		plain->v6->hop_limit--;
		return;
	}
	/* RFC 1624, equation 3, for a TTL that is one less: HC' = ~(~HC + ~m + m'). In
	 * one's complement that is adding 0x0100 and the carry; ~0 cannot come out of a
	 * valid header, whose sum is never 0. */
	__u32 check = plain->v4->check;

	check += bpf_htons(0x0100);
	plain->v4->check = check + (check >= 0xffff);
	plain->v4->ttl--;
}

static __always_inline int forward_here(struct xdp_md *ctx, struct plain *plain, const void *end)
{
	/* Read once: the verifier takes no pointer into the context. */
	__u32 ingress = ctx->ingress_ifindex;
	struct bpf_fib_lookup fib = { .ifindex = ingress };
	__u32 outcome, source;
	long answer;

	ask(plain, end, &fib);
	answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	/* It asks the interface's own switch alone. */
	if (plain->is_v6 && !settings.forwards_v6)
		answer = BPF_FIB_LKUP_RET_FWD_DISABLED;
	outcome = meaning(answer, plain);
	/* As in the kernel: the route, the source, the TTL, the rest. */
	if (outcome == OUTCOME_LOCAL || outcome == OUTCOME_FORWARDING_OFF ||
	    outcome == OUTCOME_NO_ROUTE)
		return dispose(outcome);
	source = examine_source(ctx, ingress, plain);
	if (source != OUTCOME_COUNT)
		return dispose(source);
	if (ttl_of(plain) <= 1)
		return dispose(OUTCOME_TTL_EXPIRED);
	if (outcome == OUTCOME_TOO_BIG && may_be_cut(plain))
		return to_kernel_within(LIMIT_SLOW, outcome);
	if (outcome != OUTCOME_COUNT)
		return dispose(outcome);
	if (settings.asks_for_kernel && kind_of_destination(plain) == PREFIX_KERNEL)
		return dispose(OUTCOME_KERNEL_ROUTE);
	if (bpf_redirect_map(&devices, fib.ifindex, XDP_PASS) != XDP_REDIRECT)
		return dispose(OUTCOME_KERNEL_ROUTE);
	rewrite(plain, &fib);
	trim(ctx, plain);
	return count(OUTCOME_FORWARDED, XDP_REDIRECT);
}

/* --- Forwarding in user space -------------------------------------------- */

static __always_inline int forward_in_user_space(struct xdp_md *ctx, struct plain *plain)
{
	__u32 queue = ctx->rx_queue_index;

	/* What is told here goes to the kernel as from this interface; what user space
	 * tells does not (forward/to_kernel.rs). */
	if (is_for_own(plain))
		return dispose(OUTCOME_LOCAL);
	if (!(plain->is_v6 ? settings.forwards_v6 : settings.forwards_v4))
		return dispose(OUTCOME_FORWARDING_OFF);
	if (is_from_own(plain))
		return dispose(OUTCOME_DOUBTFUL_SOURCE);
	/* They have a ring of their own, which a flood of others does not fill. */
	if ((!accepts(ctx) ||
	     bpf_redirect_map(&chosen_sockets, queue, XDP_PASS) != XDP_REDIRECT) &&
	    bpf_redirect_map(&sockets, queue, XDP_PASS) != XDP_REDIRECT)
		return dispose(OUTCOME_KERNEL_ROUTE);
	trim(ctx, plain);
	return count(OUTCOME_TO_USER, XDP_REDIRECT);
}

SEC("xdp")
int forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct plain plain = {};
	__u32 outcome = examine(data, end, &plain);

	if (outcome != OUTCOME_COUNT)
		return dispose(outcome);
	if (path == PATH_USER)
		return forward_in_user_space(ctx, &plain);
	return forward_here(ctx, &plain, end);
}
