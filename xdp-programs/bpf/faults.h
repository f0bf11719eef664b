/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Faults on purpose, for tests only: datagrams to or from a port are dropped or damaged.
 * Wants CAP_PERFMON. */
#ifndef RINGRAIL_FAULTS_H
#define RINGRAIL_FAULTS_H

/* Rules, tried in order; the first that hits a datagram decides. */
#define FAULTS_MAX 8

#define FAULT_OFF 0
#define FAULT_DROP 1
#define FAULT_FLIP 2

struct fault {
	u32 action;
	u32 every; /* hits each `every`-th datagram that fits; 0: by `share` */
	u32 share; /* hits when a random number of 32 bits is below it */
	u32 bit;   /* of the UDP payload, which FAULT_FLIP changes */
	u16 to;    /* destination port in network order; 0: any */
	u16 from;  /* source port, likewise */
	u32 skip;  /* so many datagrams that fit are left alone first */
	u64 seen;  /* datagrams that fitted */
	u64 hits;  /* of these, those dropped or changed */
};

struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, FAULTS_MAX);
	TYPE(key, u32);
	TYPE(value, struct fault);
} faults SEC(".maps");

INLINE u32 hits(struct fault *fault)
{
	u64 seen = __sync_fetch_and_add(&fault->seen, 1);

	if (seen < fault->skip)
		return 0;
	if (fault->every)
		return (seen - fault->skip) % fault->every == fault->every - 1;
	return bpf_get_prandom_u32() < fault->share || fault->share == 0xffffffff;
}

/* Returns whether the datagram is to be dropped. */
INLINE u32 inject(struct xdp_md *ctx, struct udp_header *udp)
{
	void *end = (void *)(long)ctx->data_end;

#pragma unroll
	for (u32 i = 0; i < FAULTS_MAX; i++) {
		u32 key = i, byte;
		struct fault *fault = bpf_map_lookup_elem(&faults, &key);
		u8 *changed;

		if (!fault || fault->action == FAULT_OFF)
			continue;
		if ((void *)(udp + 1) > end)
			return 0;
		if ((fault->to && fault->to != udp->target) ||
		    (fault->from && fault->from != udp->source))
			continue;
		if (!hits(fault))
			continue;
		if (fault->action == FAULT_DROP) {
			__sync_fetch_and_add(&fault->hits, 1);
			return 1;
		}
		byte = fault->bit / 8 & 0x3fff;
		changed = (u8 *)(udp + 1) + byte;
		/* Shorter ones, and the later buffers of long ones, stay as they are. */
		if ((void *)(changed + 1) > end)
			return 0;
		*changed ^= 1 << (fault->bit & 7);
		__sync_fetch_and_add(&fault->hits, 1);
		return 0;
	}
	return 0;
}

#endif
