/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * What guard.bpf.c and its loader share: outcomes, limits, and the layout of maps.
 * Constants are enums: these are in the object's BTF, from which the loader's Rust is
 * generated (program::types). Those of decisions that core makes as well, and the kinds of
 * channel, are core's: the build script writes decisions.h. So none is written twice.
 */
#ifndef PLIMSOLL_GUARD_H
#define PLIMSOLL_GUARD_H

#include "decisions.h"

/* What became of a packet; every packet has exactly one outcome. */
enum outcome {
	OUTCOME_ADMITTED,
	OUTCOME_SYN_COOKIE, /* a SYN past the listener's SYN queue, answered from here */
	/*
	 * Discarded early: the socket's queue is full; of a TCP connection, its backlog is,
	 * or the segment is outside of its window.
	 */
	OUTCOME_SOCKET_QUEUE,
	OUTCOME_ACCEPT_QUEUE, /* SYN discarded early: the accept queue is full */
	OUTCOME_SYN_QUEUE, /* SYN discarded early: the SYN queue is full, no cookie possible */
	OUTCOME_NO_COOKIE, /* ACK discarded early: the SYN queue is full and it has no cookie */
	/*
	 * Discarded early: beyond its share while input is shed; for a closed UDP
	 * port, beyond what the stack would answer.
	 */
	OUTCOME_SHARE,
	/*
	 * Discarded early: the channel is overloaded, and the source has had its fair
	 * share of it.
	 */
	OUTCOME_SOURCE_SHARE,
	OUTCOME_COUNT,
};

/* Who answers SYNs past a listener's SYN queue. */
enum answering {
	ANSWERING_NOBODY, /* the host allows no cookies: the stack would drop the SYN */
	ANSWERING_STACK, /* with cookies of its own: the SYN is admitted */
	ANSWERING_DRIVER, /* the program, where it knows that the answer arrives */
};

/*
 * An entry of the map `local_addresses`: the address's class in the low bits,
 * and whether it is one of the guarded interface itself.
 */
enum local_address {
	ADDRESS_CLASS = 0x0f,
	ADDRESS_OF_INTERFACE = 0x10,
};

/* Class of a destination address, as found in the map `local_addresses`. */
enum destination {
	DESTINATION_FORWARD, /* not in the map */
	DESTINATION_LOCAL,
	DESTINATION_BROADCAST,
	DESTINATION_MULTICAST, /* recognised by its prefix, never in the map */
};

/* Slots of channels; `CHANNELS_MAX` is the number of all. */
enum slot {
	SLOT_NONE,
	SLOT_KINDS, /* one for each kind: what has no socket of its own here */
	SLOT_PROTECTED = SLOT_KINDS + KIND_COUNT, /* all protected traffic */
	SLOT_CLOSED_PORTS, /* all UDP ports that are known to be closed */
	SLOT_SOCKETS, /* from here on */
};

/* Why a packet is protected. */
enum protection {
	PROTECTION_CONNECTION, /* of an established TCP connection */
	PROTECTION_PROCESS, /* for a socket of a protected process */
	PROTECTION_PORT,
	PROTECTION_SOURCE,
	PROTECTION_COUNT,
	PROTECTION_NONE = PROTECTION_COUNT,
};

/* Bits of a port in `ports`. */
enum port_property {
	PROTECTED_TCP = 1,
	PROTECTED_UDP = 2,
	/* Others get its packets that are not found from here: bound above, a proxy, IPVS, tc. */
	HIDDEN_TCP = 4,
	HIDDEN_UDP = 8,
	/* Of no port: in `settings.hiding`. Others may take any packet, and send it to another host. */
	HIDDEN_SOMEWHERE = 16,
	MAY_LEAVE = 32,
};

