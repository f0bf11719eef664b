/* A rank is killed; the others revoke the communicator, shrink it and go on (ULFM, Open MPI 5 --with-ft ulfm). */
#include <mpi.h>

#include <mpi-ext.h>
#include <signal.h>
#include <stdio.h>

enum { VICTIM = 2, ROUNDS = 50, ROUNDS_MAX = 100000 };

static int add_up(MPI_Comm comm, int rank, long *sum) {
    long own = rank + 1;
    return MPI_Allreduce(&own, sum, 1, MPI_LONG, MPI_SUM, comm);
}

int main(int argc, char **argv) {
    int rank, size, left, result = MPI_SUCCESS, class = 0;
    long sum = 0;
    MPI_Comm world, rest;
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    for (int round = 0; round < ROUNDS; round++)
        if (add_up(world, rank, &sum) != MPI_SUCCESS || sum != (long)size * (size + 1) / 2)
            MPI_Abort(MPI_COMM_WORLD, 1);
    if (rank == VICTIM)
        raise(SIGKILL);
    for (int round = 0; round < ROUNDS_MAX && result == MPI_SUCCESS; round++)
        result = add_up(world, rank, &sum);
    MPI_Error_class(result, &class);
    if (class != MPIX_ERR_PROC_FAILED && class != MPIX_ERR_REVOKED) {
        printf("rank %d: the error is of class %d\n", rank, class);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPIX_Comm_revoke(world);
    if (MPIX_Comm_shrink(world, &rest) != MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Comm_size(rest, &left);
    for (int round = 0; round < ROUNDS; round++)
        if (add_up(rest, rank, &sum) != MPI_SUCCESS)
            MPI_Abort(MPI_COMM_WORLD, 4);
    long expected = (long)size * (size + 1) / 2 - (VICTIM + 1);
    printf("rank %d: %d survive: %s\n", rank, left, left == size - 1 && sum == expected ? "ok" : "wrong");
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
