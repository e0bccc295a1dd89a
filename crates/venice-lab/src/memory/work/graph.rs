//! Graphs in memory, as rows of neighbours, generated from a seed.
//!
//! Edges are drawn twice from the same seed, once to count and once to place them. That writes all
//! over the graph's memory, so the benchmark does it once and leaves the graph in a file for the
//! applications to load.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::digest;
use venice_measure::pattern::Random;
use venice_measure::zipf::Scatter;

/// Bytes read or written at a time.
const IO_BYTES: usize = 64 << 10;

/// Size of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Vertices.
    pub vertices: u32,
    /// Edges.
    pub edges: u64,
}

impl Shape {
    /// PageRank's graph in the Venice paper, Table 1.
    pub const PAPER: Self = Self { vertices: 1_488_712, edges: 8_678_566 };
    /// Half of it.
    pub const SMALL: Self = Self { vertices: 744_356, edges: 4_339_283 };
    /// Least number of vertices accepted.
    const LEAST: u32 = 16;
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "paper" => return Ok(Self::PAPER),
            "small" => return Ok(Self::SMALL),
            _ => {}
        }
        let wanted = || {
            format!(
                "write paper, small or VERTICESxEDGES ({} vertices or more), for example 100000x600000",
                Self::LEAST
            )
        };
        let (vertices, edges) = text.split_once('x').ok_or_else(wanted)?;
        let shape = Self {
            vertices: vertices.parse().map_err(|_| wanted())?,
            edges: edges.parse().map_err(|_| wanted())?,
        };
        if shape.vertices < Self::LEAST || !(1..=u64::from(u32::MAX)).contains(&shape.edges) {
            return Err(wanted());
        }
        Ok(shape)
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.vertices, self.edges)
    }
}

/// The neighbours of every vertex, one after the other.
#[derive(Debug)]
pub(super) struct Graph {
    /// First neighbour of each vertex; one entry more than there are vertices.
    starts: Vec<u64>,
    neighbours: Vec<u32>,
}

impl Graph {
    /// Builds the graph of the edges that `draw` gives: the same ones on each call. Each is entered
    /// at its first end, with `both` also at its second.
    fn of_edges<E: Iterator<Item = (u32, u32)>>(
        vertices: u32,
        both: bool,
        draw: impl Fn() -> E,
    ) -> Self {
        let mut starts = vec![0u64; vertices as usize + 2];
        for (from, to) in draw() {
            starts[from as usize + 2] += 1;
            if both {
                starts[to as usize + 2] += 1;
            }
        }
        for vertex in 2..starts.len() {
            starts[vertex] += starts[vertex - 1];
        }
        let mut neighbours = vec![0u32; starts[vertices as usize + 1] as usize];
        // The start of a vertex moves to its end while it is filled; that is the next one's start.
        let mut place = |from: u32, to: u32| {
            let at = &mut starts[from as usize + 1];
            neighbours[*at as usize] = to;
            *at += 1;
        };
        for (from, to) in draw() {
            place(from, to);
            if both {
                place(to, from);
            }
        }
        starts.truncate(vertices as usize + 1);
        Self { starts, neighbours }
    }

    /// Draws a directed graph like the web: any vertex links, mostly to a few popular ones. A row
    /// holds the vertices that link to its vertex.
    pub(super) fn web(shape: Shape) -> Self {
        let vertices = u64::from(shape.vertices);
        let scatter = &Scatter::new(vertices);
        Self::of_edges(shape.vertices, false, || {
            let mut random = Random::new(0x7765_6221);
            (0..shape.edges).map(move |_| {
                let from = random.below(vertices) as u32;
                // The cube of a uniform draw: half of all links go to an eighth of the vertices.
                let popular = (random.unit().powi(3) * vertices as f64) as u64;
                (scatter.key(popular.min(vertices - 1)) as u32, from)
            })
        })
    }