enum limit {
	CHANNELS_MAX = 16384,
	LOCAL_ADDRESSES_MAX = 4096,
	FREQUENT_ADDRESSES = 4,
	FRAGMENTS_MAX = 4096,
	PROTECTED_PREFIXES_MAX = 1024,
	KNOWN_SOCKETS = 64, /* a power of two */
	KNOWN_CONNECTIONS_SHIFT = 6,
	/* A reason of protection has this part of the share for certain. */
	PROTECTION_PARTS = 4,
	CONNECTION_CAPS = 256, /* a power of two */
	/*
	 * ARP and neighbour discovery in a tick and CPU while input is shed: some
	 * 15,000/s, far above what a full segment of a network asks for, and little
	 * time.
	 */
	NEIGHBOUR_PACKETS = 64,
	/*
	 * Segments outside of a connection's window that the stack may answer in a tick
	 * and CPU: what one poll of a driver brings, so that those behind them are judged
	 * by the window that the first ones have left.
	 */
	OUTSIDE_PACKETS = 64,
	/* Bytes: a segment so far behind a window may be a late copy, whatever its size. */
	WINDOW_BEHIND_MIN = 1 << 20,
	/* Bytes above a socket's buffers that its backlog may hold (tcp_add_backlog). */
	BACKLOG_HEADROOM = 64 * 1024,
	CHANGES_BITS = 64, /* of an element of `changes` */
	/* Few against a watermark's distance, many against one look-up. */
	KNOWN_PACKETS = 32,
	/* Watermarks are in 1/1024 of a receive buffer. */
	WATERMARK_WHOLE_SHIFT = 10,
	/*
	 * Packets of all UDP ports that are known to be closed, per tick and CPU. The
	 * stack can only answer with ICMP errors, 50 in a burst and 1,000 a second
	 * (icmp_msgs_burst and icmp_msgs_per_sec, ip-sysctl.rst); what is beyond would
	 * be thrown away.
	 */
	CLOSED_PORT_PACKETS = 64,
	/*
	 * So many packets show that a port has takers: the refusals of fewer may be
	 * still to come, since each CPU polls 64 before the stack sees them.
	 */
	DOUBT_PACKETS = 4 * CLOSED_PORT_PACKETS,
	/*
	 * Of so many packets without a socket one is looked up in connection tracking: a
	 * CPU that they fill has 80 looks and more in an interval, and each costs a look-up.
	 */
	FLOW_PARTS = 32,
	/*
	 * Flows of packets for full sockets that are looked up in a tick and CPU: some 15,000/s,
	 * which a flood of millions hardly feels. More where translated ones were found lately:
	 */
	FLOWS_ASKED_MAX = 64,
	EVIDENCE_SHIFT = 9, /* for some 2 s times … */
	EVIDENCE_TIMES = 30, /* … this */
	/*
	 * Packets for full UDP sockets that pass in a tick and CPU while programs read packets: up to
	 * 4,000/s, many for a calm host, and less than a hundredth of a CPU's time.
	 */
	READERS_PACKETS = 16,
	/* UDP ports without a socket that are remembered: all of one address. */
	UNCLAIMED_PORTS = 65536,
	/* Of 64 interfaces each, by the low bits of their indices. */
	RECEIVING_WORDS = 16,
	/* Bits of Ethernet addresses, in words of 64; an odd number and a shift of their hash. */
	ETHERNET_WORDS = 64,
	ETHERNET_MIXER = 0x1e3779b1,
	ETHERNET_SHIFT = 20,
	/* What is known of them is reviewed every 2^25 ns, about 34 ms, … */
	REVIEW_TICKS_SHIFT = 3,
	/* … and forgotten 4.3 s after the stack last refused a packet. */
	REFUSAL_REVIEWS = 128,
	/* The loader is gone or hangs if it has not been heard of for so long: 2.1 s. */
	HEARTBEAT_TICKS = 512,
	/* Samples of sources of each CPU; a power of two: four seconds of one channel. */
	FAIR_SAMPLES = 1024,
	/* A power of two: the first packet of a tick may be of who keeps time with it. */
	FAIR_SAMPLE_PACKETS = 32,
	/* Known sources: sets of eight, for all CPUs. */
	KNOWN_SOURCE_SETS = 2048,
	KNOWN_SOURCE_WAYS = 8,
};

/*
 * What each network of an overloaded channel gets, the same on all CPUs. Written by
 * the program alone. Sums only grow, so that CPUs can add to them without a lock.
 */
struct fair_share {
	__u64 admitted;
	__u64 used; /* in profile, whatever became of it */
	__u64 admitted_before; /* when the epoch began */
	__u64 used_before;
	__u32 level; /* credit per tick; 0: not yet found */
	__u32 taken; /* credit per tick that its consumer's packets are worth */
	__u32 began; /* the epoch's first tick */
	__u32 discarded_at; /* tick */
	__u32 generation; /* of the slot's owner */
	__u32 spared; /* packets that were admitted for the sake of observing alone */
	__u32 settled; /* of them less the socket's drops, as many are made up for */
	/* Of a listener, ticks: */
	__u16 behind_at; /* when a packet last found its server behind */
	__u16 behind_since; /* and when one first did */
} __attribute__((aligned(64)));
_Static_assert(sizeof(struct fair_share) == 64, "a cache line");

