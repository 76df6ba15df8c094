//! A claim's bound: on which side of it a value lies, and how it is written.

use crate::statistics::Estimate;

/// A claim's bound with its numbers.
pub(super) enum Bound {
    Near {
        value: f64,
        percent: f64,
    },
    Sides {
        least: Option<f64>,
        most: Option<f64>,
    },
}

impl Bound {
    /// How far inside each of its sides a value is; negative outside.
    pub(super) fn margins(&self, measured: f64) -> Vec<f64> {
        match self {
            Self::Near { value, percent } => {
                let tolerance = value.abs() * percent / 100.0;
                vec![measured - (value - tolerance), value + tolerance - measured]
            }
            Self::Sides { least, most } => {
                let least = least.map(|least| measured - least);
                let most = most.map(|most| most - measured);
                least.into_iter().chain(most).collect()
            }
        }
    }

    /// The mean of the seeds' bounds, which differ where they are measured.
    pub(super) fn mean(measured: &[(f64, Self)]) -> Self {
        let mean = |of: &dyn Fn(&Self) -> Option<f64>| {
            let values: Vec<f64> = measured.iter().filter_map(|(_, bound)| of(bound)).collect();
            Estimate::of(&values).map(|estimate| estimate.value)
        };
        let near = |bound: &Self| match bound {
            Self::Near { value, .. } => Some(*value),
            Self::Sides { .. } => None,
        };
        let sides = |bound: &Self| match bound {
            Self::Near { .. } => (None, None),
            Self::Sides { least, most } => (*least, *most),
        };
        match (mean(&near), measured.first()) {
            (Some(value), Some((_, Self::Near { percent, .. }))) => Self::Near {
                value,
                percent: *percent,
            },
            _ => Self::Sides {
                least: mean(&|bound| sides(bound).0),
                most: mean(&|bound| sides(bound).1),
            },
        }
    }

    pub(super) fn text(&self) -> String {
        let figure = crate::document::figure;
        match self {
            Self::Near { value, percent } => format!("{} ± {percent} %", figure(*value)),
            Self::Sides {
                least: Some(least),
                most: Some(most),
            } => format!("{} to {}", figure(*least), figure(*most)),
            Self::Sides {
                least: Some(least), ..
            } => format!("≥ {}", figure(*least)),
            Self::Sides {
                most: Some(most), ..
            } => format!("≤ {}", figure(*most)),
            Self::Sides { .. } => String::new(),
        }
    }
}
