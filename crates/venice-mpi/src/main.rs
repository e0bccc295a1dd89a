//! The binary `venice-lab-mpi`: experiments in simulated worlds on the ranks of MPI.
//!
//! `venice sim run --ranks` starts it by `mpirun`. It is built with the feature `mpi` alone, so that no
//! other binary needs an MPI.
#![forbid(unsafe_code)]

use std::rc::Rc;

use mpi::Threading;
use mpi::request::multiple_scope;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Source};
use venice_simkernel::ranks::Ranks;

/// Bytes of a message of MPI, which counts them in 31 bits; a shorter one is the last of several.
const MOST: usize = 1 << 30;
/// Exit code of a panic.
const PANIC: i32 = 101;

/// One rank of MPI's world.
struct Mpi(SimpleCommunicator);

impl Ranks for Mpi {
    fn number(&self) -> usize {
        self.0.rank() as usize
    }

    fn count(&self) -> usize {
        self.0.size() as usize
    }

    fn send(&self, to: usize, bytes: Vec<u8>) {
        messages(&bytes).for_each(|message| self.0.process_at_rank(to as i32).send(message));
    }

    fn receive(&self, from: usize) -> Vec<u8> {
        let from = self.0.process_at_rank(from as i32);
        let (mut bytes, _) = from.receive_vec::<u8>();
        let mut last = bytes.len();
        while last == MOST {
            let (more, _) = from.receive_vec::<u8>();
            last = more.len();
            bytes.extend(more);
        }
        bytes
    }

    fn exchange(&self, mut bytes: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let (own, count) = (self.number(), self.count());
        let kept = std::mem::take(&mut bytes[own]);
        let others = || (0..count).filter(|other| *other != own);
        let all = others().map(|to| messages(&bytes[to]).count()).sum();
        let mut came = multiple_scope(all, |scope, sent| {
            for to in others() {
                let to_process = self.0.process_at_rank(to as i32);
                for message in messages(&bytes[to]) {
                    sent.add(to_process.immediate_send(scope, message));
                }
            }
            let came = (0..count).map(|from| match from == own {
                true => Vec::new(),
                false => self.receive(from),
            });
            let came: Vec<Vec<u8>> = came.collect();
            sent.wait_all(&mut Vec::new());
            came
        });
        came[own] = kept;
        came
    }
}

/// Returns the messages that carry bytes: full ones, and one that is not, maybe empty.
fn messages(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (full, last) = bytes.split_at(bytes.len() / MOST * MOST);
    full.chunks(MOST).chain(std::iter::once(last))
}

/// Lets a panic of this rank end all of them, which would wait for it.
fn end_all_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        say(panic);
        SimpleCommunicator::world().abort(PANIC);
    }));
}

fn main() {
    venice_lab::ranks::use_huge_pages();
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
        panic!("MPI is initialized once");
    };
    end_all_on_panic();
    let world = universe.world();
    let code = venice_lab::ranks::main(Rc::new(Mpi(universe.world())));
    if code != 0 && world.rank() > 0 {
        world.abort(code);
    }
    // Waits for all ranks: without it mpirun takes the end of one for a failure.
    drop(universe);
    std::process::exit(code);
}
