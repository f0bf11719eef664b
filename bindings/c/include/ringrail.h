/*
 * ringrail: messages between HPC processes over ordinary Ethernet NICs.
 *
 * This file is made of bindings/c/src by cbindgen; a test compares both.
 *
 * A domain holds settings; an endpoint sends and receives, and has an address; peers are inserted
 * by their addresses, which travel by any means (rr_bootstrap_exchange is one). Posted operations end
 * in a completion queue; calls without "post" in their name wait.
 *
 * RESULTS. Calls that give an int give RR_OK or a positive number, or else a negative code:
 * rr_strerror returns its meaning, rr_last_error the last error of this thread.
 *
 * HANDLES. Pointers to rr_domain, rr_endpoint, ... are names, not addresses. A call with one that
 * is closed, null or made up gives RR_EHANDLE. Objects may be closed in any order: each keeps what
 * it needs. Closing one while another thread is in a call with it is not allowed.
 *
 * MEMORY. What a pointer points to is used during the call only, except the memory of posted
 * operations and of regions: see those. Out arguments of a call that fails are left as they are,
 * except handles, which are null then. "Safety" of each call lists what its caller guarantees.
 *
 * THREADS. Objects of an endpoint of RR_SHARED (the default) and RR_DEDICATED are for all threads
 * at once; those of RR_OWNED for the thread that opened it. A child of fork closes what it
 * inherited, or leaves it, and opens a domain of its own; other calls with what it inherited give
 * RR_EINVAL.
 *
 * STRUCTURES. Options begin with their size: make them from the INIT macros. Reserved fields are 0.
 */


#ifndef RINGRAIL_H
#define RINGRAIL_H

#include <stddef.h>
#include <stdint.h>

/*
 Bytes of an address.
 */
#define RR_ADDRESS_BYTES 64

/*
 Most bytes of the text of an address, the zero byte included.
 */
#define RR_ADDRESS_TEXT_BYTES 128

/*
 What is done to each element. The numbers are those of libfabric's enum fi_op.
 */
#define RR_MIN 0

/*
 The larger of both.
 */
#define RR_MAX 1

/*
 The sum; integers wrap around.
 */
#define RR_SUM 2

/*
 The product; integers wrap around.
 */
#define RR_PRODUCT 3

/*
 1 where one of both is not 0.
 */
#define RR_LOGICAL_OR 4

/*
 1 where both are not 0.
 */
#define RR_LOGICAL_AND 5

/*
 The bits of either.
 */
#define RR_BIT_OR 6

/*
 The bits of both.
 */
#define RR_BIT_AND 7

/*
 1 where exactly one of both is not 0.
 */
#define RR_LOGICAL_XOR 8

/*
 The bits of exactly one.
 */
#define RR_BIT_XOR 9

/*
 Fetches; takes no operands.
 */
#define RR_READ 10

/*
 The operand.
 */
#define RR_WRITE 11

/*
 The operand where `compare` equals the element.
 */
#define RR_COMPARE_SWAP 12

/*
 The operand where they differ.
 */
#define RR_COMPARE_SWAP_NE 13

/*
 The operand where `compare` is not larger.
 */
#define RR_COMPARE_SWAP_LE 14

/*
 The operand where `compare` is smaller.
 */
#define RR_COMPARE_SWAP_LT 15

/*
 The operand where `compare` is not smaller.
 */
#define RR_COMPARE_SWAP_GE 16

/*
 The operand where `compare` is larger.
 */
#define RR_COMPARE_SWAP_GT 17

/*
 The bits of the operand that `compare` has, and the others of the element.
 */
#define RR_MASKED_SWAP 18

/*
 The element less the operand.
 */
#define RR_DIFFERENCE 19

/*
 The type of the elements. The numbers are those of libfabric's enum fi_datatype.
 */
#define RR_INT8 0

/*
 uint8_t.
 */
#define RR_UINT8 1

/*
 int16_t.
 */
#define RR_INT16 2

/*
 uint16_t.
 */
#define RR_UINT16 3

/*
 int32_t.
 */
#define RR_INT32 4

/*
 uint32_t.
 */
#define RR_UINT32 5

/*
 int64_t.
 */
#define RR_INT64 6

/*
 uint64_t.
 */
#define RR_UINT64 7

/*
 float.
 */
#define RR_FLOAT 8

/*
 double.
 */
#define RR_DOUBLE 9

/*
 float complex.
 */
#define RR_FLOAT_COMPLEX 10

/*
 double complex.
 */
#define RR_DOUBLE_COMPLEX 11

/*
 Most bytes of elements that one operation is on.
 */
#define RR_ATOMIC_BYTES_MAX 512

/*
 Success. Calls that count or find give a positive number.
 */
#define RR_OK 0

/*
 A bound is reached for now: make progress (read a queue), and call again.
 */
#define RR_EAGAIN -1

/*
 A bound is reached that no progress lifts; the text names it.
 */
#define RR_ELIMIT -2

/*
 No attempt to connect to the peer succeeded.
 */
#define RR_EUNREACHABLE -3

/*
 The peer has as many sessions as it may have.
 */
#define RR_EFULL -4

/*
 The connection to the peer broke.
 */
#define RR_ELOST -5

/*
 The peer closed its endpoint.
 */
#define RR_ELEFT -6

/*
 Another process is at the peer's address now: exchange addresses again.
 */
#define RR_ERESTARTED -7

/*
 The peer has another version, or settings that do not go together with this side's.
 */
#define RR_EINCOMPATIBLE -8

/*
 One side broke the protocol.
 */
#define RR_EPROTOCOL -9

/*
 What came was not what was sent.
 */
#define RR_ECORRUPTED -10

/*
 The peer does not know the job's secret.
 */
#define RR_ESECRET -11

/*
 The peer was removed.
 */
#define RR_EREMOVED -12

/*
 The number names no peer of this engine.
 */
#define RR_ENOPEER -13

/*
 No peer is left that could send what a receive from anybody waits for.
 */
#define RR_ENOPEERLEFT -14

/*
 The message, or the text, is longer than the memory for it.
 */
#define RR_ETRUNCATED -15

/*
 The target refused an operation on its memory; the text has the cause.
 */
#define RR_EACCESS -16

/*
 Memory is still in use by an operation of a peer.
 */
#define RR_EBUSY -17

/*
 The operation was cancelled, or its endpoint was closed.
 */
#define RR_ECANCELLED -18

/*
 The time has passed.
 */
#define RR_ETIMEDOUT -19

/*
 There is no memory, or it cannot be used like this.
 */
#define RR_EMEMORY -20

/*
 An argument is wrong: a null pointer, a length, an alignment, a number out of range.
 */
#define RR_EINVAL -21

/*
 Settings cannot be used.
 */
#define RR_ESETTINGS -22

/*
 The operating system refused something: see rr_last_errno.
 */
#define RR_ESYSTEM -23

/*
 The handle names no open object of this kind: it was closed, or never was one.
 */
#define RR_EHANDLE -24

/*
 The object belongs to the thread that opened its endpoint with RR_OWNED, and this is another.
 */
#define RR_ETHREAD -25

/*
 Ranks did not find each other.
 */
#define RR_EBOOTSTRAP -26

/*
 A bug of ringrail, which was stopped at the border. Close what the call was about.
 */
#define RR_EPANIC -27

/*
 Another error, of a later version; the text describes it.
 */
#define RR_EOTHER -28

/*
 Of rr_domain_open: neither environment nor files are read, only what is given.
 */
#define RR_ISOLATED 1

/*
 An endpoint that any thread uses at any time; those that wait make the progress of all.
 */
#define RR_SHARED 0

/*
 As RR_SHARED, and a thread of its own makes progress while the others compute.
 */
#define RR_DEDICATED 1

/*
 An endpoint of the thread that opens it, without a lock. Other threads get RR_ETHREAD.
 */
#define RR_OWNED 2

/*
 For rr_endpoint_open_beside: receives from any source end with RR_ENOPEERLEFT when no peer is
 left.
 */
#define RR_FAIL_WITHOUT_PEERS 1

/*
 The queue of what an endpoint sends (and puts, gets, flushes).
 */
#define RR_TRANSMIT 0

/*
 The queue of what an endpoint receives.
 */
#define RR_RECEIVE 1

/*
 A peer that is none: of a selector, anybody.
 */
#define RR_ANY_PEER 0

/*
 A timeout that never passes.
 */
#define RR_FOREVER -1

/*
 Of an envelope: neither tag nor context, matched with those that have none, either.
 */
#define RR_UNTAGGED 1

/*
 A send completes when its memory may be reused.
 */
#define RR_LEVEL_INJECT 0

