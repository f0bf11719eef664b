/*
 * Each rank writes into the memory of the next one, reads back what it wrote, and all count
 * together in a word of rank 0. Nobody receives anything.
 *
 * Each process needs RANK, WORLD_SIZE, RINGRAIL_JOB_SECRET, and MASTER_ADDR with MASTER_PORT or
 * RINGRAIL_BOOTSTRAP=dir:PATH.
 */
#include <ringrail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check(int result, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s: %s\n", call, rr_error_name(result), rr_last_error());
        exit(1);
    }
    return result;
}
#define CHECK(call) check((call), #call)

#define BYTES 100000
#define ADDITIONS 50

/* What ranks tell each other. */
struct card {
    rr_address address;
    uint64_t key;
};

int main(void)
{
    rr_bootstrap *job;
    CHECK(rr_bootstrap_from_environment(&job));
    int rank = CHECK(rr_bootstrap_rank(job)), ranks = CHECK(rr_bootstrap_size(job));

    rr_domain *domain;
    rr_endpoint *endpoint;
    rr_endpoint_options options = RR_ENDPOINT_OPTIONS_INIT;
    options.mode = RR_DEDICATED; /* The target of an operation may compute meanwhile. */
    CHECK(rr_domain_open(NULL, 0, &domain));
    CHECK(rr_endpoint_open(domain, &options, &endpoint));

    /* A counter of 8 bytes, then room for the neighbour. */
    rr_region *region;
    CHECK(rr_region_allocate(endpoint, 8 + BYTES, &region));
    struct card own, *cards = (struct card *)calloc((size_t)ranks, sizeof *cards);
    if (cards == NULL)
        return 1;
    memset(&own, 0, sizeof own);
    CHECK(rr_endpoint_address(endpoint, &own.address));
    CHECK(rr_region_key(region, NULL, &own.key));
    CHECK(rr_bootstrap_exchange(job, "card", &own, sizeof own, cards));

    rr_peer first, next;
    int neighbour = (rank + 1) % ranks;
    CHECK(rr_insert(endpoint, &cards[0].address, &first));
    CHECK(rr_insert(endpoint, &cards[neighbour].address, &next));

    unsigned char *bytes = (unsigned char *)malloc(BYTES), *again = (unsigned char *)malloc(BYTES);
    if (bytes == NULL || again == NULL)
        return 1;
    memset(bytes, 17 + rank, BYTES);
    rr_remote room = {cards[neighbour].key, 8};
    rr_cq *queue;
    rr_completion ended;
    rr_send_options put = RR_SEND_OPTIONS_INIT;
    put.level = RR_LEVEL_DELIVERY;
    put.user_data = 42;
    CHECK(rr_endpoint_cq(endpoint, RR_TRANSMIT, &queue));
    CHECK(rr_post_put(endpoint, next, room, bytes, BYTES, &put, NULL));
    if (CHECK(rr_cq_wait(queue, &ended, 1, 60000000000)) != 1 || ended.user_data != 42) {
        fprintf(stderr, "the put has not ended\n");
        return 1;
    }
    CHECK(ended.error);
    CHECK(rr_get(endpoint, next, room, again, BYTES, NULL, RR_FOREVER));
    if (memcmp(bytes, again, BYTES) != 0) {
        fprintf(stderr, "the neighbour has other bytes\n");
        return 1;
    }

    rr_remote counter = {cards[0].key, 0};
    for (int addition = 0; addition < ADDITIONS; addition++) {
        uint64_t before;
        CHECK(rr_fetch_add(endpoint, first, counter, 1, &before));
    }
    CHECK(rr_flush(endpoint, first, RR_FOREVER));
    CHECK(rr_bootstrap_barrier(job));
    if (rank == 0) {
        uint64_t sum;
        CHECK(rr_region_read(region, 0, &sum, sizeof sum));
        printf("%d ranks counted to %llu\n", ranks, (unsigned long long)sum);
        if (sum != (uint64_t)ranks * ADDITIONS)
            return 1;
    }
    CHECK(rr_bootstrap_barrier(job));

    CHECK(rr_region_close(region));
    CHECK(rr_cq_close(queue));
    CHECK(rr_endpoint_close(endpoint));
    CHECK(rr_domain_close(domain));
    CHECK(rr_bootstrap_close(job));
    free(cards);
    free(bytes);
    free(again);
    return 0;
}
