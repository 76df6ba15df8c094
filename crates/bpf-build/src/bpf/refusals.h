/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Answers that a link did not take, as veth does if nobody polls at its other end: programs at the
 * kernel's own tracepoints. Who includes this has the kernel's types and says which interface is
 * watched and what follows.
 *
 * To a veth answers are redirected, and to others sent by XDP_TX. A veth whose other end has GRO and
 * no XDP program takes what XDP_TX sends and wakes nobody there: it waits until something else is
 * sent, and once it fills the ring no more is taken (veth_xdp_flush of Linux 6.18).
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

#endif
