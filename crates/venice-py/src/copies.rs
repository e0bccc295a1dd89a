//! The state of the copies of borrowed memory, for `Copies` in `copies.py`.

/// The fields of `Copies`, in order.
pub type Copies = (u32, u64, u64, u64, u64, Vec<String>);

/// Converts the state for Python.
pub fn copies(of: venice_client::Copies) -> Copies {
    let venice_client::Copies {
        copies, slabs, short_slabs, lost_slabs, rebuilt, lost_donors, ..
    } = of;
    (copies, slabs, short_slabs, lost_slabs, rebuilt, lost_donors)
}
