/* Messages: entries, injects, selective completion, many receives in one buffer, peek, cancel. */
#include "side.h"

static void entries_say_what_they_are_of(struct side *a, struct side *b) {
    char out[16] = "fifteen letters", in[16];
    int sent, received;
    /* The first message goes before there is a connection. */
    CALL(fi_tinject(a->ep, out, 16, a->peer, 1));
    CALL(fi_trecv(b->ep, in, 16, NULL, FI_ADDR_UNSPEC, 1, 0, &received));
    struct fi_cq_tagged_entry entry = next(b, a);
    CHECK(entry.op_context == &received && entry.len == 16 && entry.tag == 1);
    CHECK(entry.flags == (FI_TAGGED | FI_RECV));
    CHECK(memcmp(in, out, 16) == 0);

    CALL(fi_trecv(b->ep, in, 16, NULL, b->peer, 0xf0, 0xf, &received));
    CALL(fi_tsenddata(a->ep, out, 5, NULL, 77, a->peer, 0xf7, &sent));
    entry = next(b, a);
    CHECK(entry.tag == 0xf7 && entry.data == 77 && entry.len == 5);
    CHECK(entry.flags == (FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA));
    entry = next(a, b);
    CHECK(entry.op_context == &sent && entry.flags == (FI_TAGGED | FI_SEND));

    CALL(fi_recv(b->ep, in, 16, NULL, FI_ADDR_UNSPEC, &received));
    CALL(fi_send(a->ep, out, 3, NULL, a->peer, &sent));
    entry = next(b, a);
    CHECK(entry.flags == (FI_MSG | FI_RECV) && entry.len == 3);
    CHECK(next(a, b).flags == (FI_MSG | FI_SEND));
    expect_nothing(a, b);
}

static void sources_are_named(struct side *a, struct side *b) {
    char in[4];
    struct fi_cq_tagged_entry entry;
    fi_addr_t source = 99;
    CALL(fi_trecv(b->ep, in, 4, NULL, FI_ADDR_UNSPEC, 3, 0, NULL));
    CALL(fi_tinject(a->ep, "abc", 4, a->peer, 3));
    ssize_t got;
    double until = seconds() + 20;
    while ((got = fi_cq_readfrom(b->cq, &entry, 1, &source)) == -FI_EAGAIN && seconds() < until)
        (void)fi_cq_read(a->cq, &entry, 0);
    CHECK(got == 1 && source == b->peer);
}

static void long_pieces_arrive_whole(struct side *a, struct side *b) {
    enum { LENGTH = 3000001 };
    char *out = malloc(LENGTH), *in = malloc(LENGTH);
    for (int at = 0; at < LENGTH; at++)
        out[at] = (char)(at * 7);
    struct iovec from[3] = {{out, 10}, {out + 10, 1000000}, {out + 1000010, LENGTH - 1000010}};
    struct iovec to[2] = {{in, 70}, {in + 70, LENGTH - 70}};
    CALL(fi_trecvv(b->ep, to, NULL, 2, b->peer, 9, 0, in));
    CALL(fi_tsendv(a->ep, from, NULL, 3, a->peer, 9, out));
    CHECK(next(b, a).len == LENGTH);
    CHECK(next(a, b).op_context == out);
    CHECK(memcmp(in, out, LENGTH) == 0);
    free(out);
    free(in);
}

