// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/* Accounts every nanosecond of one CPU, from scheduler and interrupt events.
 *
 * At each event the time since the last one goes to exactly one account, so
 * the accounts always sum to the time passed. The rules are in cpu_meter.rs.
 *
 * Only the metered CPU writes. An interrupt can arrive while an event outside
 * interrupt context is being booked; it is then not booked on its own, which
 * keeps the sum exact and misplaces a few nanoseconds at most.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define PF_KTHREAD 0x00200000 /* include/linux/sched.h */

enum { NET_TX_SOFTIRQ = 2, NET_RX_SOFTIRQ = 3 }; /* include/linux/interrupt.h */

/* Mirrored by Account in cpu_meter.rs. */
enum account { APP, NETWORK, OTHER, IDLE, ACCOUNTS };

#define WATCHED 8

struct task_struct {
	unsigned int flags;
	int pid;
	int tgid;
	char comm[16];
} __attribute__((preserve_access_index));

struct state {
	__u64 sequence;       /* odd while being changed */
	__u64 since_ns;       /* up to here everything is booked; 0: not started */
	__u64 account_ns[ACCOUNTS];
	__u64 watched_ns[WATCHED];
	__u32 account;        /* of what runs since then */
	__u32 watched;        /* index of the watched process that runs, or WATCHED */
};

const volatile __u32 metered_cpu;

/* Process ids whose share of the application account is wanted; 0: none. */
__u32 watched_pids[WATCHED];

volatile struct state state;

/* What runs below softirqs and interrupts, and whether those do. */
static __u32 task_account;
static __u32 task_watched = WATCHED;
static bool in_softirq;
static __u32 softirq_account;
static bool in_interrupt;
static bool interrupt_raised_network;

static __always_inline bool begin(void)
{
	if (bpf_get_smp_processor_id() != metered_cpu || (state.sequence & 1))
		return false;
	state.sequence++;
	barrier();
	return true;
}

static __always_inline void end(void)
{
	state.account = in_softirq ? softirq_account : task_account;
	state.watched = in_softirq ? WATCHED : task_watched;
	barrier();
	state.sequence++;
}

static __always_inline void book(__u32 account, __u32 watched)
{
	__u64 now_ns = bpf_ktime_get_ns();
	__u64 passed_ns = now_ns - state.since_ns;

	if (!state.since_ns)
		return;
	state.since_ns = now_ns;
	if (account < ACCOUNTS)
		state.account_ns[account] += passed_ns;
	if (account == APP && watched < WATCHED)
		state.watched_ns[watched] += passed_ns;
}

static __always_inline bool starts_with(const char *comm, const char *prefix, int length)
{
	for (int i = 0; i < length; i++)
		if (comm[i] != prefix[i])
			return false;
	return true;
}

static __always_inline __u32 account_of(struct task_struct *task)
{
	if (task->pid == 0)
		return IDLE;
	if (!(task->flags & PF_KTHREAD))
		return APP;
	if (starts_with(task->comm, "napi/", 5) || starts_with(task->comm, "ksoftirqd/", 10))
		return NETWORK;
	return OTHER;
}

static __always_inline __u32 watched_index(__u32 tgid)
{
	for (__u32 i = 0; i < WATCHED; i++)
		if (tgid && watched_pids[i] == tgid)
			return i;
	return WATCHED;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	if (!begin())
		return 0;
	if (!state.since_ns)
		state.since_ns = bpf_ktime_get_ns();
	book(state.account, state.watched);
	task_account = account_of(next);
	task_watched = watched_index(next->tgid);
	end();
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector)
{
	if (!begin())
		return 0;
	book(state.account, state.watched);
	in_softirq = true;
	softirq_account =
		vector == NET_RX_SOFTIRQ || vector == NET_TX_SOFTIRQ ? NETWORK : OTHER;
	end();
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit, unsigned int vector)
{
	if (!begin())
		return 0;
	book(state.account, state.watched);
	in_softirq = false;
	end();
	return 0;
}

SEC("tp_btf/softirq_raise")
int BPF_PROG(on_softirq_raise, unsigned int vector)
{
	if (vector == NET_RX_SOFTIRQ && bpf_get_smp_processor_id() == metered_cpu)
		interrupt_raised_network = in_interrupt;
	return 0;
}

static __always_inline int interrupt_entry(void)
{
	if (!begin())
		return 0;
	book(state.account, state.watched);
	in_interrupt = true;
	interrupt_raised_network = false;
	end();
	return 0;
}

static __always_inline int interrupt_exit(void)
{
	if (!begin())
		return 0;
	if (in_interrupt && interrupt_raised_network)
		book(NETWORK, WATCHED);
	else
		book(state.account, state.watched);
	in_interrupt = false;
	end();
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

/* x86 has tracepoints for its vectors; elsewhere the timer is an ordinary
 * interrupt and these two are not loaded. */
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

char LICENSE[] SEC("license") = "GPL";
