/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Frame → headers that decide the channel. Everything a program needs to know
 * about a frame is in struct packet; nothing is read beyond what the frame and
 * its own length fields both allow. The rules are those of plimsoll-core's
 * `demux`, and a test runs one corpus through both.
 */
#ifndef PLIMSOLL_PARSE_H
#define PLIMSOLL_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#define ETH_P_8021Q_TAG 0x8100
#define ETH_P_8021AD_TAG 0x88a8
#define VLAN_TAGS_MAX 2
#define MALFORMED -1 /* no ethertype */
#define ARP_BYTES 28
#define ICMP_BYTES 8
#define ICMPV6_BYTES 4
#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV6_FRAGMENT_OFFSET 0xfff8
#define IPV6_MORE_FRAGMENTS 0x0001
#define IPV6_HEADERS_MAX 8
#define AUTHENTICATION_BYTES_MIN 12 /* RFC 4302 */
/* Router solicitation to redirect (RFC 4861). */
#define NEIGHBOUR_TYPE_FIRST 133
#define NEIGHBOUR_TYPE_LAST 137

/* RFC 8200: fragment header; linux/ipv6.h has it only inside the kernel. */
struct fragment_header {
	__u8 nexthdr;
	__u8 reserved;
	__be16 offset_and_flags;
	__be32 identification;
};

struct vlan_tag {
	__be16 tci;
	__be16 encapsulated_protocol;
};

enum fragment_part {
	WHOLE,
	FIRST_FRAGMENT,
	LATER_FRAGMENT,
};

struct packet {
	struct xdp_md *ctx;
	void *cursor; /* next byte to parse */
	void *data_end; /* end of the frame's linear part */
	__u32 left; /* bytes from cursor to the end of the IP packet */
	struct address source;
	struct address destination;
	__u32 fragment_id;
	__u8 fragment_part; /* enum fragment_part */
	__u8 protocol; /* of the transport header at the cursor */
	__u8 ipv6;
};

static __always_inline __u32 frame_bytes(struct packet *packet, void *from)
{
	/* data_end bounds only the first buffer of a multi-buffer frame. */
	void *data = (void *)(long)packet->ctx->data;

	return bpf_xdp_get_buff_len(packet->ctx) - (__u32)(from - data);
}

/*
 * Ethernet and up to two VLAN tags. Returns the ethertype in host byte order,
 * MALFORMED for a truncated one; the cursor is at the network header.
 */
static __always_inline __s32 parse_ethernet(struct packet *packet)
{
	struct ethhdr *ethernet = (void *)(long)packet->ctx->data;
	__u16 ethertype;

	packet->data_end = (void *)(long)packet->ctx->data_end;
	if ((void *)(ethernet + 1) > packet->data_end)
		return MALFORMED;
	packet->cursor = ethernet + 1;
	ethertype = bpf_ntohs(ethernet->h_proto);
#pragma unroll
	for (int i = 0; i < VLAN_TAGS_MAX; i++) {
		struct vlan_tag *tag = packet->cursor;

		if (ethertype != ETH_P_8021Q_TAG && ethertype != ETH_P_8021AD_TAG)
			break;
		if ((void *)(tag + 1) > packet->data_end)
			return MALFORMED;
		packet->cursor = tag + 1;
		ethertype = bpf_ntohs(tag->encapsulated_protocol);
	}
	return ethertype;
}

static __always_inline void map_ipv4(struct address *address, __be32 ipv4)
{
	address->words[0] = 0;
	address->words[1] = 0;
	address->words[2] = bpf_htonl(0xffff);
	address->words[3] = ipv4;
}

