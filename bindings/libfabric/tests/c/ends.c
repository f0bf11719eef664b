/* How objects end: in any order, with operations outstanding, many times, across a fork. */
#include "side.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

static void exchange(struct side *a, struct side *b) {
    char in[8];
    CALL(fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 5, 0, in));
    CALL(fi_tinject(a->ep, "hello", 6, a->peer, 5));
    CHECK(next(b, a).op_context == in && strcmp(in, "hello") == 0);
}

static void what_is_used_is_busy(struct side *a) {
    CHECK(fi_close(&a->fabric->fid) == -FI_EBUSY);
    CHECK(fi_close(&a->domain->fid) == -FI_EBUSY);
    CHECK(fi_close(&a->cq->fid) == -FI_EBUSY);
    CHECK(fi_close(&a->av->fid) == -FI_EBUSY);
}

/* Operations of an endpoint that is closed have no entries, however they end. */
static void outstanding_operations_end_unheard(struct side *b, struct side *a) {
    char *in = malloc(1000000);
    for (uint64_t tag = 0; tag < 50; tag++)
        CALL(fi_trecv(b->ep, in, 1000, NULL, FI_ADDR_UNSPEC, 1000 + tag, 0, &in[tag]));
    struct iovec iov = {in, 1000000};
    struct fi_msg msg = {&iov, NULL, 1, FI_ADDR_UNSPEC, in, 0};
    CALL(fi_recvmsg(b->ep, &msg, FI_MULTI_RECV));
    CALL(fi_close(&b->ep->fid));
    b->ep = NULL;
    free(in);
    expect_nothing(b, a);
}

static void endpoints_come_and_go(struct side *b, struct side *a) {
    for (int turn = 0; turn < 300; turn++) {
        open_ep(b, 0);
        if (turn % 50 == 0) {
            know(a, b);
            exchange(a, b);
        }
        CALL(fi_close(&b->ep->fid));
    }
    open_ep(b, 0);
    know(a, b);
    exchange(a, b);
}

static void a_child_leaves_its_parent_alone(struct side *a, struct side *b) {
    for (int is_quick = 0; is_quick < 2; is_quick++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (is_quick)
                _exit(0);
            (void)fi_close(&a->ep->fid);
            exit(0);
        }
        int status = 1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        exchange(a, b);
    }
    CHECK(system("exit 0") == 0);
    exchange(a, b);
}

static void who_sleeps_is_woken(struct side *a, struct side *b) {
    struct fi_cq_tagged_entry entry;
    struct fid *fids[1] = {&b->cq->fid};
    char in[8];
    int fd = -1;
    double before = seconds();
    CHECK(fi_cq_sread(b->cq, &entry, 1, NULL, 30) == -FI_EAGAIN);
    CHECK(seconds() - before >= 0.029);
    CALL(fi_cq_signal(b->cq));
    CHECK(fi_cq_sread(b->cq, &entry, 1, NULL, 20000) == -FI_EAGAIN);
    CHECK(seconds() - before < 10);
    CALL(fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 6, 0, in));
    CALL(fi_control(&b->cq->fid, FI_GETWAIT, &fd));
    CALL(fi_tinject(a->ep, "wake", 5, a->peer, 6));
    double until = seconds() + 20;
    ssize_t got;
    while ((got = fi_cq_read(b->cq, &entry, 1)) == -FI_EAGAIN && seconds() < until) {
        if (fi_trywait(b->fabric, fids, 1) == FI_SUCCESS) {
            struct pollfd polled = {fd, POLLIN, 0};
            (void)poll(&polled, 1, 100);
        }
        (void)fi_cq_read(a->cq, &entry, 0);
    }
    CHECK(got == 1 && entry.op_context == in);
    CHECK(fi_cq_sread(a->cq, &entry, 1, NULL, 1) == -FI_EAGAIN);
}

int main(void) {
    struct side a, b;
    open_side(&a, 0, 0);
    open_side(&b, 0, 0);
    know(&a, &b);
    exchange(&a, &b);
    what_is_used_is_busy(&a);
    who_sleeps_is_woken(&a, &b);
    a_child_leaves_its_parent_alone(&a, &b);
    outstanding_operations_end_unheard(&b, &a);
    endpoints_come_and_go(&b, &a);
    close_side(&b);
    close_side(&a);
    return 0;
}
