/* Injects to a peer that cannot be reached: they have no context, so no entry, and calls say why. */
#include "side.h"

/* How calls of `kind` to the peer are answered. */
static ssize_t inject(struct side *side, int kind) {
    uint64_t value = 1;
    switch (kind) {
    case 0:
        return fi_tinject(side->ep, &value, sizeof value, side->peer, 5);
    case 1:
        return fi_inject(side->ep, &value, sizeof value, side->peer);
    case 2:
        return fi_tinjectdata(side->ep, &value, sizeof value, 9, side->peer, 5);
    case 3:
        return fi_injectdata(side->ep, &value, sizeof value, 9, side->peer);
    case 4:
        return fi_inject_write(side->ep, &value, sizeof value, side->peer, 0, 1);
    case 5:
        return fi_inject_writedata(side->ep, &value, sizeof value, 9, side->peer, 0, 1);
    default:
        return fi_inject_atomic(side->ep, &value, 1, side->peer, 0, 1, FI_UINT64, FI_SUM);
    }
}

/* Reads the queue until a call of `kind` says what happened to the peer. */
static void expect_no_entry(int kind, int counts) {
    struct side gone, side;
    struct fi_cq_tagged_entry entry;
    open_side(&gone, 0, 0);
    open_side(&side, 0, counts);
    know(&side, &gone);
    close_side(&gone);
    CALL(inject(&side, kind));
    ssize_t answer = -FI_EAGAIN;
    double until = seconds() + 60;
    while ((answer == 0 || answer == -FI_EAGAIN) && seconds() < until) {
        CHECK(fi_cq_read(side.cq, &entry, 1) == -FI_EAGAIN);
        answer = inject(&side, kind);
    }
    CHECK(answer == -FI_EHOSTUNREACH);
    for (int turn = 0; turn < 1000; turn++)
        CHECK(fi_cq_read(side.cq, &entry, 1) == -FI_EAGAIN);
    if (counts && kind >= 4)
        CHECK(fi_cntr_readerr(side.writes) > 0 && fi_cntr_read(side.writes) == 0);
    close_side(&side);
}

int main(void) {
    for (int kind = 0; kind < 7; kind++)
        for (int counts = 0; counts < 2; counts++)
            expect_no_entry(kind, counts);
    return 0;
}
