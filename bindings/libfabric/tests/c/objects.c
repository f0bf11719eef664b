/* What applications do with address vectors, event queues and the order of closing. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#define CHECK(condition) do { \
    if (!(condition)) { \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
        exit(1); \
    } \
} while (0)

static void check_events(struct fid_fabric *fabric)
{
    struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD, .flags = FI_WRITE };
    struct fi_eq_entry entry = { .data = 7 }, got;
    struct fi_eq_err_entry error = { 0 };
    struct fid *fids[1];
    struct pollfd pollfd;
    struct fid_eq *eq;
    uint32_t event;

    CHECK(fi_eq_open(fabric, &attr, &eq, NULL) == 0);
    CHECK(fi_close(&fabric->fid) == -FI_EBUSY);
    CHECK(fi_control(&eq->fid, FI_GETWAIT, &pollfd.fd) == 0);
    pollfd.events = POLLIN;
    fids[0] = &eq->fid;
    CHECK(fi_trywait(fabric, fids, 1) == 0 && poll(&pollfd, 1, 0) == 0);
    CHECK(fi_eq_read(eq, &event, &got, sizeof got, 0) == -FI_EAGAIN);
    CHECK(fi_eq_sread(eq, &event, &got, sizeof got, 10, 0) == -FI_EAGAIN);
    CHECK(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0) == sizeof entry);
    CHECK(fi_trywait(fabric, fids, 1) == -FI_EAGAIN && poll(&pollfd, 1, 0) == 1);
    CHECK(fi_eq_read(eq, &event, &got, sizeof got - 1, 0) == -FI_ETOOSMALL);
    CHECK(fi_eq_read(eq, &event, &got, sizeof got, FI_PEEK) == sizeof got);
    CHECK(fi_eq_sread(eq, &event, &got, sizeof got, -1, 0) == sizeof got);
    CHECK(event == FI_NOTIFY && got.data == 7 && poll(&pollfd, 1, 0) == 0);
    CHECK(fi_eq_readerr(eq, &error, 0) == -FI_EAGAIN);
    CHECK(fi_close(&eq->fid) == 0);
}

static void check_addresses(struct fid_domain *domain, enum fi_av_type type)
{
    /* Two places of loopback, as fi_getinfo writes them. */
    struct fi_info *hints = fi_allocinfo(), *info;
    char addresses[2][64] = { 0 }, got[64], text[100], both[128];
    struct fi_av_attr attr = { .type = type };
    fi_addr_t fi_addr[3], removed;
    struct fid_av *av;
    size_t length = 0, size;
    int errors[2];

    hints->fabric_attr->prov_name = strdup("ringrail");
    for (int i = 0; i < 2; i++) {
        const char *port = i ? "20002" : "20001";
        CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", port, 0, hints, &info) == 0);
        length = info->dest_addrlen;
        CHECK(length <= sizeof addresses[i]);
        memcpy(addresses[i], info->dest_addr, length);
        memcpy(both + i * length, info->dest_addr, length);
        fi_freeinfo(info);
    }
    CHECK(fi_av_open(domain, &attr, &av, NULL) == 0 && attr.type != FI_AV_UNSPEC);
    CHECK(fi_av_insert(av, both, 2, fi_addr, 0, NULL) == 2);
    CHECK(fi_addr[0] == 0 && fi_addr[1] == 1);
    /* The same address is the same peer, and is there until it was removed as often. */
    CHECK(fi_av_insert(av, addresses[0], 1, &fi_addr[2], 0, NULL) == 1);
    CHECK(fi_addr[2] == fi_addr[0]);
    size = sizeof got;
    CHECK(fi_av_lookup(av, fi_addr[1], got, &size) == 0);
    CHECK(size == length && !memcmp(got, addresses[1], length));
    size = sizeof text;
    CHECK(fi_av_straddr(av, got, text, &size) == text && strstr(text, "127.0.0.1:20002"));
    CHECK(size == strlen(text) + 1);
    CHECK(fi_av_remove(av, &fi_addr[0], 1, 0) == 0);
    CHECK(fi_av_lookup(av, fi_addr[0], got, &size) == 0);
    removed = fi_addr[0];
    CHECK(fi_av_remove(av, &removed, 1, 0) == 0);
    CHECK(fi_av_lookup(av, fi_addr[0], got, &size) == -FI_EINVAL);
    CHECK(fi_av_remove(av, &removed, 1, 0) == -FI_EINVAL);
    /* What is no address is told one by one. */
    memset(both, 7, length);
    CHECK(fi_av_insert(av, both, 2, fi_addr, FI_SYNC_ERR, errors) == 1);
    CHECK(fi_addr[0] == FI_ADDR_NOTAVAIL && errors[0] == FI_EINVAL && errors[1] == 0);
    CHECK(fi_av_insertsvc(av, "127.0.0.1", "20003", &fi_addr[0], 0, NULL) == 1);
    CHECK(fi_close(&domain->fid) == -FI_EBUSY);
    CHECK(fi_close(&av->fid) == 0);
    fi_freeinfo(hints);
}

