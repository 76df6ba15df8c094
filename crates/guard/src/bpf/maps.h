/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What guard.bpf.c knows between two packets: its settings and its maps. */
#ifndef PLIMSOLL_MAPS_H
#define PLIMSOLL_MAPS_H

#include "guard.h"

struct settings settings = {};

struct answers answers = {};

/* The highest slot that ever was taken; 0: none. */
__u32 last_slot = 0;

/* The second (`settings.epoch`) in which a slot was last wanted and none was left. */
__u32 no_slot_in = 0;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct protected_use);
} protected_uses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct outside_use);
} outside_uses SEC(".maps");

/* Never read: a type of no variable would not be in the BTF. */
struct vocabulary {
	enum outcome outcome;
	enum destination destination;
	enum slot slot;
	enum port_property port_property;
	enum limit limit;
	enum source_class source_class;
	enum answering answering;
	enum local_address local_address;
} vocabulary = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct totals);
} totals SEC(".maps");

/* CHANNELS_MAX for each CPU: the loader sizes it, and reads it mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CHANNELS_MAX);
	__type(key, __u32);
	__type(value, struct channel);
} channels SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CHANNELS_MAX);
	__type(key, __u32);
	__type(value, struct allowance);
} allowances SEC(".maps");

/*
 * A bit for each channel, CPU by CPU: it has had packets since the loader last read
 * it. So a reading costs what has changed, however many CPUs there may be.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CHANNELS_MAX / CHANGES_BITS);
	__type(key, __u32);
	__type(value, __u64);
} changes SEC(".maps");

/* By port: enum port_property. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u8);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PROTECTED_PREFIXES_MAX + 1); /* and one that says no for all of IPv4 */
	__type(key, struct prefix);
	__type(value, __u8);
} protected_prefixes SEC(".maps");

/* Prefixes whose sources are known at every port. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PROTECTED_PREFIXES_MAX + 1); /* and one that says no for all of IPv4 */
	__type(key, struct prefix);
	__type(value, __u8);
} known_prefixes SEC(".maps");

/* Address of a struct sock → its slot in `channels`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CHANNELS_MAX);
	__type(key, __u64);
	__type(value, __u32);
} slots SEC(".maps");

/* Slots nobody has. The loader has `fill_free_slots` fill it. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, CHANNELS_MAX);
	__type(value, __u32);
} free_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct known_sockets);
} known_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct known_connections);
} known_connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CHANNELS_MAX);
	__type(key, __u32);
	__type(value, struct fair_share);
} fair_shares SEC(".maps");

/* Sources of overloaded channels, CPU by CPU: the loader sizes the three of them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FAIR_NETWORK_SETS);
	__type(key, __u32);
	__type(value, struct fair_nodes);
} fair_networks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FAIR_SUBNET_SETS);
	__type(key, __u32);
	__type(value, struct fair_nodes);
} fair_subnets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FAIR_HOST_SETS);
	__type(key, __u32);
	__type(value, struct fair_hosts);
} fair_hosts SEC(".maps");

/* FAIR_SAMPLES for each CPU: the loader sizes it. Nothing is decided by them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FAIR_SAMPLES);
	__type(key, __u32);
	__type(value, struct fair_sample);
} fair_samples SEC(".maps");

/* Of all CPUs: hardly ever written, and each field by one instruction. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KNOWN_SOURCE_SETS);
	__type(key, __u32);
	__type(value, struct known_sources);
} known_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LOCAL_ADDRESSES_MAX);
	__type(key, struct address);
	__type(value, __u8);
} local_addresses SEC(".maps");

/* By port and a hash of the address: see unclaimed_port_entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UNCLAIMED_PORTS);
	__type(key, __u32);
	__type(value, struct unclaimed_port);
} unclaimed_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTS_MAX);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps");

#endif
