// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Every frame of every receive queue goes to the AF_XDP socket of its queue: for
 * programs that take an interface from the kernel, as a monitor on a span port.
 *
 * The time of arrival stands in front of the frame, in nanoseconds of CLOCK_TAI. A batch
 * of frames is read at once, so the reader's own clock would tell the batch's time.
 *
 * A queue without a socket (the program on its way out) leaves its frames to the kernel.
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

SEC("xdp")
int take(struct xdp_md *ctx)
{
	__u64 *stamp;

	if (!bpf_xdp_adjust_meta(ctx, -(int)sizeof(*stamp))) {
		stamp = (void *)(long)ctx->data_meta;
		if ((void *)(stamp + 1) <= (void *)(long)ctx->data)
			*stamp = bpf_ktime_get_tai_ns();
	}
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}
