//! One guest: a QEMU process, its console in a file, its commands over a socket.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{GuestError, GuestPlan, Kernel};
use crate::process::ChildGuard;

/// Longest life of a guest, even if its owner fails to end it. All tests of a binary share one,
/// from the first to the last.
const LIFE_LIMIT: &str = "60m";
/// Largest output of a command; more is an error in the test.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// Lines of the console in an error.
const CONSOLE_LINES: usize = 80;
/// Time beyond a command's own limit, for the communication.
const GRACE: Duration = Duration::from_secs(20);

/// A running guest. Dropped, or its process dead, it turns itself off.
#[derive(Debug)]
pub struct Guest {
    _qemu: ChildGuard,
    port: BufReader<UnixStream>,
    console: PathBuf,
    version: String,
}

/// Result of a command in the guest.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its exit status; 137 when it ran past its limit.
    pub status: i32,
    /// Its output, stdout and stderr in their order.
    pub output: String,
}

impl Guest {
    /// Boots a guest, loads its modules and runs its set-up.
    ///
    /// # Errors
    /// [`GuestError::Missing`] if this machine does not support one; other variants for failures.
    pub fn boot(plan: &GuestPlan) -> Result<Self, GuestError> {
        let folder = prepare(plan.kernel)?;
        let console = folder.with_file_name(format!("{}.console", plan.name));
        let (ours, theirs) = UnixStream::pair().map_err(GuestError::Start)?;
        let started = Instant::now();
        let qemu = qemu(plan, &folder, &console)
            .stdin(OwnedFd::from(theirs))
            .spawn()
            .map_err(GuestError::Start)?;
        let mut guest = Self {
            _qemu: ChildGuard(qemu),
            port: BufReader::new(ours),
            console,
            version: String::new(),
        };
        let hello = guest.line(plan.boot_limit)?;
        guest.version = hello.trim_start_matches("ready ").trim().to_owned();
        let left = plan.boot_limit.saturating_sub(started.elapsed()).max(GRACE);
        for module in plan.modules {
            guest.must(&format!("modprobe {module}"), left)?;
        }
        guest.must(plan.set_up, left)?;
        Ok(guest)
    }

    /// Returns the release of the guest's kernel.
    pub fn kernel_version(&self) -> &str {
        &self.version
    }

    /// Returns the path of its console's file.
    pub fn console(&self) -> &Path {
        &self.console
    }

    /// Runs a script of bash in the guest, for `limit` at most.
    ///
    /// # Errors
    /// When the guest is dead or hangs; a failed command is not an error.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Ran, GuestError> {
        let head = format!("run {} {}\n", limit.as_secs().max(1), command.len());
        let limit = limit + GRACE;
        let told = self.port.get_mut().write_all(&[head.as_bytes(), command.as_bytes()].concat());
        told.map_err(|source| self.silent(limit, source))?;
        let line = self.line(limit)?;
        let mut words = line.split_whitespace().skip(1).map(str::parse::<i64>);
        let (Some(Ok(status)), Some(Ok(len))) = (words.next(), words.next()) else {
            let source = std::io::Error::new(ErrorKind::InvalidData, format!("it says {line:?}"));
            return Err(self.silent(limit, source));
        };
        assert!((0..=MAX_OUTPUT_BYTES as i64).contains(&len), "`{command}` wrote {len} bytes");
        let mut output = vec![0; len as usize];
        self.port.read_exact(&mut output).map_err(|source| self.silent(limit, source))?;
        Ok(Ran { status: status as i32, output: String::from_utf8_lossy(&output).into_owned() })
    }

    /// Runs a script that must succeed; returns its output.
    ///
    /// # Errors
    /// When it fails, and those of [`Guest::run`].
    pub fn must(&mut self, command: &str, limit: Duration) -> Result<String, GuestError> {
        let Ran { status, output } = self.run(command, limit)?;
        if status == 0 {
            return Ok(output);
        }
        Err(GuestError::Failed { command: command.to_owned(), status, output })
    }

    fn line(&mut self, limit: Duration) -> Result<String, GuestError> {
        let mut line = String::new();
        let read = self
            .port
            .get_ref()
            .set_read_timeout(Some(limit))
            .and_then(|()| self.port.read_line(&mut line));
        match read {
            Ok(0) => Err(self.silent(limit, ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(line),
            Err(source) => Err(self.silent(limit, source)),
        }
    }

    fn silent(&self, limit: Duration, source: std::io::Error) -> GuestError {
        let text = fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n");
        GuestError::Silent { limit, source, console: self.console.clone(), tail }
    }
}

/// Lets the script create missing files, which takes ten seconds once; returns the guest's folder.
fn prepare(kernel: Kernel) -> Result<PathBuf, GuestError> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/guest.sh");
    let newer = (kernel == Kernel::Newer).then_some("newer");
    let made = Command::new("bash").arg(&script).args(newer).stdin(Stdio::null()).output();
    let made = made.map_err(|error| GuestError::Missing(format!("cannot run bash: {error}")))?;
    if !made.status.success() {
        let reason = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(GuestError::Missing(reason));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&made.stdout).trim()))
}

/// Builds the command line. The guest's port for commands is QEMU's stdin, one end of a socket
/// pair: when this process is gone, so is the other end, and the guest turns itself off.
fn qemu(plan: &GuestPlan, folder: &Path, console: &Path) -> Command {
    let file = |name: &str| folder.join(name).display().to_string();
    // On a busy machine the kernel would otherwise find its timer broken.
    let kernel_arguments = format!(
        "console=ttyS0 quiet mitigations=off no_timer_check oops=panic panic=-1 guest.folder={}",
        folder.display()
    );
    let mut command = Command::new("timeout");
    command
        .args(["--signal=KILL", LIFE_LIMIT, "nice", "qemu-system-x86_64"])
        .args(["-M", "q35", "-accel", "tcg", "-cpu", "max,la57=off", "-no-reboot"])
        .args(["-m", &plan.memory_mib.to_string(), "-smp", &plan.processors.to_string()])
        .args(["-display", "none", "-monitor", "none", "-nic", "none"])
        .args(["-serial", &format!("file:{}", console.display())])
        .args(["-kernel", &file("vmlinux"), "-initrd", &file("initrd")])
        .args(["-append", &kernel_arguments])
        .args(["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"])
        .args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"])
        .args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"])
        .args(["-chardev", "socket,id=commands,fd=0"])
        .args(["-device", "virtserialport,chardev=commands"])
        .args(plan.devices)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}
