/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What follows from answers that the link did not take. */
#ifndef PLIMSOLL_TRANSMIT_H
#define PLIMSOLL_TRANSMIT_H

#include "kernel.h"
#include "maps.h"
#include "refusals.h"

/* Ours may not be the only interface. */
static __always_inline bool is_watched(const struct net_device *trusted)
{
	return is_interface(trusted, settings.ifindex, settings.namespace_inode);
}

/* From the next SYN on the stack answers, until the loader wants to try again. */
static __always_inline void on_refused(__u32 answers_refused)
{
	__sync_fetch_and_add(&answers.refused, answers_refused);
	if (settings.answering == ANSWERING_DRIVER)
		settings.answering = ANSWERING_STACK;
}

#endif
