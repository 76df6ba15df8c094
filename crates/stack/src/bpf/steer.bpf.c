// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Which frames are the stack's, and which of its sockets gets them.
 *
 * Intuition: the adapter of NI-LRP (Druschel & Banga 1996, sections 3 and 3.3)
 * puts each packet on the queue of its socket. Here a bound port leads to an
 * AF_XDP socket, and a frame for which its ring has no room is dropped at the price of this
 * program. The kernel finds that out too, but in copy mode it copies the frame first.
 *
 * Rules, in this order:
 * - frames of a receive queue without sockets: the kernel's. A socket here is one for each queue;
 * - a TCP connection that has a channel: the main socket, while the channel has room;
 * - an endpoint at the frame's address, else one at any address if this is an address of the
 *   stack's: its socket, or one of those that share it, by a hash of the flow. A listener whose
 *   connections have channels gets SYNs while it takes or answers any, what ends a handshake that a
 *   SYN cookie began, and of other segments as many as may be answered. Once it has given all its
 *   answers the others are given here, or some of sources that have ended a handshake before pass.
 *   One whose connections have none gets all but the SYNs that are answered here;
 * - an ICMP error about what an endpoint sent: the main socket;
 * - an address that the stack owns (ARP and neighbour solicitations for it
 *   included): the main socket; but of what is for a port that nobody bound, only as
 *   much as may be answered, the rest is dropped;
 * - anything else: the kernel's, so that ssh stays.
 *
 * A connection's channel is a count here and a queue in the stack, not a socket of its own: that
 * would take two rings, a descriptor and some system calls per connection.
 *
 * An endpoint at any address is found by its port, in an array: a hash table costs several
 * times that, and most servers are bound like this. Whose the address is takes a look
 * into a hash table then. Broadcasts are nobody's here: sockets do not hear them.
 *
 * Where the kernel polls in a thread that changes its priority (device/xdp/polling.rs), all
 * frames that are not for the one flooded endpoint are counted: its company.
 *
 * A stack of one VLAN gets frames with that tag alone, one of none those without a tag.
 *
 * Limits: a tag that the adapter has taken off is not seen. Fragments, and UDP or TCP behind IPv6
 * extension headers, name no endpoint here: on an owned address they are the
 * main socket's, on a shared one the kernel's.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/icmpv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "address.h"
#include "answer.h"
#include "answers.h"
#include "cookie.h"
#include "steer.h"
#include "strays.h"

#define IPV4_FRAGMENT 0x3fff /* offset or "more fragments" */
#define VLAN_ID_MASK 0xfff
#define ARP_BYTES 28
#define ARP_TARGET_OFFSET 24
#define ICMP_BYTES 8
#define UNREACHABLE 3 /* RFC 792; linux/icmp.h takes the C library's headers in */
#define NEIGHBOUR_SOLICITATION 135 /* RFC 4861, 4.3 */
#define TO_ANSWER 8 /* a verdict: greater than any of XDP */
#define TO_SOCKET 16

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Never read: a type of no variable would not be in the BTF. */
const volatile enum steer_limit limits;
const volatile enum company_place company_places;
const volatile enum answers_place answers_places;
const volatile enum cookie_segment cookie_segments;
const volatile enum entry_count entry_count_places;
const volatile enum possession possessions;

/* The program's only variable: the loader writes it. */
volatile struct told told;

/* Has nobody know which flow is whose. */
const volatile __u64 secret;

/* The interface itself where answers are redirected to it, 0 where they are sent by XDP_TX (refusals.h). */
const volatile __u32 answers_by;

/* The queue that all sockets are bound to, unless they are bound to all queues. */
const volatile __u32 queue;
const volatile __u8 all_queues;

/* Somebody asks who comes beside a flooded endpoint. */
const volatile __u8 counts_company;

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, PLACES_OF_SOCKETS);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* By place_of(): one more than the socket's index, 0 without one. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLACES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} everywhere SEC(".maps");

/* How many entries `endpoints` and `connections` have: without any nobody looks there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} entry_counts SEC(".maps");

/* Those at one address: to the socket's index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * SOCKETS_MAX);
	__type(key, struct endpoint);
	__type(value, __u32);
} endpoints SEC(".maps");

/* To the number of its channel. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, CONNECTIONS_MAX);
	__type(key, struct connection);
	__type(value, __u32);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GROUPS_MAX);
	__type(key, __u32);
	__type(value, struct group);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, GIVEN_MAX);
	__type(key, __u32);
	__type(value, struct given);
} given SEC(".maps");

/* The count of `given` up to which there is room, 0 where nobody says. Written by the sockets' owner. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, GIVEN_MAX);
	__type(key, __u32);
	__type(value, __u64);
} given_up_to SEC(".maps");

/* By enum company_place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, COMPANY_PLACES);
	__type(key, __u32);
	__type(value, __u64);
} company SEC(".maps");

struct tag {
	__be16 id;
	__be16 protocol; /* of what follows */
};

