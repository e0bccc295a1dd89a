//! `venice swap session`: the process of root's that has a user's device and cgroup. It ends with the
//! user's connection, and does not depend on the helper that has started it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use venice_cli::log::start_log;
use venice_control::client::UserIds;
use venice_recipient::runs::budget;
use venice_sockets::take_descriptors;
use venice_swap::{UserProcess, peer_groups};

use super::super::session::{Session, require_swap};
use super::super::wants::Wants;
use super::least_copies_parser;
use super::messages::{Answer, Channel, ChannelError, Question};
use crate::rack::{self, RunDir};

/// Time for the first question.
const OPENING_WITHIN: Duration = Duration::from_secs(5);

/// `venice swap session`
#[derive(Args, Debug)]
pub struct SessionArgs {
    /// Fewest copies of each page
    #[arg(long, value_name = "N", default_value_t = super::LEAST_COPIES, value_parser = least_copies_parser())]
    least_copies: u32,
}

/// Serves the user whose connection is standard input.
pub fn execute(args: &SessionArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    crate::session::start().context("starting a session")?;
    start_log()?;
    let socket = io::stdin().as_fd().try_clone_to_owned().context("opening the connection")?;
    let desk = Desk { user: user_of(&socket)?, channel: Channel::of(socket), monitor, args };
    let first = desk.channel.receive(Some(OPENING_WITHIN));
    match first {
        Ok(None) | Err(ChannelError::Silent) => {}
        Ok(Some((Question::Check, _))) => desk.answer(desk.check()),
        Ok(Some((Question::Open(wants), _))) => desk.serve(&wants),
        Ok(Some(_)) => desk.answer(Err(anyhow!("the first question is for a device"))),
        Err(error) => desk.answer(Err(error.into())),
    }
    Ok(0)
}

/// The user at the other end of a connection.
fn user_of(socket: &OwnedFd) -> anyhow::Result<UserIds> {
    let peer = getsockopt(socket, PeerCredentials).context("standard input is no connection")?;
    let groups = peer_groups(socket).context("reading the groups of the peer")?;
    Ok(UserIds { uid: peer.uid(), gid: peer.gid(), groups })
}

struct Desk<'a> {
    user: UserIds,
    channel: Channel,
    monitor: Option<&'a str>,
    args: &'a SessionArgs,
}

impl Desk<'_> {
    /// Answers, if the user is still there.
    fn answer(&self, outcome: anyhow::Result<Answer>) {
        let answer = outcome.unwrap_or_else(|error| Answer::Refused(format!("{error:#}")));
        if let Err(error) = self.channel.send(&answer, None) {
            tracing::info!(user = self.user.uid, %error, "an answer was not sent");
        }
    }

    fn check(&self) -> anyhow::Result<Answer> {
        require_swap()?;
        Ok(Answer::Works { least_copies: self.args.least_copies })
    }

    fn serve(&self, wants: &Wants) {
        let mut session = match self.open(wants) {
            Ok(session) => session,
            Err(error) => {
                tracing::info!(user = self.user.uid, "refused: {error:#}");
                return self.answer(Err(error));
            }
        };
        let attached = session.attached().clone();
        tracing::info!(
            user = self.user.uid,
            device = attached.name,
            purpose = wants.purpose,
            "opened"
        );
        // Before the run knows that it may send its process.
        let opened = take_descriptors(&self.channel).context("opening the connection");
        self.answer(opened.map(|()| Answer::Device(Box::new(attached))));
        loop {
            match self.channel.receive(None) {
                Ok(None) => break,
                Ok(Some((Question::Close, _))) => {
                    self.answer(session.close().map(|()| Answer::Done));
                    break;
                }
                Ok(Some((question, fd))) => {
                    let process = fd.as_ref().map(AsFd::as_fd);
                    self.answer(self.carry_out(&mut session, question, process, wants.local_bytes));
                    self.channel.close(fd);
                }
                Err(error) => {
                    tracing::warn!(user = self.user.uid, %error, "the session ends");
                    self.answer(Err(error.into()));
                    break;
                }
            }
        }
    }

    fn open(&self, wants: &Wants) -> anyhow::Result<Session> {
        require_swap()?;
        wants.check().map_err(anyhow::Error::msg)?;
        budget::check(wants.local_bytes)?.map_err(anyhow::Error::msg)?;
        let least = self.args.least_copies;
        if let Some(copies) = wants.copies.filter(|copies| *copies < least) {
            bail!("--copies {copies} is too few: {}", why_copies(least));
        }
        let mut wants = wants.clone();
        let is_forced = wants.copies.is_none() && least > 1;
        if is_forced {
            wants.copies = Some(least);
        }
        let monitor = self.rack_of(&wants)?;
        let port = wants.port.map_or_else(rack::default_port, Ok)?;
        let pid = std::process::id();
        let mut plan = wants.plan(format!("run-{pid}"), monitor, port, pid);
        plan.user = Some(self.user.clone());
        let is_over = || self.channel.has_ended();
        Session::open(RunDir::locate()?, &plan, &is_over).map_err(|error| match is_forced {
            true => anyhow!("{error:#}; {}", why_copies(least)),
            false => error,
        })
    }

    /// Returns the address of the helper's rack. A user may not choose another: its nodes get pages of
    /// any program.
    fn rack_of(&self, wants: &Wants) -> anyhow::Result<String> {
        let monitor = rack::monitor_address(self.monitor)?;
        if let Some(named) = &wants.monitor
            && !named.split(',').any(|one| monitor.split(',').any(|own| own == one))
        {
            bail!(
                "this machine's swap helper uses the rack at {monitor}, not the one at {named}: leave \
                 out --monitor and VENICE_MONITOR"
            );
        }
        Ok(monitor)
    }

    fn carry_out(
        &self,
        session: &mut Session,
        question: Question,
        fd: Option<BorrowedFd<'_>>,
        local_bytes: u64,
    ) -> anyhow::Result<Answer> {
        match question {
            Question::Admit => {
                let process = fd.context("no process came with the question")?;
                let process = UserProcess::check(process, self.user.uid)?;
                session.admit(&process, local_bytes)?;
                Ok(Answer::Done)
            }
            Question::Device => Ok(Answer::Device(Box::new(session.device()))),
            Question::Group => Ok(Answer::Group(session.group())),
            Question::Limit(local_bytes) => {
                session.limit(local_bytes).map_err(anyhow::Error::msg)?;
                Ok(Answer::Done)
            }
            Question::Check | Question::Open(_) | Question::Close => {
                bail!("the session is open already")
            }
        }
    }
}

/// Says why a user's device has so many copies.
fn why_copies(least: u32) -> String {
    format!(
        "the kernel may move pages of any program to a user's device, so this machine's swap helper \
         keeps {least} copies at least, each on another node (its administrator can set --least-copies)"
    )
}
