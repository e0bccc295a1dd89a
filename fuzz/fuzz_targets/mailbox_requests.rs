//! Any request of a recipient in a mailbox: none panics, and one that is read is written back alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use venice_accel::mailbox::Task;

fuzz_target!(|bytes: &[u8]| {
    let Ok(task) = Task::parse(bytes) else { return };
    let (mut again, mut once_more) = (Vec::new(), Vec::new());
    task.emit(&mut again).expect("it was checked");
    assert_eq!(again.len(), bytes.len());
    Task::parse(&again).expect("it was written").emit(&mut once_more).expect("it was checked");
    assert_eq!(again, once_more);
});