enum giving {
	GIVEN,
	TRIED, /* there is no room that is known of */
	REFUSED,
};

/*
 * Whether nothing came for a while: what was given since then was taken, or is lost. Who has
 * lost much sends again so seldom that one frame of TRY_EVERY would come too late.
 */
static __always_inline int has_paused(struct given *to_it)
{
	__u64 now = bpf_jiffies64(), ticks = now - to_it->asked_at;

	to_it->asked_at = now;
	return ticks >= TRY_AFTER_TICKS;
}

/*
 * A socket's frames come by one queue, so nobody else counts at the same time. Those of a
 * connection may come by several if its flow moves: then some are not counted.
 */
static __always_inline enum giving give(__u32 index)
{
	struct given *to_it = bpf_map_lookup_elem(&given, &index);
	__u64 *limit = bpf_map_lookup_elem(&given_up_to, &index);
	enum giving giving = GIVEN;

	if (!to_it || !limit || !*limit)
		return GIVEN;
	/* What was refused later was counted too: at worst all that there is room for. */
	if (to_it->frames >= *limit) {
		if (++to_it->without_room % TRY_EVERY && !has_paused(to_it)) {
			to_it->refused++;
			return REFUSED;
		}
		giving = TRIED;
	}
	to_it->frames++;
	return giving;
}

/*
 * Without copies a frame that waits in a socket's ring is one that the driver cannot receive
 * into, and so the kernel's own traffic of the queue could end. So some are the driver's.
 */
static __always_inline int give_within_queue(__u32 place, __u32 of_queue)
{
	__u32 all = GIVEN_TO_QUEUES + (all_queues ? of_queue : 0);
	__u64 *limit = bpf_map_lookup_elem(&given_up_to, &all);
	struct given *to_all = bpf_map_lookup_elem(&given, &all);
	enum giving giving;

	if (!limit || !*limit || !to_all)
		return give(place) != REFUSED;
	if (to_all->frames >= *limit) {
		to_all->without_room++;
		to_all->refused++;
		return 0;
	}
	giving = give(place);
	/* A frame that was only tried finds no place, and the driver has it back. */
	if (giving == GIVEN)
		to_all->frames++;
	return giving != REFUSED;
}

/* A verdict: that it goes to this socket of its queue. */
static __always_inline int to_socket(__u32 index)
{
	return TO_SOCKET + index;
}

static __always_inline int deliver(__u32 index, __u32 of_queue)
{
	__u32 place = (all_queues ? of_queue * SOCKETS_MAX : 0) + index;

	if (!give_within_queue(place, of_queue))
		return XDP_DROP;
	/* A socket that is just closing leaves the frame to the kernel. */
	return bpf_redirect_map(&sockets, place, XDP_PASS);
}

static __always_inline int to_owner(const struct address *address)
{
	return possession_of(address) == OWNED ? to_socket(MAIN_SOCKET) : XDP_PASS;
}

/* Where an endpoint at any address stands. */
static __always_inline __u32 place_of(__u8 protocol, __be16 port)
{
	return (protocol == IPPROTO_TCP ? PORTS : 0) + bpf_ntohs(port);
}

static __always_inline __u32 *at_address(const struct address *address, __u8 protocol,
					 __be16 port)
{
	struct endpoint key = {
		.address = *address,
		.port = port,
		.protocol = protocol,
	};
	__u32 of_endpoints = COUNT_ENDPOINTS;
	__u32 *count = bpf_map_lookup_elem(&entry_counts, &of_endpoints);

	return count && *count ? bpf_map_lookup_elem(&endpoints, &key) : NULL;
}

/* The channel of the connection that a segment belongs to. */
static __always_inline __u32 *connection_of(const struct address *local,
					    const struct address *remote, __u8 protocol,
					    const struct ports *ports)
{
	__u32 of_connections = COUNT_CONNECTIONS;
	struct connection key;
	__u32 *count;

	if (protocol != IPPROTO_TCP)
		return NULL;
	count = bpf_map_lookup_elem(&entry_counts, &of_connections);
	if (!count || !*count)
		return NULL;
	ends_of(&key, local, remote, ports);
	return bpf_map_lookup_elem(&connections, &key);
}

