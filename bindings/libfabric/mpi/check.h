/* What all programs share: a check that names itself, and contents that identify their writer. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_rank = -1, check_ranks;

#define CHECK(what)                                                                              \
    do {                                                                                         \
        if (!(what)) {                                                                           \
            fprintf(stderr, "rank %d: %s:%d: not so: %s\n", check_rank, __FILE__, __LINE__,      \
                    #what);                                                                      \
            MPI_Abort(MPI_COMM_WORLD, 3);                                                        \
        }                                                                                        \
    } while (0)

/* Byte `at` of message `name`. */
static inline unsigned char content(unsigned name, size_t at)
{
    return (unsigned char)((name * 2654435761u >> 13) + at * 7 + (at >> 8));
}

static inline void fill(unsigned char *bytes, size_t length, unsigned name)
{
    for (size_t at = 0; at < length; at++)
        bytes[at] = content(name, at);
}

static inline int is_filled(const unsigned char *bytes, size_t length, unsigned name)
{
    for (size_t at = 0; at < length; at++)
        if (bytes[at] != content(name, at))
            return 0;
    return 1;
}

static inline void *room(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    CHECK(memory != NULL);
    return memory;
}

static inline void begin(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &check_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &check_ranks);
}

/* All ranks have come so far. */
static inline void passed(const char *what)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (check_rank == 0) {
        printf("%s: good\n", what);
        fflush(stdout);
    }
}

#endif
