//! Programs that swap, and the reports of `venice swap` meanwhile.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::{BufRead, BufReader};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::common::rack::Rack;
use crate::common::{Place, Said};

/// A group that Debian has, whose members may borrow.
pub const GROUP: &str = "nogroup";

/// The rack of a swapping program.
pub enum Donors {
    /// A rack of `venice up`.
    Up(Place),
    /// A rack with long timeouts, for slow machines.
    Patient(Rack),
}

impl Donors {
    /// Starts `nodes` nodes that lend `lend` each.
    pub fn start(nodes: u32, lend: &str) -> Donors {
        if venice_testkit::guest::is_inside() {
            return Donors::Patient(patient_rack(nodes, lend, &[]));
        }
        let place = Place::new();
        place.venice(&["up", "--nodes", &nodes.to_string(), "--lend", lend]).expect(0);
        Donors::Up(place)
    }
}

impl Deref for Donors {
    type Target = Place;

    fn deref(&self) -> &Place {
        match self {
            Donors::Up(place) => place,
            Donors::Patient(rack) => &rack.place,
        }
    }
}

/// Starts a Monitor Node and agents with timeouts for a guest, and these additional arguments of
/// the agents.
pub fn patient_rack(nodes: u32, lend: &str, words: &[&str]) -> Rack {
    let patient = ["--lease-s", "600", "--heartbeat-interval-s", "20", "--donor-timeout-s", "60"];
    let group = ["--socket-group", GROUP];
    let mut rack = Rack::start(1, &[&patient[..], &group].concat());
    for name in (1..=nodes).map(|number| format!("node{number}")) {
        let socket = rack.place.file(&format!("{name}.shm")).display().to_string();
        let own = ["--lend", lend, "--shm-socket", &socket];
        rack.add_agent(&name, &[&own[..], &group, words].concat());
    }
    rack.place.find_monitor_at(&rack.all());
    rack
}

/// Builds the static program of `swap/pages.c`.
pub fn pages() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("pages"))
}

/// Builds the static program of `swap/thrash.c`.
pub fn thrash() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("thrash"))
}

/// Builds the static program of `swap/relay.c`.
pub fn relay() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("relay"))
}

/// Builds the static program of `swap/NAME.c`. A guest finds it built before.
fn built(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/it/swap/{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if venice_testkit::guest::is_inside() {
        return program;
    }
    let mut build = Command::new("cc");
    build.args(["-static", "-O2", "-pthread", "-Wall", "-Werror", "-o"]);
    let status = build.arg(&program).arg(source).status().expect("there is a C compiler");
    assert!(status.success(), "{name} does not build");
    program
}

/// Starts `pages MIB wait` and waits until it has filled its memory; `command` may wrap it.
pub fn filled(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    // Not buffered beyond the line: the rest is read at the end.
    let mut out = BufReader::with_capacity(1, child.stdout.as_mut().unwrap());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "filled\n", "{:?}", child.wait_with_output());
    child
}

/// Lets a [`filled`] program read back; returns its output.
pub fn ended(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Lets a [`filled`] program read back, and checks that every byte is right.
pub fn ended_right(child: Child) {
    let (code, out, err) = ended(child);
    assert_eq!((code, out.as_str()), (Some(0), "right\n"), "{err}");
}

/// Returns the rows of `venice swap list`.
pub fn list(place: &Place) -> Vec<Value> {
    let rows = place.venice(&["swap", "list", "--json"]).expect(0).json();
    rows.as_array().unwrap().clone()
}

/// Returns the number of grants.
pub fn grants(place: &Place) -> usize {
    place.venice(&["grants", "--json"]).expect(0).json().as_array().unwrap().len()
}

/// Runs `venice run --mode swap` over `port` to its end, with 8 MiB local.
pub fn swap_run(place: &Place, port: &str, words: &[&str]) -> Said {
    let own = ["run", "--mode", "swap", "--local", "8MiB", "--stats", "--port", port];
    let words = [&own[..], words].concat();
    place.venice(&words)
}
