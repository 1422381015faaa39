// The fibre scheduler behind the host driver: appended to the kernel text and compiled with it when
// tests run. Faults end the launch and become a message: a barrier or simdgroup operation that not
// every thread reaches, two places that meet, a race or an unwritten word in shared memory, an
// access outside of device memory.
#undef tgid
#undef tid
#undef ntid
#undef lane
#undef sgid
#undef nsg
#undef fma
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sys/mman.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
namespace host {
enum State { READY, AT_BARRIER, AT_SIMD, AT_MEETING, AT_BOX, DONE };
static const size_t STACK = 128 * 1024;
#if defined(__x86_64__)
typedef void* Place;
extern "C" __attribute__((visibility("hidden"))) void host_switch(void** save, void* to);
asm(R"(
.text
.hidden host_switch
.globl host_switch
host_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi); movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
#else
typedef ucontext_t Place;
#endif
struct Fibre {
    Context context;
    Place place;
    char* stack;
    State state;
    int line;
    uint box;
};
// What a box has got, of so many bytes.
struct Box {
    uint bytes;
    std::vector<Sent> words;
    bool is_full() const { return 4 * words.size() == bytes; }
};
struct Store {
    std::vector<uchar> bytes;
    std::vector<Word> words;
};
typedef void (*Entry)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
    void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*);
static const int POINTERS = 24;
struct Runtime {
    std::vector<Fibre> fibres;
    std::vector<uint> values[2];
    // Of each group of a cluster, its arrays, and the number of its last barrier.
    std::vector<std::vector<Store>> stores;
    std::vector<uint> epochs;
    std::vector<std::map<uint, Box>> boxes;
    std::vector<uint> turns;
    Place scheduler;
    Fibre* running;
    Entry entry;
    void* pointers[POINTERS];
    // The last number that an epoch got; the group that runs, its first fibre and its epoch.
    uint group_serial, last_epoch, rank, first, epoch;
    uint ranks, threads;
    const char* name;
    char message[512];
    sigjmp_buf escape;
    volatile sig_atomic_t inside;
};
thread_local Context* current;
static thread_local Runtime* rt;

[[noreturn]] static void fail()
{
    rt->inside = 0;
    siglongjmp(rt->escape, 1);
}
#define FAULT(...) \
    do { \
        int n_ = snprintf(rt->message, sizeof rt->message, \
            "kernel %s, group (%u, %u, %u): ", rt->name, rt->running->context.group.x, \
            rt->running->context.group.y, rt->running->context.group.z); \
        snprintf(rt->message + n_, sizeof rt->message - (size_t)n_, __VA_ARGS__); \
        fail(); \
    } while (0)

// Goes to the next lane of the simdgroup if that can run, so that a round of all lanes costs one
// switch each; from the last one to the scheduler, which looks at all of them.
static void hand_over()
{
    Runtime* all = rt;
    Fibre *me = all->running, *next = me + 1;
    bool is_last = (me->context.thread + 1) % SIMD_WIDTH == 0 || next->state != READY;
    if (!is_last) {
        all->running = next;
        current = &next->context;
    }
#if defined(__x86_64__)
    host_switch(&me->place, is_last ? all->scheduler : next->place);
#else
    swapcontext(&me->place, is_last ? &all->scheduler : &next->place);
#endif
}
static void entry_point()
{
    void** p = rt->pointers;
    rt->entry(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11], p[12],
        p[13], p[14], p[15], p[16], p[17], p[18], p[19], p[20], p[21], p[22], p[23]);
    rt->running->state = DONE;
    hand_over();
    abort();
}
static void resume(Fibre& f)
{
    rt->running = &f;
    current = &f.context;
#if defined(__x86_64__)
    host_switch(&rt->scheduler, f.place);
#else
    swapcontext(&rt->scheduler, &f.place);
#endif
}
static void start(Fibre& f)
{
    f.state = READY;
#if defined(__x86_64__)
    void** s = (void**)(f.stack + STACK - 64);
    *--s = nullptr;
    *--s = (void*)entry_point;
    for (int i = 0; i < 6; i++) *--s = nullptr;
    f.place = s;
#else
    getcontext(&f.place);
    f.place.uc_stack.ss_sp = f.stack;
    f.place.uc_stack.ss_size = STACK;
    f.place.uc_link = nullptr;
    makecontext(&f.place, entry_point, 0);
#endif
}

