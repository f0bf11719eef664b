/* Two sides that know each other by IP address and port alone: both get what the other one sends. */
#include "side.h"

static void exchange(struct side *a, struct side *b, uint64_t tag) {
    char in[8] = "";
    fi_addr_t source = FI_ADDR_NOTAVAIL;
    struct fi_cq_tagged_entry entry;
    ssize_t got;
    double until = seconds() + 20;
    CALL(fi_trecv(b->ep, in, 8, NULL, b->peer, tag, 0, in));
    CALL(fi_tinject(a->ep, "hello", 6, a->peer, tag));
    while ((got = fi_cq_readfrom(b->cq, &entry, 1, &source)) == -FI_EAGAIN && seconds() < until)
        (void)fi_cq_read(a->cq, &entry, 0);
    CHECK(got == 1 && entry.op_context == in && strcmp(in, "hello") == 0);
    CHECK(source == b->peer);
}

int main(void) {
    /* Both insert before there is a connection, or one does when it has been sent to. */
    for (int is_late = 0; is_late < 2; is_late++) {
        struct side a, b;
        char in[8] = "";
        addr_format = FI_SOCKADDR_IN;
        open_side(&a, 0, 0);
        open_side(&b, 0, 0);
        know(&a, &b);
        if (is_late) {
            CALL(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 9, 0, in));
            CALL(fi_tinject(a.ep, "first", 6, a.peer, 9));
            CHECK(next(&b, &a).op_context == in);
        }
        know(&b, &a);
        for (uint64_t tag = 0; tag < 100; tag++) {
            exchange(&a, &b, tag);
            exchange(&b, &a, tag);
        }
        close_side(&b);
        close_side(&a);
    }
    return 0;
}
