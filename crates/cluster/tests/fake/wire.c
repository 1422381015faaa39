/* How messages of the fake travel: from the sender's buffer into a ring in shared memory as soon as
 * its peer has a receive for it, and from there into the buffer of that receive. Both happen in the
 * calls of the program, and in a thread that plays the card, so that nothing waits for a call that
 * does not come. */
#define _GNU_SOURCE
#include "fake.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WAIT = -1 };
/* What the card does in vain before it gives up, in nanoseconds. */
#define RNR_NS 5000000ull

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

int registered(const struct fake_qp *qp, uint64_t address, uint32_t length, uint32_t key) {
    if (length == 0) return 1;
    struct fake_pd *pd = (struct fake_pd *)qp->base.pd;
    int found = 0;
    pthread_mutex_lock(&pd->lock);
    for (struct fake_mr *mr = pd->regions; mr && !found; mr = mr->next) {
        uint64_t start = (uint64_t)(uintptr_t)mr->base.addr;
        int known = !knobs.mr_early || !qp->rtr_time || mr->born < qp->rtr_time;
        found = mr->base.lkey == key && known && address >= start &&
                address - start <= mr->base.length && length <= mr->base.length - (address - start);
    }
    pthread_mutex_unlock(&pd->lock);
    return found;
}

void complete(struct fake_cq *cq, const struct ibv_wc *wc, uint64_t due) {
    pthread_mutex_lock(&cq->lock);
    if (cq->tail - cq->head < cq->size) {
        cq->ring[cq->tail % cq->size] = (struct completion){*wc, due};
        cq->tail++;
    } else {
        /* An overrun queue is broken: what it gives from now on is an error. */
        cq->ring[(cq->tail - 1) % cq->size].wc.status = IBV_WC_GENERAL_ERR;
    }
    pthread_mutex_unlock(&cq->lock);
}

static void end_send(struct fake_qp *qp, const struct request *r, int status) {
    qp->send_head++;
    if (status == IBV_WC_SUCCESS && !(r->flags & IBV_SEND_SIGNALED) && !qp->sig_all) return;
    struct ibv_wc wc = {.wr_id = r->id, .status = status, .opcode = IBV_WC_SEND,
                        .byte_len = r->length, .qp_num = qp->base.qp_num};
    complete((struct fake_cq *)qp->base.send_cq, &wc, 0);
}

static void end_receive(struct fake_qp *qp, const struct request *r, int status, uint32_t length) {
    qp->receive_head++;
    uint64_t frames = knobs.frames ? (r->length + FRAME - 1) / FRAME + !r->length : 1;
    qp->frames_posted -= frames < qp->frames_posted ? frames : qp->frames_posted;
    struct ibv_wc wc = {.wr_id = r->id, .status = status, .opcode = IBV_WC_RECV,
                        .byte_len = length, .qp_num = qp->base.qp_num,
                        .src_qp = qp->attr.dest_qp_num};
    complete((struct fake_cq *)qp->base.recv_cq, &wc, 0);
}

void fail_all(struct fake_qp *qp) {
    qp->base.state = IBV_QPS_ERR;
    while (qp->send_head != qp->send_tail)
        end_send(qp, &qp->sends[qp->send_head % qp->send_size], IBV_WC_WR_FLUSH_ERR);
    while (qp->receive_head != qp->receive_tail)
        end_receive(qp, &qp->receives[qp->receive_head % qp->receive_size], IBV_WC_WR_FLUSH_ERR, 0);
}

/* Puts one message into the peer's ring; the status that its receive ends with, or WAIT. */
static int put(struct fake_qp *qp, const struct request *r, uint32_t length) {
    struct port *peer = qp->peer;
    uint64_t arrived = atomic_load_explicit(&peer->arrived, memory_order_relaxed);
    uint64_t taken = atomic_load_explicit(&peer->taken, memory_order_acquire);
    if (arrived == taken) qp->write_at = 0;
    if (arrived - taken >= RING_ENTRIES || qp->write_at + length > RING_BYTES) return WAIT;
    uint32_t room = peer->room[arrived % RECEIVES_MAX];
    int fits = length <= room;
    if (knobs.frames)
        fits = fits && (length + FRAME - 1) / FRAME == (room + FRAME - 1) / FRAME;
    int status = fits ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR;
    struct entry *entry = &peer->entries[arrived % RING_ENTRIES];
    *entry = (struct entry){qp->write_at, length, r->imm, (uint32_t)r->opcode, (uint32_t)status};
    unsigned char *to = peer->ring + qp->write_at;
    memcpy(to, (const void *)(uintptr_t)r->address, length);
    if (knobs.flip == r->number && length) to[length / 2] ^= 0x10;
    qp->write_at += (length + 63) & ~63u;
    atomic_store_explicit(&peer->arrived, arrived + 1, memory_order_release);
    return status;
}