/* The IPv4 header up to its options; false: malformed. */
static __always_inline bool parse_ipv4(struct packet *packet)
{
	struct iphdr *ip = packet->cursor;
	__u32 available, header, total;
	__u16 offset;

	if ((void *)(ip + 1) > packet->data_end || ip->version != 4)
		return false;
	available = packet->data_end - packet->cursor;
	header = ip->ihl * 4;
	total = bpf_ntohs(ip->tot_len);
	if (header < sizeof(*ip) || total < header)
		return false;
	if (total > available && total > frame_bytes(packet, packet->cursor))
		return false;
	map_ipv4(&packet->source, ip->saddr);
	map_ipv4(&packet->destination, ip->daddr);
	packet->protocol = ip->protocol;
	packet->left = total - header;
	offset = bpf_ntohs(ip->frag_off);
	packet->fragment_id = bpf_ntohs(ip->id);
	if (offset & IPV4_FRAGMENT_OFFSET)
		packet->fragment_part = LATER_FRAGMENT;
	else if (offset & IPV4_MORE_FRAGMENTS)
		packet->fragment_part = FIRST_FRAGMENT;
	packet->cursor += header;
	return true;
}

/* The fixed IPv6 header; false: malformed. */
static __always_inline bool parse_ipv6(struct packet *packet)
{
	struct ipv6hdr *ip = packet->cursor;
	__u32 available;

	if ((void *)(ip + 1) > packet->data_end || ip->version != 6)
		return false;
	available = packet->data_end - (void *)(ip + 1);
	packet->left = bpf_ntohs(ip->payload_len);
	if (packet->left > available && packet->left > frame_bytes(packet, ip + 1))
		return false;
	__builtin_memcpy(&packet->source, &ip->saddr, sizeof(packet->source));
	__builtin_memcpy(&packet->destination, &ip->daddr, sizeof(packet->destination));
	packet->protocol = ip->nexthdr;
	packet->ipv6 = 1;
	packet->cursor = ip + 1;
	return true;
}

enum extension_result {
	EXTENSIONS_DONE, /* the cursor is at the transport header */
	EXTENSIONS_MALFORMED,
	EXTENSIONS_OTHER, /* encrypted, none, too many, or fragmented twice */
};

/*
 * Walks IPv6 extension headers. A fragment's later part has no further headers
 * to walk, so parsing ends there with `protocol` as the fragment header says.
 */
static __always_inline enum extension_result parse_ipv6_extensions(struct packet *packet)
{
	bool fragmented = false;

#pragma unroll
	for (int i = 0; i <= IPV6_HEADERS_MAX; i++) {
		__u8 *header = packet->cursor;
		__u32 bytes;

		switch (packet->protocol) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
		case IPPROTO_AH:
		case IPPROTO_FRAGMENT:
			break;
		case IPPROTO_NONE:
		case IPPROTO_ESP:
			return EXTENSIONS_OTHER;
		default:
			return EXTENSIONS_DONE;
		}
		if (i == IPV6_HEADERS_MAX)
			return EXTENSIONS_OTHER;
		if ((void *)(header + 8) > packet->data_end)
			return EXTENSIONS_MALFORMED;
		bytes = 8;
		if (packet->protocol == IPPROTO_AH)
			bytes = (header[1] + 2) * 4;
		else if (packet->protocol != IPPROTO_FRAGMENT)
			bytes = (header[1] + 1) * 8;
		if (bytes > packet->left ||
		    (packet->protocol == IPPROTO_AH && bytes < AUTHENTICATION_BYTES_MIN))
			return EXTENSIONS_MALFORMED;
		if (packet->protocol == IPPROTO_FRAGMENT) {
			struct fragment_header *fragment = packet->cursor;
			__u16 offset = bpf_ntohs(fragment->offset_and_flags);

			if (fragmented)
				return EXTENSIONS_OTHER;
			fragmented = true;
			packet->fragment_id = bpf_ntohl(fragment->identification);
			if (offset & IPV6_FRAGMENT_OFFSET)
				packet->fragment_part = LATER_FRAGMENT;
			else if (offset & IPV6_MORE_FRAGMENTS)
				packet->fragment_part = FIRST_FRAGMENT;
		}
		packet->protocol = header[0];
		packet->left -= bytes;
		packet->cursor += bytes;
		if (packet->fragment_part == LATER_FRAGMENT)
			return EXTENSIONS_DONE;
	}
	return EXTENSIONS_OTHER;
}

#endif
