//! Which of several ports a link gets, and what is said when none fits.

use super::*;
use std::net::Ipv4Addr;

fn mapped(address: [u8; 4]) -> Gid {
    Ipv4Addr::from(address).to_ipv6_mapped().octets()
}

/// A RoCE port: link-local twice, and each address as v1 and v2.
fn port(device: &str, addresses: &[[u8; 4]]) -> Port {
    let local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets();
    let all = std::iter::once(local).chain(addresses.iter().map(|&address| mapped(address)));
    let kinds = [GidKind::RoceV1, GidKind::RoceV2];
    let gids = all.flat_map(|gid| kinds.map(|kind| (gid, kind)));
    let places = gids.zip(0..).map(|((gid, kind), index)| GidPlace { index, gid, kind });
    Port {
        device: device.into(),
        number: 1,
        active: true,
        ethernet: true,
        lid: 0,
        mtu: 3,
        message_bytes_max: 1 << 20,
        gids: places.collect(),
    }
}

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn chosen(ports: &[Port], settings: &VerbsSettings, local: IpAddr) -> (String, Option<u8>) {
    let Chosen { port, gid } = choose(ports, settings, local).expect("one fits");
    (port.device, gid.map(|gid| gid.index))
}

fn refused(ports: &[Port], settings: &VerbsSettings) -> String {
    choose(ports, settings, LOCAL).expect_err("none fits").to_string()
}

#[test]
fn the_port_with_the_address_of_the_control_connection() {
    let ports = [port("a", &[[10, 0, 1, 2]]), port("b", &[[10, 0, 2, 2], [10, 0, 0, 2]])];
    assert_eq!(chosen(&ports, &VerbsSettings::default(), LOCAL), ("b".into(), Some(5)));
    let first = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2));
    assert_eq!(chosen(&ports, &VerbsSettings::default(), first), ("a".into(), Some(3)));
    let v6 = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
    assert_eq!(chosen(&ports[1..], &VerbsSettings::default(), v6), ("b".into(), Some(1)));
}

#[test]
fn what_is_named_counts() {
    let ports = [port("a", &[[10, 0, 0, 2]]), port("b", &[[10, 0, 2, 2]])];
    let b = VerbsSettings { device: Some("b".into()), ..VerbsSettings::default() };
    assert_eq!(chosen(&ports, &b, LOCAL), ("b".into(), Some(3)), "its first IPv4 address, as v2");
    let gid = VerbsSettings { gid: Some(1), ..b.clone() };
    assert_eq!(chosen(&ports, &gid, LOCAL), ("b".into(), Some(1)));
    let error = refused(&ports, &VerbsSettings { gid: Some(9), ..b.clone() });
    assert!(error.contains("no GID at index 9") && error.contains("10.0.2.2"), "{error}");
    let error = refused(&ports, &VerbsSettings { port: Some(2), ..b });
    assert!(error.contains("no RDMA device b, port 2"), "{error}");
    let other = VerbsSettings { device: Some("c".into()), ..VerbsSettings::default() };
    let error = refused(&ports, &other);
    assert!(error.contains("no RDMA device c") && error.contains("a port 1 active"), "{error}");
}

#[test]
fn ports_that_cannot_be_used_are_told_with_what_there_is() {
    let none = VerbsSettings::default();
    assert!(refused(&[], &none).contains("there are no RDMA devices"));
    let mut down = port("a", &[[10, 0, 0, 2]]);
    down.active = false;
    let error = refused(&[down], &none);
    assert!(error.contains("no RDMA port is active") && error.contains("not active"), "{error}");
    let error = refused(&[port("a", &[]), port("b", &[])], &none);
    assert!(error.contains("the address 10.0.0.2"), "{error}");
    let error = refused(&[port("a", &[])], &none);
    assert!(error.contains("no IPv4 address") && error.contains("bridge"), "{error}");
}

#[test]
fn an_infiniband_port_needs_no_address() {
    let mut only = port("ib", &[]);
    only.ethernet = false;
    only.lid = 7;
    assert_eq!(chosen(&[only], &VerbsSettings::default(), LOCAL), ("ib".into(), None));
}

#[test]
fn a_library_that_does_not_tell_kinds_gets_the_first_that_fits() {
    let mut only = port("a", &[[10, 0, 0, 2]]);
    only.gids.iter_mut().for_each(|gid| gid.kind = GidKind::Unknown);
    assert_eq!(chosen(&[only], &VerbsSettings::default(), LOCAL), ("a".into(), Some(2)));
}
