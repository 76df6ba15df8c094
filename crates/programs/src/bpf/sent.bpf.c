// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * What became of the frames that an XDP program of ours sent on.
 *
 * A redirect only says where a frame should go. The kernel sends redirected frames in
 * groups when a poll ends, and a full or missing receiver drops them there. These
 * tracepoints see each group, and each redirect that failed before.
 *
 * Interfaces are known by index and network namespace: other namespaces have the
 * same indices.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "sent.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common {
	unsigned int inum;
};
struct net {
	struct ns_common ns;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct net_device {
	int ifindex;
	possible_net_t nd_net;
};
#pragma clang attribute pop

struct bpf_prog;

/* The inode of our network namespace. */
const volatile __u32 netns_inode;

/* Unused, but it takes the constants into the type information. */
const volatile enum sent_bounds bounds;

/* By index of the interface that frames are sent on by, or came in by if their
 * redirect failed. User space adds the router's. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, SENT_DEVICES_MAX);
	__type(key, __u32);
	__type(value, struct sent);
} sent SEC(".maps");

static __always_inline struct sent *of(const struct net_device *device)
{
	__u32 index = device->ifindex;

	if (device->nd_net.net->ns.inum != netns_inode)
		return 0;
	return bpf_map_lookup_elem(&sent, &index);
}

SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(on_transmit, const struct net_device *from, const struct net_device *to, int frames,
	     int drops, int error)
{
	struct sent *entry = of(to);

	/* Who else redirects to this interface is not counted. */
	if (!entry || !of(from))
		return 0;
	entry->frames += frames;
	entry->dropped += drops;
	return 0;
}

SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(on_error, const struct net_device *device, const struct bpf_prog *program,
	     const void *target, int error, enum bpf_map_type kind)
{
	struct sent *entry = of(device);

	/* What a socket's ring does not take, the socket counts. */
	if (entry && kind != BPF_MAP_TYPE_XSKMAP)
		entry->failed++;
	return 0;
}
