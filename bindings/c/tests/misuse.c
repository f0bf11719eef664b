/* Every call with arguments that are wrong: each gives the error that the header names. */
#include <ringrail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void expect(int wanted, int got, const char *call, int line)
{
    if (got == wanted)
        return;
    failures++;
    fprintf(stderr, "line %d: %s: %s instead of %s: %s\n", line, call, rr_error_name(got),
            rr_error_name(wanted), rr_last_error());
}
#define EXPECT(wanted, call) expect(wanted, call, #call, __LINE__)
#define OK(call) expect(RR_OK, call, #call, __LINE__)
#define TRUE(condition) expect(1, (condition) ? 1 : 0, #condition, __LINE__)

/* The error of a post. One that finds another thread at the engine is left to that thread, and its
 * error comes with the completion. */
static int posted(rr_endpoint *endpoint, int status)
{
    rr_completion completion;
    rr_cq *queue;
    if (status != RR_OK || rr_endpoint_cq(endpoint, RR_TRANSMIT, &queue) != RR_OK)
        return status;
    if (rr_cq_wait(queue, &completion, 1, 10000000000) == 1)
        status = completion.error;
    rr_cq_close(queue);
    return status;
}
#define EXPECT_POSTED(wanted, call) expect(wanted, posted(endpoint, call), #call, __LINE__)

/* Handles that never were any: null, small, a valid address, the bits of one that looks right. */
static int local;
#define EACH_BAD(type, name, call)                                                                 \
    do {                                                                                           \
        uintptr_t bad[] = {0, 1, (uintptr_t)&local, (uintptr_t)-1, (uintptr_t)1 << 62};            \
        for (size_t index = 0; index < sizeof bad / sizeof *bad; index++) {                        \
            type *name = (type *)bad[index];                                                       \
            EXPECT(RR_EHANDLE, call);                                                              \
        }                                                                                          \
    } while (0)

