/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What the programs that read frames need of Linux and libbpf. */
#ifndef PLIMSOLL_FRAME_H
#define PLIMSOLL_FRAME_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

#endif
