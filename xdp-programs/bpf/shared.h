/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the program and its loader agree on. A change of anything here requires another number in
 * the program's name, in src/lib.rs too: processes with different loaders may meet on one NIC. */
#ifndef RINGRAIL_SHARED_H
#define RINGRAIL_SHARED_H

#define PROGRAM ringrail_xdp_1

/* Claims, and slots for sockets, of one NIC. */
#define CLAIMS_MAX 1024

struct claim_key {
	u32 addr[4]; /* an IPv6 address, in network order */
	u16 port;    /* in network order */
	u16 queue;
};

struct claim {
	u32 slot;
	u32 pid;           /* of the process that claimed, as it calls itself */
	u64 pid_namespace; /* whose numbers these are: an inode number */
};

/* Why a frame went where it went. */
enum reason {
	REDIRECTED,       /* into the socket of a claim; all that follow passed */
	NO_SOCKET,        /* claimed, but the socket is closed */
	NOT_CLAIMED,      /* UDP for another receiver */
	NOT_UDP,          /* another protocol over IP */
	NOT_IP,           /* ARP and all else, more than two VLAN tags included */
	FRAGMENT,         /* part of an IP packet: the kernel puts them together */
	EXTENSION_HEADER, /* IPv6 with one */
	TOO_SHORT,        /* ends before its headers do, or before the length in them */
	TOO_LONG,         /* a UDP length beyond the IP packet */
	MALFORMED,        /* version or lengths that cannot be */
	FAULT,            /* dropped by the program of tests */
	REASONS,
};

#endif
