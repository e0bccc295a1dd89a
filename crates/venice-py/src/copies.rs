//! How the copies of borrowed memory are, for `Copies` in `copies.py`.

/// In the order of the fields there.
pub type Copies = (u32, u64, u64, u64, u64, Vec<String>);

/// What Python gets of it.
pub fn copies(of: venice_client::Copies) -> Copies {
    let venice_client::Copies {
        copies, slabs, short_slabs, lost_slabs, rebuilt, lost_donors, ..
    } = of;
    (copies, slabs, short_slabs, lost_slabs, rebuilt, lost_donors)
}