/*
 A send completes when the peer's engine has it; a put when it is in the peer's memory.
 */
#define RR_LEVEL_DELIVERY 1

/*
 A send completes when a receive has matched it.
 */
#define RR_LEVEL_MATCH 2

/*
 No hint: that of the endpoint applies (rr_set_hint).
 */
#define RR_HINT_UNSAID 0

/*
 The usual message.
 */
#define RR_HINT_NONE 1

/*
 The receiver waits for it: it is sent at once.
 */
#define RR_HINT_LATENCY 2

/*
 It is not urgent: it is sent after others.
 */
#define RR_HINT_BULK 3

/*
 It goes before others.
 */
#define RR_HINT_PRIORITY 4

/*
 Of options: only a failure is reported.
 */
#define RR_SILENT 1

/*
 Of options: more posts follow at once, so this one need not hurry.
 */
#define RR_MORE 2

/*
 Of options: it waits for everything that was posted to the same peer before it.
 */
#define RR_FENCE 4

/*
 Of options: the field `data` goes along (remote data). Of completions and statuses: it came.
 */
#define RR_DATA 8

/*
 A completion of a send.
 */
#define RR_SEND 0

/*
 A completion of a receive, or of one message of a receive of many.
 */
#define RR_RECEIVED 1

/*
 A completion of a put.
 */
#define RR_PUT 2

/*
 A completion of a get.
 */
#define RR_GET 3

/*
 A completion of an atomic operation.
 */
#define RR_ATOMIC 4

/*
 A completion of a flush.
 */
#define RR_FLUSH 5

/*
 A put of a peer with remote data was written. It was not posted here: its user_data is 0.
 */
#define RR_REMOTE_PUT 6

/*
 A receive of many takes no more messages: its memory is the caller's again.
 */
#define RR_MULTI_RECEIVE 7

/*
 Of a key: peers may read.
 */
#define RR_REMOTE_READ 1

/*
 Of a key: peers may write.
 */
#define RR_REMOTE_WRITE 2

/*
 Of a key: peers may operate on it atomically.
 */
#define RR_REMOTE_ATOMIC 4

/*
 Of key options: the key is the one given, and not a random one.
 */
#define RR_CHOSEN_KEY 1

/*
 Of key options: the length of what a key opens; to the end of the region.
 */
#define RR_TO_THE_END 18446744073709551615ull

/*
 A session with the engine of a peer was established.
 */
#define RR_EVENT_CONNECTED 0

/*
 The engine of a peer is gone; operations with it have ended with the same error.
 */
#define RR_EVENT_DISCONNECTED 1

/*
 A connection was refused, or broken off before it was a session.
 */
#define RR_EVENT_REFUSED 2

/*
 A path of a session fares otherwise than before.
 */
#define RR_EVENT_PATH 3

/*
 Something else that has only a text here.
 */
#define RR_EVENT_OTHER 4

/*
 The endpoint at `address` asks a listener for a connection, with `data`: answer `name` by
 rr_accept or rr_reject.
 */
#define RR_EVENT_REQUEST 5

/*
 The request `name` is answered no more, for `reason`.
 */
#define RR_EVENT_WITHDRAWN 6

/*
 The connection `name` with `peer` is there, and both sides know. `data` is of who accepted.
 */
#define RR_EVENT_OPENED 7

/*
 The connection `name` that was requested will not be, for `reason`, with `data` of who rejected
 it. The name is spent.
 */
#define RR_EVENT_REJECTED 8

/*
 The connection `name` is over, or did not come about, for `reason`. The name is spent. What had
 come by it before can be received.
 */
#define RR_EVENT_ENDED 9

/*
 Of an event: it has no reason.
 */
#define RR_REASON_NONE 0

/*
 The listener's user has rejected the request.
 */
#define RR_REASON_REJECTED 1

/*
 The endpoint has no listener, or has closed it.
 */
#define RR_REASON_NOT_LISTENING 2

/*
 As many requests as the listener takes wait for an answer: try again later.
 */
#define RR_REASON_BUSY 3

/*
 It was not answered in time; for a withdrawn request, by this side.
 */
#define RR_REASON_TIMED_OUT 4

/*
 The other side does not understand the request: it is of another version.
 */
#define RR_REASON_MALFORMED 5

/*
 The other side has shut the connection down, given its request up, or closed its endpoint.
 */
#define RR_REASON_SHUT_DOWN 6

/*
 The engine of the peer failed, left, or cannot be reached; the text has the cause.
 */
#define RR_REASON_PEER 7

/*
 Another reason, of a later version; the text describes it.
 */
#define RR_REASON_OTHER 8

/*
 Longest private data of a request or an answer, in bytes.
 */
#define RR_PRIVATE_DATA_BYTES 512

/*
 Bytes of the text of a secret, the zero byte included.
 */
#define RR_SECRET_TEXT_BYTES 65

/*
 Bytes of the text of an event, the zero byte included.
 */
#define RR_EVENT_TEXT_BYTES 256

/*
 Major version of the header.
 */
#define RR_VERSION_MAJOR 0

/*
 Minor version of the header.
 */
#define RR_VERSION_MINOR 1

/*
 Patch level of the header.
 */
#define RR_VERSION_PATCH 0

/*
 The exchange of a job's ranks.
 */
typedef struct rr_bootstrap rr_bootstrap;

/*
 A completion queue: where posted operations end.
 */
typedef struct rr_cq rr_cq;

/*
 A domain.
 */
typedef struct rr_domain rr_domain;

/*
 A place to send from and to receive at.
 */
typedef struct rr_endpoint rr_endpoint;

/*
 An event queue.
 */
typedef struct rr_eq rr_eq;

/*
 Where an endpoint is asked for connections.
 */
typedef struct rr_listener rr_listener;

/*
 A message that was taken out of matching.
 */
typedef struct rr_message rr_message;

/*
 Memory that peers may reach.
 */
typedef struct rr_region rr_region;

/*
 Where an endpoint can be reached: a value to copy and to send to peers as it is. What is in it
 is the library's business; all zero it is no address.
 */
typedef struct {
    /*
     Opaque.
     */
    uint8_t bytes[RR_ADDRESS_BYTES];
} rr_address;

/*
 A peer of an engine: what rr_insert gives, and the source of a message. Only endpoints of that
 engine know it. Never 0 (RR_ANY_PEER).
 */
typedef uint64_t rr_peer;

/*
 A place in the memory of a peer.
 */
typedef struct {
    /*
     What opens it: rr_region_key of its owner.
     */
    uint64_t key;
    /*
     Where, in bytes from the beginning of what the key opens.
     */
    uint64_t offset;
} rr_remote;

/*
 An atomic operation on elements of the memory of a peer, in the byte order of that.
 */
typedef struct {
    /*
     sizeof(rr_atomic).
     */
    uint32_t size;
    /*
     RR_SUM, ...
     */
    uint32_t op;
    /*
     RR_UINT64, ...
     */
    uint32_t datatype;
    /*
     0.
     */
    uint32_t _reserved;
    /*
     How many elements.
     */
    size_t count;
    /*
     An operand for each; RR_READ takes none.
     */
    const void *operands;
    /*
     What to compare with, for those that compare; of RR_MASKED_SWAP the mask.
     */
    const void *compare;
} rr_atomic;

/*
 How a send, a put, a get, an atomic operation or a flush is posted. A null pointer to it means
 RR_SEND_OPTIONS_INIT, from which others are made.
 */
typedef struct {
    /*
     sizeof(rr_send_options).
     */
    uint32_t size;
    /*
     RR_LEVEL_...: how far it must have come before it completes.
     */
    uint32_t level;
    /*
     RR_HINT_...: what it is for.
     */
    uint32_t hint;
    /*
     RR_SILENT, RR_MORE, RR_FENCE, RR_DATA.
     */
    uint32_t flags;
    /*
     Remote data, with RR_DATA: the receiver's completion has it.
     */
    uint64_t data;
    /*
     Comes back in the completion, unchanged.
     */
    uint64_t user_data;
} rr_send_options;

/*
 Names a posted operation for rr_cancel. All zero it names none.
 */
typedef struct {
    /*
     Opaque.
     */
    uint64_t name[2];
} rr_operation;

/*
 Who joins which job. Make it from RR_MEMBER_INIT.
 */
typedef struct {
    /*
     sizeof(rr_member).
     */
    uint32_t size;
    /*
     The number of this rank, from 0.
     */
    uint32_t rank;
    /*
     The number of ranks.
     */
    uint32_t ranks;
    /*
     0.
     */
    uint32_t _reserved;
    /*
     Identifies this job among others at the same port or in the same directory; may be null.
     */
    const char *job;
    /*
     How long joining and each collective call may take; RR_FOREVER: 60 seconds.
     */
    int64_t timeout_ns;
} rr_member;

