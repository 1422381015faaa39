//! Which group a process belongs to and as what: by flags, by a file that all ranks share, or by
//! what a launcher put into the environment.

use super::file::{ClusterFile, Mode};
use crate::failure::Failure;
use crate::flags::{Carrier, RankCount, Ranks, Worker};
use ironstar_cluster::{Launch, Transport, VerbsSettings};
use ironstar_model::{Stages, Wire};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// A group of processes on one model.
#[derive(Clone, Debug)]
pub struct Group {
    /// How many there are.
    pub ranks: usize,
    /// How its layers are cut, where they are.
    pub layers: Option<Layers>,
    /// What carries gates and streams.
    pub transport: Transport,
    /// Where rank 0 waits for the others; without that it starts them itself.
    pub listen: Option<SocketAddr>,
    /// The key that all share.
    pub key_file: Option<PathBuf>,
    /// The cable is private: links are not encrypted.
    pub trusted_link: bool,
    /// This process's RDMA device, where that carries them.
    pub rdma: VerbsSettings,
    /// Machines of the ranks, where a file names them.
    pub machines: Vec<Option<String>>,
}

/// A pipeline's cut.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// As it was named; by weight if it was not.
    pub cut: Option<Stages>,
    /// How streams travel.
    pub wire: Wire,
}

/// What a process is that does not lead.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its group, as far as it is known to it.
    pub group: Group,
    /// Where rank 0 waits.
    pub join: SocketAddr,
    /// Which rank it is; any that is free if nobody says.
    pub rank: Option<usize>,
    /// How many ranks there are, where that is known.
    pub ranks: Option<usize>,
}

impl Group {
    /// What rank 0's flags want.
    pub fn of_flags(flags: &Ranks) -> Result<Group, Failure> {
        let mut group = match &flags.cluster {
            Some(path) => ClusterFile::read(path)?.group(path, 0)?,
            None => Group::of_words(flags)?,
        };
        group.rdma = flags.rdma.over(group.rdma);
        group.key_file = group.key_file.or_else(|| flags.rank_key_file.clone());
        if group.ranks == 1 && group.listen.is_some() {
            let text = "--listen waits for other ranks: say how many with --ranks N";
            return Err(Failure::caller(text));
        }
        Ok(group)
    }

    fn of_words(flags: &Ranks) -> Result<Group, Failure> {
        let wire = Wire::of_bits(flags.activation_bits).unwrap_or_default();
        let cut = flags.layers.as_deref().map(Stages::parse).transpose();
        let cut = cut.map_err(|error| Failure::caller(format!("--layers: {error}")))?;
        let nodes = cut.as_ref().map(Stages::count).or(flags.stages);
        let (said, listen) = match (&flags.ranks, &flags.launch) {
            (RankCount::Auto, Some(launch)) if launch.ranks == 1 => (None, None),
            (RankCount::Auto, Some(launch)) => {
                (Some(launch.ranks), Some(host_of(launch, flags.listen)?))
            }
            (RankCount::Auto, None) => return Err(nowhere("no launcher")),
            (RankCount::Of(ranks), _) => (Some(*ranks).filter(|r| *r != 1), flags.listen),
        };
        if let (Some(nodes), Some(said)) = (nodes, said)
            && nodes != said
        {
            return Err(Failure::caller(format!(
                "{said} ranks are wanted and layers for {nodes} nodes: each node is a rank"
            )));
        }
        if nodes.is_some_and(|nodes| nodes < 2) {
            return Err(Failure::caller("a pipeline has 2 or more nodes"));
        }
        let layers = nodes.map(|_| Layers { cut, wire });
        if layers.is_none() && wire != Wire::F32 {
            let text = "--activation-bits is about a pipeline: cut one with --stages or --layers";
            return Err(Failure::caller(text));
        }
        let trusted_link = flags.trusted_link;
        // Ranks that others start may be on other machines.
        let usual = if listen.is_some() { Transport::Tcp } else { Transport::Shm };
        let transport = match flags.transport {
            Some(Carrier::Transport(transport)) => transport,
            // Cards need none, and whoever is no card refuses it.
            Some(Carrier::Peer | Carrier::Nccl) | None => usual,
        };
        let ranks = nodes.or(said).unwrap_or(1);
        let key_file = flags.rank_key_file.clone();
        let (rdma, machines) = (VerbsSettings::default(), Vec::new());
        Ok(Group { ranks, layers, transport, listen, key_file, trusted_link, rdma, machines })
    }
}

