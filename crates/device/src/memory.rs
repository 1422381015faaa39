//! How much of the machine's memory there is for us.

use std::process::Command;

/// Memory of the machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// What this process can ever have: what is installed, or the limit of its container.
    pub most: u64,
    /// What it can have now without pushing something out, where the system says so.
    pub now: Option<u64>,
}

/// What the system says of its memory; `None` where it says nothing.
#[must_use]
pub fn host_memory() -> Option<HostMemory> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let table = read("/proc/meminfo");
    let line = |name| table.as_deref().and_then(|table| entry(table, name));
    let installed = line("MemTotal:").or_else(from_sysctl)?;
    let limit = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok());
    let most = limit.map_or(installed, |limit: u64| limit.min(installed));
    Some(HostMemory { most, now: line("MemAvailable:").map(|now| now.min(most)) })
}

/// A line of Linux' table, in bytes.
fn entry(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// What macOS and the BSDs say.
fn from_sysctl() -> Option<u64> {
    let output = Command::new("sysctl").args(["-n", "hw.memsize"]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{entry, host_memory};

    #[test]
    fn linux_says_its_memory() {
        let text = "MemTotal:       16384 kB\nMemFree:          100 kB\n";
        assert_eq!(entry(text, "MemTotal:"), Some(16 << 20));
        assert_eq!(entry(text, "MemAvailable:"), None);
        assert_eq!(entry("MemTotal: 99999999999999999999 kB", "MemTotal:"), None);
    }

    #[test]
    fn what_is_free_is_part_of_all() {
        let memory = host_memory().expect("this system says what it has");
        assert!(memory.now.is_none_or(|now| now <= memory.most), "{memory:?}");
    }
}
