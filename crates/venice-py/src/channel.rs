//! `_venice.Listener`, `_venice.Channel`, `_venice.LentRegion` and `_venice.RemoteRegion`.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use venice_client::Error;
use venice_client::channel::{
    self, Address, Connection, Kind, LentRegion as Lent, Listener as Listening,
    RemoteRegion as Remote,
};

use crate::buffers::{bytes, room};
use crate::errors::exception;
use crate::handle::Handle;

/// Interval at which a blocking call lets the interpreter handle signals.
const SIGNALS: Duration = Duration::from_millis(200);

/// The options of an end.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct ChannelOptions(channel::Options);

#[pymethods]
impl ChannelOptions {
    #[new]
    fn new(
        py: Python<'_>,
        key: Option<&str>,
        plain: bool,
        buffer_bytes: u64,
        connect_timeout_s: f64,
    ) -> PyResult<Self> {
        let mut options = channel::Options::default();
        options.key = key.map(str::parse).transpose().map_err(|error| failed(py, error))?;
        options.plain = plain;
        // Beyond its bounds in any case.
        options.buffer_bytes = u32::try_from(buffer_bytes).unwrap_or(u32::MAX);
        options.connect_timeout = seconds(py, connect_timeout_s)?;
        Ok(Self(options))
    }
}

fn failed(py: Python<'_>, error: channel::Error) -> PyErr {
    exception(py, &Error::Channel(error))
}

fn seconds(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| exception(py, &Error::Invalid("invalid time-out: at least 0 s".into())))
}

fn kind(py: Python<'_>, name: &str) -> PyResult<Kind> {
    [("messages", Kind::Messages), ("stream", Kind::Stream), ("adaptive", Kind::Adaptive)]
        .into_iter()
        .find_map(|(known, kind)| (known == name).then_some(kind))
        .ok_or_else(|| {
            let text = format!("unknown kind {name:?}: use messages, stream or adaptive");
            exception(py, &Error::Invalid(text))
        })
}

/// Repeats a call that returns early for signals, until its time-out; `None`: without limit.
fn waiting<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    call: impl Fn(Duration) -> Result<T, channel::Error> + Sync,
) -> PyResult<T> {
    let start = std::time::Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        let now = left.map_or(SIGNALS, |left| left.min(SIGNALS));
        match py.detach(|| call(now)) {
            Err(channel::Error::TimedOut) if left.is_none_or(|left| left > now) => {
                py.check_signals()?;
            }
            done => return done.map_err(|error| failed(py, error)),
        }
    }
}

/// A listener.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Listener(Handle<Listening>);

#[pymethods]
impl Listener {
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        kind_name: &str,
        options: &ChannelOptions,
    ) -> PyResult<Self> {
        let kind = kind(py, kind_name)?;
        let made = py.detach(|| Listening::bind(&address.parse::<Address>()?, kind, &options.0));
        Ok(Self(Handle::new(made.map_err(|error| failed(py, error))?)))
    }

    fn address(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.address().to_string())
    }

    /// Accepts; a time-out of 0 never waits, `None` has no limit.
    fn accept(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Channel> {
        let listener = self.0.get(py)?;
        let timeout = timeout_s.map(|timeout_s| seconds(py, timeout_s)).transpose()?;
        let accepted = match timeout {
            Some(Duration::ZERO) => {
                py.detach(|| listener.try_accept()).map_err(|error| failed(py, error))
            }
            timeout => waiting(py, timeout, |now| listener.accept(Some(now))),
        };
        Ok(Channel::of(accepted?))
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.0.get(py)?.fd().as_raw_fd())
    }

    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        let listener = self.0.get(py)?;
        Ok(py.detach(|| listener.arm()))
    }

    fn close(&self) {
        self.0.close();
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

fn unpoisoned<T>(lock: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    lock.lock().expect("no thread panics while it holds the lock")
}

/// One end of a connection.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Channel {
    connection: Handle<Connection>,
    /// Time-out of a call; zero: calls do not wait. `None`: no limit.
    timeout: Mutex<Option<Duration>>,
}

impl Channel {
    fn of(connection: Connection) -> Self {
        Self { connection: Handle::new(connection), timeout: Mutex::new(None) }
    }

    /// Makes a polled call, or a blocking one.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        polled: impl Fn(&Connection) -> Result<T, channel::Error> + Sync,
        blocking: impl Fn(&Connection) -> Result<T, channel::Error> + Sync,
    ) -> PyResult<T> {
        let connection = self.connection.get(py)?;
        let timeout = *unpoisoned(&self.timeout);
        if timeout == Some(Duration::ZERO) {
            return py.detach(|| polled(&connection)).map_err(|error| failed(py, error));
        }
        waiting(py, timeout, |now| {
            connection.set_timeout(Some(now));
            blocking(&connection)
        })
    }
}

/// Converts an error of a stream's call, which the standard library's traits have wrapped.
fn unwrapped(error: std::io::Error) -> channel::Error {
    error.downcast().unwrap_or_else(|error| channel::Error::System(error.to_string()))
}

