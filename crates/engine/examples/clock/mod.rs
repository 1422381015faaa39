//! Processor time, which other programs on the machine do not lengthen.

use std::time::Duration;

/// Time that this thread has run. (`/proc/thread-self/schedstat` would do, but a running thread's
/// is only brought up to date at the kernel's ticks, a few milliseconds apart.)
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let part = |number| u64::try_from(number).expect("a thread has run for no less than no time");
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}
