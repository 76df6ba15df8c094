/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* This interface's AF_XDP sockets, by queue. QUEUES_MAX is the including program's. */
#ifndef PLIMSOLL_SOCKETS_H
#define PLIMSOLL_SOCKETS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* The same of frames that the filter chooses. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} chosen_sockets SEC(".maps");

#endif