/* A network or subnet: its own credit, and the part of each of those within. */
struct fair_node {
	__u16 tag; /* 0: nobody has it */
	__u16 tick; /* of `credit` */
	__u16 began; /* the epoch of `passed` */
	__u16 passed; /* packets since then that were in profile one level below */
	__u32 credit;
	__u32 part; /* of its own level, that each of those within has: FAIR_WHOLE */
};

struct fair_nodes {
	struct fair_node ways[FAIR_WAYS];
};

struct fair_host {
	__u16 tag;
	__u16 tick; /* when its last packet came */
	__u16 slot; /* of the channel */
	__u16 wait; /* so many ticks later it has its credit, and has none until then */
	__u32 credit;
	__u16 class; /* enum source_class */
	__u16 since; /* tick: when it was last served, as far as its turns go */
};

struct fair_hosts {
	struct fair_host ways[FAIR_WAYS];
};

/* An IPv6 address, or an IPv4 one as ::ffff:a.b.c.d, in network byte order. */
struct address {
	__u32 words[4];
};

/*
 * A packet of a tick in which a CPU judged a channel's packets by source. It stands
 * for those until the CPU's next sample of the channel.
 */
struct fair_sample {
	struct address source;
	__u32 slot; /* of the channel; 0: no sample yet */
	__u32 generation; /* of the slot's owner */
	__u32 tick;
	__u32 judged; /* packets of the channel that this CPU had judged before it */
};

/* Whether a source was served before an overload. */
enum source_class {
	CLASS_UNKNOWN,
	CLASS_KNOWN,
	CLASS_COUNT,
};

/* What became of a class's packets. */
struct judged {
	__u64 admitted;
	__u64 discarded;
};

/* A source that was served before an overload. */
struct known_source {
	__u32 tag; /* 0: nobody has it */
	__u16 seen; /* the last period in which it was served */
	__u16 periods; /* in how many it was */
};

struct known_sources {
	struct known_source ways[KNOWN_SOURCE_WAYS];
};

/* Exact count of all packets, per CPU. The sum is the number of packets seen. */
struct totals {
	__u64 packets[KIND_COUNT][OUTCOME_COUNT];
	__u64 company; /* those that would miss something if the receive ring overflowed */
	/* Those of TCP connections past their handshake, but for what these do not take: */
	__u64 established;
	__u64 tunnelled; /* those that a tunnel takes in the kernel */
	/* Those of translated flows that go on to other hosts, by one of FLOW_PARTS: */
	__u64 translated;
	__u32 unclaimed; /* those without a socket */
	__u32 looked_at; /* of each FLOW_PARTS of them, this one's flow is asked for */
	__u32 flows_tick; /* of `flows_asked` */
	__u32 flows_asked; /* flows of packets that a socket would refuse, in this tick */
	__u32 readers_tick; /* of `readers_packets` */
	__u32 readers_packets; /* for full sockets, that passed in this tick for readers' sake */
};

/* Why a channel took no more packets when last looked at. */
enum discarding {
	DISCARDING_NOTHING,
	DISCARDING_FULL, /* over the high watermark and not yet below the low one */
	DISCARDING_SYNS, /* a listener past its SYN queue: new ones need cookies */
	DISCARDING_SOURCES, /* a listener of which some sources have had their share */
};

/* A listener's queues, and what each of the two may hold. */
struct backlog {
	__u32 accept_queue;
	__u32 syn_queue;
	__u32 capacity;
};

/*
 * One channel as one CPU sees it: slot `s` of CPU `c` is element
 * `c * CHANNELS_MAX + s` of the array `channels`. It is of the socket that the
 * slot's allowance names while both have the same generation; a former socket's
 * counters remain in `totals`. Three cache lines; a packet of a calm channel needs two.
 */