static __always_inline int to_channel(__u32 number)
{
	return give(PLACES_OF_SOCKETS + number) == REFUSED ? XDP_DROP : to_socket(MAIN_SOCKET);
}

static __always_inline int begins_connection(const struct ports *ports, void *end)
{
	const struct tcphdr *tcp = (const void *)ports;

	return (void *)(tcp + 1) <= end && tcp->syn && !tcp->ack;
}

/*
 * Every listener and every UDP socket has an entry. So what begins a connection or is UDP
 * and finds none is for nobody. Other segments may be those of a connection that the stack
 * made itself, unless that has a channel. It has none in TIME_WAIT, nor once it was closed here
 * and waits for the peer's end alone.
 */
static __always_inline int is_for_nobody(__u8 protocol, const struct ports *ports, void *end)
{
	return protocol == IPPROTO_UDP || told.all_channels || begins_connection(ports, end);
}

static __always_inline int stray_to_main(enum stray kind)
{
	return stray_passes(kind) ? to_socket(MAIN_SOCKET) : XDP_DROP;
}

static __always_inline int drop_beyond_backlog(void)
{
	__u32 first = 0;
	struct strays *all = bpf_map_lookup_elem(&strays, &first);

	if (all)
		__sync_fetch_and_add(&all->beyond_backlog, 1);
	return XDP_DROP;
}

/* What is for a listener whose connections have no channels. SYNs are answered here, and the stack judges the rest. */
static __always_inline int to_judging_listener(__u32 entry, const struct address *local,
					       const struct address *remote,
					       const struct ports *ports, void *end)
{
	if (begins_connection(ports, end))
		return entry & TAKES_KNOWN && answers_syns() ? TO_ANSWER : to_socket(MAIN_SOCKET);
	if (brings_cookie_back(&told, local, remote, ports, end))
		count_answers(ANSWERS_RETURNED, 1);
	return to_socket(MAIN_SOCKET);
}

/* What belongs to no connection, for a listener whose connections have channels. */
static __always_inline int to_listener(__u32 entry, const struct address *local,
				       const struct address *remote, const struct ports *ports,
				       void *end)
{
	if (!told.all_channels)
		return to_judging_listener(entry, local, remote, ports, end);
	if (!begins_connection(ports, end)) {
		if (is_late(local, remote, ports))
			return stray_to_main(LATE);
		if (!brings_cookie_back(&told, local, remote, ports, end))
			return stray_to_main(FOR_LISTENER);
		count_answers(ANSWERS_RETURNED, 1);
		return stray_to_main(WITH_COOKIE);
	}
	if (!(entry & BEYOND_BACKLOG))
		return to_socket(MAIN_SOCKET);
	if (!(entry & TAKES_KNOWN))
		return drop_beyond_backlog();
	if (answers_syns())
		return TO_ANSWER;
	return bpf_map_lookup_elem(&known, remote) ? stray_to_main(OF_KNOWN) :
						    drop_beyond_backlog();
}

/* As socket_of(), for the endpoint at any address, of which this is one. */
static __always_inline __u32 at_any(const struct address *address, __u8 protocol, __be16 port)
{
	__u32 place = place_of(protocol, port);
	__u32 *entry = bpf_map_lookup_elem(&everywhere, &place);

	if (!entry || (*entry & IPV4_ALONE && !is_ipv4(address)))
		return 0;
	return *entry & ~IPV4_ALONE;
}

/*
 * One more than the number of an endpoint's socket, 0 without an endpoint. Whoever has none is
 * told whose the address is.
 */
static __always_inline __u32 socket_of(const struct address *address, __u8 protocol, __be16 port,
				       __u8 *possession)
{
	__u32 *index = at_address(address, protocol, port);

	if (index)
		return *index + 1;
	*possession = possession_of(address);
	return *possession < SHARED ? 0 : at_any(address, protocol, port);
}

static __always_inline __u64 mix(__u64 flow, __u32 word)
{
	flow = (flow ^ word) * 0x9e3779b97f4a7c15;
	return flow ^ (flow >> 32);
}

/* The member of a group that has a flow. A member that is just leaving gets some frames more. */
static __always_inline __u32 member_of(__u32 number, __u64 flow)
{
	struct group *group = bpf_map_lookup_elem(&groups, &number);
	__u32 place;

	if (!group)
		return MAIN_SOCKET;
	place = ((flow & 0xffffffff) * group->count) >> 32;
	return group->members[place & (MEMBERS_MAX - 1)];
}