void barrier(int line)
{
    rt->running->state = AT_BARRIER;
    rt->running->line = line;
    hand_over();
}
void meeting(int line)
{
    rt->running->state = AT_MEETING;
    rt->running->line = line;
    hand_over();
}
const uint* exchange(uint bits, int line)
{
    Runtime* all = rt;
    Fibre* me = all->running;
    uint t = all->first + me->context.thread, turn = all->turns[t]++ & 1u;
    uint* values = all->values[turn].data();
    values[t] = bits;
    me->state = AT_SIMD;
    me->line = line;
    hand_over();
    return values + (t & ~(SIMD_WIDTH - 1u));
}
Array shared(int id, size_t bytes, size_t elements)
{
    std::vector<Store>& stores = rt->stores[rt->rank];
    if (stores.size() <= (size_t)id) stores.resize((size_t)id + 1);
    Store& s = stores[(size_t)id];
    if (s.bytes.size() < bytes) s.bytes.resize(bytes);
    if (s.words.size() < elements) s.words.resize(elements, Word{0, 0, 0, 0});
    return Array{s.bytes.data(), s.words.data()};
}
static const uint MANY = 0xffffffffu;
// Epochs of one cluster share their upper bits; 0 is never used. What came by a box has no writer.
void on_read(Word& w, size_t index)
{
    uint t = rt->running->context.thread, epoch = rt->epoch;
    if (w.written / 65536u != rt->group_serial)
        FAULT("thread %u reads element %zu of shared memory that nobody has written", t, index);
    if (w.written == epoch && w.writer != t && w.writer != MANY)
        FAULT("race: thread %u reads element %zu of shared memory that thread %u wrote since the "
              "last barrier",
            t, index, w.writer);
    w.reader = w.read == epoch && w.reader != t ? MANY : t;
    w.read = epoch;
}
void on_write(Word& w, size_t index)
{
    uint t = rt->running->context.thread, epoch = rt->epoch;
    if (w.written == epoch && w.writer != t)
        FAULT(
            "race: threads %u and %u write element %zu of shared memory between the same barriers",
            t, w.writer, index);
    if (w.read == epoch && w.reader != t)
        FAULT("race: thread %u writes element %zu of shared memory that another has read since the "
              "last barrier",
            t, index);
    w.written = epoch;
    w.writer = t;
}
void open_box(uint box, uint bytes) { rt->boxes[rt->rank][box] = Box{bytes, {}}; }
void put(Sent word, uint rank, uint box)
{
    if (rank >= rt->ranks || rt->boxes[rank].count(box) == 0)
        FAULT("element %zu is put to group %u of a cluster, which has not opened that box",
            word.index, rank);
    Box& to = rt->boxes[rank][box];
    if (to.is_full())
        FAULT("element %zu is put to group %u of a cluster, whose box is full", word.index, rank);
    to.words.push_back(word);
}
// Hands out what a full box has got.
static void hand_out(uint rank, const Box& box)
{
    for (const Sent& word : box.words) {
        std::vector<Store>& stores = rt->stores[rank];
        if (stores.size() <= (size_t)word.id || stores[(size_t)word.id].words.size() <= word.index)
            FAULT("element %zu is put to an array that group %u of a cluster has not", word.index,
                rank);
        Store& s = stores[(size_t)word.id];
        s.words[word.index] = Word{rt->epochs[rank], MANY, 0, 0};
        std::memcpy(s.bytes.data() + 4 * word.index, &word.bits, 4);
    }
}
void wait_for_box(uint box)
{
    rt->running->state = AT_BOX;
    rt->running->box = box;
    hand_over();
}
void out_of_shared(size_t index, size_t elements)
{
    FAULT("thread %u is at element %zu of a shared array of %zu", rt->running->context.thread,
        index, elements);
}

