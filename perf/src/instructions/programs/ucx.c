/* Messages by UCX: ucp_tag_send_nbx, ucp_tag_recv_nbx. UCX_TLS selects the transport. */
#include <ucp/api/ucp.h>

struct side {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h peer;
    long received;
    char buffers[64][16384];
};

#include "loop.h"

#define CALL(call)                                                    \
    do {                                                              \
        ucs_status_t status_ = (call);                                \
        if (status_ != UCS_OK)                                        \
            FAIL("%s: %s", #call, ucs_status_string(status_));        \
    } while (0)

static void open_side(struct side *side) {
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    CALL(ucp_init(&params, NULL, &side->context));
    CALL(ucp_worker_create(side->context, &worker, &side->worker));
}

static void know(struct side *side, const struct side *other) {
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_address_t *address;
    size_t length;
    CALL(ucp_worker_get_address(other->worker, &address, &length));
    params.address = address;
    CALL(ucp_ep_create(side->worker, &params, &side->peer));
    ucp_worker_release_address(other->worker, address);
}

static void open_sides(struct side *left, struct side *right, const char *transport) {
    (void)transport;
    open_side(left);
    open_side(right);
    know(left, right);
    know(right, left);
}

static void close_sides(struct side *left, struct side *right) {
    ucp_worker_destroy(left->worker);
    ucp_worker_destroy(right->worker);
    ucp_cleanup(left->context);
    ucp_cleanup(right->context);
}

static void on_receive(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                       void *side) {
    (void)info;
    CALL(status);
    ((struct side *)side)->received++;
    ucp_request_free(request);
}

static void on_send(void *request, ucs_status_t status, void *side) {
    (void)side;
    CALL(status);
    ucp_request_free(request);
}

static inline void post(struct side *side, int slot, size_t bytes) {
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv = on_receive,
        .user_data = side};
    ucs_status_ptr_t request =
        ucp_tag_recv_nbx(side->worker, side->buffers[slot], bytes, TAG, (ucp_tag_t)-1, &params);
    if (UCS_PTR_IS_ERR(request))
        FAIL("ucp_tag_recv_nbx: %s", ucs_status_string(UCS_PTR_STATUS(request)));
}

static inline int send_message(struct side *side, const void *message, size_t bytes) {
    ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.send = on_send};
    ucs_status_ptr_t request = ucp_tag_send_nbx(side->peer, message, bytes, TAG, &params);
    if (UCS_PTR_IS_ERR(request))
        FAIL("ucp_tag_send_nbx: %s", ucs_status_string(UCS_PTR_STATUS(request)));
    return 1;
}

static inline void poll_side(struct side *side) {
    ucp_worker_progress(side->worker);
}