/* Of an endpoint without a socket of its own, whoever asks for company wants to know how many came. */
static __always_inline int to_main_for(__u32 number)
{
	struct given *to_it = counts_company ? bpf_map_lookup_elem(&given, &number) : NULL;

	if (to_it)
		to_it->frames++;
	return to_socket(MAIN_SOCKET);
}

/* Sends a packet with these ports to their endpoint, if there is one, and tells which: as socket_of(). */
static __always_inline int to_endpoint(const struct address *local, const struct address *remote,
				       __u8 protocol, const struct ports *ports, void *end,
				       __u64 source, __u32 *found)
{
	__u8 possession = NOT_OURS;
	__u32 socket = socket_of(local, protocol, ports->destination, &possession);

	*found = socket;
	if (socket && (socket - 1) & LISTENER)
		return to_listener(socket - 1, local, remote, ports, end);
	if (socket && (socket - 1) & GROUP)
		return to_socket(member_of((socket - 1) & ~GROUP, mix(source, ports->source)));
	if (socket && (socket - 1) & ON_MAIN)
		return to_main_for((socket - 1) & ~ON_MAIN);
	if (socket)
		return to_socket(socket - 1);
	if (possession != OWNED)
		return XDP_PASS;
	if (!is_for_nobody(protocol, ports, end))
		return to_socket(MAIN_SOCKET);
	/* What begins a connection is not the end of one. */
	if (protocol == IPPROTO_TCP && !begins_connection(ports, end) && is_late(local, remote, ports))
		return stray_to_main(LATE);
	return stray_to_main(FOR_NOBODY);
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_UDP || protocol == IPPROTO_TCP;
}

/* An error about a packet that `address` sent with these ports. */
static __always_inline int steer_trouble(const struct address *address, __u8 protocol,
					 const struct ports *ports, void *end)
{
	__u8 possession = NOT_OURS;

	if (!has_ports(protocol) || (void *)(ports + 1) > end)
		return to_owner(address);
	if (socket_of(address, protocol, ports->source, &possession) || possession == OWNED)
		return to_socket(MAIN_SOCKET);
	return XDP_PASS;
}

static __always_inline int steer_arp(void *at, void *end)
{
	struct address target;
	__be32 ipv4;

	if (at + ARP_BYTES > end)
		return XDP_PASS;
	__builtin_memcpy(&ipv4, at + ARP_TARGET_OFFSET, sizeof(ipv4));
	map_ipv4(&target, ipv4);
	return to_owner(&target);
}

static __always_inline int steer_icmp(void *icmp, void *end, const struct address *destination)
{
	struct iphdr *quoted = icmp + ICMP_BYTES;

	if ((void *)(quoted + 1) > end || *(__u8 *)icmp != UNREACHABLE || quoted->ihl < 5)
		return to_owner(destination);
	return steer_trouble(destination, quoted->protocol, (void *)quoted + quoted->ihl * 4, end);
}

static __always_inline int steer_ipv4(struct iphdr *ip, void *end, __u32 *found)
{
	struct address destination, source;
	struct ports *ports;
	__u32 *channel;

	if ((void *)(ip + 1) > end || ip->ihl < 5)
		return XDP_PASS;
	map_ipv4(&destination, ip->daddr);
	ports = (void *)ip + ip->ihl * 4;
	if (ip->protocol == IPPROTO_ICMP && !(ip->frag_off & bpf_htons(IPV4_FRAGMENT)))
		return steer_icmp(ports, end, &destination);
	if (!has_ports(ip->protocol) || (ip->frag_off & bpf_htons(IPV4_FRAGMENT)) ||
	    (void *)(ports + 1) > end)
		return to_owner(&destination);
	map_ipv4(&source, ip->saddr);
	channel = connection_of(&destination, &source, ip->protocol, ports);
	if (channel)
		return to_channel(*channel);
	return to_endpoint(&destination, &source, ip->protocol, ports, end, mix(secret, ip->saddr),
			   found);
}

