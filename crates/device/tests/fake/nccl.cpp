// A libnccl for tests: memory of this process, gathers that are done when the call is back, and
// faults by the length of a part. Ranks are threads; a communicator that is ended wakes who waits.
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>

namespace {
struct Id {
    char internal[128];
};
struct Group {
    int ranks, here, gone;
    unsigned turn, left;
    const void* from[8];
    void* to[8];
    size_t bytes[8];
    bool ended, recorded;
};
struct Comm {
    int id, rank;
};
std::mutex lock;
std::condition_variable changed;
std::map<int, Group> groups;
int next_id = 1;
// Communicators whose end waits for graphs, and whether these are gone.
int ending = 0;
bool let_go = false;
// A part of so many bytes is gathered in a graph that stays.
const size_t RECORDED = 4 * 317;

enum { SUCCESS = 0, INVALID = 4, USAGE = 5, REMOTE = 6 };

template <class Ready> bool wait(std::unique_lock<std::mutex>& held, Group& g, Ready ready)
{
    auto most = std::chrono::steady_clock::now() + std::chrono::seconds(600);
    while (!ready() && !g.ended)
        if (changed.wait_until(held, most) == std::cv_status::timeout) return false;
    return ready();
}
} // namespace

// All else is hidden by the compiler's options.
#pragma GCC visibility push(default)
extern "C" {
int ncclGetVersion(int* version)
{
    *version = 22703;
    return SUCCESS;
}
const char* ncclGetErrorString(int status)
{
    return status == REMOTE ? "a planted end" : "a planted error";
}
int ncclGetUniqueId(Id* id)
{
    std::lock_guard<std::mutex> held(lock);
    memset(id, 0, sizeof *id);
    memcpy(id->internal + 100, &next_id, sizeof next_id);
    next_id += 1;
    return SUCCESS;
}
int ncclCommInitRank(void** comm, int ranks, Id id, int rank)
{
    std::unique_lock<std::mutex> held(lock);
    int number;
    memcpy(&number, id.internal + 100, sizeof number);
    if (ranks < 1 || ranks > 8 || rank < 0 || rank >= ranks || number < 1) return INVALID;
    Group& g = groups[number];
    g.ranks = ranks;
    g.here += 1;
    changed.notify_all();
    if (!wait(held, g, [&] { return g.here == ranks; })) return REMOTE;
    *comm = new Comm{number, rank};
    return SUCCESS;
}
// Who waits is told at once. Then it is like the library: as long as there are graphs that were
// recorded with the communicator, the call does not come back.
int ncclCommAbort(void* raw)
{
    std::unique_lock<std::mutex> held(lock);
    Comm* comm = (Comm*)raw;
    Group& g = groups[comm->id];
    g.ended = true;
    changed.notify_all();
    if (g.recorded) {
        ending += 1;
        changed.wait_for(held, std::chrono::seconds(600), [] { return let_go; });
        ending -= 1;
    }
    delete comm;
    return SUCCESS;
}
int fakeEnding(void)
{
    std::lock_guard<std::mutex> held(lock);
    return ending;
}
void fakeLetGo(void)
{
    std::lock_guard<std::mutex> held(lock);
    let_go = true;
    changed.notify_all();
}
// Its kernel would wait on the stream; here the call does, without the lock of its seat's owner in
// the way only because nobody ends a group whose ranks are all here.
int ncclAllGather(const void* from, void* to, size_t count, int type, void* raw, void* stream)
{
    (void)stream;
    if (type != 1) return USAGE;
    std::unique_lock<std::mutex> held(lock);
    Comm* comm = (Comm*)raw;
    Group& g = groups[comm->id];
    int rank = comm->rank;
    if (!wait(held, g, [&] { return g.left == 0; })) return REMOTE;
    unsigned turn = g.turn;
    g.recorded = g.recorded || count == RECORDED;
    g.from[rank] = from;
    g.to[rank] = to;
    g.bytes[rank] = count;
    g.gone += 1;
    if (g.gone == g.ranks) {
        for (int r = 1; r < g.ranks; ++r)
            if (g.bytes[r] != g.bytes[0]) return USAGE;
        for (int t = 0; t < g.ranks; ++t)
            for (int f = 0; f < g.ranks; ++f)
                memcpy((char*)g.to[t] + f * count, g.from[f], count);
        g.gone = 0;
        g.left = g.ranks;
        g.turn += 1;
        changed.notify_all();
    } else if (!wait(held, g, [&] { return g.turn != turn; }))
        return REMOTE;
    g.left -= 1;
    changed.notify_all();
    return SUCCESS;
}
}
#pragma GCC visibility pop
