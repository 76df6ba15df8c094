/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What meter.bpf.c and its loader (meter/mod.rs) share. */
#ifndef PLIMSOLL_METER_H
#define PLIMSOLL_METER_H

enum account { ACCOUNT_APP, ACCOUNT_NETWORK, ACCOUNT_OTHER, ACCOUNT_IDLE, ACCOUNTS };

enum meter_limit {
	WATCHED = 8, /* how many processes can be watched at once */
	RUNS = 4, /* how many NAPI instances' runs are told apart on one CPU */
	INSTANCES = 256, /* how many NAPI instances' frames are told apart */
};

/* What one NAPI instance of the interface has brought. CPUs share no cache line. */
struct instance {
	__u32 napi_id; /* 0: nobody's */
	__u32 cpu; /* that polled it last */
	__u32 unused[12];
	__u64 frames;
};

/* A polling run under way: until the instance's ring is empty. */
struct run {
	__u64 napi; /* whose; 0: nobody's */
	__u64 frames;
};

/* One CPU's books; the accounts sum to the time of all windows in which it had an event. */
struct cpu {
	__u64 sequence; /* odd while being changed */
	__u64 window_ns; /* the window of metering that these books belong to */
	__u64 since_ns; /* up to here everything is booked */
	__u64 account_ns[ACCOUNTS];
	__u64 watched_ns[WATCHED];
	/* The interface's polling. */
	__u64 frames;
	__u64 finished_runs;
	struct run runs[RUNS];
	__u32 run_frames_max; /* frames of the longest run in this generation */
	__u32 generation; /* of run_frames_max: meter_settings.generation then */
	/* What runs now, and what runs below softirqs. */
	__u32 account;
	__u32 watched;
	__u32 task_account;
	__u32 task_watched;
	__u32 in_softirq;
	__u32 in_interrupt;
	__u32 raised_network; /* the interrupt raised receive work */
	/* A network thread is woken here: written by the CPU that wakes it. */
	__u32 woken_network;
	__u64 woken_ns; /* when this CPU was told */
	__u64 preempted_ns; /* end of the interrupt that told it; 0: none */
	__u64 contended_ns; /* of the network's account, while another task waited */
	/* Of the softirq under way: whose account, and the task that it runs in. */
	__u32 softirq_account;
	__u32 softirq_task;
	__u32 softirq_waits; /* another task runs meanwhile, as PREEMPT_RT lets it */
	__u32 reserved;
	__u64 unused[5];
	/* 320 bytes: CPUs share no cache line. */
};

struct meter_settings {
	__u64 window_ns; /* when the window of metering began; 0: metering pauses */
	__u32 generation; /* raised by the reader: run_frames_max starts anew */
	__u32 watched_pids[WATCHED]; /* process ids; 0: none */
};

#endif
