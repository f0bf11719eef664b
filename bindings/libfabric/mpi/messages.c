/* Messages between pairs of ranks: modes, wildcards, probes, cancelling, persistence, order. */
#include "check.h"

static int peer, is_first;

/* Every power of two and its neighbours, both ways. */
static void sizes(void)
{
    enum { LONGEST = 4 << 20 };
    unsigned char *out = room(LONGEST + 1), *in = room(LONGEST + 1);
    for (size_t size = 0; size <= LONGEST; size = size ? size * 2 : 1)
        for (int delta = -1; delta <= 1; delta++) {
            if ((size == 0 && delta != 0) || size + (size_t)delta > LONGEST)
                continue;
            size_t length = size + (size_t)delta;
            unsigned name = (unsigned)length * 2;
            fill(out, length, name + (unsigned)is_first);
            memset(in, 0xee, length);
            MPI_Status status;
            MPI_Sendrecv(out, (int)length, MPI_BYTE, peer, 7, in, (int)length, MPI_BYTE, peer, 7,
                         MPI_COMM_WORLD, &status);
            int count;
            MPI_Get_count(&status, MPI_BYTE, &count);
            CHECK((size_t)count == length && status.MPI_SOURCE == peer && status.MPI_TAG == 7);
            CHECK(is_filled(in, length, name + !is_first));
        }
    free(out);
    free(in);
    passed("sizes");
}