/* Inserts that end as events. */
static void check_asynchronous(struct fid_fabric *fabric, struct fid_domain *domain)
{
    struct fi_av_attr attr = { .type = FI_AV_TABLE, .flags = FI_EVENT };
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_UNSPEC };
    struct fi_eq_err_entry error = { 0 };
    struct fi_eq_entry entry;
    char nobody[64];
    fi_addr_t fi_addr;
    struct fid_av *av;
    struct fid_eq *eq;
    uint32_t event;

    memset(nobody, 7, sizeof nobody);
    CHECK(fi_eq_open(fabric, &eq_attr, &eq, NULL) == 0);
    CHECK(fi_av_open(domain, &attr, &av, NULL) == 0);
    CHECK(fi_av_insert(av, nobody, 1, &fi_addr, 0, NULL) == -FI_ENOEQ);
    CHECK(fi_av_bind(av, &eq->fid, 0) == 0);
    CHECK(fi_av_insert(av, nobody, 1, &fi_addr, 0, &fi_addr) == 0);
    CHECK(fi_eq_sread(eq, &event, &entry, sizeof entry, 1000, 0) == -FI_EAVAIL);
    CHECK(fi_eq_readerr(eq, &error, 0) == sizeof error);
    CHECK(error.err == FI_EINVAL && error.data == 0 && error.context == &fi_addr);
    CHECK(error.fid == &av->fid && fi_eq_strerror(eq, error.prov_errno, NULL, NULL, 0));
    CHECK(fi_eq_sread(eq, &event, &entry, sizeof entry, 1000, 0) == sizeof entry);
    CHECK(event == FI_AV_COMPLETE && entry.data == 0 && entry.fid == &av->fid);
    CHECK(fi_close(&eq->fid) == -FI_EBUSY);
    CHECK(fi_close(&av->fid) == 0 && fi_close(&eq->fid) == 0);
}

/* A domain of socket addresses has one endpoint, at the port that was asked for. */
static void check_port(const char *port)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT };
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct sockaddr_in name;
    struct fid_ep *ep[2];
    struct fid_cq *cq;
    struct fid_av *av;
    size_t size = sizeof name;

    hints->fabric_attr->prov_name = strdup("ringrail");
    hints->addr_format = FI_SOCKADDR_IN;
    CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", port, FI_SOURCE, hints, &info) == 0);
    CHECK(info->addr_format == FI_SOCKADDR_IN && info->src_addrlen == sizeof name);
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
    CHECK(fi_domain(fabric, info, &domain, NULL) == 0);
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL) == 0);
    CHECK(fi_av_open(domain, &av_attr, &av, NULL) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK(fi_endpoint(domain, info, &ep[i], NULL) == 0);
        CHECK(fi_ep_bind(ep[i], &cq->fid, FI_TRANSMIT | FI_RECV) == 0);
        CHECK(fi_ep_bind(ep[i], &av->fid, 0) == 0);
    }
    CHECK(fi_enable(ep[0]) == 0 && fi_enable(ep[1]) == -FI_ENOSPC);
    CHECK(fi_getname(&ep[0]->fid, &name, &size) == 0 && size == sizeof name);
    CHECK(name.sin_family == AF_INET && ntohs(name.sin_port) == atoi(port));
    size = 2;
    CHECK(fi_getname(&ep[0]->fid, &name, &size) == -FI_ETOOSMALL && size == sizeof name);
    CHECK(fi_close(&ep[0]->fid) == 0 && fi_close(&ep[1]->fid) == 0);
    CHECK(fi_close(&av->fid) == 0 && fi_close(&cq->fid) == 0);
    CHECK(fi_close(&domain->fid) == 0 && fi_close(&fabric->fid) == 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

int main(int argc, char **argv)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;

    CHECK(argc == 2);
    hints->fabric_attr->prov_name = strdup("ringrail");
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0);
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
    check_events(fabric);
    CHECK(fi_domain(fabric, info, &domain, NULL) == 0);
    check_addresses(domain, FI_AV_TABLE);
    check_addresses(domain, FI_AV_MAP);
    check_addresses(domain, FI_AV_UNSPEC);
    check_asynchronous(fabric, domain);
    CHECK(fi_close(&fabric->fid) == -FI_EBUSY);
    CHECK(fi_close(&domain->fid) == 0 && fi_close(&fabric->fid) == 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    check_port(argv[1]);
    puts("done");
    return 0;
}
