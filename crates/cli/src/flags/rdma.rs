//! Flags of RDMA links, for whoever starts a group and for `worker`.

use clap::{Args, ValueEnum};
use ironstar_cluster::{VerbsConnection, VerbsSettings};
use std::path::PathBuf;

/// Which RDMA device carries the gates of `--transport verbs`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "RDMA")]
pub struct Rdma {
    /// The RDMA device (default: the one with the address that ranks talk over)
    #[arg(long, value_name = "NAME")]
    pub rdma_device: Option<String>,
    /// Its port, from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub rdma_port: Option<u8>,
    /// Index of the port's address (GID) in its table (default: the address that ranks talk over,
    /// RoCE v2 before v1)
    #[arg(long, value_name = "N")]
    pub rdma_gid: Option<u8>,
    /// Kind of connection
    #[arg(long, value_name = "KIND", default_value = "any")]
    pub rdma_connection: ConnectionName,
    /// The RDMA library (default: libibverbs.so.1, on a Mac librdma.dylib)
    #[arg(long, value_name = "FILE")]
    pub rdma_library: Option<PathBuf>,
}

/// Kinds of RDMA connections by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ConnectionName {
    /// Reliable where both ends have it, else unreliable.
    #[default]
    Any,
    /// RC: RoCE and InfiniBand cards.
    Reliable,
    /// UC: what Thunderbolt has.
    Unreliable,
}

impl Rdma {
    /// What links are told.
    fn settings(&self) -> VerbsSettings {
        VerbsSettings {
            library: self.rdma_library.clone(),
            device: self.rdma_device.clone(),
            port: self.rdma_port,
            gid: self.rdma_gid,
            connection: match self.rdma_connection {
                ConnectionName::Any => VerbsConnection::Any,
                ConnectionName::Reliable => VerbsConnection::Reliable,
                ConnectionName::Unreliable => VerbsConnection::Unreliable,
            },
        }
    }

    /// The same, with what a file says where no flag does.
    pub fn over(&self, file: VerbsSettings) -> VerbsSettings {
        let own = self.settings();
        VerbsSettings { device: own.device.or(file.device), gid: own.gid.or(file.gid), ..own }
    }

    /// The same flags for another process of this machine.
    pub fn words(&self) -> Vec<String> {
        let kind = self.rdma_connection.to_possible_value();
        let kind = kind.map(|value| value.get_name().to_owned());
        let library = self.rdma_library.as_ref().map(|path| path.display().to_string());
        let flags = [
            ("--rdma-device", self.rdma_device.clone()),
            ("--rdma-port", self.rdma_port.map(|number| number.to_string())),
            ("--rdma-gid", self.rdma_gid.map(|number| number.to_string())),
            ("--rdma-connection", kind),
            ("--rdma-library", library),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some([flag.into(), value?]));
        given.flatten().collect()
    }
}
