/* Eight threads send by one endpoint whose queue has little room, and read that queue, too: each
 * post is taken or refused with FI_EAGAIN, and no entry is an error. Truncated messages are errors,
 * of which a thread that is told of one finds it. */
#include "side.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8, ROUNDS = 3000, LENGTH = 8, CUT = 50 };

static struct side left, right;
static atomic_int ended, cut, refused;

/* Reads what there is of a queue. */
static void read_queue(struct side *side)
{
    struct fi_cq_tagged_entry entries[4];
    ssize_t got = fi_cq_read(side->cq, entries, 4);
    if (got > 0) {
        atomic_fetch_add(&ended, (int)got);
    } else if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        CHECK(fi_cq_readerr(side->cq, &error, 0) == 1);
        if (error.err != FI_ETRUNC)
            fprintf(stderr, "an error: %s\n", fi_strerror(error.err));
        CHECK(error.err == FI_ETRUNC);
        atomic_fetch_add(&cut, 1);
    } else {
        CHECK(got == -FI_EAGAIN);
    }
}

static void *talk(void *argument)
{
    uint64_t number = (uint64_t)(size_t)argument;
    static char bytes[THREADS][LENGTH * 2], room[THREADS][LENGTH];
    for (int round = 0; round < ROUNDS; round++) {
        size_t length = round < CUT ? LENGTH * 2 : LENGTH;
        ssize_t answer;
        while ((answer = fi_trecv(right.ep, room[number], LENGTH, NULL, FI_ADDR_UNSPEC, number, 0,
                                  NULL)) == -FI_EAGAIN) {
            atomic_fetch_add(&refused, 1);
            read_queue(&right);
        }
        CHECK(answer == 0);
        while ((answer = fi_tsend(left.ep, bytes[number], length, NULL, left.peer, number,
                                  NULL)) == -FI_EAGAIN) {
            atomic_fetch_add(&refused, 1);
            read_queue(&left);
            read_queue(&right);
        }
        CHECK(answer == 0);
    }
    return NULL;
}

int main(void)
{
    setenv("FI_RINGRAIL_CQ_ENTRIES", "64", 1);
    pthread_t threads[THREADS];
    open_side(&left, 0, 0);
    open_side(&right, 0, 0);
    know(&left, &right);
    know(&right, &left);
    for (size_t number = 0; number < THREADS; number++)
        CHECK(pthread_create(&threads[number], NULL, talk, (void *)number) == 0);
    for (size_t number = 0; number < THREADS; number++)
        CHECK(pthread_join(threads[number], NULL) == 0);
    double until = seconds() + 60;
    while (atomic_load(&ended) + atomic_load(&cut) < 2 * THREADS * ROUNDS && seconds() < until) {
        read_queue(&left);
        read_queue(&right);
    }
    CHECK(atomic_load(&ended) + atomic_load(&cut) == 2 * THREADS * ROUNDS);
    CHECK(atomic_load(&cut) == THREADS * CUT && atomic_load(&refused) > 0);
    close_side(&left);
    close_side(&right);
    return 0;
}