struct channel {
	__u64 packets[OUTCOME_COUNT]; /* of sockets only; kinds have `totals` */
	__u64 demand; /* packets that asked for a share */
	__u32 share_time; /* of `share_packets`, in parts of a tick: share_time() */
	__u32 share_packets; /* admitted in this tick, and overdrawn in the one before */
	__u32 generation; /* of the allowance when this CPU began to count */
	__u32 reading; /* settings.reading at the last packet */
	__u32 occupancy; /* bytes or connections when last looked at */
	__u32 capacity; /* the same unit */
	__u32 queued; /* datagrams when last looked at; 0 for listeners */
	__u8 discarding; /* enum discarding */
	__u8 pressed; /* packets are judged by source */
	__u8 filling; /* drops_mark() when it rose above the high watermark; 0: it is below */
	__u8 sample_in; /* so many packets; 0: none in this tick any more */
	__u32 pressed_tick; /* when it last discarded, or began to fill */
	__u32 fair_tick; /* of `fair_admitted` and `fair_used` */
	__u32 fair_admitted; /* since then, not yet told to the allowance */
	__u32 fair_used; /* in profile, likewise */
	struct fair_node known; /* all known sources together */
	/* The first source of this tick that was found waiting for credit: */
	__u32 loud; /* hash of its address */
	__u32 loud_profile; /* enum profile; 0: none was found yet */
	struct judged judged[CLASS_COUNT]; /* while packets were judged by source */
	__u16 strangers; /* newcomers without credit, less all others */
	__u8 strangers_passed_over; /* since the last one that was looked at */
	__u8 turns; /* the last source that was looked at has turns */
	/* While input is shed only: */
	__u32 share_budget; /* the most packets that the channel might have in this tick */
	__u32 share_others; /* room for packets out of profile */
	__u16 share_in_profile; /* in profile, whatever became of it */
	__u16 share_known; /* admitted in places kept for known sources */
} __attribute__((aligned(64)));
_Static_assert(sizeof(struct channel) == 3 * 64, "three cache lines");

/*
 * Who has a slot, and what the loader allows him; the same on every CPU. A
 * socket's slot is found by the address of its struct sock in `slots`. Another
 * socket may come to live there: it is told by its inode, port or bound address,
 * and then nothing that was allowed the former one holds any longer.
 */
struct allowance {
	__u64 socket; /* address of the struct sock; 0: nobody has the slot */
	__u64 inode;
	struct address local; /* bound address; unspecified: any */
	__u32 share_packets; /* per tick and CPU while input is shed; 0: settings.share_packets */
	__u32 limit_bytes; /* delay target: discard from this occupancy on; 0: none */
	__u32 generation; /* sockets that have had the slot so far */
	__u16 port; /* host byte order */
	__u8 kind; /* enum channel_kind */
	__u8 protected; /* its packets go by the share of protected traffic */
	/* When packets for it were last found that translation takes; of published ports: */
	__u16 translated_at;
	__u16 published_at;
};

/*
 * A destination of UDP packets for which no socket is found from here, and which
 * the stack has refused lately. Others may take such packets: translation, other
 * namespaces, a socket bound to an upper device. So it counts as closed only while
 * the stack refuses nearly all that is admitted.
 */
struct unclaimed_port {
	struct address destination;
	__u32 reviewed; /* when, in reviews since boot */
	__u32 refused_at; /* the same, of the last refusal */
	__u32 admitted; /* since then */
	__u32 refused;
	__be16 port;
	__u8 closed;
	__u8 fresh; /* `admitted` is incomplete: since the first refusal only */
	__u8 doubted; /* a review has found too few refusals for a closed port */
	__u8 reserved[3];
};

