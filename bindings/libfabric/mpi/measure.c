/* What users see of a transport: half round trips, bandwidth and message rate of two ranks by
 * size, medians, as lines of JSON. `measure [latency|bandwidth|rate] MIN MAX`. */
#include "check.h"

enum { WINDOW = 64, MOST_ROUNDS = 2000 };

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

static double latency(int size, int rounds)
{
    for (int round = -rounds / 10; round < rounds; round++) {
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

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    CHECK(check_ranks == 2 && argc == 4);
    int least = atoi(argv[2]), most = atoi(argv[3]), is_latency = strcmp(argv[1], "latency") == 0;
    int is_bandwidth = strcmp(argv[1], "bandwidth") == 0;
    out = room((size_t)most);
    in = room((size_t)most);
    took = room(sizeof *took * MOST_ROUNDS);
    memset(out, 1, (size_t)most);
    memset(in, 2, (size_t)most);
    for (int size = least; size <= most; size *= 2) {
        int budget = size > 65536 ? 64 << 20 : 16 << 20;
        int rounds = is_latency ? MOST_ROUNDS : budget / (size * WINDOW);
        rounds = is_latency && size > 65536 ? 200 : rounds;
        rounds = rounds < 5 ? 5 : rounds > 1000 && !is_latency ? 1000 : rounds;
        double value = is_latency ? latency(size, rounds) : rate(size, rounds);
        value *= is_bandwidth ? size / 1e6 : 1;
        if (check_rank == 0)
            printf("{\"test\": \"%s\", \"bytes\": %d, \"%s\": %.3f}\n", argv[1], size,
                   is_latency     ? "half_round_trip_us"
                   : is_bandwidth ? "megabytes_per_second"
                                  : "messages_per_second",
                   value);
    }
    MPI_Finalize();
    return 0;
}
