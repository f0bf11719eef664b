/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The part of the kernel's interface that the program uses. Numbers and layouts are fixed by the
 * kernel for good; having them here makes the build independent of the headers installed. */
#ifndef RINGRAIL_KERNEL_H
#define RINGRAIL_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* How libbpf reads map definitions out of BTF. */
#define UINT(name, value) int(*name)[value]
#define TYPE(name, value) typeof(value) *name

/* enum bpf_map_type */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_XSKMAP 17

/* enum xdp_action */
#define XDP_DROP 1
#define XDP_PASS 2
#define XDP_REDIRECT 4

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

/* Helpers are called by number (enum bpf_func_id). */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static long (*bpf_redirect_map)(void *map, u64 key, u64 flags) = (void *)51;
static u64 (*bpf_xdp_get_buff_len)(struct xdp_md *ctx) = (void *)188;

/* Both architectures are little-endian. */
#define BE16(value) ((u16)__builtin_bswap16(value))

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define IPPROTO_UDP 17

struct ethernet_header {
	u8 target[6];
	u8 source[6];
	u16 protocol;
} __attribute__((packed));

struct vlan_header {
	u16 tci;
	u16 protocol;
} __attribute__((packed));

struct ipv4_header {
	u8 version_ihl;
	u8 service;
	u16 total_length;
	u16 id;
	u16 fragment;
	u8 ttl;
	u8 protocol;
	u16 checksum;
	u8 source[4];
	u8 target[4];
} __attribute__((packed));

struct ipv6_header {
	u32 version_class_flow;
	u16 payload_length;
	u8 next_header;
	u8 hop_limit;
	u8 source[16];
	u8 target[16];
} __attribute__((packed));

struct udp_header {
	u16 source;
	u16 target;
	u16 length;
	u16 checksum;
} __attribute__((packed));

#endif
