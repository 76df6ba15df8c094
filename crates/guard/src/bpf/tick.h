/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* The program's clock, and the loader's sign of life by it. */
#ifndef PLIMSOLL_TICK_H
#define PLIMSOLL_TICK_H

#include "maps.h"

static __always_inline __u64 now_tick(void)
{
	return bpf_ktime_get_ns() >> TICK_SHIFT;
}

/* The same without reading the hardware's clock, as of the kernel's last tick. */
static __always_inline __u32 coarse_tick(void)
{
	return bpf_ktime_get_coarse_ns() >> TICK_SHIFT;
}

/*
 * Whether the loader still follows what happens. What it last decided must not
 * go on without it: shares and limits end when it has been stopped or hangs.
 */
static __always_inline bool is_governed(__u64 tick)
{
	return (__s64)(tick - settings.heartbeat) < HEARTBEAT_TICKS;
}

#endif
