/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* A listener's SYN cookies, and how what brings one back is known: the rules are tcp/cookie.rs's. */
#ifndef PLIMSOLL_STEER_COOKIE_H
#define PLIMSOLL_STEER_COOKIE_H

#include <linux/bpf.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "steer.h"

#define NS_PER_S 1000000000ULL

static __always_inline __u64 rotated(__u64 word, int by)
{
	return word << by | word >> (64 - by);
}

static __always_inline void sip_round(__u64 v[4])
{
	v[0] += v[1];
	v[2] += v[3];
	v[1] = rotated(v[1], 13) ^ v[0];
	v[3] = rotated(v[3], 16) ^ v[2];
	v[0] = rotated(v[0], 32) + v[3];
	v[2] += v[1];
	v[3] = rotated(v[3], 21) ^ v[0];
	v[1] = rotated(v[1], 17) ^ v[2];
	v[2] = rotated(v[2], 32);
}

static __always_inline void sip_word(__u64 v[4], __u64 word)
{
	v[3] ^= word;
	sip_round(v);
	sip_round(v);
	v[0] ^= word;
}

/* SipHash-2-4 (Aumasson & Bernstein 2012) of the bytes of `asked` and, behind them, of `told_in`. */
static __noinline __u64 cookie_hash(const volatile struct told *told, const struct asked *asked,
					__u32 told_in)
{
	const __u64 *words = (const void *)asked;
	__u64 bytes = sizeof(*asked) + sizeof(told_in);
	__u64 keys[2] = {told->cookie_key[0], told->cookie_key[1]};
	__u64 v[4] = {
		keys[0] ^ 0x736f6d6570736575,
		keys[1] ^ 0x646f72616e646f6d,
		keys[0] ^ 0x6c7967656e657261,
		keys[1] ^ 0x7465646279746573,
	};

	for (__u32 word = 0; word < sizeof(*asked) / sizeof(*words); word++)
		sip_word(v, words[word]);
	sip_word(v, bytes << 56 | told_in);
	v[2] ^= 0xff;
	for (int round = 0; round < 4; round++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* What of the hash is in a cookie. */
static __always_inline __u32 cookie_tag(const volatile struct told *told, const struct asked *asked,
					__u32 told_in)
{
	return cookie_hash(told, asked, told_in) & ((1 << COOKIE_HASH_BITS) - 1);
}

/* The time that a cookie of now says. */
static __always_inline __u32 cookie_unit(void)
{
	return bpf_ktime_get_ns() / (COOKIE_UNIT_S * NS_PER_S) % COOKIE_UNITS;
}

/* Whether a listener has answered the SYN before this segment with a cookie (tcp/cookie.rs). */
static __always_inline int brings_cookie_back(const volatile struct told *told,
					      const struct address *local,
					      const struct address *remote,
					      const struct ports *ports, void *end)
{
	const struct tcphdr *tcp = (const void *)ports;
	__u32 cookie, told_in, age;
	struct asked asked;

	if (!told->has_cookies || (void *)(tcp + 1) > end || !tcp->ack || tcp->syn || tcp->rst)
		return 0;
	cookie = bpf_ntohl(tcp->ack_seq) - 1;
	told_in = cookie >> COOKIE_HASH_BITS;
	age = cookie_unit() - (told_in >> COOKIE_CLASS_BITS);
	/* Spares most that was made up the hash. */
	if (age % COOKIE_UNITS > 1)
		return 0;
	asked.ends.local = *local;
	asked.ends.remote = *remote;
	asked.ends.local_port = ports->destination;
	asked.ends.remote_port = ports->source;
	asked.sequence = bpf_htonl(bpf_ntohl(tcp->seq) - 1);
	return cookie_tag(told, &asked, told_in) == (cookie & ((1 << COOKIE_HASH_BITS) - 1));
}

#endif
