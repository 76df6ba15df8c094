/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Ports at which others may get packets than the sockets that are found from here. */
#ifndef PLIMSOLL_HIDDEN_H
#define PLIMSOLL_HIDDEN_H

#include "maps.h"

/*
 * Whether packets to a port may be for a socket that is bound to a device above this interface, for
 * a proxy to which a rule diverts, for IPVS, or for what tc sends them to: the look-up from here finds
 * another socket in its place, or none.
 */
static __always_inline bool may_be_for_hidden(__u32 protocol, __u32 port)
{
	__u8 bit = protocol == IPPROTO_TCP ? HIDDEN_TCP : HIDDEN_UDP;
	__u8 *properties;

	if (settings.hiding & bit)
		return true;
	properties = settings.hiding ? bpf_map_lookup_elem(&ports, &port) : NULL;
	return properties && *properties & bit;
}

#endif
