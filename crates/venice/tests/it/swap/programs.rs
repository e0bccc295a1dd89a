//! Programs that swap, and what `venice swap` says meanwhile.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::{BufRead, BufReader};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::common::rack::Rack;
use crate::common::{Place, Said};

/// Who lends to programs that swap.
pub enum Donors {
    /// A rack of `venice up`.
    Up(Place),
    /// One that does not take what is slow for what is dead.
    Patient(Rack),
}

impl Donors {
    /// So many nodes that lend so much each.
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

/// A Monitor Node and agents that have all the time of a guest; the agents are told these words besides.
pub fn patient_rack(nodes: u32, lend: &str, words: &[&str]) -> Rack {
    let patient = ["--lease-s", "600", "--heartbeat-interval-s", "20", "--donor-timeout-s", "60"];
    let mut rack = Rack::start(1, &patient);
    for name in (1..=nodes).map(|number| format!("node{number}")) {
        let socket = rack.place.file(&format!("{name}.shm")).display().to_string();
        rack.add_agent(&name, &[&["--lend", lend, "--shm-socket", &socket], words].concat());
    }
    rack.place.find_monitor_at(&rack.all());
    rack
}

/// The static program of `swap/pages.c`.
pub fn pages() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("pages"))
}

/// The static program of `swap/thrash.c`.
pub fn thrash() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("thrash"))
}

/// The static program of `swap/NAME.c`. In a guest it is there: built before the guest was wanted.
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

/// `pages MIB wait`, started and full, whatever wraps it.
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

/// Ends a [`filled`] program's reading; what it said.
pub fn ended(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Ends a [`filled`] program's reading; everything it read back has to be what it wrote.
pub fn ended_right(child: Child) {
    let (code, out, err) = ended(child);
    assert_eq!((code, out.as_str()), (Some(0), "right\n"), "{err}");
}

/// The rows of `venice swap list`.
pub fn list(place: &Place) -> Vec<Value> {
    let rows = place.venice(&["swap", "list", "--json"]).expect(0).json();
    rows.as_array().unwrap().clone()
}

/// How many grants there are.
pub fn grants(place: &Place) -> usize {
    place.venice(&["grants", "--json"]).expect(0).json().as_array().unwrap().len()
}

/// `venice run --mode swap` over `port` to its end, with 8 MiB here.
pub fn swap_run(place: &Place, port: &str, words: &[&str]) -> Said {
    let own = ["run", "--mode", "swap", "--local", "8MiB", "--stats", "--port", port];
    let words = [&own[..], words].concat();
    place.venice(&words)
}
