/* Both ends in one thread, the same loop for each library: receives are posted; the receiver polls as
 * often as requested and finds nothing; messages are sent; the receiver polls until they are there.
 *
 * A program defines `struct side`, includes this, and defines what is declared here. */
#ifndef RINGRAIL_PERF_LOOP_H
#define RINGRAIL_PERF_LOOP_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

#define BYTES_MAX 16384
#define ROW_MAX 64
/* Polls in which a message arrives, at the most. */
#define POLLS_MAX 1000000
/* Polls until nothing is opened any more. */
#define POLLS_TO_SETTLE 5000
#define TAG 7

#define FAIL(...)                                  \
    do {                                           \
        fprintf(stderr, __VA_ARGS__);              \
        fputc('\n', stderr);                       \
        exit(1);                                   \
    } while (0)

/* Opens both sides, which know each other then. */
static void open_sides(struct side *left, struct side *right, const char *transport);
/* Removes what would stay when the process ends. */
static void close_sides(struct side *left, struct side *right);
/* Posts a receive of a message of the other side, into the `slot`th buffer. */
static inline void post(struct side *side, int slot, size_t bytes);
/* Sends a message; 0: it cannot go now. */
static inline int send_message(struct side *side, const void *message, size_t bytes);
/* Makes progress, and adds what has come to `side->received`. */
static inline void poll_side(struct side *side);

struct load {
    long row, empty_turns;
    size_t bytes;
    char message[BYTES_MAX];
};

static inline void send_to(struct side *from, struct side *to, const struct load *load) {
    for (long polls = 0; polls < POLLS_MAX; polls++) {
        if (send_message(from, load->message, load->bytes))
            return;
        poll_side(from);
        poll_side(to);
    }
    FAIL("a message cannot go");
}

static inline void receive(struct side *from, struct side *to, long until) {
    for (long polls = 0; polls < POLLS_MAX; polls++) {
        poll_side(to);
        if (to->received >= until)
            return;
        /* What could not go at once goes by the sender's progress. */
        poll_side(from);
    }
    FAIL("a message does not arrive");
}

static inline void exchange(struct side *left, struct side *right, const struct load *load,
                            long messages) {
    struct side *from = left, *to = right;
    for (long sent = 0; sent < messages; sent += load->row) {
        long until = to->received + load->row;
        for (int slot = 0; slot < load->row; slot++)
            post(to, slot, load->bytes);
        for (long turn = 0; turn < load->empty_turns; turn++)
            poll_side(to);
        for (long number = 0; number < load->row; number++)
            send_to(from, to, load);
        if (load->row > 1)
            poll_side(from);
        receive(from, to, until);
        if (load->row == 1) {
            struct side *other = from;
            from = to;
            to = other;
        }
    }
}

/* Callgrind counts what is between its requests, with an empty cache at first; a system call that
 * nothing else makes shows in valgrind's list where that begins and ends. */
static void counted(struct side *left, struct side *right, const struct load *load,
                    long messages) {
    getpgid(0);
    CALLGRIND_START_INSTRUMENTATION;
    exchange(left, right, load, messages);
    CALLGRIND_STOP_INSTRUMENTATION;
    getpgid(0);
}

/* The first message each way, which may connect the two. */
static void connect_sides(struct side *from, struct side *to, const struct load *load) {
    long until = to->received + 1;
    post(to, 0, load->bytes);
    send_to(from, to, load);
    for (long polls = 0; to->received < until; polls++) {
        if (polls == POLLS_MAX)
            FAIL("the two sides do not connect");
        poll_side(from);
        poll_side(to);
    }
}

/* The packets that all interfaces of this network have sent. */
static long packets(void) {
    char line[512];
    long all = 0, one;
    FILE *file = fopen("/proc/thread-self/net/dev", "r");
    if (file == NULL)
        FAIL("/proc/thread-self/net/dev cannot be read");
    while (fgets(line, sizeof line, file) != NULL) {
        char *counts = strchr(line, ':');
        if (counts != NULL && sscanf(counts + 1, "%*s%*s%*s%*s%*s%*s%*s%*s%*s%ld", &one) == 1)
            all += one;
    }
    fclose(file);
    return all;
}

/* TRANSPORT ROW BYTES EMPTY_TURNS WARM_UP MESSAGES BATCHES */
int main(int count, char **arguments) {
    static struct side left, right;
    static struct load load;
    if (count != 8)
        FAIL("TRANSPORT ROW BYTES EMPTY_TURNS WARM_UP MESSAGES BATCHES");
    load.row = atol(arguments[2]);
    load.bytes = (size_t)atol(arguments[3]);
    load.empty_turns = atol(arguments[4]);
    long warm_up = atol(arguments[5]), messages = atol(arguments[6]), batches = atol(arguments[7]);
    if (load.bytes > BYTES_MAX || load.row > ROW_MAX)
        FAIL("at most %d bytes, %d in a row", BYTES_MAX, ROW_MAX);
    memset(load.message, 1, sizeof load.message);
    open_sides(&left, &right, arguments[1]);
    connect_sides(&left, &right, &load);
    connect_sides(&right, &left, &load);
    for (long polls = 0; polls < POLLS_TO_SETTLE; polls++) {
        poll_side(&left);
        poll_side(&right);
    }
    exchange(&left, &right, &load, warm_up);
    long before = packets();
    for (long batch = 0; batch < batches; batch++)
        counted(&left, &right, &load, messages);
    printf("packets %ld\n", packets() - before);
    fflush(stdout);
    close_sides(&left, &right);
    /* Libraries that end with the process may wait for a peer, which is in this thread. */
    _exit(0);
}

#endif
