// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Takes the IPv4 packets that arrive at an interface, as another machine would: they
 * are freed as consumed, and nothing that traces the kernel's drops sees them.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

SEC("tc")
int consume(struct __sk_buff *skb)
{
	return skb->protocol == bpf_htons(ETH_P_IP) ? TC_ACT_STOLEN : TC_ACT_OK;
}
