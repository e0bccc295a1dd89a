//! Detaches a daemon of a local rack from the terminal and enters its network namespace.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Ready;
use crate::rack::namespace_path;
use crate::session;

/// Flags that only `venice up` sets, on its daemons.
#[derive(Args, Clone, Debug, Default)]
pub struct DetachArgs {
    /// Start a session of its own, so that the daemon outlives the terminal
    #[arg(long, hide = true)]
    detach: bool,
    /// Enter this network namespace first
    #[arg(long, value_name = "NAME", hide = true)]
    enter_netns: Option<String>,
    /// Write the addresses to this file once ready
    #[arg(long, value_name = "FILE", hide = true)]
    ready_file: Option<PathBuf>,
}

impl DetachArgs {
    /// Detaches and enters the namespace. Must run before the first thread starts: only the calling
    /// thread enters the namespace.
    pub fn apply(&self) -> anyhow::Result<()> {
        if self.detach {
            session::start().context("starting a session")?;
        }
        if let Some(name) = &self.enter_netns {
            let path = namespace_path(name);
            let namespace =
                File::open(&path).with_context(|| format!("opening {}", path.display()))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .with_context(|| format!("entering the network namespace {name}"))?;
        }
        Ok(())
    }

    /// Writes the ready file, if one was requested.
    pub fn tell_ready(&self, ready: &Ready) {
        let Some(path) = &self.ready_file else { return };
        if let Err(error) = ready.write(path) {
            tracing::error!("cannot write the ready file: {error:#}");
        }
    }
}
