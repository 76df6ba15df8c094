// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Hears of answers of steer.bpf.c that the link did not take. Apart from it, since a kernel that
 * has no such tracepoints can steer nevertheless: then nobody answers there.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "answers.h"
#include "interface.h"
#include "refusals.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The interface of the program. */
const volatile __u32 ifindex;
const volatile __u32 namespace_inode;

static __always_inline bool is_watched(const struct net_device *trusted)
{
	return is_interface(trusted, ifindex, namespace_inode);
}

static __always_inline void on_refused(__u32 answers_refused)
{
	refuse_answers(answers_refused);
}