/*
 What a message is matched by: see rr_tagged and rr_untagged.
 */
typedef struct {
    /*
     The tag.
     */
    uint64_t tag;
    /*
     The context (an MPI communicator, say): order and matching never cross it.
     */
    uint32_t context;
    /*
     0, or RR_UNTAGGED: the message has neither.
     */
    uint32_t flags;
} rr_envelope;

/*
 What a receive accepts.
 */
typedef struct {
    /*
     From whom; RR_ANY_PEER: from anybody.
     */
    rr_peer source;
    /*
     Bits of the tag that are not compared.
     */
    uint64_t ignore;
    /*
     Context and tag.
     */
    rr_envelope envelope;
} rr_selector;

/*
 The status of a message.
 */
typedef struct {
    /*
     The other side: of a receive the source, of a send the target. RR_ANY_PEER: not known.
     */
    rr_peer peer;
    /*
     Its tag.
     */
    uint64_t tag;
    /*
     Its context.
     */
    uint32_t context;
    /*
     RR_UNTAGGED: it has neither. RR_DATA: it came with `data`.
     */
    uint32_t flags;
    /*
     Its length in bytes, also where its receiver took less.
     */
    uint64_t length;
    /*
     What its sender sent with it beside the bytes.
     */
    uint64_t data;
    /*
     For later versions.
     */
    uint64_t _reserved[2];
} rr_status;

/*
 How a receive is posted. A null pointer to it means RR_RECEIVE_OPTIONS_INIT.
 */
typedef struct {
    /*
     sizeof(rr_receive_options).
     */
    uint32_t size;
    /*
     RR_SILENT.
     */
    uint32_t flags;
    /*
     Comes back in the completion, unchanged.
     */
    uint64_t user_data;
} rr_receive_options;

/*
 How an endpoint listens. A null pointer to it means RR_LISTEN_OPTIONS_INIT.
 */
typedef struct {
    /*
     sizeof(rr_listen_options).
     */
    uint32_t size;
    /*
     Requests that wait for an answer at the most; more are refused (RR_REASON_BUSY).
     */
    uint32_t backlog;
    /*
     How long one waits at the most, in nanoseconds; then it is refused (RR_REASON_TIMED_OUT).
     */
    uint64_t patience_ns;
} rr_listen_options;

/*
 A connection of an endpoint, from when it was requested or accepted. Only endpoints of its
 engine know it.
 */
typedef uint64_t rr_connection;

/*
 A request that a listener has received (rr_event).
 */
typedef uint64_t rr_request;

/*
 How an endpoint is opened. A null pointer to it means RR_ENDPOINT_OPTIONS_INIT.
 */
typedef struct {
    /*
     sizeof(rr_endpoint_options).
     */
    uint32_t size;
    /*
     RR_SHARED, RR_DEDICATED, RR_OWNED.
     */
    uint32_t mode;
    /*
     A TCP port that peers know beforehand (rr_address_from_text); 0: one of the setting
     port_range.
     */
    uint32_t port;
    /*
     0.
     */
    uint32_t _reserved;
} rr_endpoint_options;

/*
 How an endpoint is opened beside another one. A null pointer to it means
 RR_BESIDE_OPTIONS_INIT.
 */
typedef struct {
    /*
     sizeof(rr_beside_options).
     */
    uint32_t size;
    /*
     RR_FAIL_WITHOUT_PEERS.
     */
    uint32_t flags;
    /*
     Where the ends of its sends go; null: to a queue of its own.
     */
    rr_cq *transmit_queue;
    /*
     Where the ends of its receives go; null: to where those of its sends go.
     */
    rr_cq *receive_queue;
    /*
     Where it reports events; null: to the queue of its engine.
     */
    rr_eq *event_queue;
} rr_beside_options;

/*
 An entry of an event queue.
 */
typedef struct {
    /*
     RR_EVENT_CONNECTED, ...
     */
    uint32_t kind;
    /*
     1: `address` is that of the peer: of its engine, or for a request of its endpoint. 0: it is
     not of one peer.
     */
    uint32_t has_address;
    /*
     Where the peer is.
     */
    rr_address address;
    /*
     Of RR_EVENT_REQUEST the endpoint that listens; else no address.
     */
    rr_address listener;
    /*
     The connection (rr_connection) or the request (rr_request) that it is about; else 0.
     */
    uint64_t name;
    /*
     Of RR_EVENT_OPENED the other side; else RR_ANY_PEER.
     */
    rr_peer peer;
    /*
     RR_REASON_...
     */
    uint32_t reason;
    /*
     Bytes of private data that came with it.
     */
    uint32_t data_length;
    /*
     The private data.
     */
    uint8_t data[RR_PRIVATE_DATA_BYTES];
    /*
     What happened, for people; cut where it is too long.
     */
    char text[RR_EVENT_TEXT_BYTES];
} rr_event;

/*
 A piece of memory.
 */
typedef struct {
    /*
     Its first byte; anything where `length` is 0.
     */
    void *data;
    /*
     Its length in bytes.
     */
    size_t length;
} rr_span;

/*
 An entry of a completion queue.
 */
typedef struct {
    /*
     What was given when the operation was posted.
     */
    uint64_t user_data;
    /*
     RR_SEND, RR_RECEIVED, ...
     */
    uint32_t kind;
    /*
     RR_OK, or why it failed. See rr_cq_error_text.
     */
    int32_t error;
    /*
     As in rr_status. Of an operation that failed: as far as it is known.
     */
    rr_peer peer;
    /*
     Tag of the message.
     */
    uint64_t tag;
    /*
     Context of the message.
     */
    uint32_t context;
    /*
     RR_UNTAGGED, RR_DATA.
     */
    uint32_t flags;
    /*
     Length of the message in bytes: of one that was cut (RR_ETRUNCATED) the whole length.
     */
    uint64_t length;
    /*
     Of a message of a receive of many: where it begins in the memory, in bytes. Else 0.
     */
    uint64_t offset;
    /*
     Remote data.
     */
    uint64_t data;
    /*
     Names the text of the error; 0: there is none.
     */
    uint64_t detail;
    /*
     The Linux error number of the failure; 0 if it succeeded.
     */
    int32_t system_error;
    /*
     For later versions.
     */
    uint32_t _reserved[5];
} rr_completion;

/*
 What a key is to open. Make it from RR_KEY_OPTIONS_INIT.
 */
typedef struct {
    /*
     sizeof(rr_key_options).
     */
    uint32_t size;
    /*
     RR_REMOTE_READ, RR_REMOTE_WRITE, RR_REMOTE_ATOMIC: one at least.
     */
    uint32_t access;
    /*
     Where what it opens begins in the region, in bytes.
     */
    uint64_t offset;
    /*
     How long that is; RR_TO_THE_END.
     */
    uint64_t length;
    /*
     RR_CHOSEN_KEY: the key is `key`. Else it is a random one, which cannot be guessed.
     */
    uint32_t flags;
    /*
     0.
     */
    uint32_t _reserved;
    /*
     The key that the program chooses.
     */
    uint64_t key;
    /*
     Who may use it; null: each peer of the job.
     */
    const rr_peer *peers;
    /*
     How many those are.
     */
    size_t peer_count;
} rr_key_options;

/*
 What peers have done to a region.
 */
typedef struct {
    /*
     Puts that are in place.
     */
    uint64_t puts;
    /*
     Gets whose bytes were read.
     */
    uint64_t gets;
    /*
     Atomic operations.
     */
    uint64_t atomics;
    /*
     Bytes of all of these.
     */
    uint64_t bytes;
} rr_region_counts;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Writes an address as a text for rr_address_from_text: a word of letters, digits and
 punctuation, with a zero byte behind it. RR_ADDRESS_TEXT_BYTES are enough. Gives its length
 without that byte, also where `capacity` is too small and the text was cut.

 # Errors

 RR_EINVAL: null, or bytes that are no address.

 # Safety

 `address` can be read, and `capacity` bytes can be written at `buffer`, which may be null for 0.

 # Threads

 Any.
 */
int rr_address_to_text(const rr_address *address, char *buffer, size_t capacity);

/*
 Writes an address for people: where it listens, and which endpoint it is there. Otherwise as
 rr_address_to_text, and there is no way back.

 # Errors

 RR_EINVAL: null, or bytes that are no address.

 # Safety

 As for rr_address_to_text.

 # Threads

 Any.
 */
int rr_address_describe(const rr_address *address, char *buffer, size_t capacity);

