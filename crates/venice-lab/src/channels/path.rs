//! Place of the far end: behind a virtual wire with root, else behind loopback.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path as FilePath;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::wire::{FAR_DEVICE, Wire};
use venice_measure::cpus;

/// Time limit for the far end's start.
const START: Duration = Duration::from_secs(10);

/// The path from the near end to the far end.
#[derive(Debug)]
pub(crate) enum Path {
    /// A veth pair into another network namespace.
    Veth(Wire),
    /// Loopback, with the reason.
    Loopback {
        /// Missing requirement of a wire.
        reason: String,
    },
}

impl Path {
    /// Lays a wire, or uses loopback where that is impossible.
    pub(crate) fn lay() -> Self {
        match Wire::lay() {
            Ok(wire) => Path::Veth(wire),
            Err(error) => Path::Loopback { reason: format!("{error:#}") },
        }
    }

    /// Returns the text for the report.
    pub(crate) fn title(&self) -> String {
        match self {
            Path::Veth(_) => "a veth pair between two network namespaces, MTU 9000".to_owned(),
            Path::Loopback { reason } => format!("loopback ({reason})"),
        }
    }

    /// Returns the address of the near end.
    pub(crate) fn near(&self) -> Ipv4Addr {
        match self {
            Path::Veth(wire) => wire.near,
            Path::Loopback { .. } => Ipv4Addr::LOCALHOST,
        }
    }

    /// Returns the address of the far end.
    pub(crate) fn far(&self) -> Ipv4Addr {
        match self {
            Path::Veth(wire) => wire.far,
            Path::Loopback { .. } => Ipv4Addr::LOCALHOST,
        }
    }

    /// Returns the network devices of the near and the far end.
    pub(crate) fn devices(&self) -> (&str, &str) {
        match self {
            Path::Veth(wire) => (wire.near_device(), FAR_DEVICE),
            Path::Loopback { .. } => ("lo", "lo"),
        }
    }

    /// Builds a command that starts `program` at the far end.
    ///
    /// # Errors
    /// When `ip` is not installed.
    pub(crate) fn far_command(&self, program: &FilePath) -> Result<Command> {
        match self {
            Path::Veth(wire) => wire.far_command(program),
            Path::Loopback { .. } => Ok(Command::new(program)),
        }
    }

    /// Opens the far end's namespace; `None` if both ends share one.
    fn namespace(&self) -> Result<Option<File>> {
        match self {
            Path::Veth(wire) => wire.namespace_file().map(Some),
            Path::Loopback { .. } => Ok(None),
        }
    }
}

/// Moves the calling thread, with all that it starts, into the far end's namespace for good.
fn enter(namespace: Option<File>) -> Result<()> {
    let Some(namespace) = namespace else { return Ok(()) };
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .context("cannot enter the network namespace")
}

/// A thread at the far end; dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct FarEnd {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FarEnd {
    /// Starts a thread on `cpu`, at the far end of `path` if one is given. There `prepare` sets up,
    /// and returns the server's and the caller's parts; `serve` then runs until told to stop, and
    /// must check its flag often.
    ///
    /// # Errors
    /// When `prepare` fails, or the thread cannot be started or placed.
    pub(crate) fn start<T: Send + 'static, S>(
        path: Option<&Path>,
        cpu: usize,
        prepare: impl FnOnce() -> Result<(T, S)> + Send + 'static,
        serve: impl FnOnce(S, &AtomicBool) + Send + 'static,
    ) -> Result<(Self, T)> {
        let stop = Arc::new(AtomicBool::new(false));
        let namespace = path.map_or(Ok(None), Path::namespace)?;
        let (sender, receiver) = std::sync::mpsc::channel();
        let body = {
            let stop = Arc::clone(&stop);
            move || {
                let ready =
                    cpus::pin_to(cpu).and_then(|()| enter(namespace)).and_then(|()| prepare());
                // The receiver is gone only if the start timed out.
                match ready {
                    Ok((wanted, state)) => {
                        let _ = sender.send(Ok(wanted));
                        serve(state, &stop);
                    }
                    Err(error) => {
                        let _ = sender.send(Err(error));
                    }
                }
            }
        };
        let named = std::thread::Builder::new().name("far-end".into());
        let thread = named.spawn(body).context("cannot start a thread")?;
        // From here on, dropping it stops and joins the thread.
        let end = Self { stop, thread: Some(thread) };
        let wanted = receiver.recv_timeout(START).context("the far end does not start")??;
        Ok((end, wanted))
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
