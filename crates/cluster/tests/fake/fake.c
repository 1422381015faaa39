/* A libibverbs for tests, without any device: processes of one host exchange messages through
 * shared memory. It keeps the rules that real devices have and breaks them where it is told to:
 * by words in FAKE_VERBS, or in the library's own file name between `+` and `.so`, separated by
 * commas, as `libibverbs+no-rc,flow=drop.so`. A copy under another name is another provider, so one
 * process can have several.
 *
 * flow=credit|poison|drop|rnr  what a send does that meets no receive (default: rnr for RC, credit
 *                              for UC): waits; ends its direction for ever; is lost; is tried again
 * no-rc no-uc                  queue pairs that are not there
 * frames                       a send and its receive must span equally many frames of 4 KiB, and
 *                              depths count frames
 * depth=N silent               what a queue holds; more is accepted in silence and does damage
 * qps=N mrs=N mr-bytes=N       queue pairs of a device, regions of a domain, bytes of a region
 * mr-remote mr-early           regions want remote access; regions made after RTR are not seen
 * apple                        no-rc frames depth=1023 qps=10 mrs=100 mr-early
 * message=N delay=US scribble  longest message; time from post to end; unfinished receives hold
 *                              a pattern
 * down devices=N gids=0|1|2 infiniband address=A address2=A   what the devices look like
 * dead=N                       the first N queue pairs lose what they send
 * lose=N twice=N flip=N cut=N silent-after=N bad=N status=N    what happens to the N-th send of a
 *                              queue pair (`bad` ends with `status`) */
#define _GNU_SOURCE
#include "fake.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct knobs knobs;
static struct ibv_device device_table[4];
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_qp *all_qps;
static int qps_made, qps_live, opens;
static pthread_t card;
static _Atomic int card_runs;
static _Atomic uint32_t next_key = 0x100;

/* ---- words ---- */

static int word_is(const char *word, const char *name, const char **value) {
    size_t length = strlen(name);
    if (strncmp(word, name, length)) return 0;
    if (word[length] == '=') *value = word + length + 1;
    else if (word[length]) return 0;
    else *value = "1";
    return 1;
}

static void set_word(const char *word) {
    static const struct { const char *name; int *place; } numbers[] = {
        {"no-rc", &knobs.no_rc}, {"no-uc", &knobs.no_uc}, {"frames", &knobs.frames},
        {"depth", &knobs.depth}, {"silent", &knobs.silent}, {"qps", &knobs.qps},
        {"mrs", &knobs.mrs}, {"mr-remote", &knobs.mr_remote}, {"mr-early", &knobs.mr_early},
        {"message", &knobs.message}, {"delay", &knobs.delay_us}, {"scribble", &knobs.scribble},
        {"down", &knobs.down}, {"devices", &knobs.devices}, {"gids", &knobs.gids},
        {"infiniband", &knobs.infiniband}, {"dead", &knobs.dead}, {"lose", &knobs.lose},
        {"twice", &knobs.twice}, {"flip", &knobs.flip}, {"cut", &knobs.cut}, {"bad", &knobs.bad},
        {"status", &knobs.status}, {"silent-after", &knobs.silent_after}};
    static const char *flows[] = {"credit", "poison", "drop", "rnr"};
    const char *value = NULL;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (word_is(word, numbers[i].name, &value)) {
            *numbers[i].place = atoi(value);
            return;
        }
    if (word_is(word, "flow", &value)) {
        for (int i = 0; i < 4; i++)
            if (!strcmp(value, flows[i])) { knobs.flow = i; return; }
    } else if (word_is(word, "mr-bytes", &value)) {
        knobs.mr_bytes = atoll(value);
        return;
    } else if (word_is(word, "apple", &value)) {
        knobs.no_rc = knobs.frames = knobs.mr_early = 1;
        knobs.depth = 1023;
        knobs.qps = 10;
        knobs.mrs = 100;
        return;
    } else if (word_is(word, "address", &value) || word_is(word, "address2", &value)) {
        unsigned char *to = word[7] == '2' ? knobs.address2 : knobs.address;
        if (sscanf(value, "%hhu.%hhu.%hhu.%hhu", to, to + 1, to + 2, to + 3) == 4) return;
    }
    /* A test with a misspelt fault would prove nothing. */
    fprintf(stderr, "fake libibverbs: `%s` is no word of FAKE_VERBS\n", word);
    abort();
}

