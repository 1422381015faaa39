/* What the two halves of the fake share: fake.c is the interface, wire.c moves messages. */
#ifndef FAKE_H
#define FAKE_H

#include "abi.h"
#include <stdatomic.h>

/* What happens when a send meets no posted receive. */
enum flow { FLOW_CREDIT, FLOW_POISON, FLOW_DROP, FLOW_RNR };

/* How this instance behaves; see fake.c for the words that set it. */
struct knobs {
    int flow;            /* enum flow, or -1: RNR for RC and credit for UC */
    int no_rc, no_uc;    /* queue pairs of this kind are refused */
    int frames;          /* a send and its receive span equally many frames of 4 KiB */
    int depth;           /* most frames (or requests) that a queue holds */
    int silent;          /* receives beyond the depth are accepted, and damage what arrives */
    int qps;             /* queue pairs of a device */
    int mrs;             /* regions of a protection domain */
    long long mr_bytes;  /* bytes of a region */
    int mr_remote;       /* a region without remote access is refused */
    int mr_early;        /* regions count only if they were there before RTR */
    int message;         /* most bytes of a message */
    int delay_us;        /* from a post to its end, both kinds */
    int scribble;        /* posted receives are overwritten until they are complete */
    int down;            /* the port is not active */
    int devices;
    int gids;            /* 0: link-local only, 1: one address, 2: a second one too */
    int infiniband;      /* the link layer, with a LID and no addresses */
    unsigned char address[4], address2[4];
    int dead;            /* so many queue pairs lose all that they send */
    int lose, twice, flip, cut, bad; /* the n-th send of a queue pair: what happens to it */
    int status;          /* the error that `bad` gives */
    int silent_after;    /* sends after the n-th are lost */
};
extern struct knobs knobs;

#define FRAME 4096u
#define RING_BYTES (4u << 20)
#define RING_ENTRIES 512u
#define RECEIVES_MAX 4096u

/* One message in a ring. */
struct entry {
    uint64_t offset;
    uint32_t length, imm;
    uint32_t opcode, status; /* the status that the receive ends with */
};

/* What both ends of a connection see of one queue pair: a file in shared memory. The peer writes
 * entries and `arrived`, the owner the rest. */
struct port {
    _Atomic uint64_t magic;
    _Atomic uint32_t gone, ready, opened;
    uint32_t rq_psn, dest; /* whom the owner listens to; valid once it is ready */
    _Alignas(128) _Atomic uint64_t posted;  /* receives that the owner posted */
    _Alignas(128) _Atomic uint64_t arrived; /* messages that the peer put in the ring */
    _Alignas(128) _Atomic uint64_t taken;   /* messages that the owner took */
    _Alignas(128) uint32_t room[RECEIVES_MAX]; /* bytes of each posted receive */
    struct entry entries[RING_ENTRIES];
    _Alignas(4096) unsigned char ring[RING_BYTES];
};
#define PORT_MAGIC 0x31454b4146565249ull

struct request {
    uint64_t id, due; /* `due`: not before this time, in nanoseconds */
    uint64_t address;
    uint32_t length, key, flags, imm;
    int opcode, number;
};

struct completion { struct ibv_wc wc; uint64_t due; };

struct fake_cq {
    struct ibv_cq base;
    pthread_mutex_t lock;
    struct completion *ring;
    uint32_t size, head, tail;
    struct fake_qp *users[8]; /* queue pairs that end here */
};

struct fake_mr { struct ibv_mr base; uint64_t born; struct fake_mr *next; };

struct fake_pd {
    struct ibv_pd base;
    pthread_mutex_t lock;
    struct fake_mr *regions;
    int count;
};

struct fake_qp {
    struct ibv_qp base;
    pthread_mutex_t lock;
    struct fake_qp *next;       /* all of this process */
    struct port *port, *peer;
    char path[64];
    struct request *sends, *receives;
    uint32_t send_size, receive_size;
    uint64_t send_head, send_tail, receive_head, receive_tail;
    uint32_t depth_send, depth_receive; /* granted */
    uint64_t frames_posted;     /* of receives that are not complete */
    uint64_t write_at;          /* next byte of the peer's ring */
    uint64_t blocked_since;     /* a send waits for a receive since then */
    uint64_t rtr_time;
    int number;                 /* sends so far */
    int dead, poisoned, sig_all, overposted;
    struct ibv_qp_attr attr;
};

uint64_t now_ns(void);
/* Moves what can be moved; the caller holds qp->lock. */
void progress(struct fake_qp *qp);
/* All queue pairs of this process, under a lock of its own. */
void progress_all(void);
void complete(struct fake_cq *cq, const struct ibv_wc *wc, uint64_t due);
void fail_all(struct fake_qp *qp);
/* Whether the range is in a region of this process with this key. */
int registered(const struct fake_qp *qp, uint64_t address, uint32_t length, uint32_t key);

#endif
