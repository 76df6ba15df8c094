/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What steer.bpf.c shares with its loader, device/xdp/program.rs. */
#ifndef PLIMSOLL_STEER_H
#define PLIMSOLL_STEER_H

#include <linux/types.h>

enum steer_limit {
	MAIN_SOCKET = 0, /* number of the socket that gets what no other does */
	SOCKETS_MAX = 4096, /* of each queue: in maps they follow those of the queue before */
	QUEUES_MAX = 16,
	PLACES_OF_SOCKETS = QUEUES_MAX * SOCKETS_MAX,
	ADDRESSES_MAX = 512, /* also those of all hosts of a network */
	KNOWN_MAX = 4096, /* sources */
	LATE_MAX = 1 << 13, /* connections: as many as the stack remembers */
	PORTS = 1 << 16,
	PLACES_MAX = 2 * PORTS, /* of UDP, then of TCP */
	GROUP = 1 << 16, /* set in the number of an endpoint's socket: it is a group's */
	GROUPS_MAX = 64,
	MEMBERS_MAX = 64, /* a power of two */
	LISTENER = 1 << 17, /* set in the number of an endpoint's socket: connections have channels */
	BEYOND_BACKLOG = 1 << 18, /* set for a listener that takes no SYNs now */
	TAKES_KNOWN = 1 << 20, /* set beside it for one that takes those of known sources, if nobody answers */
	ON_MAIN = 1 << 21, /* set in the number of an endpoint without a socket: the main socket has its frames */
	IPV4_ALONE = 1 << 19, /* set for an endpoint at any address that has no IPv6 */
	CONNECTIONS_MAX = 1 << 15, /* each is a channel; in `given` they follow all sockets */
	GIVEN_TO_QUEUES = PLACES_OF_SOCKETS + CONNECTIONS_MAX, /* in `given`, where queues are */
	GIVEN_MAX = GIVEN_TO_QUEUES + QUEUES_MAX,
	TRY_EVERY = 32, /* of the frames for a socket without room, so many are one that it gets */
	TRY_AFTER_TICKS = 16, /* of the kernel without such a frame, the next is one: 16 to 160 ms */
	COOKIE_HASH_BITS = 24,
	COOKIE_CLASS_BITS = 3,
	COOKIE_UNIT_S = 64, /* of a cookie's age */
	COOKIE_UNITS = 32, /* are counted */
};

/*
 * Largest segments that a cookie can say, in bytes: what IPv4 and IPv6 take at least, usual tunnels,
 * Ethernet, and jumbo frames.
 */
enum cookie_segment {
	COOKIE_SEGMENT_0 = 536,
	COOKIE_SEGMENT_1 = 1220,
	COOKIE_SEGMENT_2 = 1300,
	COOKIE_SEGMENT_3 = 1360,
	COOKIE_SEGMENT_4 = 1400,
	COOKIE_SEGMENT_5 = 1440,
	COOKIE_SEGMENT_6 = 1460,
	COOKIE_SEGMENT_7 = 8940,
};

/* Where `entry_counts` has which. */
enum entry_count {
	COUNT_ENDPOINTS,
	COUNT_CONNECTIONS,
};

/* How an address is the stack's. */
enum possession {
	NOT_OURS,
	ALL_HOSTS, /* of one of its networks: nobody sends from there */
	SHARED, /* with the kernel: what is for an endpoint */
	OWNED, /* all that is for it */
};

/* What the stack tells the program while that runs. */
struct told {
	__u32 vlan; /* that the stack is in, 0: none */
	__u32 all_channels; /* each TCP connection has a channel */
	__u64 cookie_key[2]; /* of listeners' SYN cookies: tcp/cookie.rs */
	__u32 has_cookies; /* the key was told */
	__u32 window; /* that an answer with a cookie names */
	__u32 segments[2]; /* the largest that the stack takes, of IPv4 and of IPv6 */
	__u8 mac[6]; /* the interface's Ethernet address */
	__u8 reserved[2];
};

/* What the program and its owner tell each other of its answers to SYNs. */
enum answers_place {
	ANSWERS_WANTED, /* 0: the program answers none. Told by the owner, and by a refusal */
	ANSWERS_GIVEN,
	ANSWERS_REFUSED, /* the driver could not make or send them */
	ANSWERS_RETURNED, /* segments that brought a cookie back, whoever gave it */
	ANSWERS_PLACES,
};

/* What the program and its owner tell each other of company. */
enum company_place {
	COMPANY_OTHERS, /* frames that were not the flooded endpoint's: counted by the program */
	COMPANY_FLOODED, /* the flooded endpoint, as its entry has it and one more; 0: none is known */
	COMPANY_PLACES,
};

/* An address in network byte order; IPv4 as ::ffff:a.b.c.d, any as zeros. */
struct address {
	__u8 bytes[16];
};

/* A bound port at one address. */
struct endpoint {
	struct address address;
	__be16 port;
	__u8 protocol; /* IPPROTO_UDP or IPPROTO_TCP */
	__u8 reserved;
};

/* A TCP connection. */
struct connection {
	struct address local;
	struct address remote;
	__be16 local_port;
	__be16 remote_port;
};

struct ports {
	__be16 source;
	__be16 destination;
};

/* What a listener's cookie is a hash of, and four bytes behind it. */
struct asked {
	struct connection ends;
	__be32 sequence; /* of the SYN */
} __attribute__((aligned(8)));

/* Sockets that share an endpoint. */
struct group {
	__u32 count;
	__u32 members[MEMBERS_MAX];
};

/*
 * Of the frames for ports that nobody bound, and of segments for listeners that belong to no
 * connection, with a cookie and without, SYNs of known sources, segments of connections that
 * are over, and SYNs that are answered here: how many passed in this tick, and how many of all were
 * dropped. And SYNs that a full backlog has cost.
 */
struct strays {
	__u64 tick;
	__u64 passed;
	__u64 passed_to_listeners;
	__u64 dropped;
	__u64 beyond_backlog;
	__u64 passed_with_cookies;
	__u64 passed_of_known;
	__u64 passed_late;
	__u64 answered;
};

/*
 * What the program did with the frames for one socket, for the channel of a connection, or for
 * all sockets of a queue.
 */
struct given {
	__u64 frames; /* given to it, to the main socket for it; to a queue's sockets: where each had room */
	__u64 without_room; /* for which its ring had no room */
	__u64 refused; /* of these, dropped */
	__u64 asked_at; /* in ticks of the kernel: when there was no room for the last time */
};

#endif
