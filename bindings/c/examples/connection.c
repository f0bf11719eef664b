/*
 * A server listens and accepts one request for a connection; the second one it rejects. Both sides
 * are in one process here; between processes the client makes the server's address of its text
 * (rr_address_from_text: "10.0.0.1:4000" of a server that opened its endpoint at port 4000).
 */
#include <ringrail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE INT64_C(30000000000)

static int check(int result, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s: %s\n", call, rr_error_name(result), rr_last_error());
        exit(1);
    }
    return result;
}
#define CHECK(call) check((call), #call)

/* The next event of a connection; sessions that come and go are no news here. */
static rr_event next(rr_eq *queue, uint32_t kind, const char *data)
{
    rr_event event;
    do {
        if (CHECK(rr_eq_read(queue, &event, PATIENCE)) == 0) {
            fprintf(stderr, "no event came\n");
            exit(1);
        }
    } while (event.kind < RR_EVENT_REQUEST);
    if (event.kind != kind || event.data_length != strlen(data) ||
        memcmp(event.data, data, event.data_length) != 0) {
        fprintf(stderr, "another event was expected than: %s\n", event.text);
        exit(1);
    }
    return event;
}

int main(void)
{
    rr_domain *domain;
    rr_endpoint *door, *served, *client;
    CHECK(rr_domain_open(NULL, 0, &domain));
    CHECK(rr_endpoint_open(domain, NULL, &door));
    CHECK(rr_endpoint_open(domain, NULL, &client));

    rr_eq *of_server, *of_client;
    CHECK(rr_endpoint_eq(door, &of_server));
    CHECK(rr_endpoint_eq(client, &of_client));
    rr_listener *listener;
    CHECK(rr_listen(door, NULL, &listener));
    rr_address at;
    CHECK(rr_endpoint_address(door, &at));

    /* Each connection of the server has an endpoint, which reports to the same queue. */
    rr_connection asked, accepted;
    CHECK(rr_request_connection(client, &at, "let me in", 9, PATIENCE, &asked));
    rr_event request = next(of_server, RR_EVENT_REQUEST, "let me in");
    if (memcmp(&request.listener, &at, sizeof at) != 0)
        return 1;
    CHECK(rr_endpoint_open_beside(door, NULL, &served));
    CHECK(rr_accept(served, listener, request.name, "welcome", 7, &accepted));
    rr_event opened = next(of_client, RR_EVENT_OPENED, "welcome");
    rr_event confirmed = next(of_server, RR_EVENT_OPENED, "");
    if (opened.name != asked || confirmed.name != accepted)
        return 1;

    /* From now on it is a peer as any. */
    char text[6] = "";
    rr_selector from = rr_from(confirmed.peer, rr_untagged());
    CHECK(rr_send(client, opened.peer, rr_untagged(), "hello", 5, NULL, PATIENCE));
    CHECK(rr_receive(served, &from, text, 5, NULL, PATIENCE));

    rr_connection second;
    CHECK(rr_request_connection(client, &at, NULL, 0, PATIENCE, &second));
    request = next(of_server, RR_EVENT_REQUEST, "");
    CHECK(rr_reject(listener, request.name, "full", 4));
    rr_event rejected = next(of_client, RR_EVENT_REJECTED, "full");
    if (rejected.name != second || rejected.reason != RR_REASON_REJECTED)
        return 1;

    CHECK(rr_shut_down(client, asked));
    rr_event ended = next(of_server, RR_EVENT_ENDED, "");
    if (ended.name != accepted || ended.reason != RR_REASON_SHUT_DOWN)
        return 1;
    printf("connected, said %s, rejected, shut down\n", text);

    CHECK(rr_listener_close(listener));
    CHECK(rr_eq_close(of_server));
    CHECK(rr_eq_close(of_client));
    CHECK(rr_endpoint_close(served));
    CHECK(rr_endpoint_close(client));
    CHECK(rr_endpoint_close(door));
    CHECK(rr_domain_close(domain));
    return 0;
}
