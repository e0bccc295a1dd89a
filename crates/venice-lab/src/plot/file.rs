//! Plots as files.

use std::path::Path;

use anyhow::{Context, Result};

/// One plot: the name of its file without the suffix, and the SVG document.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    pub(crate) name: String,
    pub(crate) svg: String,
}

/// Writes each plot to a file of its own in `folder`, which is created if it is missing.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write(plots: &[Plot], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for plot in plots {
        let file = folder.join(format!("{}.svg", plot.name));
        std::fs::write(&file, &plot.svg)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
