/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Frame → headers that decide the channel. Everything a program needs to know
 * about a frame is in struct packet; nothing is read beyond what the frame and
 * its own length fields both allow. The rules are those of plimsoll-core's
 * `demux`, and a test runs one corpus through both.
 *
 * The walk over extension headers is a global function, which the verifier
 * checks once: otherwise it would combine every way through it with all that
 * follows. The rest is inlined, since a call and its memory cost 10 ns.
 */
#ifndef PLIMSOLL_PARSE_H
#define PLIMSOLL_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "guard.h"

#define ETH_P_8021Q_TAG 0x8100
#define ETH_P_8021AD_TAG 0x88a8
#define MALFORMED -1 /* no ethertype */
#define ARP_BYTES 28
#define ICMP_BYTES 8
#define ICMPV6_BYTES 4
#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV6_FRAGMENT_OFFSET 0xfff8
#define IPV6_MORE_FRAGMENTS 0x0001
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
	struct address source;
	struct address destination;
	__u32 network_offset; /* of the IP header in the frame */
	__u32 transport_offset; /* of what follows it; valid as far as parsed */
	__u32 left; /* bytes from there to the end of the IP packet */
	__u32 fragment_id;
	__u8 fragment_part; /* enum fragment_part */
	__u8 protocol; /* of the transport header */
	__u8 ipv6;
	__u8 reserved;
};

/* What a frame carries. */
enum frame {
	FRAME_MALFORMED,
	FRAME_NEIGHBOUR, /* ARP */
	FRAME_OTHER,
	FRAME_IP,
};

/* Beyond what eight extension headers may take. */
#define HEADERS_BYTES_MAX 0x7fff

/*
 * A header of the frame; NULL if it is not all there. Where it is in the frame's
 * linear part it is read in place. Adapters that receive into several buffers may
 * leave little or nothing there: then it is copied out.
 */
static __always_inline void *header_at(struct xdp_md *ctx, __u32 offset, void *copy, __u32 bytes)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	void *header;

	if (offset > HEADERS_BYTES_MAX)
		return NULL;
	header = data + offset;
	if (header + bytes <= data_end)
		return header;
	return bpf_xdp_load_bytes(ctx, offset, copy, bytes) ? NULL : copy;
}

/* Whether the frame has `bytes` from `offset` on, further buffers included. */
static __always_inline bool reaches(struct xdp_md *ctx, __u32 offset, __u32 bytes)
{
	/* Without a call for nearly every frame. */
	return offset + bytes <= ctx->data_end - ctx->data ||
	       offset + bytes <= bpf_xdp_get_buff_len(ctx);
}

/*
 * Ethernet and up to two VLAN tags. Returns the ethertype in host byte order,
 * MALFORMED for a truncated one.
 */
static __always_inline __s32 parse_ethernet(struct xdp_md *ctx, __u32 *network_offset)
{
	struct ethhdr copy, *ethernet = header_at(ctx, 0, &copy, sizeof(copy));
	__u32 offset = sizeof(*ethernet);
	__u16 ethertype;

	if (!ethernet)
		return MALFORMED;
	ethertype = bpf_ntohs(ethernet->h_proto);
#pragma unroll
	for (int i = 0; i < VLAN_TAGS_MAX; i++) {
		struct vlan_tag tag_copy, *tag;

		if (ethertype != ETH_P_8021Q_TAG && ethertype != ETH_P_8021AD_TAG)
			break;
		tag = header_at(ctx, offset, &tag_copy, sizeof(tag_copy));
		if (!tag)
			return MALFORMED;
		offset += sizeof(*tag);
		ethertype = bpf_ntohs(tag->encapsulated_protocol);
	}
	*network_offset = offset;
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
static __always_inline bool parse_ipv4(struct xdp_md *ctx, struct packet *packet)
{
	struct iphdr copy, *ip = header_at(ctx, packet->network_offset, &copy, sizeof(copy));
	__u32 header, total;
	__u16 offset;

	if (!ip || ip->version != 4)
		return false;
	header = ip->ihl * 4;
	total = bpf_ntohs(ip->tot_len);
	if (header < sizeof(*ip) || total < header ||
	    !reaches(ctx, packet->network_offset, total))
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
	packet->transport_offset = packet->network_offset + header;
	return true;
}

/* The fixed IPv6 header; false: malformed. */
static __always_inline bool parse_ipv6(struct xdp_md *ctx, struct packet *packet)
{
	struct ipv6hdr copy, *ip = header_at(ctx, packet->network_offset, &copy, sizeof(copy));

	if (!ip || ip->version != 6)
		return false;
	packet->transport_offset = packet->network_offset + sizeof(*ip);
	packet->left = bpf_ntohs(ip->payload_len);
	if (!reaches(ctx, packet->transport_offset, packet->left))
		return false;
	__builtin_memcpy(&packet->source, &ip->saddr, sizeof(packet->source));
	__builtin_memcpy(&packet->destination, &ip->daddr, sizeof(packet->destination));
	packet->protocol = ip->nexthdr;
	packet->ipv6 = 1;
	return true;
}

/* Link and network header. */
static __always_inline enum frame parse_frame(struct xdp_md *ctx, struct packet *packet)
{
	__u32 network_offset = 0;
	__s32 ethertype = parse_ethernet(ctx, &network_offset);

	if (ethertype == MALFORMED)
		return FRAME_MALFORMED;
	packet->network_offset = network_offset;
	if (ethertype == ETH_P_ARP)
		return reaches(ctx, network_offset, ARP_BYTES) ? FRAME_NEIGHBOUR : FRAME_MALFORMED;
	if (ethertype == ETH_P_IP)
		return parse_ipv4(ctx, packet) ? FRAME_IP : FRAME_MALFORMED;
	if (ethertype == ETH_P_IPV6)
		return parse_ipv6(ctx, packet) ? FRAME_IP : FRAME_MALFORMED;
	return FRAME_OTHER;
}

enum extension_result {
	EXTENSIONS_DONE, /* the transport header follows */
	EXTENSIONS_MALFORMED,
	EXTENSIONS_OTHER, /* encrypted, none, too many, fragmented twice, or to go on */
};

static __always_inline bool is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING ||
	       protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_AH ||
	       protocol == IPPROTO_FRAGMENT;
}

