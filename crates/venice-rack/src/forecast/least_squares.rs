//! Least squares by Householder reflections with column pivoting: columns that depend on others are
//! found and left out.

/// The least share of the first column's norm that a column must have left to count as independent.
const RANK_TOLERANCE: f64 = 1e-8;

/// Returns the factors of `columns` whose sum comes closest to `target`. Columns that depend on
/// others get 0.
///
/// # Panics
/// If a column is not as long as `target`.
pub(super) fn solve(mut columns: Vec<Vec<f64>>, mut target: Vec<f64>) -> Vec<f64> {
    let (count, rows) = (columns.len(), target.len());
    assert!(columns.iter().all(|column| column.len() == rows), "columns as long as the target");
    let mut order: Vec<usize> = (0..count).collect();
    let mut diagonal = Vec::with_capacity(count);
    let mut heaviest = 0.0;
    for at in 0..count.min(rows) {
        let weight = |column: &Vec<f64>| norm(&column[at..]);
        // The first of equals: the order must not depend on anything else.
        let pivot =
            (at..count).rev().max_by(|a, b| weight(&columns[*a]).total_cmp(&weight(&columns[*b])));
        let pivot = pivot.expect("at least one column is left");
        let left = weight(&columns[pivot]);
        if at == 0 {
            heaviest = left;
        }
        if left <= heaviest * RANK_TOLERANCE || left == 0.0 {
            break;
        }
        columns.swap(at, pivot);
        order.swap(at, pivot);
        diagonal.push(reflect(&mut columns, &mut target, at, left));
    }
    back_substitute(&columns, &target, &diagonal, &order)
}

/// Reflects everything from row `at` on so that column `at` points along axis `at`, and returns the
/// diagonal entry. The column keeps the mirror's normal below its upper part.
fn reflect(columns: &mut [Vec<f64>], target: &mut [f64], at: usize, weight: f64) -> f64 {
    // Away from the column, so that nothing cancels out.
    let entry = if columns[at][at] > 0.0 { -weight } else { weight };
    let (done, rest) = columns.split_at_mut(at + 1);
    let normal = &mut done[at][at..];
    normal[0] -= entry;
    let square = dot(normal, normal);
    for other in rest.iter_mut().map(|column| &mut column[at..]).chain([&mut target[at..]]) {
        let factor = 2.0 * dot(normal, other) / square;
        other.iter_mut().zip(&*normal).for_each(|(value, part)| *value -= factor * part);
    }
    entry
}

fn back_substitute(
    columns: &[Vec<f64>],
    target: &[f64],
    diagonal: &[f64],
    order: &[usize],
) -> Vec<f64> {
    let mut factors = vec![0.0; columns.len()];
    for row in (0..diagonal.len()).rev() {
        let later: f64 =
            (row + 1..diagonal.len()).map(|at| columns[at][row] * factors[order[at]]).sum();
        factors[order[row]] = (target[row] - later) / diagonal[row];
    }
    factors
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(values: &[f64]) -> f64 {
    dot(values, values).sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn exact_solution_is_found() {
        let columns = vec![vec![1.0, 1.0, 1.0, 1.0], vec![0.0, 1.0, 2.0, 3.0]];
        let factors = solve(columns, vec![5.0, 3.0, 1.0, -1.0]);
        assert!(
            (factors[0] - 5.0).abs() < 1e-12 && (factors[1] + 2.0).abs() < 1e-12,
            "{factors:?}"
        );
    }

    #[test]
    fn dependent_columns_get_zero() {
        let one = vec![1.0, 2.0, 3.0, 5.0];
        let twice: Vec<f64> = one.iter().map(|value| 2.0 * value).collect();
        let factors = solve(vec![one.clone(), vec![0.0; 4], twice], one);
        assert_eq!(factors[1], 0.0);
        assert!((factors[0] + 2.0 * factors[2] - 1.0).abs() < 1e-12, "{factors:?}");
        assert_eq!(solve(vec![vec![0.0; 3]; 2], vec![1.0; 3]), [0.0; 2]);
        assert_eq!(solve(Vec::new(), vec![1.0]), [0.0; 0]);
        assert_eq!(solve(vec![Vec::new()], Vec::new()), [0.0]);
    }

    #[test]
    fn underdetermined_system_is_met_exactly() {
        let columns = vec![vec![1.0, 0.0], vec![0.0, 2.0], vec![1.0, 1.0]];
        let factors = solve(columns.clone(), vec![3.0, 4.0]);
        for row in 0..2 {
            let sum: f64 = columns.iter().zip(&factors).map(|(column, f)| column[row] * f).sum();
            assert!((sum - [3.0, 4.0][row]).abs() < 1e-12);
        }
    }

    proptest! {
        /// The residual is orthogonal to every column: no other factors come closer.
        #[test]
        fn residual_is_orthogonal(
            columns in prop::collection::vec(prop::collection::vec(-10.0..10.0, 12), 1..6),
            target in prop::collection::vec(-10.0..10.0, 12), repeated in any::<bool>(),
        ) {
            let mut columns = columns;
            if repeated {
                columns.push(columns[0].clone());
            }
            let factors = solve(columns.clone(), target.clone());
            prop_assert!(factors.iter().all(|factor| factor.is_finite()));
            let mut left = target;
            for (column, factor) in columns.iter().zip(&factors) {
                left.iter_mut().zip(column).for_each(|(left, value)| *left -= factor * value);
            }
            for column in &columns {
                prop_assert!(dot(column, &left).abs() < 1e-6, "{}", dot(column, &left));
            }
        }
    }
}
