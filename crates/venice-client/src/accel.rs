//! Accelerators as mailboxes (Venice, section 5.2.2): one alone, or several as a pool.
//!
//! ```no_run
//! use venice_client::accel::{Executable, Pool};
//! use venice_client::{DeviceOptions, Rack};
//!
//! let rack = Rack::connect()?;
//! let mut pool = Pool::get(&rack, 3, "fft", &DeviceOptions::default())?;
//! let inputs: Vec<Vec<u8>> = (0..64).map(|_| vec![0; 4 << 20]).collect();
//! let outputs = pool.map(&Executable::built_in("fft").with_number(1024), &inputs)?;
//! assert_eq!(outputs.len(), 64);
//! # Ok::<(), venice_client::Error>(())
//! ```

use std::sync::Arc;
use std::time::Duration;

use venice_accel::mailbox::MailboxError;
use venice_accel::pool::PoolError;
use venice_control::{ResourceKind, ServiceAccess, Want};

pub use venice_accel::mailbox::{Argument, Code, DonorCounts, Executable, Mailboxes, TaskResult};
pub use venice_accel::pool::MemberCounts;

use crate::device::{Device, DeviceOptions};
use crate::error::Error;
use crate::rack::Rack;
use crate::service::granted_services;

/// Longest time of a living host to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Service of accelerators with mailboxes, and the capability that they have.
const MAILBOX: &str = venice_accel::mailbox::NAME;
/// Variable in which `venice get` names the nodes of the grants.
const NODES: &str = "VENICE_GRANT_NODE";

/// Accelerators that run tasks together. The grants end when it is dropped, unless they belong to the
/// command that started this program.
///
/// Each accelerator has two tasks in flight: one is transferred while the other runs. A task whose
/// accelerator is lost runs on another one.
#[derive(Debug)]
pub struct Pool {
    pool: venice_accel::pool::Pool,
    _devices: Arc<Vec<Device>>,
}

impl Pool {
    /// Gets `count` accelerators with mailboxes that have all the capabilities in `needs`, separated
    /// by commas: `"fft"`; an empty text: any.
    ///
    /// # Errors
    /// Like [`Rack::get_device`]; [`Error::Unreachable`] and [`Error::Channel`] if one of them does
    /// not answer.
    pub fn get(
        rack: &Rack,
        count: u32,
        needs: &str,
        options: &DeviceOptions,
    ) -> Result<Self, Error> {
        if count == 0 {
            return Err(Error::Invalid("a pool of 0 accelerators: ask for at least 1".into()));
        }
        let words = needs.split(',').map(str::trim).filter(|word| !word.is_empty());
        let text = words.fold(format!("{}:{MAILBOX}", ResourceKind::Accelerator), |text, word| {
            text + "," + word
        });
        let want: Want = format!("{text}={count}")
            .parse()
            .map_err(|error| Error::Invalid(format!("invalid needs {needs:?}: {error}")))?;
        let devices = rack.get_devices(&[want], options)?;
        let named = devices.iter().map(|device| {
            let access = device.service().cloned();
            let none = || Error::Refused(format!("{} has no service", device.address()));
            Ok((device.node().to_owned(), access.ok_or_else(none)?))
        });
        let named = named.collect::<Result<Vec<_>, Error>>()?;
        let mut pool = venice_accel::pool::Pool::open(named, ANSWER)?;
        let devices = Arc::new(devices);
        let theirs = Arc::clone(&devices);
        pool.set_reasons(move |at| theirs[at].why_lost());
        Ok(Self { pool, _devices: devices })
    }

    /// Opens the accelerators that this program was started with, by `venice get accelerator:mailbox=3
    /// -- PROGRAM`. Grants without mailboxes are left out.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the program was not started so, or has no such grant;
    /// [`Error::Unreachable`] and [`Error::Channel`] if one of them does not answer.
    pub fn from_grants() -> Result<Self, Error> {
        let services = granted_services()?;
        let nodes = std::env::var(NODES).unwrap_or_default();
        let nodes: Vec<&str> = nodes.split(',').collect();
        let name = |at: usize, access: &ServiceAccess| match nodes.get(at) {
            Some(node) if nodes.len() == services.len() => (*node).to_owned(),
            _ => format!("grant {}", access.grant.0),
        };
        let named: Vec<_> = services
            .iter()
            .enumerate()
            .filter_map(|(at, service)| Some((at, service.as_ref()?)))
            .filter(|(_, access)| has_mailboxes(access))
            .map(|(at, access)| (name(at, access), access.clone()))
            .collect();
        Self::from_services(named)
    }

