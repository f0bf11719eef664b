/* The last rank is killed in the middle of its work: all others learn of it by an error of MPI, and
 * say how long that took. They leave without MPI_Finalize, which would wait for the dead. */
#include "check.h"

#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    enum { ROUNDS = 100, LENGTH = 100 };
    begin(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int victim = check_ranks - 1, sum = 0;
    unsigned char out[LENGTH] = {1}, in[LENGTH];
    for (int round = 0; round < ROUNDS; round++)
        MPI_Allreduce(&check_rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == check_ranks * (check_ranks - 1) / 2);
    if (check_rank == 0) {
        printf("killed: begun\n");
        fflush(stdout);
    }
    if (check_rank == victim) {
        MPI_Recv(in, LENGTH, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        raise(SIGKILL);
    }
    double began = MPI_Wtime();
    if (check_rank == 0)
        MPI_Send(out, LENGTH, MPI_BYTE, victim, 1, MPI_COMM_WORLD);
    /* One message that will never come, and one that nobody takes. */
    int code = MPI_Sendrecv(out, LENGTH, MPI_BYTE, victim, 2, in, LENGTH, MPI_BYTE, victim, 2,
                            MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("rank %d: %s after %.2f s\n", check_rank, code == MPI_SUCCESS ? "nothing" : "error",
           MPI_Wtime() - began);
    fflush(stdout);
    _exit(code == MPI_SUCCESS ? 1 : 7);
}
