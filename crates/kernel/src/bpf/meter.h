/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What meter.bpf.c and its loader (meter.rs) share. */
#ifndef PLIMSOLL_METER_H
#define PLIMSOLL_METER_H

/* Mirrored by Account in meter.rs. */
enum account { ACCOUNT_NETWORK, ACCOUNT_IDLE, ACCOUNT_OTHER, ACCOUNTS };

/* One CPU's books; the accounts sum to the time since the first event. */
struct cpu {
	__u64 sequence; /* odd while being changed */
	__u64 since_ns; /* up to here everything is booked; 0: not started */
	__u64 account_ns[ACCOUNTS];
	/* The guarded interface's polling; a run lasts until its ring is empty. */
	__u64 frames;
	__u64 runs;
	__u32 run_frames; /* of the run under way */
	__u32 backlog_max; /* frames of the longest run in this generation */
	__u32 generation; /* of backlog_max: meter_settings.generation then */
	/* What runs now. */
	__u32 account;
	__u32 task_account;
	__u32 in_softirq;
	__u32 in_interrupt;
	__u32 interrupt_raised_network;
};

struct meter_settings {
	__u32 ifindex; /* the guarded interface … */
	__u32 namespace_inode; /* … and its network namespace */
	__u32 generation; /* raised by the reader: backlog_max starts anew */
};

#endif