/*
 Reads what rr_address_to_text wrote, or `IP:PORT` (IPv6 in brackets), which names the first
 endpoint of the process that listens there: for peers that know no more of each other
 (rr_endpoint_options.port).

 # Errors

 RR_EINVAL: null, or no address.

 # Safety

 `text` ends with a zero byte; `address` can be written.

 # Threads

 Any.
 */
int rr_address_from_text(const char *text, rr_address *address);

/*
 Posts an atomic operation that fetches nothing. Its end goes to the transmit queue.

 # Order

 As for rr_post_put. Each element changes in one step that no other atomic operation divides.

 # Completion

 As for rr_post_put.

 # Errors

 As for rr_post_put. RR_EINVAL also: an operation that there is not, or not for this type; no
 elements, or more than RR_ATOMIC_BYTES_MAX bytes of them.

 # Safety

 `what` and its operands can be read; they are the caller's again on return. `operation` is null
 or can be written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_atomic(rr_endpoint *endpoint,
                   rr_peer peer,
                   rr_remote at,
                   const rr_atomic *what,
                   const rr_send_options *options,
                   rr_operation *operation);

/*
 Posts an atomic operation that fetches the values of before into `fetched`: as many elements as
 it is on. Its end goes to the transmit queue.

 # Order

 As for rr_post_atomic.

 # Completion

 When the values are here, or with RR_EACCESS.

 # Errors

 As for rr_post_atomic.

 # Safety

 As for rr_post_atomic; the elements at `fetched` as for rr_post_receive.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_fetch_atomic(rr_endpoint *endpoint,
                         rr_peer peer,
                         rr_remote at,
                         const rr_atomic *what,
                         void *fetched,
                         const rr_send_options *options,
                         rr_operation *operation);

/*
 Makes an atomic operation, and waits for it. The values of before go to `fetched`, unless that
 is null.

 # Order

 As for rr_post_atomic.

 # Errors

 As for rr_post_atomic, and how it failed. RR_ETIMEDOUT: `timeout_ns` (RR_FOREVER:
 never) has passed. What had not gone out was taken back; of what had the outcome is unknown
 (see rr_last_error), and the call returns at most 100 ms later.

 # Safety

 As for rr_post_atomic. `fetched` is null, or as many elements as the operation is on can be
 written there.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_atomically(rr_endpoint *endpoint,
                  rr_peer peer,
                  rr_remote at,
                  const rr_atomic *what,
                  void *fetched,
                  const rr_send_options *options,
                  int64_t timeout_ns);

/*
 Adds to a 64-bit word of a peer, waits for it, and gives its value of before.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ENOPEER. RR_EACCESS. Why the peer has failed.

 # Safety

 `before` can be written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_fetch_add(rr_endpoint *endpoint,
                 rr_peer peer,
                 rr_remote at,
                 uint64_t value,
                 uint64_t *before);

/*
 Writes `value` to a 64-bit word of a peer where that is `expected`, waits for it, and gives its
 value of before: it was written if that is `expected`.

 # Errors

 As for rr_fetch_add.

 # Safety

 `before` can be written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_compare_swap(rr_endpoint *endpoint,
                    rr_peer peer,
                    rr_remote at,
                    uint64_t expected,
                    uint64_t value,
                    uint64_t *before);

/*
 Joins the job that the environment describes: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or
 RINGRAIL_BOOTSTRAP=dir:PATH. Waits until all ranks are there.

 # Errors

 RR_EBOOTSTRAP: variables are missing, a rank did not join, ...; see the text. RR_EINVAL:
 null.

 # Safety

 `bootstrap` can be written, and on failure is null. The environment is not changed during the
 call.

 # Threads

 Any.
 */
int rr_bootstrap_from_environment(rr_bootstrap **bootstrap);

/*
 Joins a job by TCP: rank 0 serves at `host` (a name or an address) and `port`. Waits until all
 ranks are there.

 # Errors

 RR_EBOOTSTRAP. RR_EINVAL: null, a port that there is not, a member whose size is wrong.

 # Safety

 Texts end with zero bytes; `member` can be read; `bootstrap` can be written, and on failure is
 null.

 # Threads

 Any.
 */
int rr_bootstrap_tcp(const char *host,
                     uint32_t port,
                     const rr_member *member_of_job,
                     rr_bootstrap **bootstrap);

/*
 Joins a job through a directory that all ranks see, which is made if it is missing. Waits until
 all ranks are there.

 # Errors

 RR_EBOOTSTRAP. RR_EINVAL: null, a member whose size is wrong.

 # Safety

 As for rr_bootstrap_tcp.

 # Threads

 Any.
 */
int rr_bootstrap_directory(const char *path,
                           const rr_member *member_of_job,
                           rr_bootstrap **bootstrap);

/*
 The number of this rank, from 0.

 # Errors

 RR_EHANDLE.

 # Safety

 It is not closed during the call.

 # Threads

 Any; calls wait for each other.
 */
int rr_bootstrap_rank(rr_bootstrap *bootstrap);

/*
 The number of ranks, 1048576 at the most.

 # Errors

 RR_EHANDLE.

 # Safety

 It is not closed during the call.

 # Threads

 Any; calls wait for each other.
 */
int rr_bootstrap_size(rr_bootstrap *bootstrap);

/*
 Gives every rank the values of all ranks, one behind the other in the order of ranks: addresses,
 say, and keys. Each rank gives `length` bytes. Collective: all ranks make the same calls in the
 same order. A key (a text) serves once.

 # Errors

 RR_EHANDLE. RR_EINVAL: null, a rank gave another length. RR_EBOOTSTRAP: a rank left or did not
 come in time, the key served before, more than 64 KiB.

 # Safety

 `key` ends with a zero byte; `length` bytes can be read at `value`; `length` times the number of
 ranks can be written at `values`. All are the caller's on return.

 # Threads

 Any; calls wait for each other.
 */
int rr_bootstrap_exchange(rr_bootstrap *bootstrap,
                          const char *key,
                          const void *value,
                          size_t length,
                          void *values);

/*
 Waits for all ranks. Collective.

 # Errors

 RR_EHANDLE. RR_EBOOTSTRAP.

 # Safety

 It is not closed during the call.

 # Threads

 Any; calls wait for each other.
 */
int rr_bootstrap_barrier(rr_bootstrap *bootstrap);

/*
 Leaves the job. Keep the bootstrap until all ranks are past their last collective call.

 # Errors

 RR_EHANDLE: it was closed before.

 # Safety

 No other thread is in a call with it.

 # Threads

 Any.
 */
int rr_bootstrap_close(rr_bootstrap *bootstrap);

/*
 Takes the message that rr_peek would find out of matching (MPI_Mprobe): no receive gets it but
 rr_post_receive_claimed. 1: there is one, with a handle in `message`. 0: there is none.

 # Errors

 As for rr_peek.

 # Safety

 `selector` can be read, `message` written (null where there is none); `status` is null or can be
 written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_claim(rr_endpoint *endpoint,
             const rr_selector *selector,
             rr_message **message,
             rr_status *status);

/*
 Receives a claimed message. Otherwise as rr_post_receive. On success the handle is spent.

 # Completion

 As for rr_post_receive.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EAGAIN, RR_EINVAL (also: the message is another engine's): the handle
 stays, and the message can still be received.

 # Safety

 As for rr_post_receive. No other thread is in a call with the message.

 # Threads

 Any; of RR_OWNED its own.
 */
int rr_post_receive_claimed(rr_endpoint *endpoint,
                            rr_message *message,
                            void *data,
                            size_t length,
                            const rr_receive_options *options,
                            rr_operation *operation);

/*
 Drops a claimed message: its sender ends as if it had been received. The handle is spent.

 # Errors

 RR_EHANDLE: it was received or dropped before. RR_ETHREAD.

 # Safety

 No other thread is in a call with the message.

 # Threads

 Any; of RR_OWNED its own.
 */
int rr_message_discard(rr_message *message);

/*
 Takes requests for connections with this endpoint from now on: events of the queue that it
 reports to (RR_EVENT_REQUEST). The first endpoint of an engine is also found by IP address and
 port alone (rr_address_from_text). A listener keeps the engine open, and its port, also when the
 endpoint is closed.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null; options of another size; the endpoint has a listener
 already.

 # Safety

 `options` is null or can be read; `listener` can be written, and on failure is null.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_listen(rr_endpoint *endpoint, const rr_listen_options *options, rr_listener **listener);

/*
 Closes a listener: requests are refused from then on, those that wait among them. Connections
 stay.

 # Errors

 RR_EHANDLE: it was closed before. RR_ETHREAD.

 # Safety

 No other thread is in a call with it.

 # Threads

 Any; of RR_OWNED its own.
 */
int rr_listener_close(rr_listener *listener);

