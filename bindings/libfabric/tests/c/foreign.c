/* Objects of one domain or fabric, bound to objects of another one: each bind refuses them. */
#include "side.h"

int main(void) {
    struct side a, b;
    struct fid_ep *ep;
    struct fid_cntr *cntr;
    struct fid_eq *eq;
    struct fid_mr *mr;
    struct fid_av *av;
    struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_NONE};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .flags = FI_EVENT};
    char memory[64];
    open_side(&a, 0, 0);
    open_side(&b, 0, 0);
    CALL(fi_cntr_open(b.domain, &cntr_attr, &cntr, NULL));
    CALL(fi_eq_open(b.fabric, &eq_attr, &eq, NULL));
    CALL(fi_endpoint(a.domain, a.info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &b.av->fid, 0) == -FI_EINVAL);
    CHECK(fi_ep_bind(ep, &b.cq->fid, FI_TRANSMIT | FI_RECV) == -FI_EINVAL);
    CHECK(fi_ep_bind(ep, &cntr->fid, FI_SEND) == -FI_EINVAL);
    CHECK(fi_ep_bind(ep, &eq->fid, 0) == -FI_EINVAL);
    /* Nothing of it stays: its own are taken, and without a vector it is not enabled. */
    CALL(fi_ep_bind(ep, &a.cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(ep) == -FI_ENOAV);
    CALL(fi_ep_bind(ep, &a.av->fid, 0));
    CALL(fi_enable(ep));
    CHECK(fi_domain_bind(a.domain, &eq->fid, 0) == -FI_EINVAL);
    CALL(fi_av_open(a.domain, &av_attr, &av, NULL));
    CHECK(fi_av_bind(av, &eq->fid, 0) == -FI_EINVAL);
    CALL(fi_mr_reg(a.domain, memory, sizeof memory, FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
    CHECK(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE) == -FI_EINVAL);
    CHECK(fi_mr_bind(mr, &b.ep->fid, 0) == -FI_EINVAL);
    CALL(fi_mr_bind(mr, &a.ep->fid, 0));
    CALL(fi_close(&mr->fid));
    CALL(fi_close(&av->fid));
    CALL(fi_close(&ep->fid));
    /* A refused bind keeps no count of its object. */
    CALL(fi_close(&eq->fid));
    CALL(fi_close(&cntr->fid));
    close_side(&a);
    close_side(&b);
    return 0;
}
