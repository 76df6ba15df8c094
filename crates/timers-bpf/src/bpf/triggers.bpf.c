// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Records each trigger state of each CPU: the moments at which a kernel with
 * soft timers would look for due events (Aron & Druschel 2000, section 3).
 *
 * One word per state into the CPU's part of one large array, until the part is
 * full. Nothing is computed here: a histogram per source left out would cost
 * ten updates per state, a record costs one, and from records every
 * distribution, window and subset follows exactly.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "triggers.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Never read: a type of no variable would not be in the BTF. */
const volatile struct vocabulary {
	enum source source;
	enum state_word word;
} vocabulary = {};

/* States that each CPU has room for; set before the program is loaded. */
const volatile __u32 room = 1;
/* Nothing is recorded before the reader says so. */
__u32 enabled = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* CPUs times room, set before loading */
	__type(key, __u32);
	__type(value, __u64);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} reached SEC(".maps");

static __always_inline int record(enum source source)
{
	__u32 key = 0;
	__u64 *count, *state, place;

	if (!enabled)
		return 0;
	count = bpf_map_lookup_elem(&reached, &key);
	if (!count)
		return 0;
	/* Atomic, since an interrupt's state may come between. */
	place = __sync_fetch_and_add(count, 1);
	if (place >= room)
		return 0;
	key = bpf_get_smp_processor_id() * room + place;
	state = bpf_map_lookup_elem(&states, &key);
	if (state)
		*state = bpf_ktime_get_ns() << SOURCE_BITS | source;
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_system_call, void *regs, long result)
{
	return record(SOURCE_SYSTEM_CALL);
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_output, void *skb, void *device)
{
	return record(SOURCE_IP_OUTPUT);
}

enum { NET_TX_SOFTIRQ = 2, NET_RX_SOFTIRQ = 3 }; /* include/linux/interrupt.h */

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq, unsigned int vector)
{
	if (vector == NET_RX_SOFTIRQ || vector == NET_TX_SOFTIRQ)
		return record(SOURCE_NETWORK_SOFTIRQ);
	return record(SOURCE_OTHER_SOFTIRQ);
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_device_interrupt, int irq, void *action, int result)
{
	return record(SOURCE_DEVICE_INTERRUPT);
}

SEC("?tp_btf/local_timer_exit")
int BPF_PROG(on_timer_interrupt, int vector)
{
	return record(SOURCE_TIMER_INTERRUPT);
}

SEC("?tp_btf/reschedule_exit")
int BPF_PROG(on_reschedule, int vector)
{
	return record(SOURCE_OTHER_INTERRUPT);
}

SEC("?tp_btf/call_function_exit")
int BPF_PROG(on_call_function, int vector)
{
	return record(SOURCE_OTHER_INTERRUPT);
}

SEC("?tp_btf/call_function_single_exit")
int BPF_PROG(on_call_function_single, int vector)
{
	return record(SOURCE_OTHER_INTERRUPT);
}

/*
 * A fault's end: the kernel counts it as minor or major once it is handled
 * (mm_account_fault), and this runs at each count.
 */
SEC("perf_event")
int on_fault_end(void *context)
{
	return record(SOURCE_PAGE_FAULT);
}

/*
 * Where these counts cannot be asked for: the begin, early by the handling. The
 * kernel has no tracepoint at the end, and not every kernel lets a program be
 * attached to the return of a function.
 */
SEC("?tp_btf/page_fault_user")
int BPF_PROG(on_user_fault, unsigned long address, void *regs, unsigned long error)
{
	return record(SOURCE_PAGE_FAULT);
}

SEC("?tp_btf/page_fault_kernel")
int BPF_PROG(on_kernel_fault, unsigned long address, void *regs, unsigned long error)
{
	return record(SOURCE_PAGE_FAULT);
}

/* The state that says "left idle" (PWR_EVENT_EXIT, include/trace/events/power.h). */
#define IDLE_EXIT ((unsigned int)-1)

SEC("tp_btf/cpu_idle")
int BPF_PROG(on_idle, unsigned int state, unsigned int cpu)
{
	return record(state == IDLE_EXIT ? SOURCE_IDLE_EXIT : SOURCE_IDLE_ENTRY);
}
