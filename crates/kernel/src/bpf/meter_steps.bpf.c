// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/* The meter's books without the kernel's events: steps that a test takes, one in each run. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "meter.h"
#include "meter_books.h"
#include "meter_kernel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

enum event { EVENT_SWITCH, EVENT_SOFTIRQ_ENTRY, EVENT_SOFTIRQ_EXIT };

struct step {
	__u32 event;
	__u32 task; /* its number */
	__u32 account;
};

static __always_inline void take(struct cpu *cpu, const struct step *step)
{
	switch (step->event) {
	case EVENT_SWITCH:
		enter_task(cpu, step->task, step->account, NOBODY);
		break;
	case EVENT_SOFTIRQ_ENTRY:
		enter_softirq(cpu, step->task, step->account);
		break;
	default:
		leave_softirq(cpu);
	}
}

/* Returns the account that goes on. */
SEC("syscall")
int take_step(struct step *step)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return -1;
	begin_window(cpu, bpf_get_current_task_btf());
	if (step->event == EVENT_SWITCH && !is_news(cpu, step->account, NOBODY))
		return cpu->account;
	cpu = begin(cpu);
	if (!cpu)
		return -1;
	book_current(cpu);
	take(cpu, step);
	end(cpu);
	return cpu->account;
}
