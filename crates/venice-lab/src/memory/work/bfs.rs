//! Breadth-first search as in Graph500: an R-MAT graph, several roots.

use anyhow::Result;

use super::graph::Graph;
use super::{Done, WorkArgs, Workload, digest};
use venice_measure::pattern::Random;

/// Edges for each vertex, as in the Venice paper, Table 1.
pub(super) const EDGE_FACTOR: u64 = 14;
/// Searches in one round.
const ROOTS: u64 = 2;
const UNSEEN: u32 = u32::MAX;

/// Returns the size of graph, levels and queue, in bytes.
pub(super) fn held_bytes(scale: u32) -> u64 {
    let vertices = 1u64 << scale;
    Graph::held_bytes(vertices, 2 * EDGE_FACTOR * vertices) + vertices * 2 * size_of::<u32>() as u64
}

#[derive(Debug)]
pub(super) struct Search {
    graph: Graph,
    /// Distance of each vertex from the last root, in steps.
    levels: Vec<u32>,
    queue: Vec<u32>,
    random: Random,
    /// Digest of the levels of all searches.
    result: u64,
}

impl Workload for Search {
    fn build(args: &WorkArgs) -> Result<Self> {
        let graph = args.load_graph()?;
        let vertices = graph.vertices() as usize;
        let (levels, queue) = (vec![UNSEEN; vertices], vec![0; vertices]);
        Ok(Self { graph, levels, queue, random: Random::new(0x0062_6673), result: 0 })
    }

    fn run(&mut self, rounds: u64) -> Done {
        let mut done = Done::default();
        for _ in 0..rounds * ROOTS {
            let root = self.root();
            done.operations += self.search(root);
            self.result = digest::of_words([self.result, digest::of_u32(&self.levels)]);
        }
        done
    }

    fn digests(&self) -> Vec<u64> {
        let [starts, neighbours] = self.graph.digests();
        vec![self.result, starts, neighbours]
    }
}

impl Search {
    /// Draws a vertex that has neighbours.
    fn root(&mut self) -> u32 {
        loop {
            let root = self.random.below(u64::from(self.graph.vertices())) as u32;
            if !self.graph.of(root).is_empty() {
                return root;
            }
        }
    }

    /// Searches from `root`; returns the number of edges visited.
    fn search(&mut self, root: u32) -> u64 {
        self.levels.fill(UNSEEN);
        self.levels[root as usize] = 0;
        self.queue[0] = root;
        let (mut next, mut end, mut edges) = (0, 1, 0);
        while next < end {
            let vertex = self.queue[next];
            next += 1;
            let level = self.levels[vertex as usize] + 1;
            let neighbours = self.graph.of(vertex);
            edges += neighbours.len() as u64;
            for &neighbour in neighbours {
                if self.levels[neighbour as usize] == UNSEEN {
                    self.levels[neighbour as usize] = level;
                    self.queue[end] = neighbour;
                    end += 1;
                }
            }
        }
        edges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_levels_differ_by_one() {
        let graph = Graph::r_mat(9, EDGE_FACTOR);
        let mut search = Search {
            levels: vec![UNSEEN; 512],
            queue: vec![0; 512],
            random: Random::new(1),
            result: 0,
            graph,
        };
        let root = search.root();
        assert!(search.search(root) > 512);
        assert_eq!(search.levels[root as usize], 0);
        for vertex in 0..512u32 {
            let level = search.levels[vertex as usize];
            for &neighbour in search.graph.of(vertex) {
                let other = search.levels[neighbour as usize];
                assert!(level == UNSEEN && other == UNSEEN || level.abs_diff(other) <= 1);
            }
        }
    }
}
