//! State of a node in the parent.

use rustix::process::Signal;

use crate::racks::orders::Order;
use crate::racks::process::Process;

/// The two processes of a node, and their states.
#[derive(Default)]
pub(super) struct Node {
    pub donor: Option<Process>,
    pub program: Option<Process>,
    pub donor_life: u32,
    pub program_life: u32,
    /// Remaining accesses of the program's present life.
    pub accesses: u32,
    /// True if the donor takes orders.
    pub is_lending: bool,
    /// Sessions of the program that need memory.
    pub wants: Vec<usize>,
    pub says_content: bool,
    pub is_probed: bool,
    pub reports: u32,
    /// Number of faults that keep it dead, stopped, from lending, unplugged.
    pub crashes: u32,
    pub freezes: u32,
    pub revokes: u32,
    pub isolations: u32,
}

impl Node {
    pub fn new(accesses: u32) -> Self {
        Self { accesses, ..Self::default() }
    }

    /// True if its program has done all its work and has all its memory.
    pub fn is_content(&self) -> bool {
        self.says_content && self.wants.is_empty()
    }

    /// True if its donor would answer.
    pub fn lends(&self) -> bool {
        self.is_lending && self.crashes == 0 && self.freezes == 0 && self.revokes == 0
    }

    pub fn order_donor(&mut self, order: Order) {
        if let Some(donor) = &mut self.donor {
            donor.order(order);
        }
    }

    pub fn order_program(&mut self, order: Order) {
        if let Some(program) = &mut self.program {
            program.order(order);
        }
    }

    pub fn signal(&self, signal: Signal) {
        for process in [&self.donor, &self.program].into_iter().flatten() {
            process.signal(signal);
        }
    }

    /// Drops the state of a program that ended.
    pub fn forget_program(&mut self) {
        self.wants.clear();
        (self.says_content, self.is_probed) = (false, false);
    }
}

/// Text of a timeout's message.
impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { is_lending, wants, says_content, is_probed, .. } = self;
        write!(
            f,
            "lends: {is_lending}, content: {says_content}, waits for memory: {wants:?}, \
             probed: {is_probed}, lives: {} and {}",
            self.donor_life, self.program_life
        )
    }
}
