//! Whole racks and real programs. `scripts/test.sh` runs `programs::` one test at a time, on the
//! release build.

mod programs;
mod racks;
