/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* The kernel's types that meter.bpf.c reads, with only the fields it reads (see CO-RE). */
#ifndef PLIMSOLL_METER_KERNEL_H
#define PLIMSOLL_METER_KERNEL_H

#include "interface.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_info {
	__u32 cpu;
};

struct rq {
	unsigned int nr_running;
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
};

struct task_struct {
	struct thread_info thread_info;
	struct sched_entity se;
	unsigned int flags;
	int pid;
	int tgid;
	char comm[16];
};

struct napi_struct {
	struct net_device *dev;
	unsigned int napi_id;
};

#pragma clang attribute pop

#endif
