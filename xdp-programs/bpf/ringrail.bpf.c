/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Steers ringrail's datagrams into AF_XDP sockets; everything else goes on to the kernel untouched.
 *
 * A datagram is ringrail's when (destination address, destination port, receive queue) is in
 * `claims`, which names a slot of `sockets`. The kernel empties a slot when its socket closes, and what finds
 * an empty slot passes: the traffic of a dead process goes where it would go without this program.
 *
 * With FAULTS defined this is the program of tests, which also drops and damages (faults.h).
 */
#include "kernel.h"
#include "shared.h"

#ifdef FAULTS
#include "faults.h"
#endif

struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(max_entries, CLAIMS_MAX);
	TYPE(key, struct claim_key);
	TYPE(value, struct claim);
} claims SEC(".maps");

struct {
	UINT(type, BPF_MAP_TYPE_XSKMAP);
	UINT(max_entries, CLAIMS_MAX);
	TYPE(key, u32);
	TYPE(value, u32);
} sockets SEC(".maps");

struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, REASONS);
	TYPE(key, u32);
	TYPE(value, u64);
} counters SEC(".maps");

/*
 * Set by the loader: kernels before 5.18 have neither frames in several buffers nor the helper.
 * They want CAP_PERFMON for the difference of two pointers.
 */
const volatile u8 has_frags = 1;

/*
 * Moves a pointer into the frame by a constant. Without CAP_PERFMON the verifier forbids to add
 * what is not one, and the compiler would make one addition of a sum out of several here.
 */
#define ADVANCE(cursor, bytes) asm volatile("%0 += %1" : "+r"(cursor) : "i"(bytes))

/* What is looked for in a frame. */
struct packet {
	struct claim_key key;
	/* Where the parser is, and how far from the start of the frame. */
	void *cursor;
	u32 at;
	/* End of the IP packet by its header, from the start of the frame. */
	u32 end;
};

INLINE void count(u32 reason)
{
	u64 *counter = bpf_map_lookup_elem(&counters, &reason);

	if (counter)
		*counter += 1;
}

INLINE u64 frame_length(struct xdp_md *ctx)
{
	return has_frags ? bpf_xdp_get_buff_len(ctx) : ctx->data_end - ctx->data;
}

/* Addresses are compared as IPv6 ones; ::ffff:0:0/96 holds those of IPv4 (RFC 4291, 2.5.5.2). */
INLINE u32 parse_ipv4(void *end, struct packet *packet)
{
	struct ipv4_header *ip = packet->cursor;
	u32 words, total;

	if ((void *)(ip + 1) > end)
		return TOO_SHORT;
	words = ip->version_ihl & 0xf;
	total = BE16(ip->total_length);
	if (ip->version_ihl >> 4 != 4 || words < 5 || total < words * 4)
		return MALFORMED;
	/* More fragments, or not the first: all but "do not fragment" and the reserved bit. */
	if (ip->fragment & BE16(0x3fff))
		return FRAGMENT;
	if (ip->protocol != IPPROTO_UDP)
		return NOT_UDP;
	packet->key.addr[2] = 0xffff0000;
	__builtin_memcpy(&packet->key.addr[3], ip->target, 4);
	ADVANCE(packet->cursor, 20);
#pragma unroll
	for (u32 options = 5; options < 15; options++)
		if (words > options)
			ADVANCE(packet->cursor, 4);
	packet->end = packet->at + total;
	packet->at += words * 4;
	return REDIRECTED;
}

INLINE u32 parse_ipv6(void *end, struct packet *packet)
{
	struct ipv6_header *ip = packet->cursor;

	if ((void *)(ip + 1) > end)
		return TOO_SHORT;
	if ((*(u8 *)ip) >> 4 != 6)
		return MALFORMED;
	switch (ip->next_header) {
	case IPPROTO_UDP:
		break;
	case 44: /* fragment */
		return FRAGMENT;
	case 0: /* hop-by-hop options */
	case 43: /* routing */
	case 51: /* authentication */
	case 60: /* destination options */
		return EXTENSION_HEADER;
	default:
		return NOT_UDP;
	}
	__builtin_memcpy(packet->key.addr, ip->target, 16);
	packet->at += sizeof(*ip);
	packet->end = packet->at + BE16(ip->payload_length);
	ADVANCE(packet->cursor, 40);
	return REDIRECTED;
}

/* Returns why the frame is not for us, or fills in `packet`, with the cursor at the UDP header. */
INLINE u32 parse(struct xdp_md *ctx, struct packet *packet)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethernet_header *ethernet = (void *)(long)ctx->data;
	struct udp_header *udp;
	u32 reason, length;
	u16 protocol;

	if ((void *)(ethernet + 1) > end)
		return TOO_SHORT;
	protocol = ethernet->protocol;
	packet->cursor = ethernet;
	packet->at = sizeof(*ethernet);
	ADVANCE(packet->cursor, 14);
#pragma unroll
	for (int tags = 0; tags < 2; tags++) {
		struct vlan_header *vlan = packet->cursor;

		if (protocol != BE16(ETH_P_8021Q) && protocol != BE16(ETH_P_8021AD))
			break;
		if ((void *)(vlan + 1) > end)
			return TOO_SHORT;
		protocol = vlan->protocol;
		packet->at += sizeof(*vlan);
		ADVANCE(packet->cursor, 4);
	}
	if (protocol == BE16(ETH_P_IP))
		reason = parse_ipv4(end, packet);
	else if (protocol == BE16(ETH_P_IPV6))
		reason = parse_ipv6(end, packet);
	else
		return NOT_IP;
	if (reason != REDIRECTED)
		return reason;
	/* Ethernet pads short frames, so there may be more than the length of IP, never less. */
	if (packet->end > frame_length(ctx))
		return TOO_SHORT;
	udp = packet->cursor;
	if ((void *)(udp + 1) > end)
		return TOO_SHORT;
	length = BE16(udp->length);
	if (length < sizeof(*udp))
		return MALFORMED;
	if (packet->at + length > packet->end)
		return TOO_LONG;
	packet->key.port = udp->target;
	return REDIRECTED;
}

SEC("xdp")
int PROGRAM(struct xdp_md *ctx)
{
	struct packet packet = {};
	struct claim *claim;
	u32 reason = parse(ctx, &packet);
	long action = XDP_PASS;

	if (reason != REDIRECTED)
		goto done;
#ifdef FAULTS
	if (inject(ctx, packet.cursor)) {
		count(FAULT);
		return XDP_DROP;
	}
#endif
	packet.key.queue = ctx->rx_queue_index;
	claim = bpf_map_lookup_elem(&claims, &packet.key);
	if (!claim) {
		reason = NOT_CLAIMED;
		goto done;
	}
	action = bpf_redirect_map(&sockets, claim->slot, XDP_PASS);
	if (action != XDP_REDIRECT)
		reason = NO_SOCKET;
done:
	count(reason);
	return action;
}

char _license[] SEC("license") = "Dual MIT/GPL";