    /// Draws a directed graph whose links favour the first vertices: one at the relative position
    /// `x` (0 to 1) gets links in proportion to `x^(1/CROWDED - 1)`. A row holds the vertices that
    /// its vertex links to. Its parts, split by position, differ as the nodes of the
    /// composable-rack paper's Figure 11 do.
    pub(super) fn skewed(shape: Shape) -> Self {
        const CROWDED: f64 = 1.2;
        let vertices = u64::from(shape.vertices);
        Self::of_edges(shape.vertices, false, || {
            let mut random = Random::new(0x6372_6f77);
            (0..shape.edges).map(move |_| {
                let from = random.below(vertices) as u32;
                let popular = (random.unit().powf(CROWDED) * vertices as f64) as u64;
                (from, popular.min(vertices - 1) as u32)
            })
        })
    }

    /// Draws an undirected graph whose edges join any two vertices.
    pub(super) fn uniform(shape: Shape) -> Self {
        let vertices = u64::from(shape.vertices);
        Self::of_edges(shape.vertices, true, || {
            let mut random = Random::new(0x636f_6d70);
            (0..shape.edges)
                .map(move |_| (random.below(vertices) as u32, random.below(vertices) as u32))
        })
    }

    /// Draws an undirected R-MAT graph of `2^scale` vertices with Graph500's probabilities.
    ///
    /// Source: Chakrabarti, Zhan, Faloutsos, "R-MAT: A Recursive Model for Graph Mining", SDM 2004.
    pub(super) fn r_mat(scale: u32, edge_factor: u64) -> Self {
        let vertices = 1u64 << scale;
        let scatter = &Scatter::new(vertices);
        Self::of_edges(vertices as u32, true, || {
            let mut random = Random::new(0x726d_6174);
            (0..vertices * edge_factor).map(move |_| {
                let (from, to) = r_mat_edge(scale, &mut random);
                (scatter.key(from) as u32, scatter.key(to) as u32)
            })
        })
    }

    /// Returns the size of a graph with so many vertices and entries, in bytes.
    pub(super) fn held_bytes(vertices: u64, entries: u64) -> u64 {
        (vertices + 1) * size_of::<u64>() as u64 + entries * size_of::<u32>() as u64
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn save(&self, path: &Path) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::with_capacity(IO_BYTES, File::create(path)?);
            for length in [self.starts.len(), self.neighbours.len()] {
                file.write_all(&(length as u64).to_le_bytes())?;
            }
            for start in &self.starts {
                file.write_all(&start.to_le_bytes())?;
            }
            for neighbour in &self.neighbours {
                file.write_all(&neighbour.to_le_bytes())?;
            }
            file.flush()
        };
        write().with_context(|| format!("cannot write the graph {}", path.display()))
    }

    /// Reads a file of [`Graph::save`], from its beginning to its end.
    ///
    /// # Errors
    /// When the file cannot be read or holds no graph.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let reading = || format!("cannot read the graph {}", path.display());
        let file = File::open(path).with_context(reading)?;
        let len_bytes = file.metadata().with_context(reading)?.len();
        let mut file = BufReader::with_capacity(IO_BYTES, file);
        let mut word = || -> Result<u64> {
            let mut bytes = [0; 8];
            file.read_exact(&mut bytes).with_context(reading)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let (starts_len, neighbours_len) = (word()?, word()?);
        if starts_len == 0 || len_bytes != 16 + 8 * starts_len + 4 * neighbours_len {
            bail!("{} holds no graph", path.display());
        }
        let mut starts = Vec::with_capacity(starts_len as usize);
        for _ in 0..starts_len {
            starts.push(word()?);
        }
        let mut neighbours = Vec::with_capacity(neighbours_len as usize);
        let mut bytes = [0; 4];
        for _ in 0..neighbours_len {
            file.read_exact(&mut bytes).with_context(reading)?;
            neighbours.push(u32::from_le_bytes(bytes));
        }
        Ok(Self { starts, neighbours })
    }

    pub(super) fn vertices(&self) -> u32 {
        (self.starts.len() - 1) as u32
    }

    /// Returns the number of entered edges.
    pub(super) fn entries(&self) -> u64 {
        self.neighbours.len() as u64
    }

    pub(super) fn of(&self, vertex: u32) -> &[u32] {
        let range = self.starts[vertex as usize]..self.starts[vertex as usize + 1];
        &self.neighbours[range.start as usize..range.end as usize]
    }

    pub(super) fn digests(&self) -> [u64; 2] {
        [digest::of_words(self.starts.iter().copied()), digest::of_u32(&self.neighbours)]
    }
}

