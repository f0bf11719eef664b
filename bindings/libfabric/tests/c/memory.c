/* Memory of peers: puts, gets, atomic operations, keys, counters. */
#include "side.h"

#define ALL_RIGHTS (FI_REMOTE_READ | FI_REMOTE_WRITE)

static uint64_t words[1024];

static void puts_and_gets_reach_it(struct side *a, struct side *b, uint64_t key) {
    uint64_t out[4] = {1, 2, 3, 4}, in[4] = {0};
    CALL(fi_write(a->ep, out, sizeof out, NULL, a->peer, 64, key, &out));
    struct fi_cq_tagged_entry entry = next(a, b);
    CHECK(entry.op_context == &out && entry.flags == (FI_RMA | FI_WRITE));
    CHECK(words[8] == 1 && words[11] == 4);
    CALL(fi_read(a->ep, in, sizeof in, NULL, a->peer, 64, key, &in));
    entry = next(a, b);
    CHECK(entry.op_context == &in && entry.flags == (FI_RMA | FI_READ));
    CHECK(memcmp(in, out, sizeof in) == 0);

    CALL(fi_writedata(a->ep, out, 8, NULL, 55, a->peer, 0, key, &out));
    entry = next(b, a);
    CHECK(entry.data == 55 && entry.len == 8 && entry.op_context == NULL);
    CHECK(entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA));
    CHECK(words[0] == 1);
    CHECK(next(a, b).op_context == &out);
}

static void strangers_are_refused(struct side *a, struct side *b, uint64_t key) {
    uint64_t out = 9;
    int context;
    CALL(fi_write(a->ep, &out, 8, NULL, a->peer, 0, key + 1, &context));
    struct fi_cq_err_entry error = next_error(a, b);
    CHECK(error.err == FI_EACCES && error.op_context == &context);
    CALL(fi_read(a->ep, &out, 8, NULL, a->peer, sizeof words, key, &context));
    CHECK(next_error(a, b).err == FI_EACCES);
    struct fid_mr *other;
    CHECK(fi_mr_reg(b->domain, words, 8, ALL_RIGHTS, 0, key, 0, &other, NULL) == -FI_ENOKEY);
}

static void atomics_are_done_there(struct side *a, struct side *b, uint64_t key) {
    uint64_t operand = 5, before = 0, compare = 15, bits = 1;
    size_t count = 0;
    words[100] = 10;
    CALL(fi_atomic(a->ep, &operand, 1, NULL, a->peer, 800, key, FI_UINT64, FI_SUM, &bits));
    struct fi_cq_tagged_entry entry = next(a, b);
    CHECK(entry.op_context == &bits && entry.flags == (FI_ATOMIC | FI_WRITE) && words[100] == 15);
    operand = 7;
    CALL(fi_compare_atomic(a->ep, &operand, 1, NULL, &compare, NULL, &before, NULL, a->peer, 800,
                           key, FI_UINT64, FI_CSWAP, &before));
    entry = next(a, b);
    CHECK(entry.op_context == &before && entry.flags == (FI_ATOMIC | FI_READ));
    CHECK(before == 15 && words[100] == 7);
    CALL(fi_fetch_atomic(a->ep, NULL, 1, NULL, &before, NULL, a->peer, 800, key, FI_UINT64,
                         FI_ATOMIC_READ, NULL));
    (void)next(a, b);
    CHECK(before == 7);
    CALL(fi_atomicvalid(a->ep, FI_DOUBLE, FI_SUM, &count));
    CHECK(count >= 1);
    CHECK(fi_atomicvalid(a->ep, FI_DOUBLE, FI_BOR, &count) == -FI_EOPNOTSUPP);
    CHECK(fi_atomic(a->ep, &operand, 1, NULL, a->peer, 800, key, FI_LONG_DOUBLE, FI_SUM, NULL) ==
          -FI_EOPNOTSUPP);
}

/* Waits for a counter of `side` while the other side makes progress by itself. */
static void counters_count(void) {
    struct side a, b;
    struct fid_cntr *arrived;
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_mr *mr;
    uint64_t out = 3;
    open_side(&a, FI_SELECTIVE_COMPLETION, 1);
    open_side(&b, 0, 0);
    know(&a, &b);
    CALL(fi_cntr_open(b.domain, &attr, &arrived, NULL));
    CALL(fi_mr_reg(b.domain, words, sizeof words, ALL_RIGHTS, 0, 6, 0, &mr, NULL));
    CALL(fi_mr_bind(mr, &arrived->fid, FI_REMOTE_WRITE));
    for (int at = 0; at < 10; at++)
        CALL(fi_write(a.ep, &out, 8, NULL, a.peer, 8 * (uint64_t)at, 6, NULL));
    CALL(fi_inject_write(a.ep, &out, 8, a.peer, 80, 6));
    CALL(fi_cntr_wait(a.writes, 11, 20000));
    CALL(fi_cntr_wait(arrived, 11, 20000));
    CHECK(fi_cntr_read(a.writes) == 11 && fi_cntr_readerr(a.writes) == 0);
    CHECK(words[10] == 3);
    expect_nothing(&a, &b);
    CHECK(fi_cntr_wait(arrived, 12, 10) == -FI_ETIMEDOUT);
    CALL(fi_write(a.ep, &out, 8, NULL, a.peer, 0, 7, NULL));
    CHECK(fi_cntr_wait(a.writes, 12, 20000) == -FI_EAVAIL);
    CHECK(next_error(&a, &b).err == FI_EACCES && fi_cntr_readerr(a.writes) == 1);
    CALL(fi_close(&mr->fid));
    CHECK(fi_cntr_read(arrived) == 11);
    CALL(fi_cntr_set(arrived, 2));
    CALL(fi_cntr_add(arrived, 3));
    CHECK(fi_cntr_read(arrived) == 5);
    CALL(fi_close(&arrived->fid));
    close_side(&a);
    close_side(&b);
}

/* All of memory in one region: MPI's dynamic windows. */
static void all_of_memory_is_a_region(struct side *a, struct side *b) {
    struct fid_mr *mr;
    uint64_t out = 1234;
    int context;
    CALL(fi_mr_reg(b->domain, NULL, UINTPTR_MAX, ALL_RIGHTS, 0, 90, 0, &mr, NULL));
    CALL(fi_write(a->ep, &out, 8, NULL, a->peer, (uintptr_t)&words[20], 90, &context));
    CHECK(next(a, b).op_context == &context && words[20] == 1234);
    CALL(fi_write(a->ep, &out, 8, NULL, a->peer, 16, 90, &context));
    CHECK(next_error(a, b).err == FI_EACCES);
    CALL(fi_close(&mr->fid));
}

int main(void) {
    struct side a, b;
    struct fid_mr *mr;
    const uint64_t key = 0xc0de;
    open_side(&a, 0, 0);
    open_side(&b, 0, 0);
    know(&a, &b);
    know(&b, &a);
    CALL(fi_mr_reg(b.domain, words, sizeof words, ALL_RIGHTS, 0, key, 0, &mr, NULL));
    CHECK(fi_mr_key(mr) == key);
    puts_and_gets_reach_it(&a, &b, key);
    strangers_are_refused(&a, &b, key);
    atomics_are_done_there(&a, &b, key);
    all_of_memory_is_a_region(&a, &b);
    CALL(fi_close(&mr->fid));
    close_side(&a);
    close_side(&b);
    counters_count();
    return 0;
}