static void on_signal(int number, siginfo_t* info, void*)
{
    if (rt == nullptr || !rt->inside) {
        signal(number, SIG_DFL);
        return;
    }
    const Context& c = rt->running->context;
    snprintf(rt->message, sizeof rt->message,
        "kernel %s, group (%u, %u, %u): thread %u touches %p, which is outside of every buffer",
        rt->name, c.group.x, c.group.y, c.group.z, c.thread, info->si_addr);
    fail();
}

// Runs one simdgroup until all its lanes are at a barrier or done.
static void run_simdgroup(uint first)
{
    for (;;) {
        uint at_simd = 0;
        int line = -1;
        for (uint t = first; t < first + SIMD_WIDTH; t++) {
            Fibre& f = rt->fibres[t];
            if (f.state == READY) resume(f);
            if (f.state == AT_SIMD) {
                at_simd++;
                if (line >= 0 && line != f.line)
                    FAULT("a simdgroup operation is reached at two places (lines %d and %d)", line,
                        f.line);
                line = f.line;
            }
        }
        if (at_simd == 0) return;
        if (at_simd != SIMD_WIDTH)
            FAULT("a simdgroup operation (line %d) is reached by %u of %u lanes", line, at_simd,
                SIMD_WIDTH);
        for (uint t = first; t < first + SIMD_WIDTH; t++) rt->fibres[t].state = READY;
    }
}
// How many of these fibres wait so, all at one place.
static uint waiting(uint first, uint end, State state)
{
    uint count = 0;
    int line = -1;
    for (uint t = first; t < end; t++) {
        Fibre& f = rt->fibres[t];
        if (f.state != state) continue;
        count++;
        if (line >= 0 && line != f.line)
            FAULT("a barrier is reached at two places (lines %d and %d)", line, f.line);
        line = f.line;
    }
    if (count != 0 && count != end - first)
        FAULT("a barrier (line %d) is reached by %u of %u threads", line, count, end - first);
    return count;
}
static void go_on(uint first, uint end)
{
    for (uint t = first; t < end; t++) rt->fibres[t].state = READY;
    rt->last_epoch++;
}
// Lets those go on whose box is full.
static bool open_boxes(uint rank)
{
    bool some = false;
    std::map<uint, Box>& boxes = rt->boxes[rank];
    for (uint t = rank * rt->threads; t < (rank + 1) * rt->threads; t++) {
        Fibre& f = rt->fibres[t];
        if (f.state != AT_BOX || boxes.count(f.box) == 0 || !boxes[f.box].is_full()) continue;
        // Whoever comes first takes the words out.
        hand_out(rank, boxes[f.box]);
        boxes[f.box].bytes = 0;
        boxes[f.box].words.clear();
        f.state = READY;
        some = true;
    }
    return some;
}
// Runs one group until all its threads wait for others or are done; whether any ran.
static bool run_group(uint rank)
{
    uint first = rank * rt->threads, end = first + rt->threads;
    rt->rank = rank;
    rt->first = first;
    rt->epoch = rt->epochs[rank];
    bool some = open_boxes(rank) || rt->fibres[first].state == READY;
    for (;;) {
        for (uint t = first; t < end; t += SIMD_WIDTH) run_simdgroup(t);
        if (open_boxes(rank)) continue;
        bool boxed = false;
        for (uint t = first; t < end; t++) boxed = boxed || rt->fibres[t].state == AT_BOX;
        if (boxed || waiting(first, end, AT_BARRIER) == 0) return some;
        go_on(first, end);
        rt->epoch = rt->epochs[rank] = rt->last_epoch;
    }
}
static void run_cluster()
{
    uint all = rt->ranks * rt->threads;
    for (uint t = 0; t < all; t++) start(rt->fibres[t]);
    for (;;) {
        bool some = false;
        for (uint rank = 0; rank < rt->ranks; rank++) some = run_group(rank) || some;
        if (some) continue;
        for (uint t = 0; t < all; t++) {
            rt->running = &rt->fibres[t];
            if (rt->running->state == AT_BOX) FAULT("a box never gets all that it was opened for");
        }
        if (waiting(0, all, AT_MEETING) == 0) return;
        go_on(0, all);
        for (uint& epoch : rt->epochs) epoch = rt->last_epoch;
    }
}
static void prepare(uint ranks, uint group)
{
    uint threads = ranks * group;
    if (rt == nullptr) {
        rt = new Runtime();
        stack_t own = {};
        own.ss_size = 64 * 1024;
        own.ss_sp = malloc(own.ss_size);
        sigaltstack(&own, nullptr);
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(SIGSEGV, &action, nullptr);
        sigaction(SIGBUS, &action, nullptr);
    }
    rt->ranks = ranks;
    rt->threads = group;
    rt->epochs.assign(ranks, 0);
    if (rt->stores.size() < ranks) rt->stores.resize(ranks);
    while (rt->fibres.size() < threads) {
        Fibre f = {};
        f.stack = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        rt->fibres.push_back(f);
    }
    for (auto& v : rt->values)
        if (v.size() < threads) v.resize(threads);
    if (rt->turns.size() < threads) rt->turns.resize(threads);
}
} // namespace host
// Runs a grid of groups, so many neighbours along x as a cluster. Gives null, or what went wrong.
extern "C" __attribute__((visibility("default"))) const char* host_launch(void* entry,
    const char* name, const uint* grid, uint cluster, uint threads, void* const* pointers,
    uint count)
{
    using namespace host;
    prepare(cluster, threads);
    rt->running = &rt->fibres[0];
    rt->entry = (Entry)entry;
    rt->name = name;
    for (int i = 0; i < POINTERS; i++) rt->pointers[i] = (uint)i < count ? pointers[i] : nullptr;
    if (sigsetjmp(rt->escape, 1)) return rt->message;
    rt->inside = 1;
    for (uint z = 0; z < grid[2]; z++)
        for (uint y = 0; y < grid[1]; y++)
            for (uint x = 0; x < grid[0]; x += cluster) {
                rt->group_serial = rt->group_serial % 65535u + 1u;
                rt->last_epoch = rt->group_serial * 65536u;
                rt->epochs.assign(cluster, rt->last_epoch);
                rt->boxes.assign(cluster, {});
                for (uint t = 0; t < cluster * threads; t++) {
                    uint rank = t / threads;
                    rt->fibres[t].context = Context{{x + rank, y, z}, t % threads, threads};
                    rt->turns[t] = 0;
                }
                run_cluster();
            }
    rt->inside = 0;
    return nullptr;
}

