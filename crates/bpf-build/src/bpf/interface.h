/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* The kernel's types of an interface, with only the fields that are read (see CO-RE). */
#ifndef PLIMSOLL_INTERFACE_H
#define PLIMSOLL_INTERFACE_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

struct net_device {
	int ifindex;
	struct {
		struct net *net;
	} nd_net;
};

#pragma clang attribute pop

#endif
