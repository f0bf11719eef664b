/* What users see of a transport: half round trips, bandwidth and message rate of two ranks by
 * size, medians, as lines of JSON. `measure [latency|loaded|bandwidth|rate|overlap] MIN MAX`:
 * `loaded` is the latency while four transfers of 16 MiB are in flight from rank 0 to rank 1,
 * `overlap` how much of a transfer is done, in percent, while both ranks compute and make no call
 * (as the OSU benchmarks reckon it). */
#include "check.h"

enum { WINDOW = 64, MOST_ROUNDS = 2000, BULKS = 4, BULK_BYTES = 16 << 20, BULK_TAG = 10 };

static unsigned char *out, *in;

static double *took;

static int by_size(const void *left, const void *right)
{
    double less = *(const double *)left, more = *(const double *)right;
    return (less > more) - (less < more);
}

/* The median of what `rounds` rounds took, in seconds. */
static double median(int rounds)
{
    qsort(took, (size_t)rounds, sizeof *took, by_size);
    return took[rounds / 2];
}

/* One round trip, which counts if `round` is not negative. */
static void round_trip(int size, int round)
{
    double began = MPI_Wtime();
    if (check_rank == 0) {
        MPI_Send(out, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(in, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(in, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
    if (round >= 0)
        took[round] = MPI_Wtime() - began;
}

static double latency(int size, int rounds)
{
    for (int round = -rounds / 10; round < rounds; round++)
        round_trip(size, round);
    return median(rounds) / 2 * 1e6;
}

/* Messages a second of one way, `WINDOW` at a time. */
static double rate(int size, int rounds)
{
    static MPI_Request requests[WINDOW];
    for (int round = -rounds / 10 - 1; round < rounds; round++) {
        double began = MPI_Wtime();
        for (int number = 0; number < WINDOW; number++) {
            if (check_rank == 0)
                MPI_Isend(out, size, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &requests[number]);
            else
                MPI_Irecv(in, size, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &requests[number]);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (check_rank == 0)
            MPI_Recv(in, 1, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(out, 1, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
        if (round >= 0)
            took[round] = MPI_Wtime() - began;
    }
    return WINDOW / median(rounds);
}

/* Posts transfer `at` of rank 0 to rank 1. */
static void post_bulk(unsigned char *bulk, int at, int bytes, MPI_Request *request)
{
    unsigned char *here = bulk + (size_t)at * BULK_BYTES;
    if (check_rank == 0)
        MPI_Isend(here, bytes, MPI_BYTE, 1, BULK_TAG + at, MPI_COMM_WORLD, request);
    else
        MPI_Irecv(here, bytes, MPI_BYTE, 0, BULK_TAG + at, MPI_COMM_WORLD, request);
}

/* Half a round trip while `BULKS` transfers are in flight. */
static double loaded(int size, int rounds)
{
    static MPI_Request requests[BULKS];
    unsigned char *bulk = room((size_t)BULKS * BULK_BYTES);
    memset(bulk, 3, (size_t)BULKS * BULK_BYTES);
    for (int at = 0; at < BULKS; at++)
        post_bulk(bulk, at, BULK_BYTES, &requests[at]);
    for (int round = -rounds / 10; round < rounds; round++) {
        for (int at = 0, is_done; at < BULKS; at++) {
            MPI_Test(&requests[at], &is_done, MPI_STATUS_IGNORE);
            if (is_done)
                post_bulk(bulk, at, BULK_BYTES, &requests[at]);
        }
        round_trip(size, round);
    }
    /* Of each an empty message comes last. */
    for (int at = 0; at < BULKS; at++) {
        MPI_Status status;
        int bytes = BULK_BYTES;
        MPI_Wait(&requests[at], &status);
        if (check_rank == 0) {
            post_bulk(bulk, at, 0, &requests[at]);
            MPI_Wait(&requests[at], &status);
            continue;
        }
        for (MPI_Get_count(&status, MPI_BYTE, &bytes); bytes > 0;
             MPI_Get_count(&status, MPI_BYTE, &bytes)) {
            post_bulk(bulk, at, BULK_BYTES, &requests[at]);
            MPI_Wait(&requests[at], &status);
        }
    }
    free(bulk);
    return median(rounds) / 2 * 1e6;
}

/* One transfer, behind whose post both ranks compute for `computed` seconds. */
static double transfer(int size, double computed)
{
    MPI_Request request;
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime(), posted;
    if (check_rank == 0)
        MPI_Isend(out, size, MPI_BYTE, 1, 4, MPI_COMM_WORLD, &request);
    else
        MPI_Irecv(in, size, MPI_BYTE, 0, 4, MPI_COMM_WORLD, &request);
    posted = MPI_Wtime();
    while (MPI_Wtime() - posted < computed)
        ;
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return MPI_Wtime() - began;
}

/* Of the rank that overlaps less. */
static double overlap(int size, int rounds)
{
    double alone, computed, both, percent, least;
    for (int round = -1; round < rounds; round++)
        took[round < 0 ? 0 : round] = transfer(size, 0);
    alone = median(rounds);
    MPI_Allreduce(&alone, &computed, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    for (int round = -1; round < rounds; round++)
        took[round < 0 ? 0 : round] = transfer(size, computed);
    both = median(rounds);
    percent = 100 * (1 - (both - computed) / alone);
    percent = percent < 0 ? 0 : percent > 100 ? 100 : percent;
    MPI_Allreduce(&percent, &least, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    return least;
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    CHECK(check_ranks == 2 && argc == 4);
    int least = atoi(argv[2]), most = atoi(argv[3]);
    int is_latency = strcmp(argv[1], "latency") == 0, is_loaded = strcmp(argv[1], "loaded") == 0;
    int is_bandwidth = strcmp(argv[1], "bandwidth") == 0, is_rate = strcmp(argv[1], "rate") == 0;
    CHECK(is_latency || is_loaded || is_bandwidth || is_rate || strcmp(argv[1], "overlap") == 0);
    out = room((size_t)most);
    in = room((size_t)most);
    took = room(sizeof *took * MOST_ROUNDS);
    memset(out, 1, (size_t)most);
    memset(in, 2, (size_t)most);
    for (int size = least; size <= most; size *= 2) {
        int budget = size > 65536 ? 64 << 20 : 16 << 20, rounds = 5;
        const char *unit;
        double value;
        if (is_latency || is_loaded) {
            rounds = size > 65536 || is_loaded ? 200 : MOST_ROUNDS;
            value = is_latency ? latency(size, rounds) : loaded(size, rounds);
            unit = "half_round_trip_us";
        } else if (is_bandwidth || is_rate) {
            int windows = budget / (size * WINDOW);
            rounds = windows < 5 ? 5 : windows > 1000 ? 1000 : windows;
            value = rate(size, rounds) * (is_bandwidth ? size / 1e6 : 1);
            unit = is_bandwidth ? "megabytes_per_second" : "messages_per_second";
        } else {
            value = overlap(size, rounds);
            unit = "percent";
        }
        if (check_rank == 0)
            printf("{\"test\": \"%s\", \"bytes\": %d, \"%s\": %.3f}\n", argv[1], size, unit,
                   value);
    }
    MPI_Finalize();
    return 0;
}