static void set_words(const char *from, size_t length) {
    char *text = strndup(from, length), *rest = text, *word;
    while ((word = strsep(&rest, ",")))
        if (*word) set_word(word);
    free(text);
}

__attribute__((constructor)) static void start(void) {
    knobs = (struct knobs){.flow = -1, .depth = 4096, .qps = 1024, .mrs = 4096,
                           .mr_bytes = 1ll << 30, .message = RING_BYTES, .devices = 1, .gids = 1,
                           .status = IBV_WC_LOC_PROT_ERR, .address = {127, 0, 0, 1},
                           .address2 = {127, 0, 0, 2}};
    Dl_info info;
    if (dladdr((void *)set_words, &info) && info.dli_fname) {
        const char *base = strrchr(info.dli_fname, '/');
        const char *plus = strchr(base ? base : info.dli_fname, '+');
        const char *end = plus ? strstr(plus, ".so") : NULL;
        if (end) set_words(plus + 1, (size_t)(end - plus - 1));
    }
    const char *words = getenv("FAKE_VERBS");
    if (words) set_words(words, strlen(words));
}

/* ---- devices ---- */

struct ibv_device **ibv_get_device_list(int *count) {
    struct ibv_device **list = calloc((size_t)knobs.devices + 1, sizeof *list);
    for (int i = 0; list && i < knobs.devices && i < 4; i++) {
        struct ibv_device *device = &device_table[i];
        device->node_type = IBV_NODE_CA;
        snprintf(device->name, sizeof device->name, "fake%d", i);
        snprintf(device->dev_name, sizeof device->dev_name, "uverbs%d", i);
        list[i] = device;
    }
    if (count) *count = list ? knobs.devices : 0;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

static void *run_card(void *unused) {
    (void)unused;
    while (atomic_load(&card_runs)) {
        struct timespec pause = {0, 500000};
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&all_lock);
        for (struct fake_qp *qp = all_qps; qp; qp = qp->next)
            if (!pthread_mutex_trylock(&qp->lock)) {
                progress(qp);
                pthread_mutex_unlock(&qp->lock);
            }
        pthread_mutex_unlock(&all_lock);
    }
    return NULL;
}

static int poll_cq(struct ibv_cq *base, int most, struct ibv_wc *wc) {
    struct fake_cq *cq = (struct fake_cq *)base;
    for (size_t i = 0; i < sizeof cq->users / sizeof *cq->users; i++) {
        struct fake_qp *qp = cq->users[i];
        if (qp && !pthread_mutex_trylock(&qp->lock)) {
            progress(qp);
            pthread_mutex_unlock(&qp->lock);
        }
    }
    int count = 0;
    pthread_mutex_lock(&cq->lock);
    while (count < most && cq->head != cq->tail)
        wc[count++] = cq->ring[cq->head++ % cq->size].wc;
    pthread_mutex_unlock(&cq->lock);
    return count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited) {
    (void)cq, (void)solicited;
    return ENOSYS; /* events are not in the fake */
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct fake_qp *qp = (struct fake_qp *)base;
    int error = 0;
    pthread_mutex_lock(&qp->lock);
    for (; wr; wr = wr->next) {
        *bad = wr;
        int known = wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_RDMA_WRITE;
        if (qp->base.state < IBV_QPS_RTS || wr->num_sge > 1 || !known) error = EINVAL;
        uint32_t length = wr->num_sge ? wr->sg_list->length : 0;
        uint64_t frames = 0; /* of sends that are under way, this one too */
        for (uint64_t at = qp->send_head; knobs.frames && at != qp->send_tail; at++)
            frames += (qp->sends[at % qp->send_size].length + FRAME - 1) / FRAME;
        frames = knobs.frames ? frames + (length + FRAME - 1) / FRAME
                              : qp->send_tail - qp->send_head + 1;
        if (!error && frames > qp->depth_send) error = ENOMEM;
        if (error) break;
        qp->sends[qp->send_tail++ % qp->send_size] = (struct request){
            .id = wr->wr_id, .flags = wr->send_flags, .imm = wr->imm_data, .opcode = wr->opcode,
            .address = wr->num_sge ? wr->sg_list->addr : 0, .length = length,
            .key = wr->num_sge ? wr->sg_list->lkey : 0, .number = ++qp->number,
            .due = knobs.delay_us ? now_ns() + 1000ull * (uint64_t)knobs.delay_us : 0};
    }
    if (qp->base.state == IBV_QPS_ERR) fail_all(qp);
    else progress(qp);
    pthread_mutex_unlock(&qp->lock);
    return error;
}

