/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
#ifndef PLIMSOLL_SENT_H
#define PLIMSOLL_SENT_H

/* What an interface sent, and what it did not. */
struct sent {
	__u64 frames;
	/* Dropped when they were to be sent: the receiver's ring was full, or the
	 * link's other end takes none. */
	__u64 dropped;
	/* Came in here and could not be redirected: the interface they were for is
	 * down, or takes no frames that long. */
	__u64 failed;
};

enum sent_bounds {
	SENT_DEVICES_MAX = 64,
};

#endif
