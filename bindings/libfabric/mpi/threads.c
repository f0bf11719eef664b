/* MPI_THREAD_MULTIPLE: eight threads of each rank talk at once, in one communicator. */
#include "check.h"

#include <pthread.h>

enum { THREADS = 8, ROUNDS = 300, LONG = 50000 };

static int peer;

static void *talk(void *argument)
{
    int number = (int)(size_t)argument;
    unsigned char *out = room(LONG), *in = room(LONG);
    for (int round = 0; round < ROUNDS; round++) {
        int length = round % 50 == 49 ? LONG : round;
        unsigned name = (unsigned)(number * ROUNDS + round) * 2;
        fill(out, (size_t)length, name + (unsigned)(check_rank & 1));
        MPI_Request requests[2];
        MPI_Status statuses[2];
        MPI_Irecv(in, LONG, MPI_BYTE, round % 7 ? peer : MPI_ANY_SOURCE, number, MPI_COMM_WORLD,
                  &requests[0]);
        MPI_Isend(out, length, MPI_BYTE, peer, number, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, statuses);
        int count;
        MPI_Get_count(&statuses[0], MPI_BYTE, &count);
        CHECK(count == length && is_filled(in, (size_t)length, name + (unsigned)(peer & 1)));
    }
    free(out);
    free(in);
    return NULL;
}

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &check_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &check_ranks);
    CHECK(level == MPI_THREAD_MULTIPLE && check_ranks % 2 == 0);
    peer = check_rank ^ 1;
    pthread_t threads[THREADS];
    for (size_t number = 0; number < THREADS; number++)
        CHECK(pthread_create(&threads[number], NULL, talk, (void *)number) == 0);
    for (size_t number = 0; number < THREADS; number++)
        CHECK(pthread_join(threads[number], NULL) == 0);
    passed("eight threads");
    MPI_Finalize();
    return 0;
}
