/*
 * The time of half a round trip between two ranks.
 *
 * Each process needs RANK, WORLD_SIZE=2, RINGRAIL_JOB_SECRET, and MASTER_ADDR with MASTER_PORT or
 * RINGRAIL_BOOTSTRAP=dir:PATH. Usage: pingpong [ROUNDS [BYTES]]
 */
#include <ringrail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Ends the program when a call fails, with what went wrong. */
static int check(int result, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s: %s\n", call, rr_error_name(result), rr_last_error());
        exit(1);
    }
    return result;
}
#define CHECK(call) check((call), #call)

static double now_us(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 1000;
    size_t bytes = argc > 2 ? (size_t)atol(argv[2]) : 8;

    rr_bootstrap *job;
    CHECK(rr_bootstrap_from_environment(&job));
    int rank = CHECK(rr_bootstrap_rank(job));

    rr_domain *domain;
    rr_endpoint *endpoint;
    CHECK(rr_domain_open(NULL, 0, &domain));
    CHECK(rr_endpoint_open(domain, NULL, &endpoint));

    rr_address own, all[2];
    CHECK(rr_endpoint_address(endpoint, &own));
    CHECK(rr_bootstrap_exchange(job, "address", &own, sizeof own, all));
    rr_peer peer;
    CHECK(rr_insert(endpoint, &all[1 - rank], &peer));
    CHECK(rr_connect(endpoint, &peer, 1, 60000000000));

    unsigned char *message = (unsigned char *)malloc(bytes + 1);
    unsigned char *answer = (unsigned char *)malloc(bytes + 1);
    if (message == NULL || answer == NULL)
        return 1;
    memset(answer, 0, bytes + 1);
    rr_envelope ping = rr_tagged(0, 1);
    rr_selector from_peer = rr_from(peer, ping);
    double start = now_us();
    for (long round = 0; round < rounds; round++) {
        memset(message, (int)(round & 255), bytes);
        if (rank == 0)
            CHECK(rr_send(endpoint, peer, ping, message, bytes, NULL, RR_FOREVER));
        rr_status status;
        CHECK(rr_receive(endpoint, &from_peer, answer, bytes, &status, 60000000000));
        if (status.length != bytes || memcmp(message, answer, bytes) != 0) {
            fprintf(stderr, "round %ld: a wrong message\n", round);
            return 1;
        }
        if (rank == 1)
            CHECK(rr_send(endpoint, peer, ping, answer, bytes, NULL, RR_FOREVER));
    }
    double half_us = (now_us() - start) / (double)rounds / 2;
    if (rank == 0)
        printf("%zu bytes: %.2f us half a round trip\n", bytes, half_us);

    CHECK(rr_bootstrap_barrier(job));
    CHECK(rr_endpoint_close(endpoint));
    CHECK(rr_domain_close(domain));
    CHECK(rr_bootstrap_close(job));
    free(message);
    free(answer);
    return 0;
}
