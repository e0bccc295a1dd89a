//! The experiments that come with Venice.

macro_rules! shipped {
    ($($name:literal,)*) => {
        &[$(($name, include_str!(concat!("../../experiments/", $name, ".toml"))),)*]
    };
}

/// Names and texts of the experiments that come with Venice.
pub const SHIPPED: &[(&str, &str)] = shipped!["incast-1g", "incast-10g", "memcached-tail",];
