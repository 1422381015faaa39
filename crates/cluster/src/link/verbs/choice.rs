//! Which device, port and address a link uses.

use super::abi::{GID_TYPE_ROCE_V1, GID_TYPE_ROCE_V2, Gid};
use crate::error::Error;
use std::ffi::c_int;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

/// What somebody says of RDMA links; the rest is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsSettings {
    /// The library, where the system's is not wanted.
    pub library: Option<PathBuf>,
    /// Name of the device.
    pub device: Option<String>,
    /// Its port, from 1.
    pub port: Option<u8>,
    /// Index of the port's address in its table.
    pub gid: Option<u8>,
    /// Which connections may be made.
    pub connection: VerbsConnection,
}

/// Kinds of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerbsConnection {
    /// Reliable where both ends have it, else unreliable.
    #[default]
    Any,
    /// Reliable (RC): the card tells of every loss.
    Reliable,
    /// Unreliable (UC): what Thunderbolt has.
    Unreliable,
}

/// What an address is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GidKind {
    /// RoCE v1: within one Ethernet.
    RoceV1,
    /// InfiniBand, or a library that does not tell.
    Unknown,
    /// RoCE v2: over UDP. The one to prefer.
    RoceV2,
}

impl GidKind {
    /// By the library's number.
    pub fn of(number: u32) -> Self {
        match number {
            GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::Unknown,
        }
    }
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GidPlace {
    /// Where it stands in the port's table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// What it is.
    pub kind: GidKind,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    /// The device's name.
    pub device: String,
    /// Its number there, from 1.
    pub number: u8,
    /// Whether a cable with a live peer is in it.
    pub active: bool,
    /// RoCE and Thunderbolt; otherwise InfiniBand, whose links need no address.
    pub ethernet: bool,
    /// Its number in an InfiniBand subnet.
    pub lid: u16,
    /// The largest packet, as the library numbers them.
    pub mtu: c_int,
    /// The longest message.
    pub message_bytes_max: u32,
    /// Its addresses.
    pub gids: Vec<GidPlace>,
}

/// Where a link will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// The port.
    pub port: Port,
    /// Its address; none where the subnet's number is enough.
    pub gid: Option<GidPlace>,
}

/// Chooses for a link whose control connection has the address `local` at this end: the port with
/// that address, or the one that was named, or the only one.
pub(super) fn choose(
    ports: &[Port],
    settings: &VerbsSettings,
    local: IpAddr,
) -> Result<Chosen, Error> {
    let refuse = |found: String, wanted: &str| Error::Settings {
        found: format!("{found} ({})", describe(ports)),
        wanted: wanted.into(),
    };
    let fits = |port: &&Port| {
        settings.device.as_ref().is_none_or(|name| *name == port.device)
            && settings.port.is_none_or(|number| number == port.number)
    };
    let named: Vec<&Port> = ports.iter().filter(fits).collect();
    if named.is_empty() {
        let name = settings.device.as_deref().unwrap_or("any name");
        let port = settings.port.map_or_else(String::new, |number| format!(", port {number}"));
        return Err(refuse(
            format!("no RDMA device {name}{port}"),
            "name one that is there, or use another transport",
        ));
    }
    let live: Vec<&Port> = named.iter().copied().filter(|port| port.active).collect();
    if live.is_empty() {
        return Err(refuse(
            "no RDMA port is active".into(),
            "both ends need the cable and RDMA enabled (macOS: `rdma_ctl enable` in Recovery)",
        ));
    }
    if let Some(index) = settings.gid {
        return best(&live, |gid| gid.index == index).ok_or_else(|| {
            refuse(format!("no GID at index {index}"), "give an index that is filled")
        });
    }
    let wanted = match local {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    if let Some(found) = best(&live, |gid| Ipv6Addr::from(gid.gid) == wanted) {
        return Ok(found);
    }
    let [port] = live[..] else {
        return Err(refuse(
            format!("no RDMA port has the address {local} of the control connection"),
            "name the device, or let ranks talk over the RDMA network's addresses",
        ));
    };
    if !port.ethernet {
        return Ok(Chosen { port: port.clone(), gid: None });
    }
    best(&live, |gid| Ipv6Addr::from(gid.gid).to_ipv4_mapped().is_some()).ok_or_else(|| {
        refuse(
            format!("port {} of {} has no IPv4 address", port.number, port.device),
            "give its network interface one (on a Mac the Thunderbolt port's own, not the \
             bridge's; 169.254.x.x is enough), or name the GID's index",
        )
    })
}

/// The address that passes, RoCE v2 before others, then the first.
fn best(ports: &[&Port], passes: impl Fn(&GidPlace) -> bool) -> Option<Chosen> {
    let all = ports.iter().flat_map(|port| port.gids.iter().map(move |gid| (*port, *gid)));
    let mut found: Vec<(&Port, GidPlace)> = all.filter(|(_, gid)| passes(gid)).collect();
    found.sort_by_key(|(_, gid)| std::cmp::Reverse(gid.kind));
    let (port, gid) = found.first()?;
    Some(Chosen { port: (*port).clone(), gid: Some(*gid) })
}

/// The ports that there are, for messages.
fn describe(ports: &[Port]) -> String {
    if ports.is_empty() {
        return "there are no RDMA devices".into();
    }
    let mut text = String::from("there are:");
    for port in ports.iter().take(8) {
        let state = if port.active { "active" } else { "not active" };
        let _ = write!(text, " {} port {} {state}", port.device, port.number);
        for gid in port.gids.iter().take(8) {
            let _ = write!(text, ", GID {} {}", gid.index, Ipv6Addr::from(gid.gid));
            if gid.kind == GidKind::RoceV2 {
                text += " (RoCE v2)";
            }
        }
        text += ";";
    }
    text.pop();
    text
}

#[cfg(test)]
mod tests;
