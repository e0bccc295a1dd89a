//! Connected components: every vertex takes the least label among its neighbours until none changes.

use anyhow::Result;

use super::graph::{Graph, Shape};
use super::{Done, WorkArgs, Workload, digest};

/// Edges for each vertex: 21 461 edges for 8 192 nodes in the Venice paper, Table 1.
const EDGES_PER_VERTEX: f64 = 21_461.0 / 8_192.0;
/// Vertices for each of the breadth-first search's, whose graph has more edges: both take the same
/// memory.
const VERTICES_OF_SEARCH: u32 = 4;

/// Returns the graph's shape, by the scale of the breadth-first search's.
pub(super) fn shape(scale: u32) -> Shape {
    let vertices = VERTICES_OF_SEARCH << scale;
    Shape { vertices, edges: (f64::from(vertices) * EDGES_PER_VERTEX) as u64 }
}

/// Returns the size of graph and labels, in bytes.
pub(super) fn held_bytes(scale: u32) -> u64 {
    let Shape { vertices, edges } = shape(scale);
    let vertices = u64::from(vertices);
    Graph::held_bytes(vertices, 2 * edges) + vertices * size_of::<u32>() as u64
}

#[derive(Debug)]
pub(super) struct Components {
    graph: Graph,
    labels: Vec<u32>,
}

impl Workload for Components {
    fn build(args: &WorkArgs) -> Result<Self> {
        let graph = args.load_graph()?;
        let labels = vec![0; graph.vertices() as usize];
        Ok(Self { graph, labels })
    }

    fn run(&mut self, rounds: u64) -> Done {
        let mut done = Done::default();
        for _ in 0..rounds {
            for (label, vertex) in self.labels.iter_mut().zip(0..) {
                *label = vertex;
            }
            done.operations += self.graph.entries();
            while self.spread() {
                done.operations += self.graph.entries();
            }
        }
        done
    }

    fn digests(&self) -> Vec<u64> {
        let [starts, neighbours] = self.graph.digests();
        vec![digest::of_u32(&self.labels), starts, neighbours]
    }
}

impl Components {
    /// Runs one pass; returns true if any label changed.
    fn spread(&mut self) -> bool {
        let mut changed = false;
        for vertex in 0..self.graph.vertices() {
            let own = self.labels[vertex as usize];
            let neighbours = self.graph.of(vertex).iter();
            let least = neighbours.map(|&other| self.labels[other as usize]).min();
            if let Some(least) = least.filter(|&least| least < own) {
                self.labels[vertex as usize] = least;
                changed = true;
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_a_component() {
        let graph = Graph::uniform(Shape { vertices: 400, edges: 300 });
        let mut components = Components { graph, labels: vec![0; 400] };
        components.run(1);
        for vertex in 0..400 {
            for &neighbour in components.graph.of(vertex) {
                assert_eq!(
                    components.labels[vertex as usize],
                    components.labels[neighbour as usize]
                );
            }
        }
        let mut labels = components.labels.clone();
        labels.sort_unstable();
        labels.dedup();
        assert!(labels.len() > 10, "{} components", labels.len());
        // The least vertex of a component is its own label.
        assert!(labels.iter().all(|&label| components.labels[label as usize] == label));
    }
}
