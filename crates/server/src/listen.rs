//! Sockets: accepting, limits of connections, and the end.
//!
//! Nothing that a client or the system does ends the loop: an accept that fails (descriptors used
//! up, a client that left at once) is tried again after a pause. It ends when [`Shutdown`] says so:
//! no more connections, idle ones closed, running answers get [`super::Options::grace`].

use super::app::App;
use super::patient::Patient;
use super::{Error, routes};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Pauses after an accept that failed.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Headers of a request.
const HEADERS_MAX: usize = 100;

/// How far a server is on its way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It serves.
    Serving,
    /// It accepts nothing; what runs may end.
    Closing,
    /// What runs must end.
    Ending,
}

/// Stops a server from anywhere: the first call lets answers end, the second ends them.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Sender<Phase>);

impl Default for Shutdown {
    fn default() -> Self {
        Shutdown(watch::Sender::new(Phase::Serving))
    }
}

impl Shutdown {
    /// Stops; a second time, at once.
    pub fn stop(&self) {
        self.0.send_modify(|phase| {
            *phase = if *phase == Phase::Serving { Phase::Closing } else { Phase::Ending };
        });
    }

    fn end(&self) {
        self.0.send_replace(Phase::Ending);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Phase> {
        self.0.subscribe()
    }
}

/// Comes back when a server is as far on its way down, or gone.
pub(crate) async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    let _gone = phase.wait_for(|phase| *phase >= wanted).await.is_ok();
}

/// Takes the address, so that a port in use is known before a model is loaded.
pub fn bind(address: SocketAddr) -> Result<StdListener, Error> {
    let listener = StdListener::bind(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Error::InUse(address),
        _ => Error::Listen { address, error },
    })?;
    listener.set_nonblocking(true).map_err(|error| Error::Listen { address, error })?;
    Ok(listener)
}

/// Serves until the end.
pub(crate) async fn run(
    app: Arc<App>,
    listener: StdListener,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let address = app.address;
    let listener =
        TcpListener::from_std(listener).map_err(|error| Error::Listen { address, error })?;
    let room = Arc::new(Semaphore::new(app.options.connections_max));
    let mut phase = shutdown.watch();
    // Each connection holds a receiver; all are gone when none is open.
    let open = watch::Sender::new(());
    let mut pause = PAUSE_MIN;
    while *phase.borrow_and_update() == Phase::Serving {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            _ = phase.changed() => continue,
        };
        match accepted {
            Ok((stream, permit)) => {
                pause = PAUSE_MIN;
                app.metrics.connections.fetch_add(1, Ordering::Relaxed);
                let (app, phase, open) = (app.clone(), phase.clone(), open.subscribe());
                tokio::spawn(async move {
                    serve(app, stream, phase).await;
                    drop((permit, open));
                });
            }
            Err(error) => {
                app.metrics.accept_errors.fetch_add(1, Ordering::Relaxed);
                if pause == PAUSE_MAX {
                    app.log(&format!("accepting connections fails: {error}; trying again"));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
    drop(listener);
    app.log("stopping: no more requests; what runs may end");
    tokio::select! {
        () = open.closed() => return Ok(()),
        () = tokio::time::sleep(app.options.grace) => {}
        () = reached(&mut phase, Phase::Ending) => {}
    }
    app.log("stopping: what still runs is ended");
    shutdown.end();
    let _late = tokio::time::timeout(app.options.last_words, open.closed()).await;
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = room.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Events are small and must not wait for each other.
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}

/// One connection, request after request.
async fn serve(app: Arc<App>, stream: TcpStream, mut phase: watch::Receiver<Phase>) {
    let options = &app.options;
    let io = TokioIo::new(Patient::new(stream, options.write_timeout));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(options.head_timeout)
        .max_buf_size(options.head_bytes)
        .max_headers(HEADERS_MAX);
    let service = TowerToHyperService::new(routes::router(app.clone()));
    let connection = builder.serve_connection(io, service);
    tokio::pin!(connection);
    let closing = reached(&mut phase, Phase::Closing);
    tokio::select! {
        // What goes wrong on a connection is the client's leaving, or its bad head, which is
        // answered; there is nobody else to tell.
        _ended = connection.as_mut() => return,
        () = closing => connection.as_mut().graceful_shutdown(),
    }
    let _ended = connection.await;
}

/// A thread that waits for the system's signals.
pub(crate) fn stop_on_signals(shutdown: Shutdown) -> Result<(), Error> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Start)?;
    let signals = async move {
        #[cfg(unix)]
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        loop {
            #[cfg(unix)]
            tokio::select! {
                _ = terminate.recv() => {}
                pressed = tokio::signal::ctrl_c() => pressed?,
            }
            #[cfg(not(unix))]
            tokio::signal::ctrl_c().await?;
            shutdown.stop();
        }
    };
    let body = move || {
        // Where the system has no signals to give, only `Shutdown` stops a server.
        let _none: Result<(), std::io::Error> = runtime.block_on(signals);
    };
    std::thread::Builder::new().name("signals".into()).spawn(body).map_err(Error::Start)?;
    Ok(())
}
