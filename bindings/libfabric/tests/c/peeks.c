/* Peeks whose entries are not read: refused beyond a bound, and taken again behind a read. */
#include "side.h"

static ssize_t peek(struct side *side, uint64_t flags) {
    static struct fi_context2 context;
    struct fi_msg_tagged msg = {.addr = FI_ADDR_UNSPEC, .tag = 5, .context = &context};
    return fi_trecvmsg(side->ep, &msg, FI_PEEK | flags);
}

int main(void) {
    struct side a, b;
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    enum { FAR_BEYOND = 1000000 };
    int taken = 0;
    open_side(&a, 0, 0);
    open_side(&b, 0, 0);
    ssize_t answer = 0;
    while (taken < FAR_BEYOND && (answer = peek(&b, 0)) == 0)
        taken++;
    CHECK(answer == -FI_EAGAIN && taken >= 256);
    CHECK(peek(&b, FI_DISCARD) == -FI_EAGAIN && peek(&b, FI_CLAIM) == -FI_EAGAIN);
    CHECK(fi_cq_read(b.cq, &entry, 1) == -FI_EAVAIL);
    CHECK(fi_cq_readerr(b.cq, &error, 0) == 1 && error.err == FI_ENOMSG);
    CALL(peek(&b, 0));
    CHECK(peek(&b, 0) == -FI_EAGAIN);
    close_side(&a);
    close_side(&b);
    return 0;
}
