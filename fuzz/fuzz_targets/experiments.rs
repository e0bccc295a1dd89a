//! The parsers of experiments on any bytes: texts of experiments, traces of accesses, checkpoints. None
//! panics, and what is read is written back as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use venice_access::AccessTrace;
use venice_experiment::{Experiment, Filter, checkpoint};
use venice_worlds::{catalogue, world_of};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(trace) = AccessTrace::decode(bytes) {
        assert_eq!(AccessTrace::decode(&trace.encode()).expect("it was written"), trace);
    }
    if let Ok((head, state)) = checkpoint::decode(bytes) {
        let file = checkpoint::encode(&head, state);
        assert_eq!(checkpoint::decode(&file).expect("it was written"), (head, state));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(experiment) = catalogue().read(text) else { return };
    let again = Experiment::from_toml(&experiment.to_toml()).expect("it was written");
    assert_eq!(again.to_toml(), experiment.to_toml());
    if let Ok(world) = world_of(&experiment) {
        let _ = world.points(&experiment, &Filter::default());
    }
});