/* A neighbour solicitation goes to a group; its target says whose it is. */
static __always_inline int steer_icmpv6(struct icmp6hdr *icmp, void *end,
					const struct address *destination)
{
	struct ipv6hdr *quoted = (void *)(icmp + 1);
	struct address target;

	if ((void *)(quoted + 1) <= end && (icmp->icmp6_type == ICMPV6_DEST_UNREACH ||
					    icmp->icmp6_type == ICMPV6_PKT_TOOBIG))
		return steer_trouble(destination, quoted->nexthdr, (void *)(quoted + 1), end);
	if ((void *)(icmp + 1) + sizeof(target) > end ||
	    icmp->icmp6_type != NEIGHBOUR_SOLICITATION)
		return to_owner(destination);
	__builtin_memcpy(&target, icmp + 1, sizeof(target));
	return to_owner(&target);
}

static __always_inline int steer_ipv6(struct ipv6hdr *ip, void *end, __u32 *found)
{
	struct address destination, remote;
	__u64 source = secret;
	struct ports *ports;
	__u32 *channel;

	if ((void *)(ip + 1) > end)
		return XDP_PASS;
	__builtin_memcpy(&destination, &ip->daddr, sizeof(destination));
	/* An IPv4 address in IPv6's form is no address on a wire. The kernel drops it. */
	if (is_ipv4(&destination))
		return XDP_PASS;
	if (ip->nexthdr == IPPROTO_ICMPV6)
		return steer_icmpv6((void *)(ip + 1), end, &destination);
	ports = (void *)(ip + 1);
	if (!has_ports(ip->nexthdr) || (void *)(ports + 1) > end)
		return to_owner(&destination);
	__builtin_memcpy(&remote, &ip->saddr, sizeof(remote));
	channel = connection_of(&destination, &remote, ip->nexthdr, ports);
	if (channel)
		return to_channel(*channel);
	for (int word = 0; word < 4; word++)
		source = mix(source, ip->saddr.in6_u.u6_addr32[word]);
	return to_endpoint(&destination, &remote, ip->nexthdr, ports, end, source, found);
}

static __always_inline int steer_network(void *network, void *end, __be16 protocol, __u32 *found)
{
	switch (bpf_ntohs(protocol)) {
	case ETH_P_ARP:
		return steer_arp(network, end);
	case ETH_P_IP:
		return steer_ipv4(network, end, found);
	case ETH_P_IPV6:
		return steer_ipv6(network, end, found);
	default:
		return XDP_PASS;
	}
}

/* The tag behind an Ethernet header, if it is that of the stack's VLAN. */
static __always_inline struct tag *own_tag(struct ethhdr *ethernet, void *end)
{
	struct tag *tag = (void *)(ethernet + 1);

	if (ethernet->h_proto != bpf_htons(ETH_P_8021Q) || (void *)(tag + 1) > end ||
	    (bpf_ntohs(tag->id) & VLAN_ID_MASK) != told.vlan)
		return NULL;
	return tag;
}

/* The endpoint of a frame, as socket_of() has it, tells whether it is the flood's. */
static __always_inline void note_company(__u32 found)
{
	__u32 flooded_at = COMPANY_FLOODED, others_at = COMPANY_OTHERS;
	__u64 *flooded = bpf_map_lookup_elem(&company, &flooded_at);
	__u64 *others = bpf_map_lookup_elem(&company, &others_at);

	/* Nobody asks where there are several queues, so nobody else counts at the same time. */
	if (flooded && others && (!found || found != *flooded))
		++*others;
}

/* Sends a SYN back as its answer. */
static __always_inline int send_answer(struct xdp_md *ctx)
{
	__u32 network = sizeof(struct ethhdr) + (told.vlan ? sizeof(struct tag) : 0);

	if (answer_syn(ctx, network, &told) != ANSWER_READY)
		return drop_beyond_backlog();
	count_answers(ANSWERS_GIVEN, 1);
	return answers_by ? bpf_redirect(answers_by, 0) : XDP_TX;
}

SEC("xdp")
int steer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	struct tag *tag;
	__u32 found = 0, of_queue = ctx->rx_queue_index;
	int verdict;

	if (of_queue != queue && (!all_queues || of_queue >= QUEUES_MAX))
		return XDP_PASS;
	if ((void *)(ethernet + 1) > end)
		return XDP_PASS;
	if (!told.vlan) {
		verdict = steer_network((void *)(ethernet + 1), end, ethernet->h_proto, &found);
	} else {
		tag = own_tag(ethernet, end);
		verdict = tag ? steer_network(tag + 1, end, tag->protocol, &found) : XDP_PASS;
	}
	if (counts_company)
		note_company(found);
	if (verdict == TO_ANSWER)
		return send_answer(ctx);
	if (verdict < TO_SOCKET)
		return verdict;
	return deliver(verdict - TO_SOCKET, of_queue);
}
