/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What is known of the program's answers to SYNs: of steer.bpf.c and refused.bpf.c, and their owner's. */
#ifndef PLIMSOLL_STEER_ANSWERS_H
#define PLIMSOLL_STEER_ANSWERS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "steer.h"

/* By enum answers_place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ANSWERS_PLACES);
	__type(key, __u32);
	__type(value, __u64);
} answers SEC(".maps");

static __always_inline void count_answers(__u32 place, __u32 more)
{
	__u64 *count = bpf_map_lookup_elem(&answers, &place);

	if (count)
		__sync_fetch_and_add(count, more);
}

/* From the next SYN on the stack answers, until it wants to try again. */
static __always_inline void refuse_answers(__u32 refused)
{
	__u32 wanted_at = ANSWERS_WANTED;
	__u64 *wanted = bpf_map_lookup_elem(&answers, &wanted_at);

	count_answers(ANSWERS_REFUSED, refused);
	if (wanted)
		*wanted = 0;
}

#endif