// Device memory: whole pages between pages that nobody may touch; the data ends where a page ends,
// up to the rounding to 256 bytes, and what is left of the pages is filled with a mark that is
// checked later.
static const unsigned char MARK = 0xa5;
static const size_t PAGE = 4096;
extern "C" __attribute__((visibility("default"))) void* host_alloc(size_t bytes)
{
    size_t used = (bytes + 255) / 256 * 256, pages = (used + PAGE - 1) / PAGE * PAGE;
    char* all = (char*)mmap(
        nullptr, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == (char*)MAP_FAILED) return nullptr;
    if (mprotect(all + PAGE, pages, PROT_READ | PROT_WRITE) != 0) return nullptr;
    char* data = all + PAGE + pages - used;
    memset(all + PAGE, MARK, (size_t)(data - all) - PAGE);
    memset(data + bytes, MARK, used - bytes);
    return data;
}
// Whether the marks round an allocation are untouched.
extern "C" __attribute__((visibility("default"))) int host_intact(const void* at, size_t bytes)
{
    size_t used = (bytes + 255) / 256 * 256, pages = (used + PAGE - 1) / PAGE * PAGE;
    const unsigned char* data = (const unsigned char*)at;
    for (const unsigned char* p = data - (pages - used); p < data; p++)
        if (*p != MARK) return 0;
    for (size_t i = bytes; i < used; i++)
        if (data[i] != MARK) return 0;
    return 1;
}
extern "C" __attribute__((visibility("default"))) void host_free(void* at, size_t bytes)
{
    size_t used = (bytes + 255) / 256 * 256, pages = (used + PAGE - 1) / PAGE * PAGE;
    munmap((char*)at - (pages - used) - PAGE, pages + 2 * PAGE);
}
