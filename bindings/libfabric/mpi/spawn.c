/* Two ranks start two more of the same program (MPI_Comm_spawn), talk with them by the communicator
 * between both and by one of all four, and part. */
#include "check.h"

enum { STARTED = 2, LENGTH = 100000, TAG = 5 };

static unsigned char out[LENGTH], in[LENGTH];

/* A long message to the rank of the same number on the other side, and one back. */
static void exchange(MPI_Comm others, int rank, unsigned ours, unsigned theirs)
{
    fill(out, LENGTH, ours + (unsigned)rank);
    MPI_Sendrecv(out, LENGTH, MPI_BYTE, rank, TAG, in, LENGTH, MPI_BYTE, rank, TAG, others,
                 MPI_STATUS_IGNORE);
    CHECK(is_filled(in, LENGTH, theirs + (unsigned)rank));
}

int main(int argc, char **argv)
{
    MPI_Comm parent, others, all;
    int is_started, sum, ranks;
    begin(&argc, &argv);
    CHECK(check_ranks == 2);
    MPI_Comm_get_parent(&parent);
    is_started = parent != MPI_COMM_NULL;
    if (is_started)
        others = parent;
    else
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, STARTED, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others,
                       MPI_ERRCODES_IGNORE);
    MPI_Comm_remote_size(others, &ranks);
    CHECK(ranks == 2);
    exchange(others, check_rank, is_started ? 100 : 200, is_started ? 200 : 100);

    /* Who started the others comes first. */
    MPI_Intercomm_merge(others, is_started, &all);
    int rank, expected = 0;
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &ranks);
    CHECK(ranks == 4 && rank == check_rank + (is_started ? 2 : 0));
    for (int at = 0; at < ranks; at++)
        expected += 1 << at;
    int mine = 1 << rank;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, all);
    CHECK(sum == expected);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&others);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!is_started)
        passed("spawn");
    MPI_Finalize();
    return 0;
}
