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
