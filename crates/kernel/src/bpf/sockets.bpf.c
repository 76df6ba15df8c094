/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Lists the datagrams that wait in each UDP socket of a network namespace: an
 * iterator over the kernel's table, run when its file is read. What is neither
 * lost nor delivered yet is there, and no counter of the kernel holds it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sk_buff_head {
	__u32 qlen;
};

struct sock {
	struct sk_buff_head sk_receive_queue;
};

struct udp_sock {
	struct sk_buff_head reader_queue;
};

struct bpf_iter_meta {
	struct seq_file *seq;
};

/* The iterator's program is called with this. */
struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
};

#pragma clang attribute pop

SEC("iter/udp")
int waiting(struct bpf_iter__udp *context)
{
	struct udp_sock *udp = context->udp_sk;
	__u32 datagrams;

	if (!udp)
		return 0;
	datagrams = ((struct sock *)udp)->sk_receive_queue.qlen + udp->reader_queue.qlen;
	if (datagrams)
		bpf_seq_write(context->meta->seq, &datagrams, sizeof(datagrams));
	return 0;
}