/// Draws an edge: at each level the quarter of the matrix that it lies in.
fn r_mat_edge(scale: u32, random: &mut Random) -> (u64, u64) {
    // Probabilities 0.57, 0.19, 0.19 and 0.05, of 65 536.
    const UPPER_LEFT: u64 = 37_356;
    const UPPER_RIGHT: u64 = UPPER_LEFT + 12_452;
    const LOWER_LEFT: u64 = UPPER_RIGHT + 12_452;
    let (mut from, mut to) = (0u64, 0u64);
    let mut draws = 0u64;
    for level in 0..scale {
        if level % 4 == 0 {
            draws = random.next_u64();
        }
        let draw = draws & 0xffff;
        draws >>= 16;
        from = from << 1 | u64::from(draw >= UPPER_RIGHT);
        to = to << 1 | u64::from((UPPER_LEFT..UPPER_RIGHT).contains(&draw) || draw >= LOWER_LEFT);
    }
    (from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_edges_at_their_ends() {
        let edges = [(0, 1), (2, 1), (2, 0), (4, 4)];
        let graph = Graph::of_edges(5, false, || edges.into_iter());
        let rows: Vec<&[u32]> = (0..5).map(|vertex| graph.of(vertex)).collect();
        assert_eq!(rows, [&[1][..], &[], &[1, 0], &[], &[4]]);
        let graph = Graph::of_edges(5, true, || edges.into_iter());
        let rows: Vec<&[u32]> = (0..5).map(|vertex| graph.of(vertex)).collect();
        assert_eq!(rows, [&[1, 2][..], &[0, 2], &[1, 0], &[], &[4, 4]]);
        assert_eq!((graph.vertices(), graph.entries()), (5, 8));
    }

    #[test]
    fn generated_graphs_have_their_shape() {
        let shape = Shape { vertices: 1000, edges: 6000 };
        let web = Graph::web(shape);
        assert_eq!((web.vertices(), web.entries()), (1000, 6000));
        let popular = (0..1000).map(|vertex| web.of(vertex).len()).max().unwrap();
        assert!(popular > 60, "no popular vertex: {popular} links at most");
        assert_eq!(Graph::uniform(shape).entries(), 12_000);
        let r_mat = Graph::r_mat(10, 14);
        assert_eq!((r_mat.vertices(), r_mat.entries()), (1024, 2 * 14 * 1024));
        let hub = (0..1024).map(|vertex| r_mat.of(vertex).len()).max().unwrap();
        assert!(hub > 300, "an R-MAT graph has hubs: {hub} edges at most");
    }

    #[test]
    fn load_refuses_a_truncated_graph() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph");
        let graph = Graph::uniform(Shape { vertices: 100, edges: 300 });
        graph.save(&path).unwrap();
        let loaded = Graph::load(&path).unwrap();
        assert_eq!((loaded.starts, loaded.neighbours), (graph.starts, graph.neighbours));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        assert!(Graph::load(&path).is_err());
        assert!(Graph::load(&folder.path().join("none")).is_err());
    }

    #[test]
    fn shape_text_round_trips() {
        for shape in [Shape::PAPER, Shape { vertices: 16, edges: 1 }] {
            assert_eq!(shape.to_string().parse(), Ok(shape));
        }
        assert_eq!("paper".parse(), Ok(Shape::PAPER));
        for wrong in ["", "5", "5x", "x5", "15x5", "100x0", "100x9999999999"] {
            assert!(wrong.parse::<Shape>().is_err(), "{wrong}");
        }
    }
}
