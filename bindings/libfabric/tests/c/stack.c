/* Calls on a stack as small as that of a user-level thread.
 *
 * Each step runs on a stack of its own, below which a page faults. Before it the stack is filled
 * with a pattern; after it the deepest byte that was changed tells what the step took. Objects that
 * an application opens once are opened by the main thread.
 *
 * Argument: how many bytes a step may take. */
#include "side.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, STACK = 256 << 10, PATTERN = 0xa5, KEY = 7, LONGEST = 4 << 20 };

static struct side left, right;
static unsigned char *stack;
static ucontext_t caller, callee;
static void (*step)(void);
static size_t budget, deepest;
static char out[LONGEST], in[LONGEST];
static size_t size;
static uint64_t level;

static void enter(void) { step(); }

/* Runs a step on the small stack. */
static void on_stack(const char *name, void (*function)(void)) {
    memset(stack, PATTERN, STACK);
    step = function;
    CHECK(getcontext(&callee) == 0);
    callee.uc_stack.ss_sp = stack;
    callee.uc_stack.ss_size = STACK;
    callee.uc_link = &caller;
    makecontext(&callee, enter, 0);
    CHECK(swapcontext(&caller, &callee) == 0);
    size_t free = 0;
    while (free < STACK && stack[free] == PATTERN)
        free++;
    size_t taken = STACK - free;
    if (taken > deepest)
        deepest = taken;
    if (taken > budget) {
        fprintf(stderr, "%s, %zu bytes: %zu bytes of stack, more than %zu\n", name, size, taken,
                budget);
        exit(1);
    }
}

#define ON_STACK(function) on_stack(#function, function)

/* Waits for `count` ends of operations of `side`, good or bad. */
static void ends(struct side *side, struct side *other, int count) {
    struct fi_cq_tagged_entry entry;
    while (count > 0) {
        ssize_t got = fi_cq_read(side->cq, &entry, 1);
        if (got == 1)
            count--;
        if (got == -FI_EAVAIL) {
            struct fi_cq_err_entry error = {0};
            char text[128];
            CHECK(fi_cq_readerr(side->cq, &error, 0) == 1);
            fi_cq_strerror(side->cq, error.prov_errno, error.err_data, text, sizeof text);
            count--;
        }
        if (other != NULL)
            fi_cq_read(other->cq, &entry, 0);
    }
}

static ssize_t post_send(void) {
    struct iovec piece = {out, size};
    struct fi_msg_tagged message = {
        .msg_iov = &piece, .iov_count = 1, .addr = left.peer, .tag = 1};
    return fi_tsendmsg(left.ep, &message, FI_COMPLETION | level);
}

static void post_receive(void) {
    CALL(fi_trecv(right.ep, in, size, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
}

static void know_each_other(void) {
    know(&left, &right);
    know(&right, &left);
}

static void expected(void) {
    post_receive();
    CALL(post_send());
    ends(&right, &left, 1);
    ends(&left, &right, 1);
}

static void unexpected(void) {
    struct fi_cq_tagged_entry entry;
    CALL(post_send());
    for (int turn = 0; turn < 200; turn++) {
        fi_cq_read(right.cq, &entry, 0);
        fi_cq_read(left.cq, &entry, 0);
    }
    post_receive();
    ends(&right, &left, 1);
    ends(&left, &right, 1);
}

static void put(void) {
    CALL(fi_write(left.ep, out, size, NULL, left.peer, 0, KEY, NULL));
    ends(&left, &right, 1);
}

static void get(void) {
    CALL(fi_read(left.ep, out, size, NULL, left.peer, 0, KEY, NULL));
    ends(&left, &right, 1);
}

static void fetch_and_add(void) {
    uint64_t one = 1, before;
    CALL(fi_fetch_atomic(left.ep, &one, 1, NULL, &before, NULL, left.peer, 0, KEY, FI_UINT64,
                         FI_SUM, NULL));
    ends(&left, &right, 1);
}

static void put_by_wrong_key(void) {
    CALL(fi_write(left.ep, out, 8, NULL, left.peer, 0, KEY + 1, NULL));
    ends(&left, &right, 1);
}

static void wait_for_nothing(void) {
    struct fi_cq_tagged_entry entry;
    CHECK(fi_cq_sread(left.cq, &entry, 1, NULL, 20) == -FI_EAGAIN);
}

static void close_right(void) { close_side(&right); }

static void close_left(void) { close_side(&left); }

/* Whether the call or the queue says so. */
static void send_to_nobody(void) {
    for (int time = 0; time < 3; time++)
        if (post_send() == 0)
            ends(&left, NULL, 1);
}

int main(int count, char **words) {
    static const size_t sizes[] = {8, 4000, 20000, 60000, 300000, LONGEST};
    static const uint64_t levels[] = {0, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE};
    struct fid_mr *region;
    CHECK(count == 2);
    budget = strtoul(words[1], NULL, 10);
    unsigned char *pages =
        mmap(NULL, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages, PAGE, PROT_NONE) == 0);
    stack = pages + PAGE;
    open_side(&left, 0, 0);
    open_side(&right, 0, 0);
    CALL(fi_mr_reg(right.domain, in, sizeof in, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0,
                   &region, NULL));
    ON_STACK(know_each_other);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size = sizes[i];
        /* The first message connects the two. */
        for (size_t j = 0; j < sizeof levels / sizeof *levels; j++) {
            level = levels[j];
            ON_STACK(expected);
        }
        level = 0;
        ON_STACK(unexpected);
        ON_STACK(put);
        ON_STACK(get);
    }
    ON_STACK(fetch_and_add);
    ON_STACK(put_by_wrong_key);
    ON_STACK(wait_for_nothing);
    CALL(fi_close(&region->fid));
    ON_STACK(close_right);
    size = 8;
    level = FI_DELIVERY_COMPLETE;
    ON_STACK(send_to_nobody);
    ON_STACK(close_left);
    printf("%zu bytes of stack at the most\n", deepest);
    return 0;
}