static void many_are_received_into_one_buffer(struct side *a, struct side *b) {
    enum { LENGTH = 64, MESSAGES = 5, BUFFER = 360 };
    char buffer[BUFFER], out[LENGTH];
    int context;
    size_t least = LENGTH;
    CALL(fi_setopt(&b->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
    struct iovec iov = {buffer, BUFFER};
    struct fi_msg msg = {&iov, NULL, 1, FI_ADDR_UNSPEC, &context, 0};
    CALL(fi_recvmsg(b->ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
    int is_released = 0;
    for (int message = 0; message < MESSAGES; message++) {
        memset(out, 'a' + message, LENGTH);
        CALL(fi_inject(a->ep, out, LENGTH, a->peer));
        struct fi_cq_tagged_entry entry = next(b, a);
        CHECK(entry.op_context == &context && (entry.flags & FI_RECV) && entry.len == LENGTH);
        CHECK(entry.buf == buffer + message * LENGTH && memcmp(entry.buf, out, LENGTH) == 0);
        is_released = (entry.flags & FI_MULTI_RECV) != 0;
        CHECK(!is_released || message == MESSAGES - 1);
    }
    if (!is_released) {
        struct fi_cq_tagged_entry entry = next(b, a);
        CHECK(entry.op_context == &context && entry.flags == FI_MULTI_RECV);
    }
}

static void messages_are_found_claimed_and_discarded(struct side *a, struct side *b) {
    char in[8];
    struct iovec iov = {in, 8};
    int context;
    struct fi_msg_tagged msg = {&iov, NULL, 1, FI_ADDR_UNSPEC, 20, 3, &context, 0};
    CALL(fi_trecvmsg(b->ep, &msg, FI_PEEK));
    struct fi_cq_err_entry error = next_error(b, a);
    CHECK(error.err == FI_ENOMSG && error.op_context == &context);
    for (uint64_t tag = 20; tag < 23; tag++)
        CALL(fi_tinject(a->ep, "message", 8 - (tag - 20), a->peer, tag));
    /* A receive of another tag shows that they have come. */
    CALL(fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 30, 0, NULL));
    CALL(fi_tinject(a->ep, "last", 5, a->peer, 30));
    CHECK(next(b, a).tag == 30);

    CALL(fi_trecvmsg(b->ep, &msg, FI_PEEK));
    struct fi_cq_tagged_entry entry = next(b, a);
    CHECK(entry.tag == 20 && entry.len == 8 && (entry.flags & FI_TAGGED));
    CALL(fi_trecvmsg(b->ep, &msg, FI_PEEK | FI_CLAIM));
    CHECK(next(b, a).tag == 20);
    CALL(fi_trecvmsg(b->ep, &msg, FI_PEEK | FI_DISCARD));
    CHECK(next(b, a).tag == 21);
    CALL(fi_trecvmsg(b->ep, &msg, FI_CLAIM));
    entry = next(b, a);
    CHECK(entry.tag == 20 && entry.len == 8 && strcmp(in, "message") == 0);
    CALL(fi_trecvmsg(b->ep, &msg, FI_PEEK | FI_CLAIM));
    CHECK(next(b, a).tag == 22);
    CALL(fi_trecvmsg(b->ep, &msg, FI_CLAIM | FI_DISCARD));
    CHECK(next(b, a).tag == 22);
    CALL(fi_trecvmsg(b->ep, &msg, FI_PEEK));
    CHECK(next_error(b, a).err == FI_ENOMSG);
}

static void what_is_cut_or_cancelled_says_so(struct side *a, struct side *b) {
    char in[10];
    int contexts[3];
    CALL(fi_trecv(b->ep, in, 10, NULL, FI_ADDR_UNSPEC, 40, 0, &contexts[0]));
    CALL(fi_tinject(a->ep, "longer than ten", 16, a->peer, 40));
    struct fi_cq_err_entry error = next_error(b, a);
    CHECK(error.err == FI_ETRUNC && error.len == 10 && error.olen == 6 && error.tag == 40);
    CHECK(error.op_context == &contexts[0]);
    CHECK(fi_cq_strerror(b->cq, error.prov_errno, NULL, NULL, 0)[0] != 0);

    for (int at = 1; at < 3; at++)
        CALL(fi_trecv(b->ep, in, 10, NULL, FI_ADDR_UNSPEC, 41, 0, &contexts[at]));
    CALL(fi_cancel(&b->ep->fid, &contexts[2]));
    error = next_error(b, a);
    CHECK(error.err == FI_ECANCELED && error.op_context == &contexts[2]);
    CHECK(fi_cancel(&b->ep->fid, &contexts[2]) == -FI_ENOENT);
    CALL(fi_cancel(&b->ep->fid, &contexts[1]));
    CHECK(next_error(b, a).op_context == &contexts[1]);
}

static void silence_is_kept(void) {
    struct side a, b;
    char in[4];
    int context;
    open_side(&a, FI_SELECTIVE_COMPLETION, 0);
    open_side(&b, FI_SELECTIVE_COMPLETION, 0);
    know(&a, &b);
    CALL(fi_trecv(b.ep, in, 4, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
    CALL(fi_tsend(a.ep, "abc", 4, NULL, a.peer, 1, NULL));
    struct iovec iov = {in, 4};
    struct fi_msg_tagged msg = {&iov, NULL, 1, FI_ADDR_UNSPEC, 2, 0, &context, 0};
    CALL(fi_trecvmsg(b.ep, &msg, FI_COMPLETION));
    CALL(fi_tsend(a.ep, "def", 4, NULL, a.peer, 2, NULL));
    CHECK(next(&b, &a).op_context == &context);
    expect_nothing(&b, &a);
    expect_nothing(&a, &b);
    close_side(&a);
    close_side(&b);
}

int main(void) {
    struct side a, b;
    open_side(&a, 0, 0);
    open_side(&b, 0, 0);
    know(&a, &b);
    know(&b, &a);
    entries_say_what_they_are_of(&a, &b);
    sources_are_named(&a, &b);
    long_pieces_arrive_whole(&a, &b);
    many_are_received_into_one_buffer(&a, &b);
    messages_are_found_claimed_and_discarded(&a, &b);
    what_is_cut_or_cancelled_says_so(&a, &b);
    close_side(&a);
    close_side(&b);
    silence_is_kept();
    return 0;
}
