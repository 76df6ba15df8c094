// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Where each CPU's time goes, and how long an interface's polling runs are.
 *
 * Every nanosecond is booked on exactly one account when the next event comes;
 * meter/mod.rs has the accounts. Cycle counting in the manner of Mogul &
 * Ramakrishnan 1997, section 7; unlike theirs it includes the interrupts
 * themselves (their section 7.1 names that error).
 *
 * Metering can pause. Then events cost a look at one word, and nothing is booked. A new
 * window of metering begins a CPU's books at its first switch or softirq: only there it is
 * known what has run since the window began.
 *
 * On PREEMPT_RT other tasks may preempt a softirq. Their time is theirs, until the softirq's
 * task runs again. Should they run softirqs themselves meanwhile (kernels without a lock of
 * each CPU for these), the rest of the first one is its task's.
 *
 * Each CPU writes only its own books. Task switches and interrupts are booked
 * with interrupts off. An interrupt that arrives while a softirq's entry or exit
 * is being booked is not booked on its own, from its entry to its exit: sums
 * stay exact, a few nanoseconds are misplaced.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "meter.h"
#include "meter_books.h"
#include "meter_kernel.h"

enum { NET_TX_SOFTIRQ = 2, NET_RX_SOFTIRQ = 3 }; /* include/linux/interrupt.h */

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/*
 * An interrupt from another CPU takes 2 microseconds on its way where the hypervisor has
 * help from the processor, and up to 10 where it has none (Linux 6.18 in virtual machines,
 * on Intel and AMD). What is longer was kept waiting by something else.
 */
#define DELIVERY_NS 20000

/* From its end a microsecond passes until the switch, unless it met a system call. */
#define PREEMPTION_NS 5000

/*
 * Whether the switch to a network thread follows at once on the interrupt that told
 * of it. Else the interrupt met a process in a system call, which went on until it
 * returned.
 */
static __always_inline bool is_preempted(const struct cpu *cpu)
{
	return cpu->preempted_ns && bpf_ktime_get_ns() - cpu->preempted_ns <= PREEMPTION_NS;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct cpu *cpu = this_cpu();
	__u32 account, watched;

	if (!cpu)
		return 0;
	begin_window(cpu, prev);
	account = account_of(next);
	watched = watched_index(next->tgid);
	/* Most switches are from one process to another. */
	if (!is_news(cpu, account, watched))
		return 0;
	cpu = begin(cpu);
	if (!cpu)
		return 0;
	/* The run queue is already without `prev`, if it sleeps. */
	enter_task(cpu, next->pid, account, watched);
	if (account == ACCOUNT_NETWORK && is_preempted(cpu))
		book(cpu, ACCOUNT_NETWORK, NOBODY);
	else
		book_current(cpu);
	cpu->preempted_ns = 0;
	end(cpu);
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector)
{
	const struct task_struct *task = bpf_get_current_task_btf();
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return 0;
	begin_window(cpu, task);
	cpu = begin(cpu);
	if (!cpu)
		return 0;
	book_current(cpu);
	enter_softirq(cpu, task->pid,
		      vector == NET_RX_SOFTIRQ || vector == NET_TX_SOFTIRQ ? ACCOUNT_NETWORK :
									     ACCOUNT_OTHER);
	end(cpu);
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit, unsigned int vector)
{
	struct cpu *cpu = begin(this_cpu());

	if (!cpu)
		return 0;
	book_current(cpu);
	leave_softirq(cpu);
	end(cpu);
	return 0;
}

SEC("tp_btf/softirq_raise")
int BPF_PROG(on_softirq_raise, unsigned int vector)
{
	struct cpu *cpu = vector == NET_RX_SOFTIRQ ? this_cpu() : NULL;

	if (cpu && cpu->in_interrupt)
		cpu->raised_network = true;
	return 0;
}

/*
 * The books of the CPU where a network thread is woken, if an interrupt will tell that
 * CPU of it. What a process wakes on its own CPU waits for the process.
 */
static __always_inline struct cpu *told_cpu(const struct task_struct *task)
{
	__u32 key = task->thread_info.cpu;
	struct cpu *cpu;

	if (!meter_settings.window_ns || account_of(task) != ACCOUNT_NETWORK || !is_metered(key))
		return NULL;
	cpu = bpf_map_lookup_elem(&cpus, &key);
	if (!cpu || (key == bpf_get_smp_processor_id() && !cpu->in_interrupt))
		return NULL;
	return cpu;
}

