/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What the recorder and its reader share (src/recorder.rs). */
#ifndef PLIMSOLL_TRIGGERS_H
#define PLIMSOLL_TRIGGERS_H

/*
 * What brought a CPU into a trigger state; Source in src/source.rs, compared
 * when the recorder is compiled. The paper's table V names the first five groups.
 */
enum source {
	SOURCE_SYSTEM_CALL,
	SOURCE_IP_OUTPUT,
	SOURCE_NETWORK_SOFTIRQ,
	SOURCE_OTHER_SOFTIRQ,
	SOURCE_DEVICE_INTERRUPT,
	SOURCE_TIMER_INTERRUPT,
	SOURCE_OTHER_INTERRUPT,
	SOURCE_PAGE_FAULT,
	SOURCE_IDLE_ENTRY,
	SOURCE_IDLE_EXIT,
	SOURCES,
};

/* A state is one word: the time in ns above, the source below. */
enum state_word {
	SOURCE_BITS = 4,
};

#endif