/*
 Asks the listener of an endpoint for a connection with this one, with up to
 RR_PRIVATE_DATA_BYTES of private data, and does not wait. How it ends is an event of the queue
 of this endpoint: RR_EVENT_OPENED with the peer, RR_EVENT_REJECTED, or RR_EVENT_ENDED when
 `timeout_ns` passes (RR_FOREVER: never) or the engine of the listener fails first.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, no address, more data. RR_ELIMIT: 65536 connections,
 the setting sessions_max. Why the peer could not be connected before: RR_EUNREACHABLE, ...

 # Safety

 `address` and `length` bytes at `data` can be read, `connection` written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_request_connection(rr_endpoint *endpoint,
                          const rr_address *address,
                          const void *data,
                          size_t length,
                          int64_t timeout_ns,
                          rr_connection *connection);

/*
 Accepts a request of `listener` into `endpoint`, which may be of another engine, with private
 data for the peer. The connection is established with the event RR_EVENT_OPENED of the queue of
 `endpoint`, with the peer; if who asked does not confirm within 10 s, RR_EVENT_ENDED does.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, more data than RR_PRIVATE_DATA_BYTES; no such request:
 it was answered, or withdrawn (RR_EVENT_WITHDRAWN). RR_ELIMIT: 65536 connections, the setting
 sessions_max. Who asked is gone: RR_ELOST, ... After RR_EHANDLE, RR_ETHREAD, and RR_EINVAL for
 null or too much data, the request still waits; else it is spent.

 # Safety

 `length` bytes at `data` can be read, `connection` written.

 # Threads

 Any, at the same time; of RR_OWNED their own.
 */
int rr_accept(rr_endpoint *endpoint,
              rr_listener *listener,
              rr_request request,
              const void *data,
              size_t length,
              rr_connection *connection);

/*
 Rejects a request of `listener`, with private data for who asked.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, more data than RR_PRIVATE_DATA_BYTES; no such request:
 it was answered, or withdrawn.

 # Safety

 `length` bytes at `data` can be read.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_reject(rr_listener *listener, rr_request request, const void *data, size_t length);

/*
 Ends a connection of this endpoint, or withdraws a request. The other side is notified
 by RR_EVENT_ENDED; here there is no event. Sends that are outstanding go on, and the peer stays.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: no such connection: it is over (see the events), or another
 endpoint's.

 # Safety

 The endpoint is not closed during the call.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_shut_down(rr_endpoint *endpoint, rr_connection connection);

/*
 Opens a domain: settings, registered memory, the choice of NICs. A process needs one.

 `settings` is an array of "name=value" whose last entry is null, or null itself. What is in it
 wins over the environment (RINGRAIL_NAME) and the files (RINGRAIL_CONFIG, ringrail.toml);
 with the flag RR_ISOLATED neither of these is read. A job's processes need the same job_secret
 (rr_secret_random), or insecure=true.

 # Errors

 RR_EINVAL: null, an entry without "=", unknown flags. RR_ESETTINGS: a setting is unknown or out
 of range, or there is no secret. RR_ESYSTEM: memory that cannot be had.

 # Safety

 The texts end with zero bytes, the array with a null. They are the caller's again on return.
 `domain` can be written; on failure it is null.

 # Threads

 Any.
 */
int rr_domain_open(const char *const *settings, uint32_t flags, rr_domain **domain);

/*
 Closes the handle of a domain. Endpoints that were opened from it go on, and keep what they
 need.

 # Errors

 RR_EHANDLE: it was closed before.

 # Safety

 No other thread is in a call with it.

 # Threads

 Any.
 */
int rr_domain_close(rr_domain *domain);

/*
 Writes the value of a setting in force, with a zero byte behind it, and gives its length without
 that, also where the text was cut to `capacity`.

 # Errors

 RR_EHANDLE. RR_EINVAL: null, or there is no setting of this name.

 # Safety

 `name` ends with a zero byte; `capacity` bytes can be written at `buffer`.

 # Threads

 Any, at the same time.
 */
int rr_domain_setting(rr_domain *domain, const char *name, char *buffer, size_t capacity);

/*
 Makes a new secret for a job, as the setting job_secret takes it: 64 digits and a zero byte.
 Hand it to the processes of the job by a way that only they can read.

 # Errors

 RR_ETRUNCATED: less than RR_SECRET_TEXT_BYTES. RR_EINVAL: null.

 # Safety

 `capacity` bytes can be written at `buffer`.

 # Threads

 Any.
 */
int rr_secret_random(char *buffer, size_t capacity);

/*
 Opens an endpoint on an engine of its own. It listens from now on, and its address can be given
 to peers. By default every thread of the process may use it (RR_SHARED).

 An endpoint of RR_OWNED, and all objects that are made from it, belong to the calling thread:
 it makes all progress, goes by io_uring where the kernel allows it, and takes no lock. Other
 threads get RR_ETHREAD. It is to be closed before its thread ends, or it stays open.

 # Errors

 RR_EHANDLE. RR_EINVAL: null, an unknown mode, a port beyond 65535; the setting lanes = uring
 with a mode that is not RR_OWNED. RR_ESYSTEM: no NIC that can be used, a port that is taken, no
 descriptors.

 # Safety

 `options` is null or can be read; `endpoint` can be written, and on failure is null.

 # Threads

 Any, at the same time.
 */
int rr_endpoint_open(rr_domain *domain, const rr_endpoint_options *options, rr_endpoint **endpoint);

/*
 Opens an endpoint beside another one: on the same engine, with an address, and if wanted queues,
 of its own. It is of the same mode.

 # Errors

 RR_EHANDLE. RR_EINVAL: null, unknown flags, a queue of another engine. RR_ELIMIT: an engine has
 1024 endpoints. RR_ETHREAD.

 # Safety

 `options` is null or can be read; `opened` can be written, and on failure is null.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_endpoint_open_beside(rr_endpoint *endpoint,
                            const rr_beside_options *options,
                            rr_endpoint **opened);

/*
 Closes an endpoint. Its receives end at once, its sends go out, up to the setting close_linger;
 what does not end by itself ends with RR_ECANCELLED, in the queues that have other users. With
 the last endpoint, queue, region and claimed message its engine closes, and notifies
 its peers.

 # Completion

 On return the memory of operations of this endpoint is not accessed any more.

 # Errors

 RR_EHANDLE: it was closed before. RR_ETHREAD.

 # Safety

 No other thread is in a call with it.

 # Threads

 Any; of RR_OWNED its own.
 */
int rr_endpoint_close(rr_endpoint *endpoint);

/*
 Gives the address of an endpoint, for peers to insert.

 # Errors

 RR_EHANDLE. RR_EINVAL: null. RR_ETHREAD.

 # Safety

 `address` can be written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_endpoint_address(rr_endpoint *endpoint, rr_address *address);

/*
 Which driver moves the messages of an endpoint: "uring" or "sockets". Null on failure. The text
 lives as long as the process.

 # Errors

 RR_EHANDLE, RR_ETHREAD: see rr_last_error.

 # Safety

 The endpoint is not closed during the call.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
const char *rr_endpoint_driver(rr_endpoint *endpoint);

/*
 Makes progress without waiting: 1 if something happened, 0 if not. Every call that reads or
 waits does so, too. An endpoint of RR_DEDICATED needs none.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_ESYSTEM: the driver failed for good.

 # Safety

 The endpoint is not closed during the call.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_progress(rr_endpoint *endpoint);

/*
 The hint of messages of an endpoint that say none themselves. It changes when a message goes,
 never the order of matching.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: no such hint, or RR_HINT_UNSAID.

 # Safety

 The endpoint is not closed during the call.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_set_hint(rr_endpoint *endpoint, uint32_t hint_of_all);

/*
 The same for tagged messages in one context; RR_HINT_UNSAID: those have the endpoint's again.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: no such hint.

 # Safety

 The endpoint is not closed during the call.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_set_context_hint(rr_endpoint *endpoint, uint32_t context, uint32_t hint_of_context);

/*
 Opens an event queue on the engine of an endpoint, with room for `entries` events (at least 1).
 Endpoints report to it that are opened with it (rr_endpoint_open_beside). Who does not read it
 blocks nothing: it drops the oldest events.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.

 # Safety

 `queue` can be written, and on failure is null.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_eq_open(rr_endpoint *endpoint, size_t entries, rr_eq **queue);

/*
 Opens a handle of the event queue that an endpoint reports to: that of its engine, with room for
 4096 events, unless the endpoint was opened with others (rr_endpoint_open_beside).

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.

 # Safety

 `queue` can be written, and on failure is null.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_endpoint_eq(rr_endpoint *endpoint, rr_eq **queue);

/*
 Closes a handle of an event queue.

 # Errors

 RR_EHANDLE: it was closed before. RR_ETHREAD.

 # Safety

 No other thread is in a call with it.

 # Threads

 Any; of RR_OWNED its own.
 */
