//! Bugs to be found by the checkers.

/// A bug of the donors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The old owner of a transferred grant is answered all the same.
    KeepOldKey,
    /// A grant is transferred by the prepare already.
    SwitchEarly,
    /// The commit of a transfer is answered, and not executed.
    ForgetSwitch,
}
