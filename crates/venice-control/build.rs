//! Compiles the proto files, without a `protoc` binary.

use std::error::Error;

const PROTO_ROOT: &str = "proto";
const PROTO_FILES: [&str; 4] = [
    "venice/v1/identity.proto",
    "venice/v1/rack.proto",
    "venice/v1/monitor_node.proto",
    "venice/v1/node_agent.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO_ROOT}");
    let descriptors = protox::compile(PROTO_FILES, [PROTO_ROOT])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
