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

SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(on_redirected, const struct net_device *from, const struct net_device *to, int sent,
	     int drops, int err)
{
	if (drops > 0 && is_watched(to))
		on_refused(drops);
	return 0;
}

/* Those to sockets are by a map. */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(on_redirect_error, const struct net_device *device, const struct bpf_prog *prog,
	     const void *target, int err, __u32 map_type)
{
	if (map_type == BPF_MAP_TYPE_UNSPEC && is_watched(device))
		on_refused(1);
	return 0;
}