/* Before the other CPU is told: it may be quicker than the next event here. */
SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	struct cpu *cpu = told_cpu(task);

	if (cpu) {
		cpu->woken_ns = bpf_ktime_get_ns();
		cpu->woken_network = true;
	}
	return 0;
}

/*
 * Just after the other CPU was told. Where a hypervisor does the telling, it takes
 * microseconds, and the other CPU stops in the midst of them: there the middle was right
 * to 0.5 microseconds, either end wrong by 1.2.
 */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	struct cpu *cpu = told_cpu(task);

	if (cpu)
		cpu->woken_ns += (bpf_ktime_get_ns() - cpu->woken_ns) / 2;
	return 0;
}

/*
 * The way of an interrupt by which another CPU tells of a network thread is the
 * network's. A hypervisor stops the CPU for it, which no event shows.
 */
static __always_inline void book_delivery(struct cpu *cpu)
{
	__u64 told_ns = cpu->woken_ns;
	__u64 now_ns;

	/* Most interrupts tell of nothing: the clock is not read for them. */
	if (!cpu->woken_network || told_ns <= cpu->since_ns)
		return;
	now_ns = bpf_ktime_get_ns();
	if (told_ns > now_ns || now_ns - told_ns > DELIVERY_NS)
		return;
	book_until(cpu, cpu->account, cpu->watched, told_ns);
	book_until(cpu, ACCOUNT_NETWORK, NOBODY, now_ns);
}

static __always_inline int interrupt_entry(void)
{
	struct cpu *cpu = begin(this_cpu());

	if (!cpu)
		return 0;
	book_delivery(cpu);
	book_current(cpu);
	cpu->in_interrupt = true;
	cpu->raised_network = false;
	end(cpu);
	return 0;
}

static __always_inline int interrupt_exit(void)
{
	struct cpu *cpu = begin(this_cpu());

	if (!cpu)
		return 0;
	if (cpu->in_interrupt && (cpu->raised_network || cpu->woken_network))
		book(cpu, ACCOUNT_NETWORK, NOBODY);
	else
		book_current(cpu);
	if (cpu->woken_network) {
		cpu->woken_network = false;
		cpu->preempted_ns = cpu->since_ns;
	}
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

/* For interrupts with tracepoints of their own: timers, and those of other CPUs. */
SEC("raw_tp")
int on_vector_entry(void *context)
{
	return interrupt_entry();
}

SEC("raw_tp")
int on_vector_exit(void *context)
{
	return interrupt_exit();
}

/* The run under way of an instance, or a new one in place of another's. */
static __always_inline struct run *run_of(struct cpu *cpu, __u64 napi)
{
	for (int i = 0; i < RUNS; i++)
		if (cpu->runs[i].napi == napi)
			return &cpu->runs[i];
	for (int i = 0; i < RUNS; i++)
		if (!cpu->runs[i].napi)
			return &cpu->runs[i];
	return &cpu->runs[0];
}

/* One CPU polls an instance at a time. */
static __always_inline void count_instance(__u32 napi_id, __u32 frames)
{
	__u32 key = napi_id % INSTANCES;
	struct instance *instance = bpf_map_lookup_elem(&instances, &key);

	if (!instance)
		return;
	if (instance->napi_id != napi_id) {
		instance->napi_id = napi_id;
		instance->frames = 0;
	}
	instance->cpu = bpf_get_smp_processor_id();
	instance->frames += frames;
}

/*
 * After each poll: `work` frames of at most `budget`; fewer: the ring is empty. Counted
 * while metering pauses as well.
 */
SEC("tp_btf/napi_poll")
int BPF_PROG(on_poll, struct napi_struct *napi, int work, int budget)
{
	const struct net_device *device = napi->dev;
	struct cpu *cpu;
	struct run *run;

	if (!device || (__u32)device->ifindex != polled_ifindex ||
	    device->nd_net.net->ns.inum != polled_namespace)
		return 0;
	cpu = books();
	if (!cpu || work < 0)
		return 0;
	if (cpu->generation != meter_settings.generation) {
		cpu->generation = meter_settings.generation;
		cpu->run_frames_max = 0;
	}
	run = run_of(cpu, (__u64)napi);
	if (run->napi != (__u64)napi) {
		run->napi = (__u64)napi;
		run->frames = 0;
	}
	cpu->frames += work;
	count_instance(napi->napi_id, work);
	run->frames += work;
	if (run->frames > cpu->run_frames_max)
		cpu->run_frames_max = run->frames;
	if (work < budget) {
		cpu->finished_runs++;
		run->napi = 0;
	}
	return 0;
}
