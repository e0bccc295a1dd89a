//! Tasks of mailboxes on an OpenCL device, in its confined host.

use std::time::Duration;

use venice_accel::mailbox::{Argument, Executable, Mailboxes, ResultCode};
use venice_accel::opencl::session::Session;
use venice_accel::pool::{Pool, PoolError};
use venice_rack::types::ServiceAccess;

use crate::common::{Fixture, PORTS, Port};
use crate::confined::pocl;

const LIMIT: Duration = Duration::from_secs(120);
const TWICE: &str = "kernel void twice(global const float *in, global float *out) { \
                     size_t at = get_global_id(0); out[at] = 2 * in[at]; }";

/// Starts the host of PoCL's device; `None`, with a remark: it is not there.
fn start(fixture: &Fixture, grant: u64, port: Port, test: &str) -> Option<ServiceAccess> {
    let device = pocl(test)?;
    Some(fixture.start(grant, "opencl", port, |spec| {
        let secret = spec.secret;
        let endpoints = std::mem::take(&mut spec.endpoints);
        *spec = venice_accel::opencl::drivers::host_spec(&device, 64 << 20, secret);
        spec.endpoints = endpoints;
    }))
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn kernel_doubles_input() {
    for port in PORTS {
        let fixture = Fixture::new();
        let Some(access) = start(&fixture, 1, port, "kernel_doubles_input") else { return };
        let mut mailboxes = Mailboxes::open(&access, LIMIT).unwrap();
        let twice = Executable::open_cl(TWICE, "twice");
        for count in [1_u16, 7, 4096, 60_000] {
            let input = floats((0..count).map(f32::from));
            let room = input.len() as u64;
            let (result, output) = mailboxes.run(&twice, &input, room).unwrap();
            assert_eq!(result.outcome, Ok(room), "{port:?}");
            assert_eq!(output, floats((0..count).map(|it| 2.0 * f32::from(it))), "{port:?}");
        }
        let (result, output) = mailboxes.run(&twice, &[], 0).unwrap();
        assert_eq!((result.outcome, output), (Ok(0), Vec::new()), "no work items");
        // The commands of OpenCL are there beside.
        let session = Session::open(&access).unwrap();
        assert!(session.description().has_placed_buffers);
        fixture.end(&access);
    }
}

#[test]
fn arguments_reach_kernel() {
    let fixture = Fixture::new();
    let Some(access) = start(&fixture, 1, Port::Shm, "arguments_reach_kernel") else { return };
    let mut mailboxes = Mailboxes::open(&access, LIMIT).unwrap();
    // Sums of rows, by way of local memory; ranges that no vector is aligned to.
    let source = "kernel void rows(global const int *in, uint width, local int *sums, \
                  global int *out) { size_t row = get_global_id(0); int sum = FIRST; \
                  for (uint at = 0; at < width; at++) sum += in[row * width + at]; \
                  sums[get_local_id(0)] = sum; out[row] = sums[get_local_id(0)]; }";
    let rows = Executable {
        options: "-DFIRST=100".to_owned(),
        global: [4, 1, 0],
        local: [2, 0, 0],
        arguments: vec![
            Argument::Input { offset: 4, bytes: 48 },
            Argument::Value(3_u32.to_le_bytes().to_vec()),
            Argument::Local(64),
            Argument::Output { offset: 8, bytes: 16 },
        ],
        ..Executable::open_cl(source, "rows")
    };
    let input: Vec<u8> = (0..13_i32).flat_map(i32::to_le_bytes).collect();
    let (result, output) = mailboxes.run(&rows, &input, 24).unwrap();
    assert_eq!(result.outcome, Ok(24));
    let sums: Vec<i32> =
        output[8..].as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    assert_eq!(sums, [106, 115, 124, 133]);
    fixture.end(&access);
}

#[test]
fn wrong_kernels_are_explained() {
    let fixture = Fixture::new();
    let Some(access) = start(&fixture, 1, Port::Shm, "wrong_kernels_are_explained") else { return };
    let mut pool = Pool::open([("node1".to_owned(), access.clone())], LIMIT).unwrap();
    let mut why = |executable: &Executable| match pool.map(executable, &[[0_u8; 16]]) {
        Err(PoolError::Task { source, .. }) => (source.code, source.message),
        other => panic!("{other:?}"),
    };
    let long: String = (0..12).map(|at| format!("nowhere{at}; ")).collect();
    let (code, log) = why(&Executable::open_cl(format!("kernel void f() {{ {long} }}"), "f"));
    assert_eq!(code, ResultCode::Build);
    assert!(log.len() > 256 && log.contains("nowhere0") && log.contains("nowhere11"), "{log}");
    let (code, said) = why(&Executable::open_cl(TWICE, "thrice"));
    assert_eq!((code, &*said), (ResultCode::Unsupported, "no kernel 'thrice'"));
    let (code, said) = why(&Executable::built_in("fft"));
    assert!(code == ResultCode::Unsupported && said.contains("kernel's source"), "{said}");
    let gap = Executable { global: [4, 0, 4], ..Executable::open_cl(TWICE, "twice") };
    assert_eq!(why(&gap).0, ResultCode::Malformed);
    let few = Executable { arguments: Vec::new(), ..Executable::open_cl(TWICE, "twice") };
    assert_eq!(why(&few).0, ResultCode::Failed);
    let wide = Executable {
        arguments: vec![Argument::Value(vec![0; 3]); 2],
        ..Executable::open_cl(TWICE, "twice")
    };
    assert_eq!(why(&wide).0, ResultCode::Malformed);
    // It still works.
    assert_eq!(pool.map(&Executable::open_cl(TWICE, "twice"), &[[0_u8; 16]]).unwrap().len(), 1);
    fixture.end(&access);
}

/// Runs in a process of its own, whose output the test below reads.
#[test]
#[ignore = "the program of another test"]
fn prints_for_other_test() {
    let fixture = Fixture::new();
    for (at, port) in PORTS.into_iter().enumerate() {
        let grant = at as u64 + 1;
        let Some(access) = start(&fixture, grant, port, "prints_for_other_test") else { return };
        let source = "kernel void say(global const int *in, global int *out) { \
                      out[0] = in[0]; printf(\"<%d>\", in[0]); }";
        let say = Executable { global: [1, 0, 0], ..Executable::open_cl(source, "say") };
        let long = "kernel void much(global const int *in, global int *out) { \
                    out[0] = 1; for (int i = 0; i < 12000; i++) printf(\"0123456789\\n\"); }";
        let much = Executable { global: [1, 0, 0], ..Executable::open_cl(long, "much") };
        let number = |number: i32| number.to_le_bytes().to_vec();
        {
            let mut mailboxes = Mailboxes::open(&access, LIMIT).unwrap();
            for turn in 0..3 {
                let (result, _) = mailboxes.run(&say, &number(turn), 4).unwrap();
                assert_eq!(result.outcome, Ok(4));
            }
        }
        let mut pool = Pool::open([("n1".to_owned(), access.clone())], LIMIT).unwrap();
        let inputs: Vec<_> = (10..20).map(number).collect();
        assert_eq!(pool.map(&say, &inputs).unwrap(), inputs);
        assert_eq!(pool.map(&much, &inputs[..1]).unwrap().len(), 1);
        drop(pool);
        fixture.end(&access);
    }
}

#[test]
fn kernels_print_on_own_output() {
    let Some(_) = pocl("kernels_print_on_own_output") else { return };
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.args(["--ignored", "--exact", "--nocapture", "tasks::prints_for_other_test"]);
    let output = program.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
    for number in (0..3).chain(10..20) {
        assert_eq!(said.matches(&format!("<{number}>")).count(), PORTS.len(), "{number}");
    }
    assert_eq!(said.matches("0123456789\n").count(), PORTS.len() * 12_000);
}

#[test]
fn deadly_task_fails_alone() {
    let fixture = Fixture::new();
    let mut accesses = Vec::new();
    for grant in 1..=4 {
        let Some(access) = start(&fixture, grant, Port::Shm, "deadly_task_fails_alone") else {
            return;
        };
        accesses.push((format!("node{grant}"), access));
    }
    let mut pool = Pool::open(accesses, LIMIT).unwrap();
    pool.set_reasons(|at| Some(format!("SIGSEGV of {at}")));
    // One input lets its kernel write far outside of its memory.
    let source = "kernel void f(global const int *in, global int *out) { \
                  size_t at = get_global_id(0); \
                  if (in[at] == 7) out[(size_t)1 << 40] = 1; out[at] = in[at]; }";
    let kernel = Executable::open_cl(source, "f");
    let good: Vec<_> = (100..140_i32).map(|it| it.to_le_bytes().to_vec()).collect();
    assert_eq!(pool.map(&kernel, &good).unwrap(), good);
    let mut bad = good.clone();
    bad[20] = 7_i32.to_le_bytes().to_vec();
    match pool.map(&kernel, &bad).unwrap_err() {
        PoolError::Task { task, source, .. } => {
            assert_eq!((task, source.code), (20, ResultCode::Failed));
            assert!(source.message.contains("lost while they ran it: of node"), "{source}");
            assert_eq!(source.message.matches("SIGSEGV of ").count(), 2, "{source}");
        }
        other => panic!("{other}"),
    }
    assert!(!pool.is_empty(), "some are left");
    assert_eq!(pool.map(&kernel, &good).unwrap(), good);
}