static __always_inline __u32 extension_bytes(__u8 protocol, const __u8 *header)
{
	if (protocol == IPPROTO_FRAGMENT)
		return sizeof(struct fragment_header);
	return protocol == IPPROTO_AH ? (header[1] + 2) * 4 : (header[1] + 1) * 8;
}

static __always_inline void note_fragment(struct packet *packet, const void *header)
{
	const struct fragment_header *fragment = header;
	__u16 offset = bpf_ntohs(fragment->offset_and_flags);

	packet->fragment_id = bpf_ntohl(fragment->identification);
	if (offset & IPV6_FRAGMENT_OFFSET)
		packet->fragment_part = LATER_FRAGMENT;
	else if (offset & IPV6_MORE_FRAGMENTS)
		packet->fragment_part = FIRST_FRAGMENT;
}

/* Where a routing header says how many segments are still to be visited (RFC 8200, 4.4). */
#define SEGMENTS_LEFT 3

/*
 * Walks IPv6 extension headers; returns enum extension_result. A fragment's
 * later part has no further headers to walk, so parsing ends there with
 * `protocol` as the fragment header says.
 */
__noinline int parse_ipv6_extensions(struct xdp_md *ctx, struct packet *packet)
{
	bool fragmented = false;

	if (!packet)
		return EXTENSIONS_MALFORMED;
	for (int i = 0; i <= EXTENSIONS_MAX; i++) {
		__u8 copy[sizeof(struct fragment_header)], *header, protocol = packet->protocol;
		__u32 bytes;

		if (protocol == IPPROTO_NONE || protocol == IPPROTO_ESP)
			return EXTENSIONS_OTHER;
		if (!is_extension(protocol))
			return EXTENSIONS_DONE;
		if (i == EXTENSIONS_MAX)
			return EXTENSIONS_OTHER;
		header = header_at(ctx, packet->transport_offset, copy, sizeof(copy));
		if (!header)
			return EXTENSIONS_MALFORMED;
		bytes = extension_bytes(protocol, header);
		if (bytes > packet->left ||
		    (protocol == IPPROTO_AH && bytes < AUTHENTICATION_BYTES_MIN))
			return EXTENSIONS_MALFORMED;
		if (protocol == IPPROTO_ROUTING && header[SEGMENTS_LEFT])
			return EXTENSIONS_OTHER; /* for the next segment, not for this host */
		if (protocol == IPPROTO_FRAGMENT) {
			if (fragmented)
				return EXTENSIONS_OTHER;
			fragmented = true;
			note_fragment(packet, header);
		}
		packet->protocol = header[0];
		packet->left -= bytes;
		packet->transport_offset += bytes;
		if (packet->fragment_part == LATER_FRAGMENT)
			return EXTENSIONS_DONE;
	}
	return EXTENSIONS_OTHER;
}

/* ICMP of either family; KIND_MALFORMED if its header is cut off. */
static __always_inline enum channel_kind icmp_kind(struct xdp_md *ctx,
						    const struct packet *packet)
{
	__u8 copy[ICMPV6_BYTES];
	__u8 *type = header_at(ctx, packet->transport_offset, copy, sizeof(copy));
	__u32 header = packet->ipv6 ? ICMPV6_BYTES : ICMP_BYTES;

	if (packet->left < header || !type)
		return KIND_MALFORMED;
	if (packet->ipv6 && *type >= NEIGHBOUR_TYPE_FIRST && *type <= NEIGHBOUR_TYPE_LAST)
		return KIND_NEIGHBOUR;
	return KIND_ICMP;
}

#endif