static void modes(void)
{
    enum { LENGTH = 100000, MODES = 4 };
    unsigned char *bytes = room(LENGTH);
    /* For all buffered sends that may be under way. */
    int attached = 2 * LENGTH + 3 * MPI_BSEND_OVERHEAD;
    void *buffer = room((size_t)attached);
    MPI_Buffer_attach(buffer, attached);
    for (int mode = 0; mode < MODES; mode++)
        for (int length = 10; length <= LENGTH; length *= 100) {
            unsigned name = (unsigned)(mode * 10 + length);
            if (is_first) {
                fill(bytes, (size_t)length, name);
                if (mode == 3) /* A ready send needs its receive. */
                    MPI_Recv(NULL, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                int (*send[MODES])(const void *, int, MPI_Datatype, int, int, MPI_Comm) = {
                    MPI_Send, MPI_Ssend, MPI_Bsend, MPI_Rsend};
                send[mode](bytes, length, MPI_BYTE, peer, mode, MPI_COMM_WORLD);
            } else {
                MPI_Request request;
                MPI_Irecv(bytes, length, MPI_BYTE, peer, mode, MPI_COMM_WORLD, &request);
                if (mode == 3)
                    MPI_Send(NULL, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
                MPI_Wait(&request, MPI_STATUS_IGNORE);
                CHECK(is_filled(bytes, (size_t)length, name));
            }
        }
    int detached;
    MPI_Buffer_detach(&buffer, &detached);
    free(buffer);
    free(bytes);
    passed("modes of sends");
}

/* Those with one envelope stay in order, also short behind long, and wildcards take the oldest. */
static void order(void)
{
    enum { MESSAGES = 300, LONG = 200000 };
    unsigned char *bytes = room(LONG);
    if (is_first) {
        for (int number = 0; number < MESSAGES; number++) {
            int length = number % 10 == 3 ? LONG : number;
            fill(bytes, (size_t)length, (unsigned)number);
            MPI_Send(bytes, length, MPI_BYTE, peer, number % 3, MPI_COMM_WORLD);
        }
    } else {
        for (int number = 0; number < MESSAGES; number++) {
            MPI_Status status;
            int length = number % 10 == 3 ? LONG : number, count;
            int source = number % 2 ? MPI_ANY_SOURCE : peer;
            /* With any tag the oldest comes, whatever its tag. */
            MPI_Recv(bytes, LONG, MPI_BYTE, source, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &count);
            CHECK(status.MPI_TAG == number % 3 && count == length);
            CHECK(is_filled(bytes, (size_t)length, (unsigned)number));
        }
    }
    free(bytes);
    passed("order and wildcards");
}

static void probes(void)
{
    int value = 0, flag = 0, count;
    MPI_Status status;
    if (is_first) {
        for (value = 40; value < 44; value++)
            MPI_Send(&value, 1, MPI_INT, peer, value, MPI_COMM_WORLD);
        passed("probes");
        return;
    }
    MPI_Iprobe(peer, 99, MPI_COMM_WORLD, &flag, &status);
    CHECK(!flag);
    MPI_Probe(MPI_ANY_SOURCE, 43, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK(status.MPI_SOURCE == peer && status.MPI_TAG == 43 && count == 1);
    while (!flag)
        MPI_Iprobe(peer, 41, MPI_COMM_WORLD, &flag, &status);
    MPI_Message message;
    MPI_Mprobe(peer, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
    CHECK(status.MPI_TAG == 40);
    /* What a matched probe has taken is no receive's any more. */
    MPI_Iprobe(peer, 40, MPI_COMM_WORLD, &flag, &status);
    CHECK(!flag);
    MPI_Recv(&value, 1, MPI_INT, peer, 42, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(value == 42);
    MPI_Mrecv(&value, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
    CHECK(value == 40 && message == MPI_MESSAGE_NULL);
    MPI_Improbe(peer, 43, MPI_COMM_WORLD, &flag, &message, &status);
    CHECK(flag);
    MPI_Mrecv(&value, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
    CHECK(value == 43);
    MPI_Recv(&value, 1, MPI_INT, peer, 41, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    passed("probes");
}

static void cancelled(void)
{
    int value, flag;
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(&value, 1, MPI_INT, peer, 77, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &flag);
    CHECK(flag);
    passed("a cancelled receive");
}

static void persistent(void)
{
    enum { ROUNDS = 50 };
    int out, in;
    MPI_Request requests[2];
    MPI_Send_init(&out, 1, MPI_INT, peer, 5, MPI_COMM_WORLD, &requests[0]);
    MPI_Recv_init(&in, 1, MPI_INT, peer, 5, MPI_COMM_WORLD, &requests[1]);
    for (int round = 0; round < ROUNDS; round++) {
        out = round * 2 + is_first;
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        CHECK(in == round * 2 + !is_first);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    passed("persistent requests");
}

static void truncated(void)
{
    unsigned char bytes[100];
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (is_first) {
        memset(bytes, 1, sizeof bytes);
        MPI_Send(bytes, sizeof bytes, MPI_BYTE, peer, 6, MPI_COMM_WORLD);
    } else {
        int class;
        int error = MPI_Recv(bytes, 10, MPI_BYTE, peer, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Error_class(error, &class);
        CHECK(class == MPI_ERR_TRUNCATE);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    passed("a truncated message");
}

/* More than anybody has credit for, received backwards. */
static void flood(void)
{
    enum { MESSAGES = 3000 };
    static int out[MESSAGES], in[MESSAGES];
    static MPI_Request requests[MESSAGES];
    int next = (check_rank + 1) % check_ranks, last = (check_rank + check_ranks - 1) % check_ranks;
    for (int number = 0; number < MESSAGES; number++) {
        out[number] = number * 3 + check_rank;
        MPI_Isend(&out[number], 1, MPI_INT, next, number, MPI_COMM_WORLD, &requests[number]);
    }
    for (int number = MESSAGES - 1; number >= 0; number--) {
        MPI_Recv(&in[number], 1, MPI_INT, last, number, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(in[number] == number * 3 + last);
    }
    MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
    passed("a flood");
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    CHECK(check_ranks % 2 == 0);
    peer = check_rank ^ 1;
    is_first = check_rank < peer;
    sizes();
    modes();
    order();
    probes();
    cancelled();
    persistent();
    truncated();
    flood();
    MPI_Finalize();
    return 0;
}