/* Tries to send; the status that the send ends with, or WAIT. */
static int send_one(struct fake_qp *qp, const struct request *r) {
    int is_rc = qp->base.qp_type == IBV_QPT_RC;
    struct port *peer = qp->peer;
    if (!registered(qp, r->address, r->length, r->key)) return IBV_WC_LOC_PROT_ERR;
    if (r->length > (uint32_t)knobs.message) return IBV_WC_LOC_LEN_ERR;
    if (knobs.bad == r->number) return knobs.status;
    int lost = qp->dead || knobs.lose == r->number || r->opcode == IBV_WR_RDMA_WRITE ||
               (knobs.silent_after && r->number > knobs.silent_after);
    if (lost) return IBV_WC_SUCCESS;
    int heard = peer && !atomic_load(&peer->gone) &&
                (!atomic_load_explicit(&peer->ready, memory_order_acquire) ||
                 (peer->rq_psn == qp->attr.sq_psn && peer->dest == qp->base.qp_num));
    if (!heard) return is_rc ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS;
    uint64_t arrived = atomic_load_explicit(&peer->arrived, memory_order_relaxed);
    if (arrived >= atomic_load_explicit(&peer->posted, memory_order_acquire) ||
        !atomic_load(&peer->ready)) {
        int flow = knobs.flow >= 0 ? knobs.flow : is_rc ? FLOW_RNR : FLOW_CREDIT;
        if (flow == FLOW_POISON) qp->poisoned = 1;
        if (flow == FLOW_DROP) return IBV_WC_SUCCESS;
        if (flow != FLOW_RNR || qp->attr.rnr_retry == 7) return WAIT;
        uint64_t now = now_ns();
        if (!qp->blocked_since) qp->blocked_since = now;
        int spent = now - qp->blocked_since > RNR_NS * (1u + qp->attr.rnr_retry);
        return spent ? IBV_WC_RNR_RETRY_EXC_ERR : WAIT;
    }
    uint32_t length = knobs.cut == r->number ? r->length / 2 : r->length;
    int status = put(qp, r, length);
    if (status == WAIT) return WAIT;
    qp->blocked_since = 0;
    if (knobs.twice == r->number && arrived + 1 < atomic_load(&peer->posted)) put(qp, r, length);
    return status != IBV_WC_SUCCESS && is_rc ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_SUCCESS;
}

static void take(struct fake_qp *qp) {
    struct port *port = qp->port;
    uint64_t taken = atomic_load_explicit(&port->taken, memory_order_relaxed);
    while (taken < atomic_load_explicit(&port->arrived, memory_order_acquire) &&
           qp->receive_head != qp->receive_tail) {
        const struct entry *entry = &port->entries[taken % RING_ENTRIES];
        const struct request *r = &qp->receives[qp->receive_head % qp->receive_size];
        int status = (int)entry->status;
        if (status == IBV_WC_SUCCESS && !registered(qp, r->address, entry->length, r->key))
            status = IBV_WC_LOC_PROT_ERR;
        if (status == IBV_WC_SUCCESS) {
            memcpy((void *)(uintptr_t)r->address, port->ring + entry->offset, entry->length);
            if (qp->overposted) memset((void *)(uintptr_t)r->address, 0x5a, entry->length);
        }
        end_receive(qp, r, status, entry->length);
        atomic_store_explicit(&port->taken, ++taken, memory_order_release);
        if (status != IBV_WC_SUCCESS) {
            fail_all(qp);
            return;
        }
    }
}

void progress(struct fake_qp *qp) {
    if (qp->base.state == IBV_QPS_ERR) return;
    if (qp->base.state >= IBV_QPS_RTR) take(qp);
    while (qp->base.state == IBV_QPS_RTS && !qp->poisoned && qp->send_head != qp->send_tail) {
        const struct request *r = &qp->sends[qp->send_head % qp->send_size];
        if (r->due && now_ns() < r->due) return;
        int status = send_one(qp, r);
        if (status == WAIT) return;
        end_send(qp, r, status);
        if (status != IBV_WC_SUCCESS) fail_all(qp);
    }
}
