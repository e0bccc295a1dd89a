//! `venice sim record`: a program's accesses to memory, as a trace for experiments.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use venice_access::{AccessTrace, CacheConfig, PAGE_BYTES, Recorder, RecorderConfig};
use venice_cli::failure::usage;
use venice_cli::terminal;
use venice_simkernel::units::Bytes;

/// Examples of `venice sim record`.
pub const HELP: &str = "\
EXAMPLES:
  venice sim record --out sort.trace -- sort -n numbers.txt
  venice sim record --out late.trace --skip 500000000 --most 100000 -- ./program

The key program.trace of an experiment takes the file. The program runs under valgrind, some hundred
times slower. Recorded are the accesses to data (regions of --region and more) that miss a cache of
--filter. The program is ended once --most are recorded.";

/// `venice sim record`
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// File to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Size of the cache whose misses are recorded, in 8 ways; experiments need one at least as large
    #[arg(long, value_name = "SIZE", default_value = "32KiB")]
    pub filter: Bytes,
    /// Instructions to execute before the recording
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: u64,
    /// Accesses to record at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub most: Option<u64>,
    /// Size from which a region of memory is data, not a stack or static variables
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    pub region: Bytes,
    /// Record between the program's stores to the addresses 0x1000000000 and 0x1000000008
    #[arg(long, conflicts_with = "skip")]
    pub marked: bool,
    /// Description of the recorded run, in the file [default: the program and its arguments]
    #[arg(long, value_name = "TEXT")]
    pub origin: Option<String>,
    /// The program and its arguments, behind --
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Runs the program, and writes the trace.
pub fn record(args: &RecordArgs) -> Result<i32> {
    let defaults = RecorderConfig::default();
    let config = RecorderConfig {
        filter: CacheConfig { bytes: args.filter, ..defaults.filter },
        is_marked: args.marked,
        skip: args.skip,
        most: args.most.unwrap_or(defaults.most),
        least_region: args.region,
    };
    let recorder = Recorder::new(config).map_err(|error| usage(format!("--filter: {error}")))?;
    let trace = run(args, recorder)?;
    let file = trace.encode();
    std::fs::write(&args.out, &file).with_context(|| format!("cannot write {:?}", args.out))?;
    terminal::remark(format!(
        "{}: {} accesses of {} instructions to {} MiB of data, in {} bytes",
        args.out.display(),
        trace.accesses.len(),
        trace.instructions,
        (trace.pages * PAGE_BYTES) >> 20,
        file.len(),
    ));
    Ok(0)
}

fn run(args: &RecordArgs, mut recorder: Recorder) -> Result<AccessTrace> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen for valgrind")?;
    let address = listener.local_addr().context("cannot listen for valgrind")?;
    let spawned = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes"])
        .arg(format!("--log-socket={address}"))
        .arg("--")
        .args(&args.program)
        .spawn();
    let mut child = spawned.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!("cannot run valgrind: not found: install it"),
        _ => anyhow::anyhow!("cannot run valgrind: {error}"),
    })?;
    let read = accept(&listener, &mut child).and_then(|from| read(from, &mut recorder));
    if read.is_err() || recorder.is_done() {
        // It may have ended by itself meanwhile.
        let _ = child.kill();
    }
    child.wait().context("cannot wait for valgrind")?;
    read?;
    let words = || args.program.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>();
    let origin = args.origin.clone().unwrap_or_else(|| words().join(" "));
    Ok(recorder.finish(&origin)?)
}

/// Waits for valgrind's log. It connects before it starts the program, unless it cannot.
fn accept(listener: &TcpListener, child: &mut Child) -> Result<TcpStream> {
    listener.set_nonblocking(true).context("cannot listen for valgrind")?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).context("cannot read valgrind's log")?;
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot read valgrind's log"),
        }
        if let Some(status) = child.try_wait().context("cannot wait for valgrind")? {
            bail!("valgrind ended before the program: {status}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn read(from: TcpStream, recorder: &mut Recorder) -> Result<()> {
    let mut from = BufReader::with_capacity(1 << 20, from);
    let mut line = Vec::new();
    while !recorder.is_done() {
        line.clear();
        if from.read_until(b'\n', &mut line).context("cannot read valgrind's log")? == 0 {
            break;
        }
        recorder.take(&line);
    }
    Ok(())
}