/* Set by the loader, may change while the program runs. */
struct settings {
	/* The tick when the loader last said that it is there. */
	__u64 heartbeat;
	/*
	 * Watermarks of a UDP socket's queue that was full a moment ago
	 * (WATERMARK_WHOLE_SHIFT): discard from high on, until the occupancy has fallen
	 * below low or by DRAINED_BYTES_MAX. Others take all that fits.
	 */
	__u32 high_watermark;
	__u32 low_watermark;
	__u32 epoch; /* seconds; expires fragments */
	__u32 reading; /* the loader's readings of channels so far */
	__u32 numa_nodes; /* of the host, at least 1 */
	__u32 share_packets; /* of a channel without an allowance of its own */
	__u8 shedding; /* input is shed by shares */
	__u8 observing; /* count what would be done, and do nothing */
	__u8 answering; /* enum answering */
	__u8 protect_connections; /* established TCP connections are protected */
	__u8 protect_prefixes; /* there are prefixes in `protected_prefixes` */
	__u8 know_prefixes; /* there are prefixes in `known_prefixes` */
	__u8 delay_targets; /* some channel has limit_bytes */
	__u8 readers; /* somebody reads packets beside the stack's sockets */
	__u32 namespace_inode; /* of the network namespace guarded */
	__u64 secret; /* keys hashes of addresses */
	/* A bit for each IP protocol that a tunnel of this host takes; 0: frames without an IP header. */
	__u64 tunnels;
	__u64 fair_keys[FAIR_KEYS];
	/* Sets of this CPU's tables of sources, less one. */
	__u32 fair_network_mask;
	__u32 fair_subnet_mask;
	__u32 fair_host_mask;
	/*
	 * Nothing is admitted beyond so many 1/1024 of the high watermark, whoever
	 * sends it: the buffer has as much room beyond as it can.
	 */
	__u32 full_watermark;
	__u8 fairness; /* an overloaded channel's packets are judged by source */
	__u8 learning; /* who is served becomes known */
	__u8 tracking; /* connection tracking knows connections */
	__u8 hiding; /* HIDDEN_SOMEWHERE, MAY_LEAVE, and HIDDEN_TCP and HIDDEN_UDP if every port may be */
	__u8 steered; /* packets are handed to other CPUs before their socket is found (RPS) */
	__u8 bridged; /* a bridge is above, which hands on what is for others' Ethernet addresses */
	__u8 enslaved; /* the guarded interface belongs to a bridge, a bond or a VRF */
	__u8 redirects_answers; /* instead of sending them by XDP_TX (refusals.h) */
	/* The guarded interface; no answer is sent before it is known (0). */
	__u32 ifindex;
	/* Bytes of the largest segment, by the link's MTU and by routes; 0: not known. */
	__u16 mss_ipv4;
	__u16 mss_ipv6;
	__u8 mac[6];
	/* Unicast addresses most packets are for, tried before the map. */
	struct address frequent[FREQUENT_ADDRESSES];
	/* A bit for each interface by which packets may come that the guarded one received. */
	__u64 receiving[RECEIVING_WORDS];
	/* Of a bridge's port: a bit for each Ethernet address of this host, by its hash. */
	__u64 ethernet[ETHERNET_WORDS];
};

/* Protected packets that one CPU admitted, by enum protection. */
struct protected_use {
	__u64 tick; /* of `packets` and `connections` */
	__u32 packets[PROTECTION_COUNT];
	__u32 before[PROTECTION_COUNT]; /* in the tick before */
	__u16 connections[CONNECTION_CAPS]; /* by keyed hash */
};

/* A range of TCP sequence numbers: a segment's, or those that a connection takes. */
struct sequences {
	__u32 begin;
	__u32 end; /* the first number after it */
};

/* Segments outside of connections' windows that one CPU admitted. */
struct outside_use {
	__u64 socket; /* address of the struct sock that is judged now */
	struct sequences window; /* of that connection */
	__u64 tick; /* of `packets` */
	__u8 packets[CONNECTION_CAPS]; /* by keyed hash */
};

/* What became of answers; of all CPUs. */
struct answers {
	__u64 refused; /* sent back, and not taken by the link */
	__u64 returned; /* ends of handshakes with a valid cookie */
	__u64 passed; /* those of them that went on to the stack */
};

/* Key of `protected_prefixes`: IPv4 as ::ffff:a.b.c.d/96+n. The value 0 says no. */
struct prefix {
	__u32 bits;
	struct address address;
};

/* A datagram whose first fragment was seen (RFC 791, RFC 8200). */
struct fragment_key {
	struct address source;
	struct address destination;
	__u32 id;
	__u32 protocol;
};

struct fragment {
	__u32 slot; /* of the channel; 0: none */
	__u32 epoch;
	__u32 generation; /* of the slot's owner */
	__be16 port; /* destination, of UDP */
	__u8 kind;
	__u8 outcome;
	__u8 tunnelled; /* as in struct verdict */
	__u8 shed;
	__be16 source_port;
};

/*
 * A destination whose socket was looked up a moment ago: no look-up for the
 * next packets. What it says may be stale by KNOWN_PACKETS and by one tick of
 * the kernel's clock, whichever ends first.
 */
struct known_socket {
	struct address destination;
	__u64 jiffies; /* the entry is of this tick of the kernel only */
	__u64 socket; /* address of the struct sock; it may be gone */
	__u32 slot;
	__be16 port;
	__u8 packets_left;
	__u8 full; /* then its queue is not even read for who has had its share */
	__u8 shared; /* of a group: which member's queue, only a look-up tells */
	__u32 tick; /* coarse_tick() at `jiffies`, with which it moves */
};

struct known_sockets {
	struct known_socket entries[KNOWN_SOCKETS];
};

/* The same for a connection past its handshake. */
struct known_connection {
	struct address source;
	struct address destination;
	__u64 tick;
	__u32 ports; /* ports_of() */
	struct sequences window;
	__u32 packets_left;
};

struct known_connections {
	struct known_connection entries[1 << KNOWN_CONNECTIONS_SHIFT];
};

#endif