int rr_eq_close(rr_eq *queue);

/*
 Takes the oldest event. 1: there was one. 0: there was none until `timeout_ns` had passed
 (RR_FOREVER: never; 0: it does not wait). Makes progress.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ESYSTEM: the driver failed for good.

 # Safety

 `event` can be written.

 # Threads

 Any, at the same time: each event goes to one of them. Of RR_OWNED its own.
 */
int rr_eq_read(rr_eq *queue, rr_event *event, int64_t timeout_ns);

/*
 As rr_cq_fd, for rr_eq_arm.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_ESYSTEM: no descriptors.

 # Safety

 The queue is not closed during the call.

 # Threads

 One that sleeps at a time: another one opens a handle of its own (rr_endpoint_eq).
 */
int rr_eq_fd(rr_eq *queue);

/*
 As rr_cq_arm, for the events of this queue.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_ESYSTEM.

 # Safety

 The queue is not closed during the call.

 # Threads

 As for rr_eq_fd.
 */
int rr_eq_arm(rr_eq *queue);

/*
 What an error code means, in a few words. It lives as long as the process. See rr_last_error
 for what happened.

 # Errors

 None. A number that is no code is described as such, a positive one as success.

 # Threads

 Any.
 */
const char *rr_strerror(int code);

/*
 The name of an error code, such as "RR_EAGAIN". It lives as long as the process.

 # Errors

 None: of a number that is no code it is "?".

 # Threads

 Any.
 */
const char *rr_error_name(int code);

/*
 What the last call that failed in this thread failed by: cause, whose fault, and cure. Empty
 before the first failure. Calls that succeed leave it alone.

 # Errors

 None.

 # Safety

 The text is the library's. It is valid in this thread until this is called again here.

 # Threads

 Any; each has its own.
 */
const char *rr_last_error(void);

/*
 The Linux error number of rr_last_error: for RR_ESYSTEM what the
 system gave. 0 before the first failure.

 # Errors

 None.

 # Threads

 Any; each has its own.
 */
int rr_last_errno(void);

/*
 Posts a write of `length` bytes to the memory of a peer, which needs no call there. Its end goes
 to the transmit queue of the endpoint.

 # Order

 None, neither of operations on memory nor with messages, but by completion, RR_FENCE and
 rr_flush.

 # Completion

 At RR_LEVEL_INJECT when the memory may be reused: rr_flush reports whether the target refused
 it, by a count. At other levels, and of a long put always, when it is in the peer's memory, or
 with RR_EACCESS.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a length, a length that no memory has, unknown
 options. RR_EAGAIN: too much is outstanding: read the queue, and call again. RR_ENOPEER. Why the
 peer has failed. Of what is left to another thread these come with the completion.

 # Safety

 As for rr_post_send.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_put(rr_endpoint *endpoint,
                rr_peer peer,
                rr_remote at,
                const void *data,
                size_t length,
                const rr_send_options *options,
                rr_operation *operation);

/*
 Posts a write of `count` pieces of memory, in order. Otherwise as rr_post_put.

 # Errors

 As for rr_post_put. RR_EMEMORY: a piece that cannot be memory.

 # Safety

 As for rr_post_send, of each piece. The array itself is the caller's again on return.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_putv(rr_endpoint *endpoint,
                 rr_peer peer,
                 rr_remote at,
                 const rr_span *pieces,
                 size_t count,
                 const rr_send_options *options,
                 rr_operation *operation);

/*
 Writes a copy of a few bytes to the memory of a peer. Nothing is reported but a failure of the
 session; rr_flush reports whether it was refused.

 # Order

 As for rr_post_put.

 # Errors

 As for rr_post_put. RR_EINVAL also: longer than the setting inject_limit_bytes.

 # Safety

 `length` bytes can be read at `data`; they are the caller's again on return.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_inject_put(rr_endpoint *endpoint,
                  rr_peer peer,
                  rr_remote at,
                  const void *data,
                  size_t length,
                  const rr_send_options *options);

/*
 Writes to the memory of a peer, and waits until the put has completed, as described for
 rr_post_put.

 # Order

 As for rr_post_put.

 # Errors

 As for rr_post_put, and how the put failed. RR_ETIMEDOUT: `timeout_ns` (RR_FOREVER:
 never) has passed. What had not gone out was taken back; of what had the outcome is unknown
 (see rr_last_error), and the call returns at most 100 ms later.

 # Safety

 `length` bytes can be read at `data`, and stay as they are until the return. They are the
 caller's then, in any case.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_put(rr_endpoint *endpoint,
           rr_peer peer,
           rr_remote at,
           const void *data,
           size_t length,
           const rr_send_options *options,
           int64_t timeout_ns);

/*
 Posts a read of `length` bytes of the memory of a peer. Its end goes to the transmit queue of
 the endpoint.

 # Order

 As for rr_post_put.

 # Completion

 When the bytes are here, or with RR_EACCESS.

 # Errors

 As for rr_post_put.

 # Safety

 As for rr_post_receive.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_get(rr_endpoint *endpoint,
                rr_peer peer,
                rr_remote at,
                void *data,
                size_t length,
                const rr_send_options *options,
                rr_operation *operation);

/*
 Posts a read into `count` pieces of memory, in order. Otherwise as rr_post_get.

 # Errors

 As for rr_post_put. RR_EMEMORY: a piece that cannot be memory.

 # Safety

 As for rr_post_receive, of each piece. The array itself is the caller's again on return.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_getv(rr_endpoint *endpoint,
                 rr_peer peer,
                 rr_remote at,
                 const rr_span *pieces,
                 size_t count,
                 const rr_send_options *options,
                 rr_operation *operation);

/*
 Reads memory of a peer, and waits for it.

 # Order

 As for rr_post_put.

 # Errors

 As for rr_put.

 # Safety

 `length` bytes can be written at `data`, and are not accessed otherwise during the call. They
 are the caller's then, in any case.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_get(rr_endpoint *endpoint,
           rr_peer peer,
           rr_remote at,
           void *data,
           size_t length,
           const rr_send_options *options,
           int64_t timeout_ns);

/*
 Posts a flush: it completes when all operations on the memory of a peer that were posted before
 are done there. Its end goes to the transmit queue.

 # Completion

 With RR_EACCESS where the target refused operations that had completed at RR_LEVEL_INJECT since
 the last flush; the text has their number.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: unknown options. RR_EAGAIN. RR_ENOPEER. Why the peer has
 failed. Of what is left to another thread these come with the completion.

 # Safety

 `options` is null or can be read; `operation` is null or can be written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_flush(rr_endpoint *endpoint,
                  rr_peer peer,
                  const rr_send_options *options,
                  rr_operation *operation);

/*
 Waits until all operations on the memory of a peer that were posted before are done there.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EACCESS: the target refused operations since the last flush, by any
 endpoint of the engine. RR_ENOPEER. RR_ETIMEDOUT: `timeout_ns` (RR_FOREVER: never) has passed.
 Why the peer has failed.

 # Safety

 The endpoint is not closed during the call.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_flush(rr_endpoint *endpoint, rr_peer peer, int64_t timeout_ns);

/*
 Adds a peer to those that the engine of an endpoint knows. The same address gives the same
 number. Nothing is connected yet: the first send does so, or rr_connect.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, no address. RR_ELIMIT: the setting sessions_max.

 # Safety

 `address` can be read, `peer` written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_insert(rr_endpoint *endpoint, const rr_address *address, rr_peer *peer);

/*
 Removes a peer: what is outstanding with it ends with RR_EREMOVED.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_ENOPEER: it was removed before.

 # Safety

 The endpoint is not closed during the call.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_remove(rr_endpoint *endpoint, rr_peer peer);

/*
 Gives the address of a peer, also of one that was only met as the source of a message.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ENOPEER.

 # Safety

 `address` can be written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_peer_address(rr_endpoint *endpoint, rr_peer peer, rr_address *address);

/*
 Connects to `count` peers at once, and waits until all of them are connected. After the session
 with a peer has failed each call with it gives the same error until this: a peer that answers
 again, as one that stood still, is usable from then on.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ETIMEDOUT: the attempts go on. RR_ENOPEER. Why a
 peer could not be connected: RR_EUNREACHABLE, RR_ESECRET, ...; the other attempts go on.

 # Safety

 `count` peers can be read.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_connect(rr_endpoint *endpoint, const rr_peer *peers, size_t count, int64_t timeout_ns);

/*
 Gives the longest message, in bytes, that may go to a peer with its envelope now; longer ones
 are pulled by their receiver. 0: not connected.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.

 # Safety

 `limit` can be written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_eager_limit(rr_endpoint *endpoint, rr_peer peer, uint64_t *limit);

/*
 Opens a completion queue on the engine of an endpoint, with room for `entries` completions (at
 least 1), those of operations under way included. Endpoints are bound to it by
 rr_endpoint_open_beside.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.

 # Safety

 `queue` can be written, and on failure is null.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_cq_open(rr_endpoint *endpoint, size_t entries, rr_cq **queue);

/*
 Opens a handle of the queue that an endpoint is bound to: `which` is RR_TRANSMIT or RR_RECEIVE.
 Both are the same queue unless the endpoint was opened with others (rr_endpoint_open_beside).
 Each handle has a descriptor, and texts of errors, of its own.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, no such queue.

 # Safety

 `queue` can be written, and on failure is null.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_endpoint_cq(rr_endpoint *endpoint, uint32_t which, rr_cq **queue);

/*
 Closes a handle of a completion queue. The queue goes with its last handle and endpoint, and
 with it what was not read. Its descriptor is closed.

 # Errors

 RR_EHANDLE: it was closed before. RR_ETHREAD.

 # Safety

 No other thread is in a call with it.

 # Threads

 Any; of RR_OWNED its own.
 */
