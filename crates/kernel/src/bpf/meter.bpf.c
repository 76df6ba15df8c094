// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Where each CPU's time goes, and how long the guarded interface's polling
 * runs are.
 *
 * Every nanosecond is booked on exactly one account when the next event comes:
 * network (softirqs of receive and transmit, polling threads, ksoftirqd, and
 * interrupts that raised receive work), idle, or other. Cycle counting in the
 * manner of Mogul & Ramakrishnan 1997, section 7; unlike theirs it includes
 * the interrupts themselves (their section 7.1 names that error).
 *
 * Each CPU writes only its own books. An interrupt that arrives while an event
 * is being booked is not booked on its own: sums stay exact, a few nanoseconds
 * are misplaced.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "meter.h"

/* The kernel's types, with only the fields that are read (see CO-RE). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct {
	unsigned int flags;
	int pid;
	char comm[16];
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

struct net_device {
	int ifindex;
	struct {
		struct net *net;
	} nd_net;
};

struct napi_struct {
	struct net_device *dev;
};

#pragma clang attribute pop

#define PF_KTHREAD 0x00200000 /* include/linux/sched.h */

enum { NET_TX_SOFTIRQ = 2, NET_RX_SOFTIRQ = 3 }; /* include/linux/interrupt.h */

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct meter_settings meter_settings = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

static __always_inline struct cpu *this_cpu(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&cpus, &key);
}

/*
 * The CPU's books, unless the event interrupts one that is being booked, or no
 * task switch has told yet what runs.
 */
static __always_inline struct cpu *begin(void)
{
	struct cpu *cpu = this_cpu();

	if (!cpu || (cpu->sequence & 1) || !cpu->since_ns)
		return NULL;
	cpu->sequence++;
	barrier();
	return cpu;
}

static __always_inline void end(struct cpu *cpu)
{
	cpu->account = cpu->in_softirq ? cpu->account : cpu->task_account;
	barrier();
	cpu->sequence++;
}

static __always_inline void book(struct cpu *cpu, __u32 account)
{
	__u64 now_ns = bpf_ktime_get_ns();

	if (account < ACCOUNTS)
		cpu->account_ns[account] += now_ns - cpu->since_ns;
	cpu->since_ns = now_ns;
}

static __always_inline bool starts_with(const char *comm, const char *prefix, int length)
{
	for (int i = 0; i < length; i++)
		if (comm[i] != prefix[i])
			return false;
	return true;
}

static __always_inline __u32 account_of(const struct task_struct *task)
{
	if (task->pid == 0)
		return ACCOUNT_IDLE;
	if ((task->flags & PF_KTHREAD) &&
	    (starts_with(task->comm, "napi/", 5) || starts_with(task->comm, "ksoftirqd/", 10)))
		return ACCOUNT_NETWORK;
	return ACCOUNT_OTHER;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 account = account_of(next);
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return 0;
	if (!cpu->since_ns) {
		cpu->task_account = account;
		cpu->account = account;
		cpu->since_ns = bpf_ktime_get_ns();
		return 0;
	}
	/* Most switches are from one process to another. */
	if (cpu->task_account == account)
		return 0;
	cpu = begin();
	if (!cpu)
		return 0;
	book(cpu, cpu->account);
	cpu->task_account = account;
	end(cpu);
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector)
{
	struct cpu *cpu = begin();

	if (!cpu)
		return 0;
	book(cpu, cpu->account);
	cpu->in_softirq = true;
	cpu->account = vector == NET_RX_SOFTIRQ || vector == NET_TX_SOFTIRQ ? ACCOUNT_NETWORK :
									      ACCOUNT_OTHER;
	end(cpu);
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit, unsigned int vector)
{
	struct cpu *cpu = begin();

	if (!cpu)
		return 0;
	book(cpu, cpu->account);
	cpu->in_softirq = false;
	end(cpu);
	return 0;
}

SEC("tp_btf/softirq_raise")
int BPF_PROG(on_softirq_raise, unsigned int vector)
{
	struct cpu *cpu = vector == NET_RX_SOFTIRQ ? this_cpu() : NULL;

	if (cpu)
		cpu->interrupt_raised_network = cpu->in_interrupt;
	return 0;
}

static __always_inline int interrupt_entry(void)
{
	struct cpu *cpu = begin();

	if (!cpu)
		return 0;
	book(cpu, cpu->account);
	cpu->in_interrupt = true;
	cpu->interrupt_raised_network = false;
	end(cpu);
	return 0;
}

static __always_inline int interrupt_exit(void)
{
	struct cpu *cpu = begin();

	if (!cpu)
		return 0;
	if (cpu->in_interrupt && cpu->interrupt_raised_network)
		book(cpu, ACCOUNT_NETWORK);
	else
		book(cpu, cpu->account);
	cpu->in_interrupt = false;
	end(cpu);
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_entry)
{
	return interrupt_entry();
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_exit)
{
	return interrupt_exit();
}

/*
 * x86 has tracepoints for its vectors; elsewhere the timer is an ordinary
 * interrupt and these two are not attached.
 */
SEC("raw_tp/local_timer_entry")
int on_timer_entry(void *context)
{
	return interrupt_entry();
}

SEC("raw_tp/local_timer_exit")
int on_timer_exit(void *context)
{
	return interrupt_exit();
}

/* After each poll: `work` frames of at most `budget`; fewer: the ring is empty. */
SEC("tp_btf/napi_poll")
int BPF_PROG(on_poll, struct napi_struct *napi, int work, int budget)
{
	const struct net_device *device = napi->dev;
	struct cpu *cpu;

	if (!device || (__u32)device->ifindex != meter_settings.ifindex ||
	    device->nd_net.net->ns.inum != meter_settings.namespace_inode)
		return 0;
	cpu = this_cpu();
	if (!cpu || work < 0)
		return 0;
	if (cpu->generation != meter_settings.generation) {
		cpu->generation = meter_settings.generation;
		cpu->backlog_max = 0;
	}
	cpu->frames += work;
	cpu->run_frames += work;
	if (cpu->run_frames > cpu->backlog_max)
		cpu->backlog_max = cpu->run_frames;
	if (work < budget) {
		cpu->runs++;
		cpu->run_frames = 0;
	}
	return 0;
}