static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct fake_qp *qp = (struct fake_qp *)base;
    int error = 0;
    pthread_mutex_lock(&qp->lock);
    for (; wr; wr = wr->next) {
        *bad = wr;
        if (qp->base.state == IBV_QPS_RESET || wr->num_sge > 1) error = EINVAL;
        uint32_t length = wr->num_sge ? wr->sg_list->length : 0;
        uint64_t frames = knobs.frames ? (length + FRAME - 1) / FRAME + !length : 1;
        int over = qp->frames_posted + frames > qp->depth_receive;
        if (over && knobs.silent) qp->overposted = 1;
        else if (over) error = error ? error : ENOMEM;
        if (qp->receive_tail - qp->receive_head >= qp->receive_size) error = ENOMEM;
        if (error) break;
        struct request r = {.id = wr->wr_id, .length = length,
                            .address = wr->num_sge ? wr->sg_list->addr : 0,
                            .key = wr->num_sge ? wr->sg_list->lkey : 0};
        if (knobs.scribble && registered(qp, r.address, length, r.key))
            memset((void *)(uintptr_t)r.address, 0xa5, length);
        qp->frames_posted += frames;
        qp->port->room[qp->receive_tail % RECEIVES_MAX] = length;
        qp->receives[qp->receive_tail++ % qp->receive_size] = r;
        atomic_store_explicit(&qp->port->posted, qp->receive_tail, memory_order_release);
    }
    if (qp->base.state == IBV_QPS_ERR) fail_all(qp);
    else progress(qp);
    pthread_mutex_unlock(&qp->lock);
    return error;
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct ibv_context *context = calloc(1, sizeof *context);
    if (!context) return NULL;
    context->device = device;
    context->ops.poll_cq = poll_cq;
    context->ops.req_notify_cq = req_notify_cq;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    context->cmd_fd = context->async_fd = -1;
    context->num_comp_vectors = 1;
    pthread_mutex_init(&context->mutex, NULL);
    pthread_mutex_lock(&all_lock);
    if (opens++ == 0) {
        atomic_store(&card_runs, 1);
        if (pthread_create(&card, NULL, run_card, NULL)) abort();
    }
    pthread_mutex_unlock(&all_lock);
    return context;
}

int ibv_close_device(struct ibv_context *context) {
    pthread_mutex_lock(&all_lock);
    int last = --opens == 0;
    pthread_t ended = card;
    if (last) atomic_store(&card_runs, 0);
    pthread_mutex_unlock(&all_lock);
    if (last) pthread_join(ended, NULL);
    free(context);
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    (void)context;
    memset(attr, 0, sizeof *attr);
    strcpy(attr->fw_ver, "fake");
    attr->max_mr_size = (uint64_t)knobs.mr_bytes;
    attr->page_size_cap = 4096;
    attr->max_qp = knobs.qps;
    attr->max_qp_wr = knobs.depth;
    attr->max_sge = 1;
    attr->max_cq = 1024;
    attr->max_cqe = 1 << 16;
    attr->max_mr = knobs.mrs;
    attr->max_pd = 1024;
    attr->phys_port_cnt = 1;
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t number, struct ibv_port_attr *attr) {
    (void)context;
    if (number != 1) return EINVAL;
    /* Programs may give the older, shorter structure. */
    memset(attr, 0, offsetof(struct ibv_port_attr, port_cap_flags2));
    attr->state = knobs.down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    attr->max_mtu = IBV_MTU_4096;
    attr->active_mtu = IBV_MTU_1024;
    attr->gid_tbl_len = 8;
    attr->max_msg_sz = (uint32_t)knobs.message;
    attr->pkey_tbl_len = 1;
    attr->lid = knobs.infiniband ? 7 : 0;
    attr->link_layer = knobs.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
    return 0;
}

