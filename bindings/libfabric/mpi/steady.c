/* A ring of messages for so many seconds: short ones, and one of 1 MiB each tenth round. All are
 * verified; rank 0 says how long the longest round took. What happens to NICs meanwhile is up to
 * who starts it. */
#include "check.h"

int main(int argc, char **argv)
{
    enum { LONG = 1 << 20 };
    begin(&argc, &argv);
    double seconds = argc > 1 ? atof(argv[1]) : 5, began = MPI_Wtime(), longest = 0;
    int next = (check_rank + 1) % check_ranks, last = (check_rank + check_ranks - 1) % check_ranks;
    unsigned char *out = room(LONG), *in = room(LONG);
    unsigned round = 0;
    for (int goes_on = 1; goes_on; round++) {
        double now = MPI_Wtime();
        size_t length = round % 10 == 9 ? LONG : 8 + round % 1000;
        fill(out, length, round * 31 + (unsigned)check_rank);
        MPI_Sendrecv(out, (int)length, MPI_BYTE, next, 1, in, (int)length, MPI_BYTE, last, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(is_filled(in, length, round * 31 + (unsigned)last));
        goes_on = MPI_Wtime() - began < seconds;
        MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
        double took = MPI_Wtime() - now;
        longest = took > longest ? took : longest;
        if (check_rank == 0 && round == 0) {
            printf("steady: begun\n");
            fflush(stdout);
        }
    }
    if (check_rank == 0)
        printf("steady: %u rounds in %.1f s, the longest %.1f ms\n", round,
               MPI_Wtime() - began, longest * 1e3);
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