#[pymethods]
impl Channel {
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        kind_name: &str,
        options: &ChannelOptions,
    ) -> PyResult<Self> {
        let kind = kind(py, kind_name)?;
        let made =
            py.detach(|| Connection::connect(&address.parse::<Address>()?, kind, &options.0));
        Ok(Self::of(made.map_err(|error| failed(py, error))?))
    }

    fn set_timeout(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<()> {
        let timeout = timeout_s.map(|timeout_s| seconds(py, timeout_s)).transpose()?;
        *unpoisoned(&self.timeout) = timeout;
        Ok(())
    }

    fn send(&self, py: Python<'_>, message: PyBuffer<u8>) -> PyResult<()> {
        let message = bytes(&message)?;
        self.call(
            py,
            |connection| connection.try_send(message),
            |connection| connection.send(message),
        )
    }

    /// Returns the next message; `None`: the other side has ended its sending.
    fn recv<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let message = self.call(py, Connection::try_recv_vec, Connection::recv_vec)?;
        Ok(message.map(|message| PyBytes::new(py, &message)))
    }

    /// Receives the next message into a buffer; returns its length.
    fn recv_into(&self, py: Python<'_>, mut buffer: PyBuffer<u8>) -> PyResult<usize> {
        let into = Mutex::new(room(&mut buffer)?);
        self.call(
            py,
            |connection| connection.try_recv(&mut unpoisoned(&into)),
            |connection| connection.recv(&mut unpoisoned(&into)),
        )
    }

    fn write(&self, py: Python<'_>, from: PyBuffer<u8>) -> PyResult<usize> {
        let from = bytes(&from)?;
        self.call(
            py,
            |connection| connection.try_write(from),
            |mut connection| connection.write(from).map_err(unwrapped),
        )
    }

    fn readinto(&self, py: Python<'_>, mut buffer: PyBuffer<u8>) -> PyResult<usize> {
        let into = Mutex::new(room(&mut buffer)?);
        self.call(
            py,
            |connection| connection.try_read(&mut unpoisoned(&into)),
            |mut connection| connection.read(&mut unpoisoned(&into)).map_err(unwrapped),
        )
    }

    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let connection = self.connection.get(py)?;
        py.detach(|| connection.shutdown()).map_err(|error| failed(py, error))
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.connection.get(py)?.as_raw_fd())
    }

    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.connection.get(py)?.arm())
    }

    fn close(&self) {
        self.connection.close();
    }

    fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }
}

/// Memory that this program lends.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct LentRegion(Handle<Lent>);

#[pymethods]
impl LentRegion {
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        len_bytes: u64,
        options: &ChannelOptions,
    ) -> PyResult<Self> {
        let made = py.detach(|| Lent::bind(&address.parse::<Address>()?, len_bytes, &options.0));
        Ok(Self(Handle::new(made.map_err(|error| failed(py, error))?)))
    }

    fn address(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.address().to_string())
    }

    fn len_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.len_bytes())
    }

    fn readinto(&self, py: Python<'_>, offset: u64, mut buffer: PyBuffer<u8>) -> PyResult<()> {
        let (lent, into) = (self.0.get(py)?, room(&mut buffer)?);
        py.detach(|| lent.read(offset, into)).map_err(|error| failed(py, error))
    }

    fn write(&self, py: Python<'_>, offset: u64, from: PyBuffer<u8>) -> PyResult<()> {
        let (lent, from) = (self.0.get(py)?, bytes(&from)?);
        py.detach(|| lent.write(offset, from)).map_err(|error| failed(py, error))
    }

    fn fetch_add(&self, py: Python<'_>, offset: u64, add: u64) -> PyResult<u64> {
        self.0.get(py)?.fetch_add(offset, add).map_err(|error| failed(py, error))
    }

    fn compare_swap(&self, py: Python<'_>, offset: u64, expected: u64, new: u64) -> PyResult<u64> {
        let swapped = self.0.get(py)?.compare_swap(offset, expected, new);
        swapped.map_err(|error| failed(py, error))
    }

    fn close(&self) {
        self.0.close();
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// Memory of another program.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct RemoteRegion(Handle<Mutex<Remote>>);

impl RemoteRegion {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Remote) -> Result<T, channel::Error> + Send,
    ) -> PyResult<T> {
        let region = self.0.get(py)?;
        py.detach(|| call(&mut unpoisoned(&region))).map_err(|error| failed(py, error))
    }
}

#[pymethods]
impl RemoteRegion {
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        len_bytes: u64,
        options: &ChannelOptions,
    ) -> PyResult<Self> {
        let made =
            py.detach(|| Remote::connect(&address.parse::<Address>()?, len_bytes, &options.0));
        Ok(Self(Handle::new(Mutex::new(made.map_err(|error| failed(py, error))?))))
    }

    fn len_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(unpoisoned(&*self.0.get(py)?).len_bytes())
    }

    fn readinto(&self, py: Python<'_>, offset: u64, mut buffer: PyBuffer<u8>) -> PyResult<()> {
        let into = room(&mut buffer)?;
        self.call(py, |region| region.read(offset, into))
    }

    fn write(&self, py: Python<'_>, offset: u64, from: PyBuffer<u8>) -> PyResult<()> {
        let from = bytes(&from)?;
        self.call(py, |region| region.write(offset, from))
    }

    fn fetch_add(&self, py: Python<'_>, offset: u64, add: u64) -> PyResult<u64> {
        self.call(py, |region| region.fetch_add(offset, add))
    }

    fn compare_swap(&self, py: Python<'_>, offset: u64, expected: u64, new: u64) -> PyResult<u64> {
        self.call(py, |region| region.compare_swap(offset, expected, new))
    }

    fn close(&self) {
        self.0.close();
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// Draws a key: 64 hexadecimal digits.
#[pyfunction]
pub fn new_channel_key(py: Python<'_>) -> PyResult<String> {
    Ok(channel::Key::generate().map_err(|error| failed(py, error))?.to_hex())
}