/* Two entries for each address: RoCE v1, then v2. The first address is link-local. */
static int gid_at(struct ibv_context *context, uint32_t index, union ibv_gid *gid, uint32_t *type) {
    memset(gid, 0, sizeof *gid);
    int second = context->device != &device_table[0];
    if (index < 2 && !(knobs.infiniband && index)) {
        gid->raw[0] = 0xfe;
        gid->raw[1] = 0x80;
        gid->raw[15] = (unsigned char)(1 + second);
    } else if (!knobs.infiniband && index < 2u + 2u * (uint32_t)knobs.gids) {
        gid->raw[10] = gid->raw[11] = 0xff;
        memcpy(gid->raw + 12, index >= 4 || second ? knobs.address2 : knobs.address, 4);
    } else {
        return ENODATA;
    }
    *type = knobs.infiniband ? IBV_GID_TYPE_IB
                             : index % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    uint32_t type;
    if (port != 1 || index < 0 || index >= 8) return -1;
    (void)gid_at(context, (uint32_t)index, gid, &type); /* an empty place reads as zeros */
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                      struct ibv_gid_entry *entry, uint32_t flags, size_t size) {
    if (port != 1 || index >= 8 || flags || size < sizeof *entry) return EINVAL;
    entry->gid_index = index;
    entry->port_num = port;
    entry->ndev_ifindex = 0;
    return gid_at(context, index, &entry->gid, &entry->gid_type);
}

/* ---- domains, regions, completion queues ---- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct fake_pd *pd = calloc(1, sizeof *pd);
    if (!pd) return NULL;
    pd->base.context = context;
    pthread_mutex_init(&pd->lock, NULL);
    return &pd->base;
}

int ibv_dealloc_pd(struct ibv_pd *base) {
    struct fake_pd *pd = (struct fake_pd *)base;
    if (pd->regions) return EBUSY;
    free(pd);
    return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *base, void *address, size_t length, int access) {
    struct fake_pd *pd = (struct fake_pd *)base;
    int remote = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    int refused = (knobs.mr_remote && !remote) || !(access & IBV_ACCESS_LOCAL_WRITE);
    struct fake_mr *mr = calloc(1, sizeof *mr);
    if (!mr || refused || (long long)length > knobs.mr_bytes || pd->count >= knobs.mrs) {
        errno = refused ? EINVAL : ENOMEM;
        free(mr);
        return NULL;
    }
    uint32_t key = atomic_fetch_add(&next_key, 0x11);
    mr->base = (struct ibv_mr){base->context, base, address, length, key, key, key};
    mr->born = now_ns();
    pthread_mutex_lock(&pd->lock);
    mr->next = pd->regions;
    pd->regions = mr;
    pd->count++;
    pthread_mutex_unlock(&pd->lock);
    return &mr->base;
}

int ibv_dereg_mr(struct ibv_mr *base) {
    struct fake_pd *pd = (struct fake_pd *)base->pd;
    pthread_mutex_lock(&pd->lock);
    for (struct fake_mr **at = &pd->regions; *at; at = &(*at)->next)
        if (&(*at)->base == base) {
            *at = (*at)->next;
            pd->count--;
            break;
        }
    pthread_mutex_unlock(&pd->lock);
    free(base);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, void *channel,
                             int vector) {
    (void)vector;
    if (cqe < 1 || cqe > 1 << 16) {
        errno = EINVAL;
        return NULL;
    }
    struct fake_cq *cq = calloc(1, sizeof *cq);
    if (!cq) return NULL;
    cq->base.context = context;
    cq->base.cq_context = cq_context;
    cq->base.channel = channel;
    cq->base.cqe = cqe;
    cq->size = (uint32_t)cqe;
    cq->ring = calloc(cq->size, sizeof *cq->ring);
    pthread_mutex_init(&cq->lock, NULL);
    return &cq->base;
}

int ibv_destroy_cq(struct ibv_cq *base) {
    struct fake_cq *cq = (struct fake_cq *)base;
    for (size_t i = 0; i < sizeof cq->users / sizeof *cq->users; i++)
        if (cq->users[i]) return EBUSY;
    free(cq->ring);
    free(cq);
    return 0;
}

void *ibv_create_comp_channel(struct ibv_context *context) {
    (void)context;
    errno = ENOSYS;
    return NULL;
}
int ibv_destroy_comp_channel(void *channel) { (void)channel; return ENOSYS; }
int ibv_get_cq_event(void *channel, struct ibv_cq **cq, void **context) {
    (void)channel, (void)cq, (void)context;
    return -1;
}
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count) { (void)cq, (void)count; }
void *ibv_qp_to_qp_ex(struct ibv_qp *qp) { (void)qp; return NULL; }

/* ---- queue pairs ---- */

