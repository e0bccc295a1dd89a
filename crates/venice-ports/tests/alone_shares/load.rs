//! Programs that borrow from one donor: processes with links of their own, each on a thread, as those
//! of a pager are, that read or write pages all the time.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use venice_fabric::{GrantedMemory, InitiatorConfig, RecipientId, Refusal, TargetConfig};
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_ports::udp::{UdpDriver, UdpServer, UdpService, UdpSocket};
use venice_ports::{monotonic_ns, random_u64};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret};

/// Environment variable that makes a process such a program.
pub const WORDS: &str = "VENICE_TEST_LOAD";
pub const MEMORY_BYTES: u64 = 16 << 20;
const PAGE_BYTES: u64 = 4096;
const SECRET: NodeSecret = NodeSecret([1; 32]);
const DONOR: NodeId = NodeId(1);
/// Outstanding accesses of a link, as a pager has them.
const WINDOW: u16 = 64;
/// Time before the measurement, for programs to start.
const WARM_UP_NS: u64 = 300_000_000;
const MS: u64 = 1_000_000;

/// Work of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads a page somewhere, then another: one page fault at a time.
    Faults,
    /// Reads page after page, as many at once as a link takes.
    Reads,
    /// Writes page after page, as many at once as a link takes.
    Writes,
}

/// One program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub work: Work,
    pub links: usize,
}

/// Result of a program.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub pages: u64,
    pub p50_us: f64,
}

/// A donor's memory, granted to everyone; each grant has another recipient.
#[derive(Clone)]
struct Memory(Vec<u8>);

impl GrantedMemory for Memory {
    fn recipient(&mut self, grant: GrantId) -> RecipientId {
        RecipientId(grant.0)
    }

    fn read(&mut self, _: GrantId, _: GrantKey, at: u64, into: &mut [u8]) -> Result<(), Refusal> {
        let from = self.0.get(at as usize..at as usize + into.len());
        into.copy_from_slice(from.ok_or(Refusal::OutOfRange)?);
        Ok(())
    }

    fn write(&mut self, _: GrantId, _: GrantKey, at: u64, from: &[u8]) -> Result<(), Refusal> {
        let into = self.0.get_mut(at as usize..at as usize + from.len());
        into.ok_or(Refusal::OutOfRange)?.copy_from_slice(from);
        Ok(())
    }
}

/// Starts a donor with one thread.
pub fn donor(address: Ipv4Addr) -> UdpServer {
    let socket = UdpSocket::bind((address, 0).into()).unwrap();
    let keys = Some(Arc::new(SECRET) as Arc<dyn SealKeys + Send + Sync>);
    let target = TargetConfig::new(DONOR, random_u64().unwrap());
    let service = UdpService { sockets: vec![socket], target, keys, xdp: None };
    UdpServer::serve(service, || Memory(vec![7; MEMORY_BYTES as usize])).unwrap()
}

/// Runs the programs concurrently, each made of `command`, and measures for the given time.
pub fn run(
    donor: SocketAddr,
    programs: &[Program],
    length_ns: u64,
    mut command: impl FnMut() -> Command,
) -> Vec<Outcome> {
    let from_ns = monotonic_ns() + WARM_UP_NS;
    let until_ns = from_ns + length_ns;
    let start = |(number, program): (usize, &Program)| {
        let Program { work, links } = program;
        let grant = number + 1;
        let words = format!("{donor} {grant} {work:?} {links} {from_ns} {until_ns}");
        command().env(WORDS, words).stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = programs.iter().enumerate().map(start).collect();
    let read = |child: Child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "a program failed");
        let text = String::from_utf8(output.stdout).unwrap();
        let line =
            text.lines().find_map(|line| line.strip_prefix("LOAD ")).expect("a line of figures");
        let mut figures = line.split(' ').map(|word| word.parse::<f64>().unwrap());
        let mut next = || figures.next().unwrap();
        Outcome { pages: next() as u64, p50_us: next() }
    };
    children.into_iter().map(read).collect()
}

/// Runs as such a program, if the environment selects it, and reports its result.
pub fn be_program() {
    let Ok(words) = std::env::var(WORDS) else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let donor: SocketAddr = words[0].parse().unwrap();
    let work = match words[2] {
        "Faults" => Work::Faults,
        "Reads" => Work::Reads,
        _ => Work::Writes,
    };
    let (grant, links, from_ns, until_ns) = (number(1), number(3), number(4), number(5));
    let link = move || link(donor, grant, work, from_ns, until_ns);
    let threads: Vec<_> = (0..links).map(|_| std::thread::spawn(link)).collect();
    let all: Vec<(u64, Vec<u64>)> = threads.into_iter().map(|it| it.join().unwrap()).collect();
    let pages: u64 = all.iter().map(|(pages, _)| pages).sum();
    let mut took_ns: Vec<u64> = all.into_iter().flat_map(|(_, took_ns)| took_ns).collect();
    took_ns.sort_unstable();
    let at = |share: f64| {
        let at = (took_ns.len() as f64 * share) as usize;
        took_ns.get(at).map_or(0.0, |ns| *ns as f64 / 1e3)
    };
    println!("\nLOAD {pages} {}", at(0.5));
}

/// Returns the pages moved between the two times, and the time of each.
fn link(donor: SocketAddr, grant: u64, work: Work, from_ns: u64, until_ns: u64) -> (u64, Vec<u64>) {
    let seed = random_u64().unwrap();
    let mut config = InitiatorConfig::new(NodeId(9), seed);
    config.link.window = WINDOW;
    config.link.silence_ns = 20_000 * MS;
    let name = KeyName::Grant(GrantId(grant));
    let named = Some(SealedAs { name, key: node_key(&SECRET, name) });
    let local = (Ipv4Addr::UNSPECIFIED, 0).into();
    let (mut driver, peer) = UdpDriver::towards(local, config, DONOR, donor, named).unwrap();
    let (id, key) = (GrantId(grant), GrantKey(1));
    driver.initiator().map_window(0, MEMORY_BYTES, peer, 0, id, key).unwrap();
    let most = if work == Work::Faults { 1 } else { u64::MAX };
    let (mut place, mut outstanding, mut pages, mut took_ns) = (seed, 0, 0, Vec::new());
    let mut begun_ns = 0;
    loop {
        let now_ns = monotonic_ns();
        if now_ns >= until_ns {
            return (pages, took_ns);
        }
        while outstanding < most {
            let at = match work {
                Work::Faults => {
                    place =
                        place.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    place >> 33
                }
                Work::Reads | Work::Writes => {
                    place = place.wrapping_add(1);
                    place
                }
            };
            let at = at % (MEMORY_BYTES / PAGE_BYTES) * PAGE_BYTES;
            let initiator = driver.initiator();
            let begun = match work {
                Work::Writes => initiator.write(now_ns, at, at, &[3; PAGE_BYTES as usize]),
                _ => initiator.read(now_ns, at, at, PAGE_BYTES as u32),
            };
            if begun.is_err() {
                break;
            }
            outstanding += 1;
            begun_ns = now_ns;
        }
        driver.pump(now_ns).unwrap();
        let now_ns = monotonic_ns();
        let mut any = false;
        while let Some(completion) = driver.initiator().poll_completion() {
            completion.result.expect("every access succeeds");
            (any, outstanding) = (true, outstanding - 1);
            if now_ns >= from_ns {
                pages += 1;
                took_ns.extend((work == Work::Faults).then(|| now_ns - begun_ns));
            }
        }
        if !any {
            driver.wait(monotonic_ns(), 20 * MS).unwrap();
        }
    }
}
