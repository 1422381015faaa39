//! What launchers put into the environment of each process: torchrun, mpirun, Slurm and
//! LeaderWorkerSet. A pure function of the variables; only a binary's `main` reads real ones.

use crate::error::Error;
use std::collections::BTreeMap;

/// Port of rank 0 where a launcher names a host only.
pub const DEFAULT_PORT: u16 = 29_570;

/// What a launcher says of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// This process's rank.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// Host of rank 0, where the launcher knows it. `mpirun` does not: it must be given.
    pub host: Option<String>,
    /// Port of rank 0.
    pub port: u16,
    /// Who says so, for messages.
    pub launcher: &'static str,
}

/// One launcher's variables.
struct Contract {
    launcher: &'static str,
    /// Its presence says that this launcher started the process.
    rank: &'static str,
    /// The first that is set counts.
    ranks: &'static [&'static str],
    host: Host,
    port: Option<&'static str>,
}

enum Host {
    Unknown,
    Variable(&'static str),
    /// The first host of a Slurm list.
    FirstOf(&'static [&'static str]),
}

/// In the order in which they count: a launcher that runs inside of another comes first.
const CONTRACTS: [Contract; 5] = [
    Contract {
        launcher: "torchrun",
        rank: "RANK",
        ranks: &["WORLD_SIZE"],
        host: Host::Variable("MASTER_ADDR"),
        port: Some("MASTER_PORT"),
    },
    Contract {
        launcher: "Open MPI's mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: &["OMPI_COMM_WORLD_SIZE"],
        host: Host::Unknown,
        port: None,
    },
    Contract {
        launcher: "MPICH's mpirun",
        rank: "PMI_RANK",
        ranks: &["PMI_SIZE"],
        host: Host::Unknown,
        port: None,
    },
    Contract {
        launcher: "srun",
        rank: "SLURM_PROCID",
        ranks: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        host: Host::FirstOf(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"]),
        port: None,
    },
    Contract {
        launcher: "LeaderWorkerSet",
        rank: "LWS_WORKER_INDEX",
        ranks: &["LWS_GROUP_SIZE"],
        host: Host::Variable("LWS_LEADER_ADDRESS"),
        port: None,
    },
];

/// The launch that `variables` describe, or `None` if no launcher started this process.
pub fn launch(variables: &BTreeMap<String, String>) -> Result<Option<Launch>, Error> {
    let Some(contract) = CONTRACTS.iter().find(|contract| is_ours(contract, variables)) else {
        return Ok(None);
    };
    let rank = number(variables, contract.rank, contract.launcher)?;
    let name = contract.ranks.iter().find(|name| variables.contains_key(**name));
    let name = name.unwrap_or(&contract.ranks[0]);
    let ranks = number(variables, name, contract.launcher)?;
    if ranks == 0 || rank >= ranks {
        return Err(Error::Settings {
            found: format!("{} is {rank} and {name} is {ranks}", contract.rank),
            wanted: "ranks count from 0 to one less than their number".into(),
        });
    }
    let host = match contract.host {
        Host::Unknown => None,
        Host::Variable(name) => Some(text(variables, name, contract.launcher)?.to_string()),
        Host::FirstOf(names) => {
            let list = names.iter().find_map(|name| variables.get(*name));
            list.map(|list| first_host(list)).transpose()?
        }
    };
    let port = match contract.port {
        None => DEFAULT_PORT,
        Some(name) => {
            let value = text(variables, name, contract.launcher)?;
            value.parse().ok().filter(|port| *port != 0).ok_or_else(|| Error::Settings {
                found: format!("{name} is `{value}`"),
                wanted: "it is a port, 1 to 65535".into(),
            })?
        }
    };
    let port = beside_store(port, variables);
    Ok(Some(Launch { rank, ranks, host, port, launcher: contract.launcher }))
}

/// Where torchrun keeps a store of its own on the port that it names, the next one is ours.
fn beside_store(port: u16, variables: &BTreeMap<String, String>) -> u16 {
    let is_taken = variables.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|v| v == "True");
    if is_taken { port.checked_add(1).unwrap_or(DEFAULT_PORT) } else { port }
}

fn is_ours(contract: &Contract, variables: &BTreeMap<String, String>) -> bool {
    // The script of a Slurm batch job has a SLURM_PROCID too, and is no rank of a step.
    let script = contract.launcher == "srun" && !variables.contains_key("SLURM_STEP_NUM_TASKS");
    variables.contains_key(contract.rank) && !script
}

fn text<'a>(
    variables: &'a BTreeMap<String, String>,
    name: &str,
    launcher: &str,
) -> Result<&'a str, Error> {
    let value = variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    value.ok_or_else(|| Error::Settings {
        found: format!("{launcher} started this process and {name} is not set"),
        wanted: format!("set {name}, or say rank and address with flags"),
    })
}

fn number(
    variables: &BTreeMap<String, String>,
    name: &str,
    launcher: &str,
) -> Result<usize, Error> {
    let value = text(variables, name, launcher)?;
    value.parse().map_err(|_| Error::Settings {
        found: format!("{name} is `{value}`"),
        wanted: "it is a whole number".into(),
    })
}

/// The first host of a list as Slurm writes it: `a[01-04,9],b` is `a01`.
fn first_host(list: &str) -> Result<String, Error> {
    let wrong = || Error::Settings {
        found: format!("the node list `{list}`"),
        wanted: "it begins with a host, or a host with ranges in brackets".into(),
    };
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let host = match rest.strip_prefix('[') {
        None => name.to_string(),
        Some(ranges) => {
            let (ranges, after) = ranges.split_once(']').ok_or_else(wrong)?;
            let first = ranges.split([',', '-']).next().unwrap_or_default();
            if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(wrong());
            }
            let suffix = after.split(',').next().unwrap_or_default();
            if suffix.contains('[') {
                return Err(wrong());
            }
            format!("{name}{first}{suffix}")
        }
    };
    if host.is_empty() { Err(wrong()) } else { Ok(host) }
}

#[cfg(test)]
mod tests;