static void port_path(char *path, size_t size, uint32_t number) {
    const char *folder = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(path, size, "%s/fakeverbs-%06x", folder, number);
}

static struct port *map_port(const char *path, int flags) {
    int file = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
    if (file < 0) return NULL;
    void *at = MAP_FAILED;
    if (!(flags & O_CREAT) || !ftruncate(file, sizeof(struct port)))
        at = mmap(NULL, sizeof(struct port), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return at == MAP_FAILED ? NULL : at;
}

/* Whether the queue pair's users in `base` could be changed from `from` to `to`. */
static int change_user(struct ibv_cq *base, struct fake_qp *from, struct fake_qp *to) {
    struct fake_cq *cq = (struct fake_cq *)base;
    for (size_t i = 0; i < sizeof cq->users / sizeof *cq->users; i++) {
        if (to && cq->users[i] == to) return 1;
        if (cq->users[i] == from) {
            cq->users[i] = to;
            return 1;
        }
    }
    return 0;
}

static struct ibv_qp *refuse(int error, struct fake_qp *qp) {
    if (qp) {
        free(qp->sends);
        free(qp->receives);
        free(qp);
    }
    errno = error;
    return NULL;
}

static uint32_t granted(uint32_t asked) {
    uint32_t all = 16;
    while (all < asked) all *= 2;
    return all < (uint32_t)knobs.depth ? all : (uint32_t)knobs.depth;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    int rc = init->qp_type == IBV_QPT_RC, uc = init->qp_type == IBV_QPT_UC;
    if ((!rc && !uc) || (rc && knobs.no_rc) || (uc && knobs.no_uc)) return refuse(EOPNOTSUPP, NULL);
    uint32_t sends = init->cap.max_send_wr, receives = init->cap.max_recv_wr;
    uint32_t depth = (uint32_t)knobs.depth;
    if (sends > depth || receives > depth || init->cap.max_send_sge > 1 ||
        init->cap.max_recv_sge > 1)
        return refuse(EINVAL, NULL);
    struct fake_qp *qp = calloc(1, sizeof *qp);
    if (!qp) return refuse(ENOMEM, NULL);
    qp->depth_send = granted(sends);
    qp->depth_receive = granted(receives);
    qp->send_size = qp->depth_send;
    qp->receive_size = knobs.silent ? RECEIVES_MAX : qp->depth_receive;
    qp->sends = calloc(qp->send_size, sizeof *qp->sends);
    qp->receives = calloc(qp->receive_size, sizeof *qp->receives);
    if (!qp->sends || !qp->receives) return refuse(ENOMEM, qp);
    pthread_mutex_init(&qp->lock, NULL);
    qp->base = (struct ibv_qp){.context = pd->context, .qp_context = init->qp_context, .pd = pd,
                               .send_cq = init->send_cq, .recv_cq = init->recv_cq,
                               .qp_type = init->qp_type};
    qp->sig_all = init->sq_sig_all;
    pthread_mutex_lock(&all_lock);
    int full = qps_live >= knobs.qps;
    for (uint32_t try = 0; !full && try < 64 && !qp->port; try++) {
        qp->base.qp_num = (uint32_t)((now_ns() >> 4) * 2654435761u + try * 40503u +
                                     (uint32_t)getpid() * 97u) & 0xffffff;
        port_path(qp->path, sizeof qp->path, qp->base.qp_num);
        qp->port = map_port(qp->path, O_CREAT | O_EXCL);
    }
    if (!qp->port) {
        pthread_mutex_unlock(&all_lock);
        return refuse(full ? EBUSY : ENOMEM, qp);
    }
    qp->dead = qps_made++ < knobs.dead;
    qps_live++;
    qp->next = all_qps;
    all_qps = qp;
    atomic_store(&qp->port->magic, PORT_MAGIC);
    pthread_mutex_unlock(&all_lock);
    if (!change_user(init->send_cq, NULL, qp) || !change_user(init->recv_cq, NULL, qp)) abort();
    init->cap.max_send_wr = qp->depth_send;
    init->cap.max_recv_wr = qp->depth_receive;
    init->cap.max_inline_data = 0;
    qp->attr.cap = init->cap;
    return &qp->base;
}

/* What a change of state must name, and may not name more than. */
static int wanted_mask(const struct fake_qp *qp, int state) {
    int rc = qp->base.qp_type == IBV_QPT_RC;
    switch (state) {
    case IBV_QPS_INIT:
        return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    case IBV_QPS_RTR:
        return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
    case IBV_QPS_RTS:
        return IBV_QP_STATE | IBV_QP_SQ_PSN |
               (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
                   : 0);
    default: return IBV_QP_STATE;
    }
}

static int to_rtr(struct fake_qp *qp, const struct ibv_qp_attr *attr) {
    if (!knobs.infiniband) {
        union ibv_gid own;
        uint32_t type;
        int known = attr->ah_attr.is_global &&
                    !gid_at(qp->base.context, attr->ah_attr.grh.sgid_index, &own, &type);
        /* A link-local address reaches nobody here, as on Thunderbolt. */
        if (!known || own.raw[10] != 0xff || attr->ah_attr.grh.dgid.raw[10] != 0xff) return EINVAL;
    } else if (!attr->ah_attr.dlid) {
        return EINVAL;
    }
    qp->attr.ah_attr = attr->ah_attr;
    qp->attr.dest_qp_num = attr->dest_qp_num;
    qp->attr.path_mtu = attr->path_mtu;
    qp->attr.rq_psn = attr->rq_psn;
    char path[64];
    port_path(path, sizeof path, attr->dest_qp_num);
    struct port *peer = map_port(path, 0);
    if (peer && atomic_load(&peer->magic) == PORT_MAGIC) {
        qp->peer = peer;
        unlink(path); /* nobody else needs the name */
        atomic_store(&peer->opened, 1);
    }
    qp->rtr_time = now_ns();
    qp->port->rq_psn = attr->rq_psn;
    qp->port->dest = attr->dest_qp_num;
    atomic_store_explicit(&qp->port->ready, 1, memory_order_release);
    return 0;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask) {
    struct fake_qp *qp = (struct fake_qp *)base;
    int to = attr->qp_state, error = 0;
    pthread_mutex_lock(&qp->lock);
    int next = to == IBV_QPS_ERR || to == base->state + 1;
    if (!(mask & IBV_QP_STATE) || !next || to > IBV_QPS_ERR || mask != wanted_mask(qp, to))
        error = EINVAL;
    else if (to == IBV_QPS_INIT && attr->port_num != 1) error = EINVAL;
    else if (to == IBV_QPS_RTR) error = to_rtr(qp, attr);
    else if (to == IBV_QPS_RTS) {
        qp->attr.sq_psn = attr->sq_psn;
        qp->attr.rnr_retry = attr->rnr_retry;
    }
    if (!error) base->state = to;
    if (!error && to == IBV_QPS_ERR) fail_all(qp);
    pthread_mutex_unlock(&qp->lock);
    return error;
}

int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init) {
    struct fake_qp *qp = (struct fake_qp *)base;
    (void)mask;
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = base->state;
    memset(init, 0, sizeof *init);
    init->cap = qp->attr.cap;
    init->qp_type = base->qp_type;
    init->send_cq = base->send_cq;
    init->recv_cq = base->recv_cq;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *base) {
    struct fake_qp *qp = (struct fake_qp *)base;
    pthread_mutex_lock(&all_lock);
    for (struct fake_qp **at = &all_qps; *at; at = &(*at)->next)
        if (*at == qp) {
            *at = qp->next;
            break;
        }
    qps_live--;
    pthread_mutex_unlock(&all_lock);
    change_user(base->send_cq, qp, NULL);
    change_user(base->recv_cq, qp, NULL);
    atomic_store(&qp->port->gone, 1);
    if (!atomic_load(&qp->port->opened)) unlink(qp->path);
    munmap(qp->port, sizeof *qp->port);
    if (qp->peer) munmap(qp->peer, sizeof *qp->peer);
    refuse(0, qp);
    return 0;
}

/* A program that ends takes its queue pairs along. */
__attribute__((destructor)) static void finish(void) {
    for (struct fake_qp *qp = all_qps; qp; qp = qp->next) {
        atomic_store(&qp->port->gone, 1);
        if (!atomic_load(&qp->port->opened)) unlink(qp->path);
    }
}

const char *ibv_wc_status_str(int status) {
    return status == IBV_WC_SUCCESS ? "success" : "an error of the fake provider";
}
