/* A peer in another process is killed while a receive waits for it. */
#include "side.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Tells the other process the own address, and takes its. */
static void meet(struct side *side, const int pipes[2]) {
    char own[256] = {0}, theirs[256];
    size_t length = sizeof own;
    CALL(fi_getname(&side->ep->fid, own, &length));
    CHECK(write(pipes[1], own, sizeof own) == sizeof own);
    CHECK(read(pipes[0], theirs, sizeof theirs) == sizeof theirs);
    CHECK(fi_av_insert(side->av, theirs, 1, &side->peer, 0, NULL) == 1);
}

int main(void) {
    int there[2], back[2];
    CALL(pipe(there));
    CALL(pipe(back));
    pid_t child = fork();
    CHECK(child >= 0);
    struct side side;
    char in[8];
    open_side(&side, 0, 0);
    if (child == 0) {
        meet(&side, (int[2]){there[0], back[1]});
        CALL(fi_tsend(side.ep, "hello", 6, NULL, side.peer, 5, in));
        CHECK(next(&side, &side).op_context == in);
        pause();
    }
    meet(&side, (int[2]){back[0], there[1]});
    CALL(fi_trecv(side.ep, in, 8, NULL, side.peer, 5, 0, in));
    CHECK(next(&side, &side).op_context == in);
    CALL(fi_trecv(side.ep, in, 8, NULL, side.peer, 6, 0, in));
    CALL(kill(child, SIGKILL));
    CHECK(next_error(&side, &side).op_context == in);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    close_side(&side);
    puts("done");
    return 0;
}
