/* One-sided communication: fence, post-start-complete-wait, lock and flush, dynamic windows. */
#include "check.h"

enum { SLOTS = 1000 };

static void fences(MPI_Win win, int *memory)
{
    int next = (check_rank + 1) % check_ranks, last = (check_rank + check_ranks - 1) % check_ranks;
    int got = -1;
    MPI_Win_fence(0, win);
    MPI_Put(&check_rank, 1, MPI_INT, next, 5, 1, MPI_INT, win);
    MPI_Win_fence(0, win);
    CHECK(memory[5] == last);
    MPI_Get(&got, 1, MPI_INT, next, 5, 1, MPI_INT, win);
    MPI_Win_fence(0, win);
    CHECK(got == check_rank);
    /* All add to all. */
    for (int slot = 0; slot < SLOTS; slot++)
        memory[slot] = 0;
    int addends[SLOTS];
    for (int slot = 0; slot < SLOTS; slot++)
        addends[slot] = slot + check_rank;
    MPI_Win_fence(0, win);
    for (int target = 0; target < check_ranks; target++)
        MPI_Accumulate(addends, SLOTS, MPI_INT, target, 0, SLOTS, MPI_INT, MPI_SUM, win);
    MPI_Win_fence(0, win);
    for (int slot = 0; slot < SLOTS; slot++)
        CHECK(memory[slot] == check_ranks * slot + check_ranks * (check_ranks - 1) / 2);
    passed("windows with fences");
}

static void general(MPI_Win win, int *memory)
{
    MPI_Group all, pair;
    int peer = check_rank ^ 1, values[SLOTS];
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &peer, &pair);
    for (int round = 0; round < 10; round++) {
        for (int slot = 0; slot < SLOTS; slot++)
            values[slot] = round * 10000 + slot * 2 + (check_rank & 1);
        MPI_Win_post(pair, 0, win);
        MPI_Win_start(pair, 0, win);
        MPI_Put(values, SLOTS, MPI_INT, peer, 0, SLOTS, MPI_INT, win);
        MPI_Win_complete(win);
        MPI_Win_wait(win);
        for (int slot = 0; slot < SLOTS; slot++)
            CHECK(memory[slot] == round * 10000 + slot * 2 + (peer & 1));
    }
    MPI_Group_free(&pair);
    MPI_Group_free(&all);
    passed("windows with post, start, complete, wait");
}

static void passive(MPI_Win win, int *memory)
{
    enum { ROUNDS = 100 };
    int one = 1, before, *seen = calloc(ROUNDS * (size_t)check_ranks, sizeof *seen);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, check_rank, 0, win);
    memory[0] = memory[1] = 0;
    MPI_Win_unlock(check_rank, win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Fetch_and_op(&one, &before, MPI_INT, 0, 0, MPI_SUM, win);
        MPI_Win_flush(0, win);
        CHECK(before >= 0 && before < ROUNDS * check_ranks && !seen[before]);
        seen[before] = 1;
    }
    /* A lock by compare-and-swap, and a count that only it protects. */
    int locked = check_rank + 1, none = 0, held, count;
    do {
        MPI_Compare_and_swap(&locked, &none, &held, MPI_INT, 0, 1, win);
        MPI_Win_flush(0, win);
    } while (held != 0);
    MPI_Get(&count, 1, MPI_INT, 0, 2, 1, MPI_INT, win);
    MPI_Win_flush(0, win);
    MPI_Fetch_and_op(&none, &held, MPI_INT, 0, 1, MPI_REPLACE, win);
    MPI_Win_flush(0, win);
    CHECK(held == locked);
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    if (check_rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        CHECK(memory[0] == ROUNDS * check_ranks && memory[1] == 0);
        MPI_Win_unlock(0, win);
    }
    free(seen);
    passed("windows with locks");
}

/* Memory that is attached when the window has long been there. */
static void dynamic(void)
{
    MPI_Win win;
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    long *memory = room(SLOTS * sizeof *memory);
    for (int slot = 0; slot < SLOTS; slot++)
        memory[slot] = -1;
    MPI_Win_attach(win, memory, SLOTS * sizeof *memory);
    MPI_Aint own, *places = room((size_t)check_ranks * sizeof *places);
    MPI_Get_address(memory, &own);
    MPI_Allgather(&own, 1, MPI_AINT, places, 1, MPI_AINT, MPI_COMM_WORLD);
    int next = (check_rank + 1) % check_ranks, last = (check_rank + check_ranks - 1) % check_ranks;
    long value = 100 + check_rank;
    MPI_Win_fence(0, win);
    MPI_Put(&value, 1, MPI_LONG, next, places[next] + 8 * (MPI_Aint)sizeof value, 1, MPI_LONG, win);
    MPI_Win_fence(0, win);
    CHECK(memory[8] == 100 + last && memory[7] == -1 && memory[9] == -1);
    MPI_Win_detach(win, memory);
    MPI_Win_free(&win);
    free(memory);
    free(places);
    passed("a dynamic window");
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    CHECK(check_ranks % 2 == 0);
    int *memory;
    MPI_Win win;
    MPI_Win_allocate(SLOTS * sizeof *memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD,
                     &memory, &win);
    for (int slot = 0; slot < SLOTS; slot++)
        memory[slot] = -1;
    fences(win, memory);
    general(win, memory);
    passive(win, memory);
    MPI_Win_free(&win);
    dynamic();
    MPI_Finalize();
    return 0;
}
