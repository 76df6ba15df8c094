// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Every frame of every receive queue goes to the AF_XDP socket of its queue: for
 * programs that take an interface from the kernel, as a monitor on a span port.
 *
 * The time of arrival stands in front of the frame, in nanoseconds of CLOCK_TAI. A batch
 * of frames is read at once, so the reader's own clock would tell the batch's time.
 *
 * A queue without a socket (it was added later, or the program is on its way out) leaves its
 * frames to the kernel, and they are counted.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define QUEUES_MAX 256

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Frames of queues without a socket, and that of the last of them. */
struct unserved {
	__u64 frames;
	__u64 queue;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct unserved);
} unserved SEC(".maps");

static __always_inline void count_unserved(__u32 queue)
{
	struct unserved *all;
	__u32 key = 0;

	all = bpf_map_lookup_elem(&unserved, &key);
	if (!all)
		return;
	all->frames++;
	all->queue = queue;
}

SEC("xdp")
int take(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;
	__u64 *stamp;
	int action;

	if (!bpf_xdp_adjust_meta(ctx, -(int)sizeof(*stamp))) {
		stamp = (void *)(long)ctx->data_meta;
		if ((void *)(stamp + 1) <= (void *)(long)ctx->data)
			*stamp = bpf_ktime_get_tai_ns();
	}
	action = bpf_redirect_map(&sockets, queue, XDP_PASS);
	if (action == XDP_PASS)
		count_unserved(queue);
	return action;
}