int rr_cq_close(rr_cq *queue);

/*
 Takes up to `room` completions off a queue, the oldest first, after one turn of progress, and
 gives how many (not more than 1024). Nothing is allocated for them once a thread has read a
 batch of that size.

 # Order

 Operations complete in any order.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ESYSTEM: the driver failed for good. Failures of
 operations are in the completions.

 # Safety

 `room` completions can be written at `completions`. The memory of an operation is the caller's
 again when its completion was read.

 # Threads

 Any, at the same time: each completion goes to one of them. Of RR_OWNED its own.
 */
int rr_cq_read(rr_cq *queue, rr_completion *completions, size_t room);

/*
 Like rr_cq_read, but waits for the first completion. 0: `timeout_ns` (RR_FOREVER: never) has
 passed, or `room` is 0.

 # Errors

 As for rr_cq_read.

 # Safety

 As for rr_cq_read.

 # Threads

 Any, at the same time: one of those that wait makes the progress of all. Of RR_OWNED its own.
 */
int rr_cq_wait(rr_cq *queue, rr_completion *completions, size_t room, int64_t timeout_ns);

/*
 Gives a descriptor for poll, epoll or an event loop: see rr_cq_arm. It is the library's: do not
 read or close it. It lives as long as the handle.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_ESYSTEM: no descriptors.

 # Safety

 The queue is not closed during the call.

 # Threads

 One that sleeps at a time: another one opens a handle of its own (rr_endpoint_cq).
 */
int rr_cq_fd(rr_cq *queue);

/*
 Makes progress, and prepares a sleep by rr_cq_fd. 1: sleep now; the descriptor is readable from
 the first thing that comes, and then rr_cq_read and another call of this are due. It may be
 something else than a completion of this queue. 0: completions are there.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_ESYSTEM.

 # Safety

 The queue is not closed during the call.

 # Threads

 As for rr_cq_fd.
 */
int rr_cq_arm(rr_cq *queue);

/*
 Writes why an operation failed: peer, cause, cure; with a zero byte behind it. Gives the length
 of the text without that byte, also where it was cut to `capacity`. The texts of the last 256
 failures are kept with the handle that they were read by; of others, and of success, it is what
 that of rr_strerror.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.

 # Safety

 `completion` can be read; `capacity` bytes can be written at `buffer`.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_cq_error_text(rr_cq *queue, const rr_completion *completion, char *buffer, size_t capacity);

/*
 Posts a receive. Its end goes to the receive queue of the endpoint, with `user_data` of the
 options.

 # Order

 Of the posted receives that accept a message the oldest gets it; of the messages that a receive
 accepts it gets the oldest of their source.

 # Completion

 When the message is in the memory. One that is longer than that ends in RR_ETRUNCATED with its
 beginning there.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a length, a length that no memory has, unknown
 options. RR_EAGAIN: too much is outstanding: read the queue, and call again. RR_ENOPEER. Why the
 source that is named has failed. Of what is left to another thread these come with the
 completion.

 # Safety

 `length` bytes can be written at `data`, and are not accessed otherwise, until the completion
 was read (one with RR_SILENT that succeeds has none; a later message has to show its end), or
 rr_endpoint_close returned. After an error they are the caller's at once. `selector` can be
 read; `operation` is null or can be written: for rr_cancel.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_receive(rr_endpoint *endpoint,
                    const rr_selector *selector,
                    void *data,
                    size_t length,
                    const rr_receive_options *options,
                    rr_operation *operation);

/*
 Posts a receive into `count` pieces of memory, in order. Otherwise as rr_post_receive.

 # Errors

 As for rr_post_receive. RR_EMEMORY: a piece that cannot be memory.

 # Safety

 As for rr_post_receive, of each piece. The array itself is the caller's again on return.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_receivev(rr_endpoint *endpoint,
                     const rr_selector *selector,
                     const rr_span *pieces,
                     size_t count,
                     const rr_receive_options *options,
                     rr_operation *operation);

/*
 Posts a receive of many messages into one piece of memory, one behind the other. It keeps its
 place among the posted receives, and takes messages until fewer than `min_free` bytes (at least
 1) are free.

 # Order

 As for rr_post_receive.

 # Completion

 One of RR_RECEIVED for each message, with `offset`; a last one of RR_MULTI_RECEIVE, which gives
 the memory back. All have the same `user_data`. rr_cancel ends it after what it has matched.

 # Errors

 As for rr_post_receive. RR_EINVAL or RR_EMEMORY also: 4 GiB and more of memory.

 # Safety

 As for rr_post_receive, until the completion of RR_MULTI_RECEIVE was read.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_receive_many(rr_endpoint *endpoint,
                         const rr_selector *selector,
                         void *data,
                         size_t length,
                         size_t min_free,
                         const rr_receive_options *options,
                         rr_operation *operation);

/*
 Waits for a message, making progress meanwhile.

 # Order

 As for rr_post_receive.

 # Errors

 As for rr_post_receive, and how the receive failed. RR_ETRUNCATED: the memory has the beginning
 of the message. RR_ETIMEDOUT: `timeout_ns` (RR_FOREVER: never) has passed. A receive that had
 not matched was taken back; the message of one that had, and has not come whole, is lost
 (see rr_last_error), and the call returns at most 100 ms later.

 # Safety

 `length` bytes can be written at `data`, and are not accessed otherwise during the call. They
 are the caller's then, in any case. `status` is null or can be written: of success, and of
 RR_ETRUNCATED, it has the message.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_receive(rr_endpoint *endpoint,
               const rr_selector *selector,
               void *data,
               size_t length,
               rr_status *status,
               int64_t timeout_ns);

/*
 Looks at the message that a receive with this selector would get now, and leaves it where it is.
 Makes progress first. 1: there is one. 0: there is none.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ENOPEER. Why the source that is named has failed.

 # Safety

 `selector` can be read; `status` is null or can be written.

 # Threads

 Any, at the same time; of RR_OWNED its own. What one thread has seen another may receive:
 rr_claim takes it out.
 */
int rr_peek(rr_endpoint *endpoint, const rr_selector *selector, rr_status *status);

/*
 Makes a region of zeroed memory of the library's (see rr_region_base), in huge pages where the
 kernel has some. It belongs to the engine of the endpoint: keys work with peers that address
 this endpoint or one beside it.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_EMEMORY. RR_ELIMIT: the engine has as many regions
 as it may have.

 # Safety

 `region` can be written, and on failure is null.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_region_allocate(rr_endpoint *endpoint, size_t length, rr_region **region);

/*
 Makes a region of memory of the caller's, with what is in it. Otherwise as rr_region_allocate.

 # Errors

 As for rr_region_allocate. RR_EINVAL also: null with a length, a length that no memory has.

 # Safety

 `length` bytes at `data` are mapped, and can be read and written, until rr_region_close has
 returned. The program accesses them meanwhile by atomics, or while no peer does. `region` can be
 written, and on failure is null.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_region_register(rr_endpoint *endpoint, void *data, size_t length, rr_region **region);

/*
 Takes back all keys of a region, and closes it. Operations of peers that have its memory get
 100 ms to end; those under way then are aborted, and fail at their peers. It returns within
 little more than that, whatever peers do.

 # Completion

 On return the memory is the caller's; that of rr_region_allocate is gone.

 # Errors

 RR_EHANDLE: it was closed before. RR_ETHREAD.

 # Safety

 No other thread is in a call with it, or uses what rr_region_base gave.

 # Threads

 Any; of RR_OWNED its own.
 */
