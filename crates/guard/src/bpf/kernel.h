/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * The few kernel types that the program reads, each with only the fields it
 * needs. CO-RE finds their real offsets in the running kernel's BTF by name,
 * so no generated vmlinux.h is needed.
 */
#ifndef PLIMSOLL_KERNEL_H
#define PLIMSOLL_KERNEL_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

/* "___core" is cut off by CO-RE; linux/in6.h has the plain name. */
struct in6_addr___core {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct inode {
	unsigned long i_ino;
};

struct socket;

/* A socket as a file; struct socket comes first. */
struct socket_alloc {
	struct inode vfs_inode;
};

struct ns_common {
	unsigned int inum;
};

/* A place in the table of UDP sockets by port. */
struct udp_hslot {
	int count;
};

struct udp_table {
	struct udp_hslot *hash;
	unsigned int mask;
};

struct netns_ipv4 {
	struct udp_table *udp_table;
	__u8 sysctl_ip_default_ttl;
};

/* Programs of a network namespace. */
enum netns_bpf_attach_type {
	NETNS_BPF_SK_LOOKUP = 1, /* they choose a packet's socket */
	MAX_NETNS_BPF_ATTACH_TYPE,
};

struct bpf_prog_array;

struct netns_bpf {
	struct bpf_prog_array *run_array[MAX_NETNS_BPF_ATTACH_TYPE]; /* NULL: none */
};

struct net {
	struct ns_common ns;
	__u32 hash_mix;
	struct netns_ipv4 ipv4;
	struct netns_bpf bpf;
};

struct sock_common {
	__be32 skc_rcv_saddr;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned char skc_reuse : 4;
	unsigned char skc_reuseport : 1;
	int skc_bound_dev_if;
	struct in6_addr___core skc_v6_rcv_saddr;
	struct {
		struct net *net;
	} skc_net;
};

struct sk_buff_head {
	__u32 qlen;
};

struct bpf_prog;
struct sk_buff;
struct sock;

/* Since Linux 6.18: drops are counted in two places. */
struct numa_drop_counters {
	atomic_t drops0;
	atomic_t drops1;
};

/* A group of SO_REUSEPORT sockets. */
struct sock_reuseport {
	__u16 num_socks;
	unsigned int has_conns : 1; /* a member is connected */
	unsigned int incoming_cpu; /* members that are for one CPU each */
	struct bpf_prog *prog; /* selects the member; NULL: a hash does */
	struct sock *socks[];
};

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	struct {
		int owned; /* by a process in a system call */
	} sk_lock;
	struct {
		atomic_t rmem_alloc;
		int len; /* bytes */
		struct sk_buff *tail;
	} sk_backlog;
	int sk_rcvbuf;
	int sk_sndbuf;
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
	struct sock_reuseport *sk_reuseport_cb;
	struct socket *sk_socket;
	atomic_t sk_drops;
	struct numa_drop_counters *sk_drop_counters; /* instead of sk_drops, if not NULL */
};

struct request_sock_queue {
	atomic_t qlen;
};

struct inet_connection_sock {
	struct request_sock_queue icsk_accept_queue;
};

struct ipv6_pinfo {
	__s16 hop_limit; /* IPV6_UNICAST_HOPS; below 0: not set. A bit field before Linux 6.7 */
	__u8 min_hopcount; /* IPV6_MINHOPCOUNT: what has a lower one is thrown away */
};

struct inet_sock {
	struct ipv6_pinfo *pinet6;
	__s16 uc_ttl; /* IP_TTL; below 0: not set */
	__u8 min_ttl; /* IP_MINTTL: what has a lower one is thrown away */
};

struct tcp_options_received {
	__u16 user_mss; /* TCP_MAXSEG; 0: not set */
};

struct tcp_sock {
	struct tcp_options_received rx_opt;
	__u32 rcv_nxt; /* sequence number of the next byte */
	__u32 rcv_wup; /* rcv_nxt when a window was last advertised */
	__u32 rcv_wnd; /* that window */
	__u32 window_clamp; /* the largest that it may be */
	/* Newer kernels: the end of the furthest window that was ever advertised. */
	__u32 rcv_mwnd_seq;
	/* Keys of peers (RFC 2385, RFC 5925), where the kernel knows them; NULL: none. */
	struct tcp_md5sig_info *md5sig_info;
	struct tcp_ao_info *ao_info;
	bool is_mptcp; /* Multipath TCP (RFC 8684), where the kernel knows it */
};

/* What the stack knows of a segment: lies in sk_buff.cb. */
struct tcp_skb_cb {
	__u32 end_seq;
};

/* Since Linux 6.18: datagrams that producers have left for the consumer. */
struct udp_prod_queue {
	atomic_t rmem_alloc;
};

struct udp_sock {
	void *encap_rcv; /* takes packets in the kernel; NULL: all are for a process */
	struct udp_prod_queue *udp_prod_queue; /* one per NUMA node */
	struct sk_buff_head reader_queue;
	int forward_deficit;
};

struct net_device {
	int ifindex;
	struct {
		struct net *net;
	} nd_net;
};

struct sk_buff {
	struct net_device *dev;
	char cb[48];
	unsigned char *head;
	__be16 protocol;
	__u16 transport_header;
	__u16 network_header;
};

enum skb_drop_reason {
	SKB_DROP_REASON_NO_SOCKET = 1, /* a stand-in: CO-RE puts in the kernel's */
};

/* A tracked connection's ends, as its packets one way have them. */
struct nf_conntrack_tuple {
	struct {
		union {
			__be32 ip6[4];
		} u3;
	} src;
};

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
};

/* A tracked connection. */
struct nf_conn {
	unsigned long status;
	struct nf_conntrack_tuple_hash tuplehash[2]; /* as it began, and of answers */
};

#pragma clang attribute pop

/* include/net/tcp_states.h; an unconnected UDP socket is in the state TCP_CLOSE. */
#define TCP_ESTABLISHED 1
#define TCP_FIN_WAIT1 4
#define TCP_FIN_WAIT2 5
#define TCP_CLOSE 7
#define TCP_CLOSE_WAIT 8
#define TCP_LAST_ACK 9
#define TCP_LISTEN 10
#define TCP_CLOSING 11

/* linux/netfilter/nf_conntrack_common.h: bits of nf_conn.status. */
#define IPS_SEEN_REPLY (1 << 1)
#define IPS_SRC_NAT (1 << 4)
#define IPS_DST_NAT (1 << 5)

#define AF_INET 2
#define AF_INET6 10

/*
 * Since Linux 6.2: reads of a kernel object by its BTF type, fault-safe. A tracepoint's arguments
 * are read so, too: the verifier trusts these, and searches all of the kernel's types for
 * exceptions at each pointer that is read through them.
 */
extern void *bpf_rdonly_cast(const void *object, __u32 btf_id) __ksym;

#endif
