//! TCP: any two machines, and the fallback where nothing faster stands.

use super::{ByteLink, Bytes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A link over a TCP connection.
pub type TcpLink = ByteLink<TcpStream>;

/// Bytes that the system may hold for one direction: a bank of gate messages and more.
const SOCKET_BYTES: usize = 4 * 1024 * 1024;
/// How long the system keeps sending to a peer that acknowledges nothing.
const UNACKNOWLEDGED_MS: u32 = 5_000;

/// Sets a connection up for gates: nothing waits to be joined with more, large buffers, no call
/// that blocks, and an end when the peer's machine has gone.
pub fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    // A system that gives less is no error: the window of the gates is not counted in bytes.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream, SOCKET_BYTES);
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(stream, SOCKET_BYTES);
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS)?;
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    stream.set_nonblocking(true)
}

impl Bytes for TcpStream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        Read::read(self, into)
    }

    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        Write::write(self, from)
    }

    fn write_pieces(&mut self, pieces: [&[u8]; 3]) -> std::io::Result<usize> {
        Write::write_vectored(self, &pieces.map(IoSlice::new))
    }

    fn rest(&mut self, writing: bool, at_most: Duration) {
        let flags = if writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        wait_for(self, flags, at_most);
    }

    fn sleeper(&self) -> Option<TcpStream> {
        self.try_clone().ok()
    }
}

/// Sleeps until something comes, and no longer than `at_most`.
pub(crate) fn rest_at(stream: &TcpStream, at_most: Duration) {
    wait_for(stream, PollFlags::IN, at_most);
}

fn wait_for(stream: &TcpStream, flags: PollFlags, at_most: Duration) {
    let time = Timespec::try_from(at_most).ok();
    // An error of poll shows again at the next read, where it is reported.
    let _ = poll(&mut [PollFd::new(stream, flags)], time.as_ref());
}
