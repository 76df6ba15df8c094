/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Types that the router's XDP program shares with user space.
 */
#ifndef PLIMSOLL_FORWARD_H
#define PLIMSOLL_FORWARD_H

/*
 * What becomes of a frame. Each gets exactly one of these in the program, so that
 * they add up to the frames that arrived. crates/programs/src/forward/outcome.rs
 * has the same list; they are compared at compile time.
 */
enum forward_outcome {
	/* Sent on to the next hop's interface. */
	OUTCOME_FORWARDED,
	/* To user space, which decides (--path user). */
	OUTCOME_TO_USER,
	/* --- To the kernel: */
	/* ARP. */
	OUTCOME_ADDRESS_RESOLUTION,
	/* Neither IP nor ARP. */
	OUTCOME_OTHER_PROTOCOL,
	/* To one of this host's addresses. */
	OUTCOME_LOCAL,
	/* Multicast or broadcast, by Ethernet or IP. */
	OUTCOME_MULTICAST,
	/* To another station's Ethernet address. */
	OUTCOME_OTHER_HOST,
	/* From or to an IPv6 link-local address. */
	OUTCOME_LINK_LOCAL,
	/* IPv4 options, IPv6 hop-by-hop options. */
	OUTCOME_OPTIONS,
	/* Its TTL or hop limit ends here: the kernel answers. */
	OUTCOME_TTL_EXPIRED,
	/* Longer than the next link takes: the kernel fragments or answers. */
	OUTCOME_TOO_BIG,
	/* No route, or one that refuses: the kernel answers. */
	OUTCOME_NO_ROUTE,
	/* The next hop's Ethernet address is not known: the kernel asks for it. */
	OUTCOME_NO_NEIGHBOUR,
	/* The route leads to an interface that is not forwarded to here, into a
	 * tunnel, or depends on rules: the kernel forwards. */
	OUTCOME_KERNEL_ROUTE,
	/* The kernel does not forward what arrives at this interface. */
	OUTCOME_FORWARDING_OFF,
	/* From an address of this host's, or the way back to its source is not one that
	 * is known to be right: the kernel looks at it, and has settings of its own. */
	OUTCOME_DOUBTFUL_SOURCE,
	/* --- Dropped: */
	/* No valid IP packet. */
	OUTCOME_MALFORMED,
	/* A source or destination that no packet may have. */
	OUTCOME_MARTIAN,
	/* The way back to its source leads elsewhere, and that was not to be. */
	OUTCOME_REVERSE_PATH,
	/* The kernel would have to answer, more often than its limit. */
	OUTCOME_LIMITED,
	OUTCOME_COUNT,
};

/* How the source's way back is looked at (RFC 3704). */
enum reverse_path {
	REVERSE_PATH_OFF,
	REVERSE_PATH_STRICT,
	REVERSE_PATH_LOOSE,
};

/* The two ways of forwarding. */
enum forward_path {
	/* Here: the kernel's tables, a redirect. */
	PATH_XDP,
	/* In user space, over an AF_XDP socket. */
	PATH_USER,
};

/* What the kernel has to work on, and how much of it passes. */
enum limit_kind {
	/* Answered with an ICMP error: TTL, no route, too big and not to be cut. */
	LIMIT_ANSWERED,
	/* A neighbour has to be asked for its address. */
	LIMIT_UNRESOLVED,
	/* Forwarded by the kernel, also in pieces. */
	LIMIT_SLOW,
	LIMIT_COUNT,
};

enum limit_times {
	SECOND_NS = 1000000000,
	/* What may come at once: a tenth of a second's packets. */
	BURST_NS = SECOND_NS / 10,
};

/* A token bucket: packets per second and CPU, with a burst of BURST_NS, and of one packet
 * at least. */
struct bucket {
	__u64 tokens_ns;
	__u64 at_ns;
};

struct counters {
	__u64 packets[OUTCOME_COUNT];
};

/* What an instance knows of its interface. */
struct port_settings {
	/* Its Ethernet address. */
	__u8 station[6];
	/* The kernel forwards what arrives by it. */
	__u8 forwards_v4;
	__u8 forwards_v6;
	/* Which enum reverse_path. */
	__u32 reverse_path_v4;
	__u32 reverse_path_v6;
	/* Some prefix is PREFIX_KERNEL. */
	__u32 asks_for_kernel;
};

/* A prefix of addresses, as the kernel's longest-prefix match has it. */
struct prefix {
	/* Those of the family included. */
	__u32 bits;
	/* AF_INET or AF_INET6. */
	__u32 family;
	__u8 address[16];
};

/* What a prefix is, where that is not the kernel's table's to say. */
enum prefix_kind {
	/* Not all this host's, but within a prefix that is. */
	PREFIX_WITHIN_OWN,
	/* All this host's. */
	PREFIX_OWN,
	/* The kernel forwards what is for it: the look-up for XDP leaves out what it has to heed. */
	PREFIX_KERNEL,
	/* Within such a prefix, and none itself. */
	PREFIX_OTHER,
};

enum forward_bounds {
	DEVICES_MAX = 64,
	QUEUES_MAX = 64,
	PREFIXES_MAX = 65536,
};

#endif