impl Place {
    /// What a worker's flags want.
    pub fn of_flags(flags: &Worker) -> Result<Place, Failure> {
        let mut group = Group {
            ranks: 1,
            layers: None,
            transport: Transport::Tcp,
            listen: None,
            key_file: None,
            trusted_link: flags.trusted_link,
            rdma: VerbsSettings::default(),
            machines: Vec::new(),
        };
        let (join, rank, ranks) = match (&flags.join, &flags.cluster, &flags.launch) {
            (Some(join), _, _) => (address(join, "--join")?, flags.rank, None),
            (None, Some(path), _) => {
                group = ClusterFile::read(path)?.group(path, flags.rank.unwrap_or(0))?;
                let join = group.listen.ok_or_else(|| nowhere("the file"))?;
                let rank = flags.rank.filter(|rank| (1..group.ranks).contains(rank));
                let rank = rank.ok_or_else(|| {
                    let most = group.ranks - 1;
                    Failure::caller(format!("say which rank this is: --rank 1 to {most}"))
                })?;
                (join, Some(rank), Some(group.ranks))
            }
            (None, None, Some(launch)) => {
                if launch.rank == 0 {
                    return Err(Failure::caller(format!(
                        "{} made this process rank 0, which is `ironstar run` or `serve` with \
                         --ranks auto; `worker` is for the others",
                        launch.launcher
                    )));
                }
                let join = host_of(launch, flags.listen)?;
                (join, Some(launch.rank), Some(launch.ranks))
            }
            (None, None, None) => return Err(nowhere("no launcher")),
        };
        group.key_file = group.key_file.or_else(|| flags.rank_key_file.clone());
        group.rdma = flags.rdma.over(group.rdma);
        Ok(Place { group, join, rank, ranks })
    }
}

fn nowhere(found: &str) -> Failure {
    Failure::caller(format!(
        "{found} says where rank 0 waits: name it with --join HOST:PORT or --cluster FILE, or \
         start this process by torchrun, mpirun, srun or a LeaderWorkerSet"
    ))
}

/// Rank 0's address that was launched: as a flag says, which all ranks have, or as the launcher
/// does; this machine where neither names one.
fn host_of(launch: &Launch, flag: Option<SocketAddr>) -> Result<SocketAddr, Failure> {
    if let Some(address) = flag {
        return Ok(address);
    }
    let host = launch.host.as_deref().unwrap_or("127.0.0.1");
    address(&format!("{host}:{}", launch.port), launch.launcher)
}

/// A first address of what is written as HOST:PORT.
pub fn address(text: &str, whence: &str) -> Result<SocketAddr, Failure> {
    let wrong = |found: String| {
        Failure::caller(format!("{whence}: {text}: {found}; HOST:PORT of rank 0 is wanted"))
    };
    let mut all = text.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    all.next().ok_or_else(|| wrong("no address".into()))
}

impl ClusterFile {
    /// Devices are RDMA's.
    fn check_devices(&self) -> Result<(), String> {
        if self.transport.name() == "verbs" {
            return Ok(());
        }
        for (at, rank) in self.ranks.iter().enumerate() {
            let named = [("device", rank.device.is_some()), ("gid", rank.gid.is_some())];
            if let Some((key, _)) = named.iter().find(|(_, is_named)| *is_named) {
                return Err(format!("`{key}` of rank {at} belongs to transport `verbs`"));
            }
        }
        Ok(())
    }

    /// A rank's RDMA device.
    fn rdma(&self, rank: usize) -> Result<VerbsSettings, String> {
        let Some(named) = self.ranks.get(rank) else { return Ok(VerbsSettings::default()) };
        let gid = named.gid.map(u8::try_from).transpose();
        let gid = gid.map_err(|_| format!("`gid` of rank {rank}: tables end at 255"))?;
        Ok(VerbsSettings { device: named.device.clone(), gid, ..VerbsSettings::default() })
    }

    /// The group that the file describes, for one of its ranks.
    fn group(self, path: &std::path::Path, rank: usize) -> Result<Group, Failure> {
        let named = |text: String| Failure::caller(format!("{}: {text}", path.display()));
        let ranks = self.ranks.len();
        self.check_devices().map_err(named)?;
        let rdma = self.rdma(rank).map_err(named)?;
        let wire = Wire::of_bits(self.activation_bits.unwrap_or(32));
        let wire = wire.ok_or_else(|| named("`activation_bits` is 32, 16 or 8".into()))?;
        let layers = match self.mode {
            Mode::Tensor => {
                let with = self.ranks.iter().position(|rank| rank.layers.is_some());
                if let Some(rank) = with {
                    let text = format!("`layers` of rank {rank} belong to mode `pipeline`");
                    return Err(named(text));
                }
                if self.activation_bits.is_some() {
                    return Err(named("`activation_bits` belongs to mode `pipeline`".into()));
                }
                None
            }
            Mode::Pipeline => {
                let all: Vec<&str> =
                    self.ranks.iter().filter_map(|rank| rank.layers.as_deref()).collect();
                if !all.is_empty() && all.len() != ranks {
                    let text = "`layers` are named for some ranks: name them for all or for none";
                    return Err(named(text.into()));
                }
                let cut = (!all.is_empty()).then(|| Stages::parse(&all.join(","))).transpose();
                let cut = cut.map_err(|error| named(format!("`layers`: {error}")))?;
                Some(Layers { cut, wire })
            }
        };
        // A key file is beside the file that names it.
        let beside = |key: PathBuf| path.parent().map_or(key.clone(), |folder| folder.join(&key));
        Ok(Group {
            ranks,
            layers,
            transport: self.transport,
            listen: Some(self.listen),
            key_file: self.key_file.map(beside),
            trusted_link: self.trusted_link,
            rdma,
            machines: self.ranks.into_iter().map(|rank| rank.address).collect(),
        })
    }
}

#[cfg(test)]
mod tests;