    /// Opens accelerators by the way to their services, each with the name of its node.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none; [`Error::Unreachable`] and [`Error::Channel`] if one of
    /// them does not answer.
    pub fn from_services(
        named: impl IntoIterator<Item = (String, ServiceAccess)>,
    ) -> Result<Self, Error> {
        let pool = venice_accel::pool::Pool::open(named, ANSWER)?;
        Ok(Self { pool, _devices: Arc::default() })
    }

    /// Returns the number of accelerators that are not lost.
    pub fn len(&self) -> usize {
        self.pool.len()
    }

    /// True if all accelerators are lost.
    pub fn is_empty(&self) -> bool {
        self.pool.is_empty()
    }

    /// Returns the lost accelerators: node and reason.
    pub fn lost(&self) -> Vec<(String, String)> {
        self.pool.lost()
    }

    /// Returns the counters of each accelerator.
    pub fn counts(&mut self) -> Vec<MemberCounts> {
        self.pool.counts()
    }

    /// Runs the executable on each input; returns the outputs in the order of the inputs. An output
    /// has at most [`Executable::output_bytes`].
    ///
    /// # Errors
    /// [`Error::Task`]: the first task that failed; no more are started. [`Error::DeviceLost`] if all
    /// accelerators are lost.
    pub fn map<I: AsRef<[u8]> + Sync>(
        &mut self,
        executable: &Executable,
        inputs: &[I],
    ) -> Result<Vec<Vec<u8>>, Error> {
        Ok(self.pool.map(executable, inputs)?)
    }

    /// Runs the executable on each input, with the output in place; returns the length of each in
    /// bytes. The length of a place is the most that the task may return.
    ///
    /// # Errors
    /// The errors of [`Pool::map`]; [`Error::Invalid`] if there are not as many places as inputs.
    pub fn map_into(
        &mut self,
        executable: &Executable,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<usize>, Error> {
        Ok(self.pool.map_into(executable, inputs, outputs)?)
    }

    /// The same, as long as `goes_on`, which the calling thread asks each 30 ms. Once it returns
    /// false no more tasks are started; those that run go on, and the next call waits for them.
    ///
    /// # Errors
    /// The errors of [`Pool::map_into`]; [`Error::Interrupted`] if `goes_on` has returned false.
    pub fn map_while(
        &mut self,
        executable: &Executable,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        goes_on: impl FnMut() -> bool,
    ) -> Result<Vec<usize>, Error> {
        Ok(self.pool.map_while(executable, inputs, outputs, goes_on)?)
    }
}

impl Device {
    /// Opens its mailboxes, for a program that fills and starts them itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device without mailboxes; [`Error::Unreachable`], [`Error::Channel`].
    pub fn open_mailboxes(&self) -> Result<Mailboxes, Error> {
        let none = || Error::Invalid(format!("{} has no mailboxes", self.address()));
        let access = self.service().filter(|access| has_mailboxes(access)).ok_or_else(none)?;
        Mailboxes::open(access, ANSWER).map_err(|error| of_mailbox(self.node(), error))
    }
}

/// True for services with mailboxes: their own, or beside the commands of OpenCL.
fn has_mailboxes(access: &ServiceAccess) -> bool {
    [MAILBOX, venice_accel::opencl::SERVICE].contains(&&*access.service)
}

/// Converts an error of the mailboxes of a node.
fn of_mailbox(node: &str, error: MailboxError) -> Error {
    match error {
        MailboxError::Service(error) => error.into(),
        error @ (MailboxError::Region(_) | MailboxError::Protocol(_)) => {
            Error::Unreachable(format!("accelerator of {node}: {error}"))
        }
        error @ (MailboxError::Request(_)
        | MailboxError::TooLong { .. }
        | MailboxError::State { .. }) => Error::Invalid(error.to_string()),
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Open { node, source } => of_mailbox(&node, *source),
            PoolError::Task { task, node, source } => {
                Self::Task { task, node, why: source.to_string() }
            }
            PoolError::Refused { task, node, source } => {
                Self::Task { task, node, why: source.to_string() }
            }
            PoolError::Lost { node, why } => {
                Self::DeviceLost { node, address: ResourceKind::Accelerator.to_string(), why }
            }
            PoolError::Interrupted => Self::Interrupted,
            error @ (PoolError::Empty | PoolError::Outputs(_)) => Self::Invalid(error.to_string()),
        }
    }
}
