/* Collectives, derived datatypes and communicators. */
#include "check.h"

#include <stddef.h>

static void collectives(MPI_Comm comm)
{
    int rank, ranks;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    for (int count = 1; count <= 100000; count *= 10) {
        size_t all = (size_t)count * (size_t)ranks;
        int *out = room(all * sizeof *out), *in = room(all * sizeof *in);
        for (size_t at = 0; at < all; at++)
            out[at] = rank * 1000 + (int)(at % 1000);
        MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, comm);
        for (size_t at = 0; at < all; at++) {
            size_t sent = (size_t)rank * (size_t)count + at % (size_t)count;
            CHECK(in[at] == (int)(at / (size_t)count) * 1000 + (int)(sent % 1000));
        }
        MPI_Allreduce(out, in, count, MPI_INT, MPI_SUM, comm);
        for (int at = 0; at < count; at++)
            CHECK(in[at] == 1000 * ranks * (ranks - 1) / 2 + ranks * (at % 1000));
        for (int root = 0; root < ranks; root++) {
            memcpy(in, out, (size_t)count * sizeof *in);
            MPI_Bcast(in, count, MPI_INT, root, comm);
            CHECK(in[count - 1] == root * 1000 + (count - 1) % 1000);
        }
        MPI_Allgather(out, count, MPI_INT, in, count, MPI_INT, comm);
        for (size_t at = 0; at < all; at++)
            CHECK(in[at] == (int)(at / (size_t)count) * 1000 + (int)(at % (size_t)count % 1000));
        int sum = rank, scanned = -1;
        MPI_Scan(&sum, &scanned, 1, MPI_INT, MPI_SUM, comm);
        CHECK(scanned == rank * (rank + 1) / 2);
        MPI_Request request;
        MPI_Iallreduce(&sum, &scanned, 1, MPI_INT, MPI_MAX, comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        CHECK(scanned == ranks - 1);
        free(out);
        free(in);
    }
}

/* A column of a matrix becomes a row of another one, and structures keep their gaps. */
static void datatypes(void)
{
    enum { SIDE = 200 };
    struct mixed {
        char letter;
        double number;
        short pair[2];
    };
    int peer = check_rank ^ 1;
    int *matrix = room(SIDE * SIDE * sizeof *matrix), row[SIDE];
    for (int at = 0; at < SIDE * SIDE; at++)
        matrix[at] = at * 2 + (check_rank & 1);
    MPI_Datatype column, type;
    MPI_Type_vector(SIDE, 1, SIDE, MPI_INT, &column);
    MPI_Type_commit(&column);
    MPI_Sendrecv(matrix + 3, 1, column, peer, 1, row, SIDE, MPI_INT, peer, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int at = 0; at < SIDE; at++)
        CHECK(row[at] == (at * SIDE + 3) * 2 + (peer & 1));
    MPI_Type_free(&column);
    free(matrix);

    struct mixed out[50], in[50];
    int lengths[] = {1, 1, 2};
    MPI_Aint places[] = {offsetof(struct mixed, letter), offsetof(struct mixed, number),
                         offsetof(struct mixed, pair)};
    MPI_Datatype types[] = {MPI_CHAR, MPI_DOUBLE, MPI_SHORT}, packed;
    MPI_Type_create_struct(3, lengths, places, types, &packed);
    MPI_Type_create_resized(packed, 0, sizeof(struct mixed), &type);
    MPI_Type_commit(&type);
    memset(in, 0x55, sizeof in);
    for (int at = 0; at < 50; at++)
        out[at] = (struct mixed){(char)at, at * 0.5, {(short)at, (short)-at}};
    MPI_Sendrecv(out, 50, type, peer, 2, in, 50, type, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int at = 0; at < 50; at++) {
        CHECK(in[at].letter == (char)at && in[at].number == at * 0.5);
        CHECK(in[at].pair[0] == at && in[at].pair[1] == -at);
        CHECK(((unsigned char *)&in[at])[1] == 0x55);
    }
    MPI_Type_free(&packed);
    MPI_Type_free(&type);
    passed("derived datatypes");
}

static void communicators(void)
{
    MPI_Comm copy, half, other;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    int is_odd = check_rank % 2, value = check_rank, rank;
    MPI_Comm_split(copy, is_odd, -check_rank, &half);
    MPI_Comm_rank(half, &rank);
    CHECK(rank == (check_ranks - 1 - check_rank) / 2);
    collectives(half);
    MPI_Intercomm_create(half, 0, copy, check_ranks - 2 + !is_odd, 9, &other);
    MPI_Sendrecv_replace(&value, 1, MPI_INT, rank, 1, rank, 1, other, MPI_STATUS_IGNORE);
    CHECK(value == (check_rank ^ 1));
    /* One envelope in two communicators are two. */
    int peer = check_rank ^ 1, first = 1, second = 2;
    MPI_Request requests[2];
    MPI_Irecv(&first, 1, MPI_INT, peer, 3, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(&second, 1, MPI_INT, peer, 3, copy, &requests[1]);
    int to_copy = 20 + check_rank, to_world = 10 + check_rank;
    MPI_Send(&to_copy, 1, MPI_INT, peer, 3, copy);
    MPI_Send(&to_world, 1, MPI_INT, peer, 3, MPI_COMM_WORLD);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    CHECK(first == 10 + peer && second == 20 + peer);
    MPI_Comm_free(&other);
    MPI_Comm_free(&half);
    MPI_Comm_free(&copy);
    passed("communicators");
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    CHECK(check_ranks % 2 == 0);
    collectives(MPI_COMM_WORLD);
    passed("collectives");
    datatypes();
    communicators();
    MPI_Finalize();
    return 0;
}
