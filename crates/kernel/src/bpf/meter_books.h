/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * The books of a CPU, and how they are kept: what runs, whose time that is, and up to when it
 * is booked. Between begin() and end() they are being changed: nothing else may book then.
 */
#ifndef PLIMSOLL_METER_BOOKS_H
#define PLIMSOLL_METER_BOOKS_H

#include "meter.h"
#include "meter_kernel.h"

#define PF_KTHREAD 0x00200000 /* include/linux/sched.h */

#define ALL_CPUS 0xffffffff
#define NOBODY WATCHED

/* Chosen before loading; what is not wanted costs nothing. */
/* Never read: a type of no variable would not be in the BTF. */
const volatile struct meter_vocabulary {
	enum account account;
	enum meter_limit limit;
} vocabulary = {};

const volatile __u32 metered_cpu = ALL_CPUS;
const volatile bool watches_processes = false;
const volatile __u32 polled_ifindex = 0; /* 0: no interface */
const volatile __u32 polled_namespace = 0; /* the inode of its network namespace */

struct meter_settings meter_settings = {};

/* Mapped by the reader, which then needs no system call. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* one for each possible CPU */
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* By the last bits of the id: who comes later takes the place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, INSTANCES);
	__type(key, __u32);
	__type(value, struct instance);
} instances SEC(".maps");

static __always_inline bool is_metered(__u32 cpu)
{
	return metered_cpu == ALL_CPUS || cpu == metered_cpu;
}

/* NULL on a CPU that is not metered. */
static __always_inline struct cpu *books(void)
{
	__u32 key = bpf_get_smp_processor_id();

	return is_metered(key) ? bpf_map_lookup_elem(&cpus, &key) : NULL;
}

/* The same, but NULL while metering pauses as well. */
static __always_inline struct cpu *this_cpu(void)
{
	return meter_settings.window_ns ? books() : NULL;
}

/*
 * The CPU's books, unless the event interrupts one that is being booked, or they have
 * not begun in this window.
 */
static __always_inline struct cpu *begin(struct cpu *cpu)
{
	if (!cpu || (cpu->sequence & 1) || !cpu->window_ns ||
	    cpu->window_ns != meter_settings.window_ns)
		return NULL;
	cpu->sequence++;
	barrier();
	return cpu;
}

static __always_inline void end(struct cpu *cpu)
{
	bool is_softirq = cpu->in_softirq && !cpu->softirq_waits;

	cpu->account = is_softirq ? cpu->softirq_account : cpu->task_account;
	cpu->watched = is_softirq ? NOBODY : cpu->task_watched;
	barrier();
	cpu->sequence++;
}

/* A softirq begins in the task of this number. */
static __always_inline void enter_softirq(struct cpu *cpu, __u32 task, __u32 account)
{
	cpu->in_softirq = true;
	cpu->softirq_account = account;
	cpu->softirq_task = task;
	cpu->softirq_waits = false;
}

static __always_inline void leave_softirq(struct cpu *cpu)
{
	cpu->in_softirq = false;
}

/*
 * Whether another account goes on if such a task runs from now on. Which task a softirq runs in
 * counts as well.
 */
static __always_inline bool is_news(const struct cpu *cpu, __u32 account, __u32 watched)
{
	return cpu->in_softirq || cpu->task_account != account || cpu->task_watched != watched;
}

/* The task of this number runs from now on. */
static __always_inline void enter_task(struct cpu *cpu, __u32 task, __u32 account, __u32 watched)
{
	cpu->task_account = account;
	cpu->task_watched = watched;
	cpu->softirq_waits = cpu->in_softirq && cpu->softirq_task != task;
}

/*
 * Whether a task that is no network thread runs below this softirq or interrupt, or any other
 * waits while a network thread runs: a second network thread counts as well, and so does what
 * receives in threads of interrupts (threadirqs, PREEMPT_RT). A kernel without FAIR_GROUP_SCHED
 * does not tell: yes.
 */
static __always_inline bool others_wait(const struct cpu *cpu)
{
	const struct task_struct *task;

	if (cpu->task_account != ACCOUNT_NETWORK)
		return cpu->task_account != ACCOUNT_IDLE;
	task = bpf_get_current_task_btf();
	if (!bpf_core_field_exists(task->se.cfs_rq) || !bpf_core_field_exists(struct cfs_rq, rq))
		return true;
	return task->se.cfs_rq->rq->nr_running > 1;
}

static __always_inline void book_until(struct cpu *cpu, __u32 account, __u32 watched, __u64 at_ns)
{
	__u64 passed_ns = at_ns - cpu->since_ns;

	if (account < ACCOUNTS)
		cpu->account_ns[account] += passed_ns;
	if (account == ACCOUNT_NETWORK && others_wait(cpu))
		cpu->contended_ns += passed_ns;
	if (watches_processes && watched < WATCHED)
		cpu->watched_ns[watched] += passed_ns;
	cpu->since_ns = at_ns;
}

static __always_inline void book(struct cpu *cpu, __u32 account, __u32 watched)
{
	book_until(cpu, account, watched, bpf_ktime_get_ns());
}

static __always_inline void book_current(struct cpu *cpu)
{
	book(cpu, cpu->account, cpu->watched);
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
	if (!(task->flags & PF_KTHREAD))
		return ACCOUNT_APP;
	if (starts_with(task->comm, "napi/", 5) || starts_with(task->comm, "ksoftirqd/", 10) ||
	    starts_with(task->comm, "backlog_napi/", 13))
		return ACCOUNT_NETWORK;
	return ACCOUNT_OTHER;
}

static __always_inline __u32 watched_index(__u32 tgid)
{
	if (!watches_processes || !tgid)
		return NOBODY;
	for (__u32 i = 0; i < WATCHED; i++)
		if (meter_settings.watched_pids[i] == tgid)
			return i;
	return NOBODY;
}

/*
 * Begins the CPU's books, if they have not begun in this window. `task` has run all the
 * while: a switch or a softirq would have begun them.
 */
static __always_inline void begin_window(struct cpu *cpu, const struct task_struct *task)
{
	__u64 window_ns = meter_settings.window_ns;

	/* It may just have ended. */
	if (!window_ns || cpu->window_ns == window_ns || (cpu->sequence & 1))
		return;
	cpu->sequence++;
	barrier();
	cpu->task_account = account_of(task);
	cpu->task_watched = watched_index(task->tgid);
	cpu->account = cpu->task_account;
	cpu->watched = cpu->task_watched;
	cpu->in_softirq = false;
	cpu->in_interrupt = false;
	cpu->raised_network = false;
	cpu->woken_network = false;
	cpu->preempted_ns = 0;
	cpu->since_ns = window_ns;
	cpu->window_ns = window_ns;
	barrier();
	cpu->sequence++;
}

#endif
