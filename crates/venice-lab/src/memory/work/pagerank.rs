//! PageRank by pulling: every vertex adds up the shares of those that link to it.

use anyhow::Result;

use super::graph::{Graph, Shape};
use super::{Done, WorkArgs, Workload, digest};

const DAMPING: f64 = 0.85;
/// Passes over the graph in one round.
const ITERATIONS: u64 = 2;

/// Returns the size of graph, degrees, ranks and shares, in bytes.
pub(super) fn held_bytes(web: Shape) -> u64 {
    let vertices = u64::from(web.vertices);
    let of_vertex = size_of::<u32>() + 2 * size_of::<f64>();
    Graph::held_bytes(vertices, web.edges) + vertices * of_vertex as u64
}

#[derive(Debug)]
pub(super) struct PageRank {
    /// The vertices that link to each vertex.
    links: Graph,
    /// The number of vertices that each vertex links to.
    out_degrees: Vec<u32>,
    ranks: Vec<f64>,
    /// Share that each vertex gives to each that it links to.
    shares: Vec<f64>,
}

impl Workload for PageRank {
    fn build(args: &WorkArgs) -> Result<Self> {
        Ok(Self::of(args.load_graph()?))
    }

    fn run(&mut self, rounds: u64) -> Done {
        for _ in 0..rounds * ITERATIONS {
            self.iterate();
        }
        Done { operations: rounds * ITERATIONS * self.links.entries(), wrong: 0 }
    }

    fn digests(&self) -> Vec<u64> {
        let [starts, links] = self.links.digests();
        let own = [digest::of_f64(&self.ranks), digest::of_u32(&self.out_degrees)];
        vec![own[0], own[1], starts, links]
    }
}

impl PageRank {
    fn of(links: Graph) -> Self {
        let vertices = links.vertices() as usize;
        let mut out_degrees = vec![0u32; vertices];
        for vertex in 0..links.vertices() {
            for &from in links.of(vertex) {
                out_degrees[from as usize] += 1;
            }
        }
        let ranks = vec![1.0 / vertices as f64; vertices];
        Self { links, out_degrees, ranks, shares: vec![0.0; vertices] }
    }

    fn iterate(&mut self) {
        let vertices = self.ranks.len() as f64;
        // Vertices without links give their rank to all.
        let mut dangling = 0.0;
        for ((share, rank), degree) in
            self.shares.iter_mut().zip(&self.ranks).zip(&self.out_degrees)
        {
            match degree {
                0 => dangling += rank,
                _ => *share = rank / f64::from(*degree),
            }
        }
        let base = (1.0 - DAMPING + DAMPING * dangling) / vertices;
        for vertex in 0..self.links.vertices() {
            let links = self.links.of(vertex);
            let sum: f64 = links.iter().map(|&from| self.shares[from as usize]).sum();
            self.ranks[vertex as usize] = base + DAMPING * sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_sum_to_one() {
        let mut pagerank = PageRank::of(Graph::web(Shape { vertices: 500, edges: 3000 }));
        pagerank.run(10);
        let sum: f64 = pagerank.ranks.iter().sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        let most_linked = (0..500).max_by_key(|&vertex| pagerank.links.of(vertex).len()).unwrap();
        assert!(pagerank.ranks[most_linked as usize] > 10.0 / 500.0);
    }
}
