/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Answers that a link did not take, as veth does if nobody polls at its other end: programs at the
 * kernel's own tracepoints. Who includes this has the kernel's types and says which interface is
 * watched and what follows.
 */
#ifndef PLIMSOLL_REFUSALS_H
#define PLIMSOLL_REFUSALS_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct bpf_prog;

extern void *bpf_rdonly_cast(const void *object, __u32 btf_id) __ksym;

static __always_inline bool is_watched(const struct net_device *trusted);

static __always_inline void on_refused(__u32 answers_refused);

/* Whether it is this interface; other namespaces may have one of that number. */
static __always_inline bool is_interface(const struct net_device *trusted, __u32 ifindex,
					 __u32 namespace_inode)
{
	const struct net_device *device =
		bpf_rdonly_cast(trusted, bpf_core_type_id_kernel(struct net_device));

	return ifindex && (__u32)device->ifindex == ifindex &&
	       device->nd_net.net->ns.inum == namespace_inode;
}

SEC("tp_btf/xdp_bulk_tx")
int BPF_PROG(on_bulk_transmit, const struct net_device *device, int sent, int drops, int err)
{
	if (drops > 0 && is_watched(device))
		on_refused(drops);
	return 0;
}

SEC("tp_btf/xdp_exception")
int BPF_PROG(on_exception, const struct net_device *device, const struct bpf_prog *prog, __u32 act)
{
	if (act == XDP_TX && is_watched(device))
		on_refused(1);
	return 0;
}

#endif
