/*
 * Eight threads send by one endpoint and receive at another one, each in a context of its own, as
 * the threads of a hybrid program do. Usage: threads [MESSAGES]
 */
#include <ringrail.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int check(int result, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s: %s\n", call, rr_error_name(result), rr_last_error());
        exit(1);
    }
    return result;
}
#define CHECK(call) check((call), #call)

#define THREADS 8

static rr_endpoint *sender, *receiver;
static rr_peer target;
static rr_cq *sent;
static uint64_t messages = 100;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t ended; /* Sends that have completed, whoever read it. */

static void take_completions(void)
{
    rr_completion completions[16];
    int count = CHECK(rr_cq_read(sent, completions, 16));
    for (int index = 0; index < count; index++)
        CHECK(completions[index].error);
    pthread_mutex_lock(&lock);
    ended += (uint64_t)count;
    pthread_mutex_unlock(&lock);
}

static void *run(void *argument)
{
    uint32_t context = *(uint32_t *)argument;
    uint64_t *numbers = (uint64_t *)calloc(messages, sizeof *numbers);
    if (numbers == NULL)
        exit(1);
    rr_selector selector = rr_from(RR_ANY_PEER, rr_tagged(context, 7));
    for (uint64_t number = 0; number < messages; number++) {
        numbers[number] = (uint64_t)context << 32 | number;
        int posted;
        while ((posted = rr_post_send(sender, target, rr_tagged(context, 7), &numbers[number], 8,
                                      NULL, NULL)) == RR_EAGAIN)
            take_completions();
        CHECK(posted);
        uint64_t got = 0;
        CHECK(rr_receive(receiver, &selector, &got, sizeof got, NULL, 30000000000));
        if (got != numbers[number]) {
            fprintf(stderr, "thread %u: a message of another one\n", context);
            exit(1);
        }
    }
    for (int is_over = 0; !is_over;) {
        take_completions();
        pthread_mutex_lock(&lock);
        is_over = ended == THREADS * messages;
        pthread_mutex_unlock(&lock);
    }
    free(numbers);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        messages = (uint64_t)atol(argv[1]);
    rr_domain *domain;
    CHECK(rr_domain_open(NULL, 0, &domain));
    CHECK(rr_endpoint_open(domain, NULL, &sender));
    CHECK(rr_endpoint_open(domain, NULL, &receiver));
    rr_address address;
    CHECK(rr_endpoint_address(receiver, &address));
    CHECK(rr_insert(sender, &address, &target));
    CHECK(rr_endpoint_cq(sender, RR_TRANSMIT, &sent));

    pthread_t threads[THREADS];
    uint32_t contexts[THREADS];
    for (uint32_t thread = 0; thread < THREADS; thread++) {
        contexts[thread] = thread;
        if (pthread_create(&threads[thread], NULL, run, &contexts[thread]) != 0)
            return 1;
    }
    for (int thread = 0; thread < THREADS; thread++)
        pthread_join(threads[thread], NULL);
    printf("%d threads sent %llu messages each\n", THREADS, (unsigned long long)messages);

    CHECK(rr_cq_close(sent));
    CHECK(rr_endpoint_close(sender));
    CHECK(rr_endpoint_close(receiver));
    CHECK(rr_domain_close(domain));
    return 0;
}
