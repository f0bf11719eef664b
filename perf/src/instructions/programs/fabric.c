/* Messages by a provider of libfabric, ringrail's or another one: fi_tinject, fi_trecv. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <time.h>

struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_ep *ep;
    fi_addr_t peer;
    long received;
    struct fi_context2 contexts[64];
    char buffers[64][16384];
};

#include "loop.h"

#define CALL(call)                                                                 \
    do {                                                                           \
        long answer_ = (long)(call);                                               \
        if (answer_ != 0)                                                          \
            FAIL("%s: %s", #call, fi_strerror((int)(answer_ < 0 ? -answer_ : answer_))); \
    } while (0)

/* What the provider offers at `node`, an address or a name of its own; NULL: any. */
static struct fi_info *find(const char *provider, const char *node) {
    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    hints->fabric_attr->prov_name = strdup(provider);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED | FI_DIRECTED_RECV;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    int answer =
        fi_getinfo(FI_VERSION(1, 17), node, NULL, node == NULL ? 0 : FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    return answer == 0 ? info : NULL;
}

static struct fi_info *find_usual(const char *provider) {
    static int number;
    char name[64];
    struct timespec now;
    struct fi_info *info = NULL;
    if (strcmp(provider, "tcp") == 0) {
        /* The one that does without ofi_rxm is `net` in libfabric 1.17, and `tcp` since. */
        info = find("net", "127.0.0.1");
        return info != NULL ? info : find("tcp", "127.0.0.1");
    }
    if (strcmp(provider, "shm") == 0) {
        /* The usual name has the process id, which is 1 for each program of a lab. */
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(name, sizeof name, "fi_shm://ringrail-perf-%ld-%ld-%d", (long)now.tv_sec,
                 now.tv_nsec, number++);
        return find("shm", name);
    }
    return find(provider, NULL);
}

static void open_side(struct side *side, const char *provider) {
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    side->info = find_usual(provider);
    if (side->info == NULL)
        FAIL("libfabric has no provider %s with tagged messages of reliable datagrams", provider);
    CALL(fi_fabric(side->info->fabric_attr, &side->fabric, NULL));
    CALL(fi_domain(side->fabric, side->info, &side->domain, NULL));
    CALL(fi_cq_open(side->domain, &cq, &side->cq, NULL));
    CALL(fi_av_open(side->domain, &av, &side->av, NULL));
    CALL(fi_endpoint(side->domain, side->info, &side->ep, NULL));
    CALL(fi_ep_bind(side->ep, &side->av->fid, 0));
    CALL(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV));
    CALL(fi_enable(side->ep));
}

/* Ringrail's endpoints would wait for each other, by a clock that hardly moves. */
static void close_sides(struct side *left, struct side *right) {
    struct side *sides[] = {left, right};
    if (strstr(left->info->fabric_attr->prov_name, "ringrail") != NULL)
        return;
    for (int number = 0; number < 2; number++)
        fi_close(&sides[number]->ep->fid);
}

static void know(struct side *side, const struct side *other) {
    char name[512];
    size_t length = sizeof name;
    CALL(fi_getname(&other->ep->fid, name, &length));
    if (fi_av_insert(side->av, name, 1, &side->peer, 0, NULL) != 1)
        FAIL("fi_av_insert takes no address");
}

static void open_sides(struct side *left, struct side *right, const char *transport) {
    open_side(left, transport);
    open_side(right, transport);
    know(left, right);
    know(right, left);
}

static inline void post(struct side *side, int slot, size_t bytes) {
    ssize_t answer;
    while ((answer = fi_trecv(side->ep, side->buffers[slot], bytes, NULL, side->peer, TAG, 0,
                              &side->contexts[slot])) == -FI_EAGAIN)
        poll_side(side);
    if (answer != 0)
        FAIL("fi_trecv: %s", fi_strerror((int)-answer));
}

static inline int send_message(struct side *side, const void *message, size_t bytes) {
    ssize_t answer = fi_tinject(side->ep, message, bytes, side->peer, TAG);
    if (answer != 0 && answer != -FI_EAGAIN)
        FAIL("fi_tinject of %zu bytes: %s", bytes, fi_strerror((int)-answer));
    return answer == 0;
}

static inline void poll_side(struct side *side) {
    struct fi_cq_tagged_entry entries[64];
    ssize_t count = fi_cq_read(side->cq, entries, 64);
    if (count > 0)
        side->received += count;
    else if (count != -FI_EAGAIN && count != 0)
        FAIL("fi_cq_read: %s", fi_strerror((int)-count));
}