static void no_objects(void)
{
    rr_address address;
    rr_peer peer = 1;
    rr_envelope tag = rr_tagged(0, 1);
    rr_selector any = rr_from(RR_ANY_PEER, tag);
    rr_remote at = {1, 0};
    rr_operation none = {{0, 0}};
    rr_endpoint *made_endpoint;
    rr_cq *made_queue;
    rr_eq *made_events;
    rr_region *made_region;
    rr_listener *made_listener;
    rr_connection connection;
    rr_message *message;
    rr_completion completion;
    rr_event event;
    rr_region_counts counts;
    rr_atomic sum = RR_ATOMIC_INIT;
    uint64_t word = 0;
    char text[64];
    sum.operands = &word;
    EACH_BAD(rr_domain, it, rr_domain_close(it));
    EACH_BAD(rr_domain, it, rr_domain_setting(it, "nics", text, sizeof text));
    EACH_BAD(rr_domain, it, rr_endpoint_open(it, NULL, &made_endpoint));
    EACH_BAD(rr_endpoint, it, rr_endpoint_open_beside(it, NULL, &made_endpoint));
    EACH_BAD(rr_endpoint, it, rr_endpoint_close(it));
    EACH_BAD(rr_endpoint, it, rr_endpoint_address(it, &address));
    EACH_BAD(rr_endpoint, it, rr_progress(it));
    EACH_BAD(rr_endpoint, it, rr_set_hint(it, RR_HINT_BULK));
    EACH_BAD(rr_endpoint, it, rr_set_context_hint(it, 1, RR_HINT_BULK));
    EACH_BAD(rr_endpoint, it, rr_insert(it, &address, &peer));
    EACH_BAD(rr_endpoint, it, rr_remove(it, 1));
    EACH_BAD(rr_endpoint, it, rr_peer_address(it, 1, &address));
    EACH_BAD(rr_endpoint, it, rr_connect(it, &peer, 1, 0));
    EACH_BAD(rr_endpoint, it, rr_eager_limit(it, 1, &word));
    EACH_BAD(rr_endpoint, it, rr_post_send(it, 1, tag, text, 1, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_post_sendv(it, 1, tag, NULL, 0, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_inject(it, 1, tag, text, 1, NULL));
    EACH_BAD(rr_endpoint, it, rr_send(it, 1, tag, text, 1, NULL, 0));
    EACH_BAD(rr_endpoint, it, rr_cancel(it, none));
    EACH_BAD(rr_endpoint, it, rr_post_receive(it, &any, text, 1, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_post_receivev(it, &any, NULL, 0, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_post_receive_many(it, &any, text, 9, 1, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_receive(it, &any, text, 1, NULL, 0));
    EACH_BAD(rr_endpoint, it, rr_peek(it, &any, NULL));
    EACH_BAD(rr_endpoint, it, rr_claim(it, &any, &message, NULL));
    EACH_BAD(rr_endpoint, it, rr_post_receive_claimed(it, NULL, text, 1, NULL, NULL));
    EACH_BAD(rr_message, it, rr_message_discard(it));
    EACH_BAD(rr_endpoint, it, rr_post_put(it, 1, at, text, 1, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_post_putv(it, 1, at, NULL, 0, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_inject_put(it, 1, at, text, 1, NULL));
    EACH_BAD(rr_endpoint, it, rr_put(it, 1, at, text, 1, NULL, 0));
    EACH_BAD(rr_endpoint, it, rr_post_get(it, 1, at, text, 1, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_post_getv(it, 1, at, NULL, 0, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_get(it, 1, at, text, 1, NULL, 0));
    EACH_BAD(rr_endpoint, it, rr_post_flush(it, 1, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_flush(it, 1, 0));
    EACH_BAD(rr_endpoint, it, rr_post_atomic(it, 1, at, &sum, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_post_fetch_atomic(it, 1, at, &sum, &word, NULL, NULL));
    EACH_BAD(rr_endpoint, it, rr_atomically(it, 1, at, &sum, &word, NULL, 0));
    EACH_BAD(rr_endpoint, it, rr_fetch_add(it, 1, at, 1, &word));
    EACH_BAD(rr_endpoint, it, rr_compare_swap(it, 1, at, 0, 1, &word));
    EACH_BAD(rr_endpoint, it, rr_region_allocate(it, 8, &made_region));
    EACH_BAD(rr_endpoint, it, rr_region_register(it, text, 8, &made_region));
    EACH_BAD(rr_region, it, rr_region_close(it));
    EACH_BAD(rr_region, it, rr_region_base(it) == NULL ? RR_EHANDLE : RR_OK);
    EACH_BAD(rr_region, it, rr_region_key(it, NULL, &word));
    EACH_BAD(rr_region, it, rr_region_revoke(it, 1, 0));
    EACH_BAD(rr_region, it, rr_region_read(it, 0, text, 1));
    EACH_BAD(rr_region, it, rr_region_write(it, 0, text, 1));
    EACH_BAD(rr_region, it, rr_region_counted(it, &counts));
    EACH_BAD(rr_region, it, rr_region_wait(it, &counts, 0));
    EACH_BAD(rr_endpoint, it, rr_cq_open(it, 1, &made_queue));
    EACH_BAD(rr_endpoint, it, rr_endpoint_cq(it, RR_TRANSMIT, &made_queue));
    EACH_BAD(rr_cq, it, rr_cq_close(it));
    EACH_BAD(rr_cq, it, rr_cq_read(it, &completion, 1));
    EACH_BAD(rr_cq, it, rr_cq_wait(it, &completion, 1, 0));
    EACH_BAD(rr_cq, it, rr_cq_fd(it));
    EACH_BAD(rr_cq, it, rr_cq_arm(it));
    EACH_BAD(rr_cq, it, rr_cq_error_text(it, &completion, text, sizeof text));
    EACH_BAD(rr_endpoint, it, rr_eq_open(it, 1, &made_events));
    EACH_BAD(rr_endpoint, it, rr_endpoint_eq(it, &made_events));
    EACH_BAD(rr_endpoint, it, rr_listen(it, NULL, &made_listener));
    EACH_BAD(rr_endpoint, it, rr_request_connection(it, &address, "", 0, 0, &connection));
    EACH_BAD(rr_endpoint, it, rr_accept(it, NULL, 1, "", 0, &connection));
    EACH_BAD(rr_endpoint, it, rr_shut_down(it, 1));
    EACH_BAD(rr_listener, it, rr_reject(it, 1, "", 0));
    EACH_BAD(rr_listener, it, rr_listener_close(it));
    EACH_BAD(rr_eq, it, rr_eq_close(it));
    EACH_BAD(rr_eq, it, rr_eq_read(it, &event, 0));
    EACH_BAD(rr_eq, it, rr_eq_fd(it));
    EACH_BAD(rr_eq, it, rr_eq_arm(it));
    EACH_BAD(rr_endpoint, it, rr_statistics(it, text, sizeof text));
    EACH_BAD(rr_endpoint, it, rr_endpoint_driver(it) == NULL ? RR_EHANDLE : RR_OK);
    EACH_BAD(rr_bootstrap, it, rr_bootstrap_rank(it));
    EACH_BAD(rr_bootstrap, it, rr_bootstrap_size(it));
    EACH_BAD(rr_bootstrap, it, rr_bootstrap_exchange(it, "a", text, 1, text));
    EACH_BAD(rr_bootstrap, it, rr_bootstrap_barrier(it));
    EACH_BAD(rr_bootstrap, it, rr_bootstrap_close(it));
    TRUE(made_endpoint == NULL && made_queue == NULL && made_events == NULL && made_region == NULL);
    TRUE(strstr(rr_last_error(), "bootstrap") != NULL);
}

static void domains(void)
{
    const char *unknown[] = {"no_such_setting=1", NULL}, *plain[] = {"nics", NULL};
    const char *range[] = {"insecure=perhaps", NULL}, *insecure[] = {"insecure=true", NULL};
    rr_domain *domain;
    rr_endpoint *endpoint;
    char text[64];
    EXPECT(RR_EINVAL, rr_domain_open(insecure, RR_ISOLATED, NULL));
    EXPECT(RR_EINVAL, rr_domain_open(insecure, 64, &domain));
    EXPECT(RR_EINVAL, rr_domain_open(plain, RR_ISOLATED, &domain));
    EXPECT(RR_ESETTINGS, rr_domain_open(unknown, RR_ISOLATED, &domain));
    EXPECT(RR_ESETTINGS, rr_domain_open(range, RR_ISOLATED, &domain));
    EXPECT(RR_ESETTINGS, rr_domain_open(NULL, RR_ISOLATED, &domain));
    TRUE(domain == NULL && strstr(rr_last_error(), "secret") != NULL);
    OK(rr_domain_open(insecure, RR_ISOLATED, &domain));
    EXPECT(RR_EINVAL, rr_domain_setting(domain, NULL, text, sizeof text));
    EXPECT(RR_EINVAL, rr_domain_setting(domain, "\xff", text, sizeof text));
    EXPECT(RR_EINVAL, rr_domain_setting(domain, "no_such_setting", text, sizeof text));
    EXPECT(RR_EINVAL, rr_domain_setting(domain, "insecure", NULL, 1));
    EXPECT(4, rr_domain_setting(domain, "insecure", NULL, 0));
    EXPECT(4, rr_domain_setting(domain, "insecure", text, 3));
    TRUE(strcmp(text, "tr") == 0);
    EXPECT(RR_EINVAL, rr_endpoint_open(domain, NULL, NULL));
    rr_endpoint_options options = RR_ENDPOINT_OPTIONS_INIT;
    options.mode = 9;
    EXPECT(RR_EINVAL, rr_endpoint_open(domain, &options, &endpoint));
    options.mode = RR_SHARED;
    options.port = 65536;
    EXPECT(RR_EINVAL, rr_endpoint_open(domain, &options, &endpoint));
    options.size = 4;
    EXPECT(RR_EINVAL, rr_endpoint_open(domain, &options, &endpoint));
    EXPECT(RR_EINVAL,
           rr_endpoint_open(domain, (rr_endpoint_options *)((char *)&options + 1), &endpoint));
    EXPECT(RR_EHANDLE, rr_endpoint_close((rr_endpoint *)domain));
    OK(rr_domain_close(domain));
    EXPECT(RR_EHANDLE, rr_domain_close(domain));
    EXPECT(RR_EHANDLE, rr_endpoint_open(domain, NULL, &endpoint));
    EXPECT(RR_EINVAL, rr_secret_random(NULL, 65));
    EXPECT(RR_ETRUNCATED, rr_secret_random(text, sizeof text));
}

static void addresses(void)
{
    rr_address address;
    char text[RR_ADDRESS_TEXT_BYTES];
    EXPECT(RR_EINVAL, rr_address_from_text(NULL, &address));
    EXPECT(RR_EINVAL, rr_address_from_text("127.0.0.1:1", NULL));
    EXPECT(RR_EINVAL, rr_address_from_text("somewhere", &address));
    OK(rr_address_from_text("127.0.0.1:7000", &address));
    EXPECT(14, rr_address_to_text(&address, text, sizeof text));
    EXPECT(RR_EINVAL, rr_address_to_text(NULL, text, sizeof text));
    EXPECT(RR_EINVAL, rr_address_to_text(&address, NULL, 1));
    EXPECT(RR_EINVAL, rr_address_to_text(&address, text, (size_t)-1));
    memset(&address, 0, sizeof address);
    EXPECT(RR_EINVAL, rr_address_describe(&address, text, sizeof text));
}

static void operations(rr_endpoint *endpoint, rr_peer peer)
{
    rr_envelope tag = rr_tagged(0, 1), odd = {1, 0, 2};
    rr_selector any = rr_from(RR_ANY_PEER, tag), stranger = rr_from(12345, tag);
    rr_remote at = {1, 0};
    char text[64] = {0};
    uint64_t word = 0;
    rr_span null_piece = {NULL, 1};
    rr_message *message;
    rr_status status;
    size_t long_one = (size_t)-1 / 2 + 1;
    rr_send_options options = RR_SEND_OPTIONS_INIT;

    EXPECT(RR_EINVAL, rr_post_send(endpoint, peer, tag, NULL, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_post_send(endpoint, peer, tag, text, long_one, NULL, NULL));
    EXPECT(RR_EINVAL, rr_post_send(endpoint, peer, odd, text, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_post_send(endpoint, peer, tag, text, 1, NULL, (rr_operation *)(text + 1)));
    EXPECT_POSTED(RR_ENOPEER, rr_post_send(endpoint, 12345, tag, text, 1, NULL, NULL));
    EXPECT_POSTED(RR_ENOPEER, rr_post_send(endpoint, 0, tag, text, 1, NULL, NULL));
    options.flags = 1u << 30;
    EXPECT(RR_EINVAL, rr_post_send(endpoint, peer, tag, text, 1, &options, NULL));
    options.flags = 0;
    options.level = 3;
    EXPECT(RR_EINVAL, rr_post_send(endpoint, peer, tag, text, 1, &options, NULL));
    options.level = 0;
    options.hint = 5;
    EXPECT(RR_EINVAL, rr_send(endpoint, peer, tag, text, 1, &options, 0));
    options.hint = 0;
    options.size = 0;
    EXPECT(RR_EINVAL, rr_inject(endpoint, peer, tag, text, 1, &options));
    EXPECT(RR_EINVAL, rr_post_sendv(endpoint, peer, tag, NULL, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_post_sendv(endpoint, peer, tag, &null_piece, long_one, NULL, NULL));
    EXPECT(RR_EMEMORY, rr_post_sendv(endpoint, peer, tag, &null_piece, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_inject(endpoint, peer, tag, NULL, 1, NULL));
    EXPECT(RR_EINVAL, rr_send(endpoint, peer, tag, NULL, 1, NULL, 0));

    EXPECT(RR_EINVAL, rr_post_receive(endpoint, NULL, text, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_post_receive(endpoint, &any, NULL, 1, NULL, NULL));
    EXPECT_POSTED(RR_ENOPEER, rr_post_receive(endpoint, &stranger, text, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_post_receivev(endpoint, &any, NULL, 1, NULL, NULL));
    EXPECT(RR_EMEMORY, rr_post_receivev(endpoint, &any, &null_piece, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_post_receive_many(endpoint, &any, NULL, 8, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_receive(endpoint, &any, NULL, 8, NULL, 0));
    EXPECT(RR_EINVAL, rr_receive(endpoint, NULL, text, 8, NULL, 0));
    EXPECT(RR_ETIMEDOUT, rr_receive(endpoint, &any, text, 8, &status, 1000));
    EXPECT(RR_EINVAL, rr_peek(endpoint, NULL, NULL));
    EXPECT(RR_ENOPEER, rr_peek(endpoint, &stranger, NULL));
    EXPECT(0, rr_peek(endpoint, &any, &status));
    EXPECT(RR_EINVAL, rr_claim(endpoint, &any, NULL, NULL));
    EXPECT(0, rr_claim(endpoint, &any, &message, NULL));
    EXPECT(RR_EHANDLE, rr_post_receive_claimed(endpoint, message, text, 8, NULL, NULL));

    EXPECT(RR_EINVAL, rr_post_put(endpoint, peer, at, NULL, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_post_get(endpoint, peer, at, NULL, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_post_putv(endpoint, peer, at, NULL, 1, NULL, NULL));
    EXPECT_POSTED(RR_ENOPEER, rr_post_put(endpoint, 12345, at, text, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_inject_put(endpoint, peer, at, NULL, 1, NULL));
    EXPECT(RR_EINVAL, rr_put(endpoint, peer, at, NULL, 1, NULL, 0));
    EXPECT(RR_EINVAL, rr_post_getv(endpoint, peer, at, NULL, 1, NULL, NULL));
    EXPECT(RR_EINVAL, rr_get(endpoint, peer, at, NULL, 1, NULL, 0));
    EXPECT(RR_EACCESS, rr_get(endpoint, peer, at, text, 1, NULL, RR_FOREVER));
    EXPECT_POSTED(RR_ENOPEER, rr_post_flush(endpoint, 12345, NULL, NULL));
    EXPECT(RR_ENOPEER, rr_flush(endpoint, 12345, 0));

    rr_atomic sum = RR_ATOMIC_INIT;
    EXPECT(RR_EINVAL, rr_post_atomic(endpoint, peer, at, NULL, NULL, NULL));
    EXPECT(RR_EINVAL, rr_post_atomic(endpoint, peer, at, &sum, NULL, NULL));
    sum.operands = &word;
    EXPECT(RR_EINVAL, rr_post_fetch_atomic(endpoint, peer, at, &sum, NULL, NULL, NULL));
    sum.op = 20;
    EXPECT(RR_EINVAL, rr_atomically(endpoint, peer, at, &sum, NULL, NULL, 0));
    sum.op = 256;
    EXPECT(RR_EINVAL, rr_atomically(endpoint, peer, at, &sum, NULL, NULL, 0));
    sum.op = RR_BIT_OR;
    sum.datatype = RR_DOUBLE;
    EXPECT(RR_EINVAL, rr_atomically(endpoint, peer, at, &sum, NULL, NULL, 0));
    sum.datatype = RR_UINT64;
    sum.count = (size_t)-1;
    EXPECT(RR_EINVAL, rr_atomically(endpoint, peer, at, &sum, NULL, NULL, 0));
    sum.count = 0;
    EXPECT(RR_EINVAL, rr_atomically(endpoint, peer, at, &sum, NULL, NULL, 0));
    EXPECT(RR_EINVAL, rr_fetch_add(endpoint, peer, at, 1, NULL));
    EXPECT(RR_EINVAL, rr_compare_swap(endpoint, peer, at, 1, 1, NULL));
    EXPECT(RR_EACCESS, rr_fetch_add(endpoint, peer, at, 1, &word));

    rr_operation made_up = {{1, 99}}, none = {{0, 0}};
    EXPECT(0, rr_cancel(endpoint, made_up));
    EXPECT(0, rr_cancel(endpoint, none));
}

static void objects(rr_endpoint *endpoint)
{
    rr_region *region;
    rr_cq *queue, *again;
    rr_eq *events;
    rr_completion completion;
    rr_key_options options = RR_KEY_OPTIONS_INIT;
    uint64_t key, word;
    rr_peer peer;
    char text[64];
    EXPECT(RR_EINVAL, rr_endpoint_address(endpoint, NULL));
    EXPECT(RR_EINVAL, rr_insert(endpoint, NULL, &peer));
    EXPECT(RR_ENOPEER, rr_remove(endpoint, 12345));
    EXPECT(RR_EINVAL, rr_connect(endpoint, NULL, 1, 0));
    EXPECT(RR_EINVAL, rr_eager_limit(endpoint, 1, NULL));
    EXPECT(RR_EINVAL, rr_set_hint(endpoint, RR_HINT_UNSAID));
    EXPECT(RR_EINVAL, rr_set_context_hint(endpoint, 1, 77));
    EXPECT(RR_EINVAL, rr_statistics(endpoint, NULL, 5));

    EXPECT(RR_EINVAL, rr_region_allocate(endpoint, 64, NULL));
    EXPECT(RR_EINVAL, rr_region_allocate(endpoint, 0, &region));
    EXPECT(RR_EMEMORY, rr_region_allocate(endpoint, (size_t)-1 / 4, &region));
    EXPECT(RR_EINVAL, rr_region_register(endpoint, NULL, 64, &region));
    OK(rr_region_allocate(endpoint, 64, &region));
    EXPECT(RR_EINVAL, rr_region_read(region, 60, &word, 8));
    EXPECT(RR_EINVAL, rr_region_read(region, (size_t)-1, &word, 8));
    EXPECT(RR_EINVAL, rr_region_write(region, 0, NULL, 8));
    EXPECT(RR_EINVAL, rr_region_counted(region, NULL));
    EXPECT(RR_EINVAL, rr_region_wait(region, NULL, 0));
    EXPECT(RR_EINVAL, rr_region_key(region, NULL, NULL));
    options.access = 0;
    EXPECT(RR_EINVAL, rr_region_key(region, &options, &key));
    options.access = 1u << 20;
    EXPECT(RR_EINVAL, rr_region_key(region, &options, &key));
    options.access = RR_REMOTE_READ;
    options.length = 65;
    EXPECT(RR_EINVAL, rr_region_key(region, &options, &key));
    options.length = RR_TO_THE_END;
    options.peer_count = 1;
    EXPECT(RR_EINVAL, rr_region_key(region, &options, &key));
    EXPECT(RR_EINVAL, rr_region_revoke(region, 5, 0));
    OK(rr_region_close(region));
    EXPECT(RR_EHANDLE, rr_region_close(region));

    EXPECT(RR_EINVAL, rr_cq_open(endpoint, 8, NULL));
    EXPECT(RR_EINVAL, rr_endpoint_cq(endpoint, 2, &queue));
    OK(rr_endpoint_cq(endpoint, RR_RECEIVE, &queue));
    EXPECT(RR_EINVAL, rr_cq_read(queue, NULL, 1));
    EXPECT(RR_EINVAL, rr_cq_read(queue, &completion, (size_t)-1));
    EXPECT(RR_EINVAL, rr_cq_error_text(queue, NULL, text, sizeof text));
    EXPECT(0, rr_cq_wait(queue, &completion, 1, 1000));
    OK(rr_cq_close(queue));
    /* A place that is used again gives another handle. */
    OK(rr_endpoint_cq(endpoint, RR_RECEIVE, &again));
    TRUE(again != queue);
    EXPECT(RR_EHANDLE, rr_cq_read(queue, &completion, 1));
    OK(rr_cq_close(again));
    OK(rr_endpoint_eq(endpoint, &events));
    EXPECT(RR_EINVAL, rr_eq_read(events, NULL, 0));
    OK(rr_eq_close(events));
    EXPECT(RR_EHANDLE, rr_eq_arm(events));
}

static void connections(rr_endpoint *endpoint)
{
    rr_listen_options options = RR_LISTEN_OPTIONS_INIT;
    rr_listener *listener, *second;
    rr_connection connection;
    rr_address address;
    char longer[RR_PRIVATE_DATA_BYTES + 1] = "";
    EXPECT(RR_EINVAL, rr_listen(endpoint, NULL, NULL));
    options.size = 1;
    EXPECT(RR_EINVAL, rr_listen(endpoint, &options, &listener));
    OK(rr_listen(endpoint, NULL, &listener));
    EXPECT(RR_EINVAL, rr_listen(endpoint, NULL, &second));
    TRUE(second == NULL);
    EXPECT(RR_EINVAL, rr_reject(listener, 1, NULL, 0));
    EXPECT(RR_EINVAL, rr_reject(listener, 1, longer, sizeof longer));
    EXPECT(RR_EINVAL, rr_reject(listener, 1, NULL, 1));
    EXPECT(RR_EHANDLE, rr_accept(endpoint, NULL, 1, NULL, 0, &connection));
    EXPECT(RR_EINVAL, rr_accept(endpoint, listener, 1, NULL, 0, NULL));
    EXPECT(RR_EINVAL, rr_accept(endpoint, listener, 1, NULL, 0, &connection));
    OK(rr_endpoint_address(endpoint, &address));
    EXPECT(RR_EINVAL, rr_request_connection(endpoint, NULL, NULL, 0, 0, &connection));
    EXPECT(RR_EINVAL, rr_request_connection(endpoint, &address, NULL, 0, 0, NULL));
    EXPECT(RR_EINVAL,
           rr_request_connection(endpoint, &address, longer, sizeof longer, 0, &connection));
    EXPECT(RR_EINVAL, rr_shut_down(endpoint, 12345));
    OK(rr_listener_close(listener));
    EXPECT(RR_EHANDLE, rr_listener_close(listener));
    options.size = (uint32_t)sizeof options;
    OK(rr_listen(endpoint, &options, &listener));
    OK(rr_listener_close(listener));
}

static void bootstraps(void)
{
    rr_bootstrap *job;
    rr_member member = RR_MEMBER_INIT;
    EXPECT(RR_EINVAL, rr_bootstrap_from_environment(NULL));
    EXPECT(RR_EBOOTSTRAP, rr_bootstrap_from_environment(&job));
    EXPECT(RR_EINVAL, rr_bootstrap_tcp(NULL, 1, &member, &job));
    EXPECT(RR_EINVAL, rr_bootstrap_tcp("localhost", 0, &member, &job));
    EXPECT(RR_EINVAL, rr_bootstrap_tcp("localhost", 1, NULL, &job));
    EXPECT(RR_EINVAL, rr_bootstrap_directory(NULL, &member, &job));
    member.rank = 1;
    EXPECT(RR_EBOOTSTRAP, rr_bootstrap_tcp("localhost", 1, &member, &job));
    member.size = 1;
    EXPECT(RR_EINVAL, rr_bootstrap_tcp("localhost", 1, &member, &job));
    TRUE(job == NULL);
}

/* In a child of fork each call but those that close returns that error. */
static void inherited(rr_endpoint *endpoint)
{
    rr_address own;
    rr_peer peer;
    char byte = 0;
    int status = 1;
    rr_selector any = rr_from(RR_ANY_PEER, rr_tagged(0, 1));
    pid_t child = fork();
    if (child == 0) {
        EXPECT(RR_EINVAL, rr_progress(endpoint));
        TRUE(strstr(rr_last_error(), "forked") != NULL);
        EXPECT(RR_EINVAL, rr_endpoint_address(endpoint, &own));
        TRUE(strstr(rr_last_error(), "forked") != NULL);
        EXPECT(RR_EINVAL, rr_insert(endpoint, &own, &peer));
        EXPECT(RR_EINVAL, rr_receive(endpoint, &any, &byte, 1, NULL, 10000000000));
        OK(rr_endpoint_close(endpoint));
        _exit(failures > 0);
    }
    TRUE(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
    const char *settings[] = {"insecure=true", "listen_address=127.0.0.1", "spin=0", NULL};
    rr_domain *domain;
    rr_endpoint *endpoint;
    rr_address own;
    rr_peer self;
    TRUE(rr_version_number() ==
         (RR_VERSION_MAJOR << 16 | RR_VERSION_MINOR << 8 | RR_VERSION_PATCH));
    no_objects();
    domains();
    addresses();
    bootstraps();
    OK(rr_domain_open(settings, RR_ISOLATED, &domain));
    for (uint32_t mode = RR_SHARED; mode <= RR_OWNED; mode++) {
        rr_endpoint_options options = RR_ENDPOINT_OPTIONS_INIT;
        options.mode = mode;
        OK(rr_endpoint_open(domain, &options, &endpoint));
        OK(rr_endpoint_address(endpoint, &own));
        OK(rr_insert(endpoint, &own, &self));
        operations(endpoint, self);
        objects(endpoint);
        connections(endpoint);
        inherited(endpoint);
        OK(rr_endpoint_close(endpoint));
        EXPECT(RR_EHANDLE, rr_endpoint_close(endpoint));
        EXPECT(RR_EHANDLE, rr_progress(endpoint));
    }
    OK(rr_domain_close(domain));
    if (failures > 0)
        fprintf(stderr, "%d calls gave something else\n", failures);
    return failures > 0;
}
