/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What the screen's XDP program and its user space share. */
#ifndef PLIMSOLL_SCREEN_H
#define PLIMSOLL_SCREEN_H

#include <linux/types.h>

enum screen_bounds {
	QUEUES_MAX = 256,
};

/* What a plain IPv4 header has, and what no part of a flow has. */
enum plain_ipv4 {
	/* The first byte: version 4, and 20 bytes. */
	PLAIN_IPV4 = 0x45,
	/* More fragments, and the offset. */
	FRAGMENT = 0x3fff,
};

enum remembered {
	REMEMBERED_DISCARD = 1,
	REMEMBERED_ACCEPT = 2,
};

/* All that a remembered verdict may depend on. IPv4 addresses are followed by zeros. */
struct flow {
	__u8 source[16];
	__u8 destination[16];
	__be16 source_port;
	__be16 destination_port;
	/* IPv4: flags; the packet is no fragment. IPv6: 0. */
	__be16 fragment;
	__be16 ethernet_type;
	__u8 protocol;
	__u8 unused[3];
};

struct verdict {
	/* By bpf_ktime_get_ns. */
	__u64 until_ns;
	/* Another one than the program's: forgotten. */
	__u32 generation;
	/* enum remembered */
	__u32 verdict;
};

struct counters {
	/* Frames that remembered verdicts decided on. */
	__u64 discarded;
	__u64 redirected;
	/* Frames that the filter chose. */
	__u64 chosen;
	/* Frames of queues without a socket, and that of the last of them. */
	__u64 unserved;
	__u64 unserved_queue;
};

#endif
