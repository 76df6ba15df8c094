/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Answers that the link did not take: programs at the kernel's own tracepoints. */
#ifndef PLIMSOLL_TRANSMIT_H
#define PLIMSOLL_TRANSMIT_H

#include <bpf/bpf_tracing.h>

#include "kernel.h"
#include "maps.h"

/* Whether something happened on the guarded interface; ours may not be the only one. */
static __always_inline bool is_guarded(const struct net_device *trusted)
{
	const struct net_device *device =
		bpf_rdonly_cast(trusted, bpf_core_type_id_kernel(struct net_device));

	return settings.ifindex && (__u32)device->ifindex == settings.ifindex &&
	       device->nd_net.net->ns.inum == settings.namespace_inode;
}

/*
 * The link refused what was sent back, as veth does if nobody polls at its other
 * end. From the next SYN on the stack answers, until the loader wants to try again.
 */
static __always_inline void on_refused(__u32 answers_refused)
{
	__sync_fetch_and_add(&answers.refused, answers_refused);
	if (settings.answering == ANSWERING_DRIVER)
		settings.answering = ANSWERING_STACK;
}

SEC("tp_btf/xdp_bulk_tx")
int BPF_PROG(on_bulk_transmit, const struct net_device *device, int sent, int drops, int err)
{
	if (drops > 0 && is_guarded(device))
		on_refused(drops);
	return 0;
}

SEC("tp_btf/xdp_exception")
int BPF_PROG(on_exception, const struct net_device *device, const struct bpf_prog *prog, __u32 act)
{
	if (act == XDP_TX && is_guarded(device))
		on_refused(1);
	return 0;
}

#endif
