//! The run's side of a session: the run of an ordinary user.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use venice_cli::terminal::remark;
use venice_recipient::local_rack::swap_helper;

use super::super::session::{GroupState, later};
use super::super::wants::Wants;
use super::super::{Status, tell_of_queue};
use super::messages::{Answer, Channel, Question};

/// Timeout of a check.
const CHECK_WITHIN: Duration = Duration::from_secs(10);

/// A session of the swap helper.
pub struct HelperSession {
    /// For one question at a time.
    channel: Mutex<Channel>,
    /// Status of the device at the start.
    attached: Status,
}

impl HelperSession {
    /// Asks this machine's helper for a session.
    pub fn open(wants: &Wants) -> anyhow::Result<HelperSession> {
        let channel = connect()?;
        tell_of_queue("the program", Duration::from_millis(wants.waiting.wait_ms));
        let answer = ask(&channel, &Question::Open(Box::new(wants.clone())), None, None)?;
        let Answer::Device(attached) = answer else { bail!(UNEXPECTED) };
        Ok(HelperSession { channel: Mutex::new(channel), attached: *attached })
    }

    /// Returns the status of the device at its start.
    pub fn attached(&self) -> &Status {
        &self.attached
    }

    /// Has a process of this user moved into the session's cgroup.
    pub fn admit(&self, process: &OwnedFd) -> anyhow::Result<()> {
        match self.ask(&Question::Admit, Some(process.as_fd()))? {
            Answer::Done => Ok(()),
            _ => bail!(UNEXPECTED),
        }
    }

    /// Returns the status of the device.
    pub fn device(&self) -> anyhow::Result<Status> {
        match self.ask(&Question::Device, None)? {
            Answer::Device(status) => Ok(*status),
            _ => bail!(UNEXPECTED),
        }
    }

    /// Returns the state of the cgroup.
    pub fn group(&self) -> anyhow::Result<GroupState> {
        match self.ask(&Question::Group, None)? {
            Answer::Group(state) => Ok(state),
            _ => bail!(UNEXPECTED),
        }
    }

    /// Changes the limit.
    pub fn limit(&self, local_bytes: u64) -> anyhow::Result<()> {
        match self.ask(&Question::Limit(local_bytes), None)? {
            Answer::Done => Ok(()),
            _ => bail!(UNEXPECTED),
        }
    }

    fn ask(&self, question: &Question, fd: Option<BorrowedFd<'_>>) -> anyhow::Result<Answer> {
        let channel = self.channel.lock().expect("no holder panics");
        ask(&channel, question, fd, None)
    }
}

impl Drop for HelperSession {
    fn drop(&mut self) {
        // A session that is gone has ended all of it.
        if let Err(error) = self.ask(&Question::Close, None)
            && !error.is::<SessionEnded>()
        {
            remark(later(&error));
        }
    }
}

const UNEXPECTED: &str = "the swap helper gave an unexpected answer (protocol error): does it run \
                          another version of Venice?";

/// The session has ended.
#[derive(Debug, thiserror::Error)]
#[error("the swap helper's session has ended: see the helper's log")]
pub struct SessionEnded;

/// Checks that this machine's helper can run programs on swap.
///
/// # Errors
/// The reason, for users.
pub fn check() -> anyhow::Result<u32> {
    match ask(&connect()?, &Question::Check, None, Some(CHECK_WITHIN))? {
        Answer::Works { least_copies } => Ok(least_copies),
        _ => bail!(UNEXPECTED),
    }
}

fn connect() -> anyhow::Result<Channel> {
    const REMEDY: &str = "ask the administrator to start venice-swap-helper, and to have you in its \
                          group (venice), or run as root";
    let Some(path) = swap_helper() else {
        bail!(
            "kernel swap needs root, or this machine's swap helper, and there is none for this user: {REMEDY}"
        );
    };
    let shown = path.display();
    Channel::connect(&path).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => anyhow!(
            "the swap helper at {shown} is for members of its group: ask the administrator to add you \
             (usermod -aG venice NAME; then log in again)"
        ),
        _ => anyhow!("no swap helper answers at {shown} ({error}): {REMEDY}"),
    })
}

fn ask(
    channel: &Channel,
    question: &Question,
    fd: Option<BorrowedFd<'_>>,
    patience: Option<Duration>,
) -> anyhow::Result<Answer> {
    // One that was refused at once has its reason to read.
    let sent = channel.send(question, fd);
    match channel.receive(patience).context("asking the swap helper")? {
        Some((Answer::Refused(why), _)) => Err(anyhow!(why)),
        Some((answer, _)) => Ok(answer),
        None => {
            let ended = anyhow::Error::from(SessionEnded);
            Err(sent.err().map_or(ended, |error| anyhow::Error::from(error).context(SessionEnded)))
        }
    }
}