int rr_region_close(rr_region *region);

/*
 Where the memory of a region begins: a multiple of 8, of memory of the library's. Null on
 failure.

 # Errors

 RR_EHANDLE, RR_ETHREAD: see rr_last_error.

 # Safety

 Peers with a key may write at any time: look at it by atomics, or while none does. It is valid
 until rr_region_close.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
void *rr_region_base(rr_region *region);

/*
 Makes a key to a region, for peers that it is given to by any means. Any number of keys may open
 it. `options` null: the whole region, all rights, all peers of the job.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, unknown flags, a range that is not inside, no rights, a
 chosen key that is in use. RR_ENOPEER.

 # Safety

 `options` is null or can be read, with its peers, which are the caller's again on return; `key`
 can be written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_region_key(rr_region *region, const rr_key_options *options, uint64_t *key);

/*
 Takes a key back: from the return on nothing begins by it. Waits until nothing that began by it
 reaches the memory.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: no key of this region. RR_EBUSY: an operation is still under
 way when `timeout_ns` (RR_FOREVER: never) has passed; the key is taken back all the same.

 # Safety

 The region is not closed during the call.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_region_revoke(rr_region *region, uint64_t key, int64_t timeout_ns);

/*
 Copies bytes out of a region, while peers may write it.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a length; a range that is not inside.

 # Safety

 `length` bytes can be written at `into`, which is not in the region.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_region_read(rr_region *region, size_t offset, void *into, size_t length);

/*
 Copies bytes into a region, while peers may read it.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a length; a range that is not inside.

 # Safety

 `length` bytes can be read at `data`, which is not in the region.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_region_write(rr_region *region, size_t offset, const void *data, size_t length);

/*
 Returns the counters of the operations of peers on a region. The bytes of operations that are
 counted are visible to the thread that reads the count.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.

 # Safety

 `counts` can be written.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_region_counted(rr_region *region, rr_region_counts *counts);

/*
 Makes progress until each count of a region is `least` or more. 1: it is. 0: `timeout_ns`
 (RR_FOREVER: never) has passed.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ESYSTEM: the driver failed for good.

 # Safety

 `least` can be read.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_region_wait(rr_region *region, const rr_region_counts *least, int64_t timeout_ns);

/*
 Posts a send. Its end goes to the transmit queue of the endpoint, with `user_data` of the
 options, also where it is over already; with RR_SILENT only a failure does.

 # Order

 Messages of one endpoint to one endpoint in one context match receives in the order in which
 they were posted. Operations complete in any order.

 # Completion

 When the send has come as far as the level of the options asks. A long message is pulled by its
 receiver, and completes at every level when it is there.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a length, a length that no memory has, unknown
 options. RR_EAGAIN: too much is outstanding: read the queue, and call again. RR_ENOPEER. Why the
 peer has failed. Of what is left to another thread these come with the completion.

 # Safety

 `length` bytes at `data` stay as they are until the completion was read (with RR_SILENT: until a
 later completion has to show its end), or rr_endpoint_close returned. After an error they are
 the caller's at once. `operation` is null or can be written: for rr_cancel.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_send(rr_endpoint *endpoint,
                 rr_peer peer,
                 rr_envelope envelope,
                 const void *data,
                 size_t length,
                 const rr_send_options *options,
                 rr_operation *operation);

/*
 Posts a send of `count` pieces of memory, in order, as one message. Otherwise as rr_post_send.
 There may be more than IOV_MAX.

 # Errors

 As for rr_post_send. RR_EMEMORY: a piece that cannot be memory.

 # Safety

 As for rr_post_send, of each piece. The array itself is the caller's again on return.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_post_sendv(rr_endpoint *endpoint,
                  rr_peer peer,
                  rr_envelope envelope,
                  const rr_span *pieces,
                  size_t count,
                  const rr_send_options *options,
                  rr_operation *operation);

/*
 Sends a copy of a short message. There is no completion unless it fails later. The level of the
 options does not matter.

 # Order

 As for rr_post_send.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EAGAIN: it cannot go out now (no connection yet, no credit): make
 progress, and call again. RR_EINVAL: longer than the setting inject_limit_bytes; null with a
 length. RR_ENOPEER. Why the peer has failed.

 # Safety

 `length` bytes can be read at `data`; they are the caller's again on return.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_inject(rr_endpoint *endpoint,
              rr_peer peer,
              rr_envelope envelope,
              const void *data,
              size_t length,
              const rr_send_options *options);

/*
 Sends a message, and waits until it has come as far as the level of the options asks, making
 progress meanwhile. `user_data` and RR_SILENT do not matter: there is no completion.

 # Order

 As for rr_post_send.

 # Errors

 As for rr_post_send, and how the send failed. RR_ETIMEDOUT: `timeout_ns` (RR_FOREVER: never)
 has passed. A send that had not gone out was taken back; of one that had the outcome is unknown
 (see rr_last_error), and the call returns at most 100 ms later.

 # Safety

 `length` bytes can be read at `data`, and stay as they are until the return. They are the
 caller's then, in any case.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_send(rr_endpoint *endpoint,
            rr_peer peer,
            rr_envelope envelope,
            const void *data,
            size_t length,
            const rr_send_options *options,
            int64_t timeout_ns);

/*
 Cancels a posted operation that has not matched (receive) or gone out (send). 1: its completion
 has RR_ECANCELLED. 0: too late; it ends as if it had not been cancelled, or has ended.

 # Errors

 RR_EHANDLE, RR_ETHREAD.

 # Safety

 The endpoint is not closed during the call. The memory of the operation is the library's until
 its completion was read.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_cancel(rr_endpoint *endpoint, rr_operation operation);

/*
 Writes everything that the engine of an endpoint, its paths and its NICs have counted as of now,
 as a text in the format of Prometheus, with a zero byte behind it. Gives the length without
 that, also where the text was cut to `capacity`: call with 0 first to learn how much it is, and
 ask for some more, for it may grow.

 # Errors

 RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a capacity.

 # Safety

 `capacity` bytes can be written at `buffer`, which may be null for 0.

 # Threads

 Any, at the same time; of RR_OWNED its own.
 */
int rr_statistics(rr_endpoint *endpoint, char *buffer, size_t capacity);

/*
 The version of the library, such as "0.1.0". It lives as long as the process.

 # Errors

 None.

 # Threads

 Any.
 */
const char *rr_version(void);

/*
 The version of the library as one number: major << 16 | minor << 8 | patch. A program compares
 it with the numbers of the header that it was compiled with.

 # Errors

 None.

 # Threads

 Any.
 */
uint32_t rr_version_number(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RINGRAIL_H */

#define RR_SEND_OPTIONS_INIT {(uint32_t)sizeof(rr_send_options), 0, 0, 0, 0, 0}
#define RR_RECEIVE_OPTIONS_INIT {(uint32_t)sizeof(rr_receive_options), 0, 0}
#define RR_ENDPOINT_OPTIONS_INIT {(uint32_t)sizeof(rr_endpoint_options), RR_SHARED, 0, 0}
#define RR_BESIDE_OPTIONS_INIT {(uint32_t)sizeof(rr_beside_options), 0, NULL, NULL, NULL}
#define RR_LISTEN_OPTIONS_INIT {(uint32_t)sizeof(rr_listen_options), 128, 60000000000}
#define RR_KEY_OPTIONS_INIT                                                                        \
    {(uint32_t)sizeof(rr_key_options),                                                             \
     RR_REMOTE_READ | RR_REMOTE_WRITE | RR_REMOTE_ATOMIC, 0, RR_TO_THE_END, 0, 0, 0, NULL, 0}
#define RR_MEMBER_INIT {(uint32_t)sizeof(rr_member), 0, 1, 0, NULL, RR_FOREVER}
#define RR_ATOMIC_INIT {(uint32_t)sizeof(rr_atomic), RR_SUM, RR_UINT64, 0, 1, NULL, NULL}

/* The envelope of a message with a tag in a context. */
static inline rr_envelope rr_tagged(uint32_t context, uint64_t tag)
{
    rr_envelope envelope = {tag, context, 0};
    return envelope;
}

/* The envelope of a message with neither. */
static inline rr_envelope rr_untagged(void)
{
    rr_envelope envelope = {0, 0, RR_UNTAGGED};
    return envelope;
}

/* Accepts exactly this envelope, from a peer or RR_ANY_PEER. */
static inline rr_selector rr_from(rr_peer source, rr_envelope envelope)
{
    rr_selector selector = {source, 0, envelope};
    return selector;
}
